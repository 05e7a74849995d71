//! Framing, the messages of each service, and stores at the other end of a network.
//!
//! Every service shares the framing and the ERROR answer; each has a message module of its own. So
//! far there are two: `mirror` and `shared`. The paper's server answers two calls, `getfsinfo` and `getdata`
//! (SFSRO 4.2); ours answers *get head*, *get data* for many handles at once, and *get range* of an
//! immutable object. Byte-exact in `docs/formats/protocol.md`; reasons in decisions 0009 and 0027.
//! Nothing that arrives is trusted: a decoder checks every length before it allocates, and the
//! caller verifies the hash of what it asked for. Relies on `trust` for records and on `store` for
//! the traits that [`RemoteStore`] and [`HttpStore`] implement.
//!
//! | module | what it holds |
//! |---|---|
//! | [`session`] | TLS with raw keys, and the claim of a device |
//! | [`frame`] | hello, message header, limits of both |
//! | [`refusal`] | the ERROR answer and its codes |
//! | [`mirror`] | requests and answers between a reader and a mirror |
//! | [`remote`] | a replica behind a mirror, over one connection |
//! | [`location`] | SOURCE and LOCATION as users write them, and how they are opened |
//! | [`http`] | a replica behind a web server |
//! | [`shared`] | a device and the server of a shared volume |

pub mod frame;
pub mod http;
pub mod location;
pub mod mirror;
pub mod refusal;
pub mod remote;
pub mod session;
pub mod shared;

pub use http::{HttpAddress, HttpOptions, HttpStore};
pub use location::{Location, LocationError, Source};
pub use remote::{RemoteOptions, RemoteStore};
pub use store::object::{self, ObjectName};

/// Port of `bulla://host` when none is given.
pub const DEFAULT_PORT: u16 = 28552;
