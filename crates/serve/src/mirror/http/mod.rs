//! The repositories' own layout over HTTP/1.1, at `/VOLUMEID/...`: what any web server does for a
//! copied repository, from this daemon and under its limits (design `publish.md`, "Protocol";
//! docs/formats/repository.md).
//!
//! Only what the protocol names can be asked for: the head and the immutable objects. A name is
//! parsed into a value and never reaches the disk as text. TLS is a reverse proxy's matter; nothing
//! that is sent needs it. Relies on hyper for the protocol, on [`deadlines`] for deadlines against peers
//! who dawdle, and on the server's counters and limits.
//!
//! | module | what it holds |
//! |---|---|
//! | [`listen`] | connections: admitted, watched, ended |
//! | [`deadlines`] | what a connection is at, and until when it may be |
//! | [`respond`] | a request and its answer |
//! | [`range`] | which piece of a file is wanted |
//! | [`body`] | a file on its way out |

mod body;
mod deadlines;
mod listen;
mod range;
mod respond;

pub(crate) use listen::run;
