//! The block server of shared volumes: its rules explored, and its storage crashed, filled up and killed.

#![allow(clippy::unwrap_used, clippy::expect_used)] // tests fail by panicking

mod crash;
mod explorer;
mod full;
mod kill;
mod measure;
mod served;
mod spec;
mod support;
mod sweeping;
