//! What entries of a shared volume do: evaluation beside a file system written apart from it, hostile ops and chains
//! of entries, and the vectors of docs/formats/shared.md.
// The lint's exception for tests does not reach functions that several tests share.
#![allow(clippy::unwrap_used)]

mod agree;
mod chains;
mod checkpoints;
mod devices;
mod folds;
mod forget;
mod gathers;
mod holds;
mod hostile;
mod listing;
mod locks;
mod posix;
mod stored;
mod turns;
mod vectors;
mod world;

#[path = "../../../trust/src/tree/inode/tests/unhex.rs"]
mod unhex;
