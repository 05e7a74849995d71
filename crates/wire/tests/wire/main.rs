//! Remote stores against servers over real sockets, honest and hostile, in our protocol and over HTTP.
//! `xtask/tests.toml` names the modules that run alone.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod closing;
mod format_example;
mod hostile_servers;
mod http_hostile;
mod http_nginx;
mod later_servers;
mod long_messages;
mod reserved;
mod shared;
mod unchanged_head;
