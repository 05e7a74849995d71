//! The log of a shared volume (SUNDR, design `share.md`): the engine of a device and the server's orderer, as state
//! machines without input, output, clock or randomness.
//!
//! They are generic over hashes and signatures, and over what entries do, because the model in `tests/model` drives
//! the same machines with symbolic hashes. The form of an entry is judged by `trust_shared::form`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`engine`] | the client of one device |
//! | [`orderer`] | the server, as a machine |
//! | [`ledger`] | a verified prefix of the log, and what it says |
//! | [`read_rule`] | whether a device may use an entry that its author has not attested |
//! | [`scheme`] | what hashes and signs: types that the machines leave open |
//! | [`signed`] | the product's types: SHA-256, Ed25519, the formats of `trust_shared` |
//! | [`volume`] | what entries do: the interface to the volume's content |
//! | [`roster`] | the members of a volume, and the product's operations |
//! | [`ablation`] | the rules that tests leave out |
//! | [`prefixes`] | roots of the log's prefixes, with SHA-256 |
//! | [`keys`] | keys of devices, ready to verify |
//! | [`rows`] | a small map by device |
//! | [`checked_file`] | small files with a checksum, of a server and of a device |

pub mod ablation;
pub mod checked_file;
pub mod engine;
pub mod keys;
pub mod ledger;
pub mod orderer;
pub mod prefixes;
pub mod read_rule;
pub mod roster;
pub mod rows;
pub mod scheme;
pub mod signed;
pub mod volume;
