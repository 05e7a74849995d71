//! Connections of any service: accepts, admits, frames and ends them, and enforces limits and deadlines.
//!
//! A server has one [`Service`] and any number of listeners: TCP, TLS, Unix sockets. The purpose of this
//! module is to keep the server available: bounded memory, deadlines for slow clients, back-pressure, and a
//! clean shutdown. Relies on `wire` for the framing and on tokio for streams. Decision 0027 gives the
//! reasons for the trait.
//!
//! | module | what it holds |
//! |---|---|
//! | [`service`] | the trait, and the types by which a service answers |
//! | [`mailbox`] | answers completed later, and pushes |
//! | [`server`] | listeners, threads, shutdown |
//! | [`listener`] | listening TCP sockets |
//! | `worker` | the thread that accepts plain TCP |
//! | `accept` | accepting any other stream |
//! | `tls` | TLS sessions |
//! | `connection` | one client without its stream |
//! | `run`, `newcomer` | a connection on a stream, and on a socket just accepted |
//! | `outbox` | answers gathered for one write |
//! | [`account`] | bytes in memory, and each client's share of them |
//! | `pace` | how fast a client takes its answers |
//! | `share` | what the connections of one client hold together |
//! | `debtors` | which connections make room when memory is short |
//! | [`resources`] | what all connections share |
//! | [`limits`], `limiter`, [`counters`] | every limit, the number of connections, counters |
//! | [`peer`], `end` | the client of a connection, and why the connection ended |

pub(crate) mod accept;
pub mod account;
pub(crate) mod connection;
pub mod counters;
pub(crate) mod debtors;
pub(crate) mod end;
pub(crate) mod limiter;
pub mod limits;
pub mod listener;
pub mod mailbox;
pub(crate) mod newcomer;
pub(crate) mod outbox;
pub(crate) mod pace;
pub mod peer;
pub mod resources;
pub(crate) mod run;
pub mod server;
pub mod service;
pub(crate) mod share;
pub(crate) mod tls;
pub(crate) mod worker;

pub use account::{Account, Held};
pub use counters::{Counter, Counters};
pub use limits::Limits;
pub use listener::{Listen, ListenError};
pub use mailbox::{Completion, PushError, Pusher};
pub use peer::Peer;
pub use resources::Resources;
pub use server::Server;
pub use service::{Opening, Request, Responder, Service};
