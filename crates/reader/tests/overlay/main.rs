//! The overlay of unstored blocks, over a store that remembers what it was asked for.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bounds;
mod model;
mod store_log;
mod threads;
mod tree;
