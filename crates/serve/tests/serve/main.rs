//! The mirror over real sockets: what honest clients get, what hostile ones cost, and what happens when memory or
//! descriptors run out. `xtask/tests.toml` names the modules that run alone. A test that needs limits of its own
//! starts this binary again as a child.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod conformance;
mod crowd;
mod hostile_clients;
mod http;
mod later_clients;
mod repository;
mod serving;
mod shared;
mod shortage;
mod support;
mod unread_answers;
