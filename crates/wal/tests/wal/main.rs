//! The log on real files and on simulated machines that crash and lie.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod basic;
mod claims;
mod commit;
mod crash;
mod faults;
mod file_device;
mod hostile;
mod mending;
mod patrol;
mod vectors;
mod volume;
