//! The daemons: one module for connections, and one for each service on them.
//!
//! [`net`] accepts connections, holds them to limits and deadlines and frames messages; it knows no service.
//! [`mirror`] looks up and sends (SFSRO 4.2's `sfsrosd`), [`shared`] serves the volumes that many devices write.
//! Relies on `wire` for the framing and the messages, and on `share_server` for what a shared volume's server does.
//!
//! | module | what it holds |
//! |---|---|
//! | [`net`] | listeners, connections, limits, deadlines, shutdown |
//! | [`mirror`] | a mirror of published volumes, over the bulla protocol and HTTP |
//! | [`shared`] | the server of a shared volume |
//! | [`witness`] | the HTTP service of a witness of logs |
//! | [`metrics`] | the page of metrics and its responder |

pub mod metrics;
pub mod mirror;
pub mod net;
pub mod shared;
pub mod witness;
