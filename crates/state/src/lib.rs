//! State that a machine must keep, independent of its caches (design `README.md`, law 7).
//!
//! | module | content |
//! |---|---|
//! | [`volume_state`] | the floor of one volume and the files beside it; every change under a lock, fsynced |
//! | [`signing_state`] | what this machine has signed of one volume, under a lock of its own |
//! | `evidence` | evidence of forks and rollbacks, within quotas |
//! | [`journal`] | an append-only file whose records are fsynced at most a second later |
//! | [`witness`] | what a witness of logs has cosigned, and evidence of what it refused |
//! | [`own_files`] | files of bulla's own, by their first bytes |
//! | [`clock`] | the wall clock: the system's or an injected one, and one that never runs backwards |
//! | `lock` | a lock file with a deadline |
//! | `blocking` | work for the pool of blocking threads that is abandoned at a deadline |
//! | [`private`] | directories of mode 0700 and files of mode 0600 |
//! | [`error`] | errors of the state directory |
//!
//! Each call takes a deadline. Asynchronous calls run on tokio's pool of blocking threads, so no lock is held
//! and no fsync is done on a thread of the runtime; synchronous calls need no runtime (docs/decisions/0029).
//! Relies on `trust` for the encoding of floors. Does not know networks or stores.

mod blocking;
pub mod clock;
pub mod error;
mod evidence;
pub mod journal;
mod lock;
pub mod own_files;
pub mod private;
pub mod signing_state;
pub mod volume_state;
pub mod witness;

pub use clock::{Clock, ManualClock, SteadyClock};
pub use error::StateError;
pub use journal::Journal;
pub use signing_state::SigningState;
pub use volume_state::{LockedState, VolumeState, default_directory};
