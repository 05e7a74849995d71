//! Finds, follows and reads a published volume (SFSRO 3.2, 3.4 and 4.2).
//!
//! From the outside in: [`volume`] (an open volume) → `search` (the newest version that can be fetched) →
//! [`heads`] (heads, judged against the floor) and [`snapshot`] (one version) → `reader::Tree` (names and
//! bytes, all verified) → opened replicas, of which nothing is believed. Does not know how a replica is
//! reached: `wire::location` opens them.
//!
//! | module | what lives there |
//! |---|---|
//! | [`volume`] | an open volume: replicas, floor, and the adopted version |
//! | [`options`] | how a volume is opened and read |
//! | [`snapshot`] | one version |
//! | [`heads`] | one round of heads: fetch, verify, adopt |
//! | `consistency` | the proof that the log of a new head contains the log of the floor |
//! | `search` | the newest version whose root can be fetched |
//! | `offline` | opening a volume while no replica answers |
//! | [`history`], [`difference`] | earlier versions, and how two versions differ |
//! | [`extract`], [`verify`] | walks over a whole volume |
//! | [`error`] | what can go wrong |

mod consistency;
pub mod difference;
pub mod error;
pub mod extract;
pub mod heads;
pub mod history;
mod offline;
pub mod options;
mod search;
pub mod snapshot;
pub mod verify;
pub mod volume;

pub use error::VolumeError;
pub use reader::Fetch;
pub use snapshot::Snapshot;
pub use volume::{Refreshed, Volume, VolumeOptions};
