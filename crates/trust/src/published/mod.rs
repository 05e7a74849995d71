//! A published volume: the statements of its publisher, and the decision whether a reader believes them.
//! Relies on all other modules of the crate.

pub mod checkpoint;
mod contradiction;
pub mod earlier;
pub mod evidence;
pub mod floor;
pub mod forks;
pub mod head;
pub mod judge;
pub mod offer;
pub mod path_proof;
pub mod proposal;
mod reduced;
pub mod request;
pub mod root;
pub mod sighting;
pub mod split_view;
mod standing;
mod terms;
pub mod timestamp;
pub mod timestamp_request;
pub mod verdict;
pub mod version_name;
pub mod witness;
