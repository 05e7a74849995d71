//! What a machine must remember, whatever happens to its caches (design `README.md`, law 7).
//!
//! | module | what lives there |
//! |---|---|
//! | [`volume_state`] | the floor of one volume, the heads beside it, evidence; under a lock |
//! | [`keyfile`] | a secret key on disk, as it is or under a passphrase |
//! | [`clock`] | the wall clock, which never runs backwards while a process runs |
//! | [`error`] | what can go wrong with the state directory |
//!
//! Relies on `trust` for the encoding of floors and keys. Knows no network and no store.

pub mod clock;
pub mod error;
pub mod keyfile;
pub mod volume_state;

pub use clock::Clock;
pub use error::StateError;
pub use volume_state::{LockedState, State, default_directory};
