//! A repository that follows a volume (SFSRO 3.3, pulldb; design `publish.md`, *Replication*).
//!
//! | module | what lives there |
//! |---|---|
//! | [`pull`] | brings a repository up to the newest version that the sources have whole |
//! | [`prune`] | frees the space of blocks that no kept version reaches |
//! | [`note`] | which part of which version a replica holds |
//!
//! Relies on `volume` for judging heads, on `trust::reach` for walking trees and on `store::Writer` for what
//! it writes.

pub mod note;
pub mod prune;
pub mod pull;
