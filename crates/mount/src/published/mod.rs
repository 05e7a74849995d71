//! The published volume as a read-only file system.

mod attributes;
mod bridge;
mod directory;
mod failure;
mod freshness;
mod listing;
pub mod nodes;
mod operations;
pub mod options;
pub mod report;
mod seeking;
pub mod session;
