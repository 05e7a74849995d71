//! Replicas that follow a volume: honest sources, hostile ones, crashes and full disks (design
//! `quality.md`, *Adversaries*, *Crashes*). A replica holds the old version whole or the new one whole.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod crashes;
mod follow;
mod history;
mod lies;
mod policies;
mod prune;
mod waiting;
mod world;
