//! A published volume: what its publisher states, and whether a reader believes it. Relies on all other
//! modules of the crate.

pub mod checkpoint;
pub mod earlier;
pub mod floor;
pub mod head;
pub mod judge;
pub mod offer;
pub mod path_proof;
pub mod request;
pub mod root;
pub mod timestamp;
pub mod verdict;
