//! A published volume as its readers hold it (SFSRO 3.2, 3.4 and 4.2).
//!
//! From the outside in: [`volume`] (heads, floor, adoption) → [`snapshot`] (one version) →
//! `reader::Tree` (names and bytes, all verified) → opened replicas, which are believed in nothing. Does
//! not know how a replica is reached: `wire::location` opens them.
//!
//! | module | what lives there |
//! |---|---|
//! | [`volume`] | an open volume: replicas, floor, and the adopted version |
//! | [`snapshot`] | one version |
//! | `asker` | one round of heads, judged against the floor |
//! | [`growth`] | the proof that the log of a new head only grew |
//! | `offline` | a start while no place answers |
//! | [`history`], [`difference`] | earlier versions, and how two versions differ |
//! | [`extract`], [`verify`] | what walks a whole volume |
//! | [`error`] | what can go wrong |

mod asker;
pub mod difference;
pub mod error;
pub mod extract;
pub mod growth;
pub mod history;
mod offline;
pub mod snapshot;
pub mod verify;
pub mod volume;

pub use error::VolumeError;
pub use reader::{Fetch, ReadError};
pub use snapshot::Snapshot;
pub use volume::{Refreshed, Volume, VolumeOptions};
