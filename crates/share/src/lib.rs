//! A volume that many devices write through a server that none of them trusts (SUNDR, design `share.md`).
//!
//! The client and the server of the ordering protocol as state machines without input, output, clock or randomness.
//! They are generic over hashes and signatures, and over what entries do, because the model in `tests/model` drives
//! the same machines with symbolic hashes. The form of an entry is judged by `trust_shared::form`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`admission`] | how a device is admitted, over a link |
//! | [`blocks`] | the block server |
//! | [`disk`] | what a device must not forget: its floor, and what it has sent |
//! | [`home`] | the shared volumes of a user on this machine |
//! | [`client`] | a device: engine, disk, connection, calls of programs |
//! | [`reading`] | whether a device may use an entry that its author has not attested |
//! | [`scheme`] | what hashes and signs: types that the machines leave open |
//! | [`signed`] | the product's types: SHA-256, Ed25519, the formats of `trust_shared` |
//! | [`volume`] | what entries do: the interface to the volume's content |
//! | [`roster`] | the members of a volume, and the product's operations |
//! | [`files`] | the files of a volume: calls of programs, and their answers |
//! | [`rules`] | the rules that tests leave out |
//! | [`prefixes`] | roots of the log's prefixes, with SHA-256 |
//! | [`keys`] | keys of devices, ready to verify |
//! | [`ledger`] | a verified prefix of the log, and what it says |
//! | `snapshot` | what a device's floor comes to, for a restart |
//! | [`engine`] | the client of one device |
//! | [`orderer`] | the server, as a machine |
//! | [`host`] | the server of a volume: the orderer and the block server over one directory |
//! | [`checkpoint`] | the state of a log as rows that checkpointers sign, and devices that start from them |
//! | [`rows`] | a small map by device |

pub mod admission;
pub mod blocks;
pub mod checkpoint;
pub mod client;
pub mod disk;
pub mod engine;
pub mod files;
pub mod home;
pub mod host;
pub mod keys;
pub mod ledger;
pub mod orderer;
pub mod prefixes;
pub mod reading;
pub mod roster;
pub mod rows;
pub mod rules;
pub mod scheme;
mod sealed;
pub mod signed;
mod snapshot;
pub mod volume;
