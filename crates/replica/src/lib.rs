//! A repository that follows a volume (SFSRO 3.3, pulldb; design `publish.md`, *Replication*).
//!
//! | module | what lives there |
//! |---|---|
//! | [`pull`] | bring a repository up to the newest version that the places have whole |
//! | [`prune`] | give back the room of what no kept version reaches |
//!
//! Relies on `volume` for judging heads and on `store::Writer` for what it writes.

pub mod prune;
pub mod pull;
