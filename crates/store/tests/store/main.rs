//! Stores on real, damaged and crashing disks: they conform, survive, and refuse what is damaged.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod blocking;
mod conformance;
mod crash;
mod golden;
mod hostile;
mod log;
mod mend;
mod model;
mod planted;
mod repository;
mod sink;
mod sweeping;
