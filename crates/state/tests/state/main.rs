//! State on a real disk, shared with other processes.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod evidence;
mod locks;
