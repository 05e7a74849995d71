//! The repositories' own layout over HTTP/1.1, at `/VOLUMEID/...`: the same service as a web server with a
//! copied repository gives, from this daemon and within its limits (docs/formats/repository.md).
//!
//! A client can ask for the head and the immutable objects only. A name is parsed into a value and
//! never reaches the disk as text. TLS is left to a reverse proxy: nothing that is sent is secret.
//! Relies on hyper for the protocol, on `deadlines` against slow clients, and on the server's
//! counters and limits.
//!
//! | module | what it holds |
//! |---|---|
//! | `listen` | a connection from its first byte to its end |
//! | `deadlines` | the phase of a connection, and its deadline |
//! | `respond` | a request and its response |
//! | `range` | the part of a file that a request asks for |
//! | `body` | a file that is being sent |

mod body;
mod deadlines;
mod listen;
mod range;
mod respond;

pub(crate) use listen::Http;
