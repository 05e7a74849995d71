//! The daemons: one module for connections, and one for each service on them.
//!
//! [`net`] accepts connections, holds them to limits and deadlines and frames messages; it knows no
//! service. [`mirror`] is the first service: it looks up and sends (SFSRO 4.2's `sfsrosd`). Relies
//! on `wire` for the framing and the messages.
//!
//! | module | what it holds |
//! |---|---|
//! | [`net`] | listeners, connections, limits, deadlines, shutdown |
//! | [`mirror`] | a mirror of published volumes, over the bulla protocol and HTTP |
//! | [`metrics`] | the page of metrics and its responder |

pub mod metrics;
pub mod mirror;
pub mod net;
