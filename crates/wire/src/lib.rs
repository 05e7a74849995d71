//! Framing, the protocol's messages, and the client half of a connection.
//!
//! The paper's server answers two calls, `getfsinfo` and `getdata` (SFSRO 4.2); ours answers *get
//! head*, *get data by handle* for many handles at once, and *get range* of an immutable object.
//! Byte-exact in `docs/formats/protocol.md`; the reasons in `docs/decisions/0009-protocol.md`.
//! Nothing that arrives here is believed: decoders bound every length before they allocate, and
//! whoever asked still has to hash what came. Relies on `trust` for records and on `store` for the
//! traits that [`RemoteStore`] carries out.
//!
//! | module | what it holds |
//! |---|---|
//! | [`frame`] | hello, message header, limits |
//! | [`location`] | SOURCE and LOCATION as people write them, and how they are opened |
//! | [`message`] | requests, answers, error codes |
//! | [`http`] | a replica behind a web server |
//! | [`remote`] | a replica at the other end of a connection |

pub mod frame;
pub mod http;
pub mod location;
pub mod message;
pub mod remote;

pub use http::{HttpAddress, HttpOptions, HttpStore};
pub use location::{Location, LocationError, Source};
pub use remote::{RemoteOptions, RemoteStore};
pub use store::object::{self, ObjectName};

/// Port of `bulla://host` when none is given.
pub const DEFAULT_PORT: u16 = 28552;
