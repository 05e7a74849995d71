//! Custody of keys: where a secret key lies, and how it is opened or used.
//!
//! | module | content |
//! |---|---|
//! | [`keyfile`] | a secret key on disk, plain or under a passphrase |
//! | [`elsewhere`] | keys that a program or an ssh-agent signs with |
//! | [`slots`] | key slots of a protected device: ways to open its key |
//! | `stretch` | a passphrase becomes a key: Argon2id within bounds |
//!
//! Knows no volumes, no state directory and no network.

pub mod elsewhere;
pub mod keyfile;
pub mod slots;
mod stretch;
