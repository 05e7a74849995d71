//! The server of shared volumes on a network: [`share_server::host::Host`]s as a service of [`crate::net`]
//! (`docs/formats/shared-protocol.md`, decision 0046).
//!
//! This module decides which device a client is and which requests it may send; the host carries them out. Nothing
//! blocks a thread that serves connections: what reads a disk runs on blocking threads, a bounded number at a time, and
//! what waits for a commit is answered by the thread that made it durable. A client that does not read costs a cursor:
//! its next delivery is made when it has taken the one before.
//!
//! | module | what lives there |
//! |---|---|
//! | `service` | what a client may send, and when |
//! | `member` | a device that has entered: messages of its session |
//! | `deliver` | what it is sent |
//! | `blocks` | STORE and PSTORE |
//! | `reads` | what waits for a disk: RETRIEVE, CSTORE, DECREF, LEAVES, BODIES |
//! | `mailbox` | POST and TAKE |
//! | `cost` | how much a client has done, and when it rests |
//! | `refuse` | what a client is told when the host refuses |
//! | [`metrics`] | what is told to a monitoring system |
//! | `server` | [`Server`] |

mod blocks;
mod cost;
mod deliver;
mod mailbox;
mod member;
pub mod metrics;
mod reads;
mod refuse;
mod server;
mod service;

pub use server::{Server, TlsError, limits};
pub use service::{Session, SharedService};
