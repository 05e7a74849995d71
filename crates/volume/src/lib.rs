//! An open published volume: finds, follows and reads its versions (SFSRO 3.2, 3.4 and 4.2).
//!
//! From the outside in: [`Volume`] (heads, floor, adoption) → [`Snapshot`] (one version) →
//! `reader::Tree` (names and bytes, all verified) → opened replicas, which are not trusted. This crate
//! does not know how a replica is reached: `wire::location` opens them.
//!
//! `examples/read_file.rs` opens replicas as well; `examples/check_proof.rs` needs none.
//!
//! | module | what lives there |
//! |---|---|
//! | [`volume`] | an open volume: replicas, floor, and the adopted version |
//! | [`options`] | how a volume is opened and read |
//! | `snapshot` | one version: [`Snapshot`] |
//! | [`heads`] | one round of heads: fetch, verify, adopt |
//! | `policies` | fetches the policies that heads rely on and do not carry |
//! | [`kept`] | the head that is kept of the version in use, and evidence |
//! | `consistency` | the proof that the log of a new head contains the log of the floor |
//! | `search` | the newest version whose root can be fetched |
//! | `offline` | opening a volume while no replica answers |
//! | [`history`] | earlier versions |
//! | `past` | versions of the log by their numbers, proved to be in it |
//! | [`compare`] | whether two readers were shown one log |
//! | [`forks`] | the forks that this machine remembers, and how the user settles them |
//! | `prove` | proofs for paths, which others check without a network |
//! | [`profile`] | lists of what a program reads when it starts |
//! | [`error`] | what can go wrong |

pub mod compare;
mod consistency;
pub mod error;
pub mod forks;
pub mod heads;
pub mod history;
pub mod kept;
mod offline;
pub mod options;
mod past;
mod policies;
pub mod profile;
mod prove;
mod search;
mod snapshot;
pub mod volume;

pub use error::VolumeError;
pub use past::VersionRef;
pub use reader::{Fetch, ReadError};
pub use snapshot::Snapshot;
pub use volume::{Candidate, Demands, Refreshed, Volume, VolumeOptions, claimed_id};
