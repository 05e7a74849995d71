//! Tests of protected devices through their public interface. Simulated devices come from `sim`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod nbd;
mod operation;
