//! The library against honest and hostile replicas and publishers (design `quality.md`, *Adversaries*): extraction,
//! verification, walks and comparisons of published volumes. Those of shared volumes are in the tests of the command
//! line, which have servers and several devices.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod extracting;
mod extracting_on;
mod later;
mod support;
mod totals;
mod walking;
// Worlds of the tests of `volume`.
#[path = "../../../volume/tests/volume/far.rs"]
mod far;
#[path = "../../../volume/tests/volume/world.rs"]
mod world;
