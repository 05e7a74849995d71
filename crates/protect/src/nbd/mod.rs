//! Shows a protected device to programs of this machine by the NBD protocol: qemu, nbdcopy, fio, the kernel's `nbd`.
//!
//! Blocking threads over [`Block`](crate::Block), no runtime: the device blocks too. The protocol is two state machines
//! without I/O, [`Negotiation`] and [`Requests`]; every length is judged (`export`) before memory is taken. A client has
//! one thread that reads requests, and one that waits if the client is slow to read replies. Reads and writes are carried out by two separate groups of
//! threads, so that reads go on while writes wait for room on the device. Decision: docs/decisions/0039-nbd.md.
//!
//! A client can hold a bounded share of memory and nothing else: half a request, replies that nobody reads, options
//! without end and too many connections are cut off.
//!
//! | module | what lives there |
//! |---|---|
//! | `wire` | numbers and messages of the protocol |
//! | `negotiation` | the handshake, without I/O |
//! | `export` | which requests are allowed |
//! | `requests` | the stream of requests, without I/O |
//! | `in_flight` | what a client asked for and was not sent yet, bounded |
//! | `workers` | the threads that call the device |
//! | `service` | what clients share: threads, limits |
//! | `client` | one connection |
//! | `address` | sockets |
//! | `server` | accepting, the number of clients, the end |

mod address;
mod client;
mod export;
mod in_flight;
mod negotiation;
mod requests;
mod server;
mod service;
mod wire;
mod workers;

pub use address::{Address, ListenError};
pub use export::{Command, Export};
pub use negotiation::{MAX_OPTION_DATA_BYTES, MAX_OPTIONS, Negotiation, Progress};
pub use requests::{Event, Input, Requests};
pub use server::{Server, Stopped, Totals};
pub use service::Limits;
pub use wire::NbdError;

/// How a client broke the protocol, so that its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Flags that the server did not offer.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option or a request does not begin with its magic number.
    #[error("wrong magic number")]
    Magic,
    /// More data than any option needs.
    #[error("an option is longer than {MAX_OPTION_DATA_BYTES} bytes")]
    OptionTooLong,
    /// Options without end.
    #[error("more than {MAX_OPTIONS} options")]
    TooManyOptions,
    /// A payload that would be an attack to read.
    #[error("a write of {0} bytes")]
    PayloadTooLong(u32),
    /// The negotiation took too long.
    #[error("the negotiation was not finished in time")]
    SlowNegotiation,
    /// A request was begun and not sent whole.
    #[error("a request was not sent whole in time")]
    SlowRequest,
    /// Replies waited too long for the client to read them.
    #[error("replies were not read in time")]
    SlowReader,
    /// The client closed the connection within a request.
    #[error("the connection ended within a request")]
    Cut,
}
