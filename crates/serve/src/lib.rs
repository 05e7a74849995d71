//! The mirror daemon: looks up and sends (SFSRO 4.2's `sfsrosd`, design `publish.md` "Protocol").
//!
//! It checks nothing, signs nothing and holds no key: what it could lie about, clients check. So
//! all of this crate is about staying up: bounded memory, deadlines against peers who dawdle, a
//! slow disk that must not stall ten thousand connections, and a clean end. Relies on `wire` for
//! the protocol and on [`shelf::Shelf`] for what it serves.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | listening, admission of connections, new heads, the end |
//! | `seats` | who may come in |
//! | `listener`, `worker` | one listening socket and one thread for each processor |
//! | `connection` | one client: requests in, answers out |
//! | `disk_read` | what waits for the disk, apart from everything else |
//! | `outbox` | answers gathered for one vectored write |
//! | `landing` | the head, and what a newcomer needs next |
//! | `ways` | the ways into the tree that many take |
//! | `hot` | answers that are asked for often |
//! | `http` | the repositories' own layout for readers over HTTP |
//! | [`shelf`] | what a server needs of a repository |
//! | [`repository`] | a repository on disk as such |
//! | [`limits`] | every bound, with its default |
//! | [`counters`], [`metrics`] | what happened, and the page that tells it |

mod connection;
pub mod counters;
mod disk_read;
pub mod error;
mod hot;
mod http;
mod landing;
pub mod limits;
mod listener;
pub mod metrics;
mod outbox;
pub mod repository;
mod seats;
pub mod server;
pub mod shelf;
mod ways;
mod worker;

pub use counters::Counters;
pub use error::ServeError;
pub use limits::Limits;
pub use listener::Listen;
pub use server::Server;
pub use shelf::Shelf;
