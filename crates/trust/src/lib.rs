//! What decides whether bytes of a published volume are believed, and what every job builds on. The rules of shared
//! volumes are in `trust-shared`; what else an auditor reads is in `SECURITY.md`.
//!
//! Sans-I/O: no clock, no network, no files, no async, no `unsafe`. Every other crate passes bytes in and
//! gets verified values or a [`Reject`] back. The modules are grouped in directories, and each directory
//! relies on those before it: blocks and their encoding at the top, then [`tree`], [`reach`], [`history`],
//! [`statement`], [`published`]. Each module is also exported at the root of the crate:
//!
//! | module | what it does | source |
//! |---|---|---|
//! | [`handle`], [`kind`] | the name of a block: keyed hash of kind and plaintext | SFSRO 3.2 |
//! | [`text`] | handles, volume ids and keys as text with a checksum | design `trees.md` |
//! | [`calendar`] | times in messages | RFC 3339 |
//! | [`encode`] | the one encoding style: canonical, bounded, never panicking | |
//! | [`frame`] | a block as it is stored and sent | |
//! | [`mod@array`] | the array tree: file content as ordered blocks with lengths | SFSRO 3.2.1, design `trees.md` |
//! | [`map`] | the map tree: sorted keys, one root per set, proofs of presence and absence | design `trees.md` |
//! | [`inode`] | the type, attributes and content of a file, stored in its directory entry | SFSRO 3.2.1 |
//! | [`reach`] | the one walk over all blocks that a root needs, and over one path | design `README.md` |
//! | [`change`] | the differences between two versions of a tree, for people | |
//! | [`record`] | a frame with its claimed handle: the unit of segments and answers | |
//! | [`key`], [`algorithm`], [`signatures`], [`tally`] | Ed25519, keys of unknown algorithms, counting the signatures of a role | RFC 8032 |
//! | [`signer`] | keys that sign, in this process or elsewhere | |
//! | [`statement`], [`volume_id`] | the envelope of everything signed; the volume id | `trees.md`, *Statements* |
//! | [`policy`], [`roles`], [`chain`] | which keys may sign for a volume, from its genesis on | rules 1, 2, 5 |
//! | [`root`], [`version_name`], [`timestamp`] | which tree is current, and a fresh statement that it still is | SFSRO 3.1 |
//! | [`head`] | the one mutable file of a replica | `trees.md`, *Head* |
//! | [`floor`], [`forks`], [`judge`], [`offer`], [`verdict`] | what a reader has seen, and whether it believes a head | rules 2-6, *Floor* |
//! | [`history`], [`checkpoint`], [`witness`] | the append-only log, checkpoints signed by witnesses, and what a witness checks | RFC 6962, C2SP |
//! | [`tiles`], [`prefix`] | the log's inner hashes, and the proof that it only grew | C2SP, `docs/decisions/0015` |
//! | [`evidence`] | what refused heads prove, for people | |
//! | [`earlier`] | replaced records, read from the log and proved to be in it | |
//! | [`sighting`], [`split_view`] | what a reader has seen, for others to compare; evidence that two were shown two logs | RFC 6962 |
//! | [`path_proof`] | proof that a path is in a volume or is not, for a reader without a network | design `trees.md`, *Proofs* |
//! | [`request`] | a version sent to a machine that holds the key, and the signed answer | design `publish.md`, *Publishing* |
//! | [`timestamp_request`] | a timestamp on its way to the machines with the keys | design `publish.md` |
//! | [`proposal`] | the next policy on its way to its owners | `trees.md`, rules 1 and 4 |
//! | [`device`], [`words`] | devices and the runs of their engines; ids as words that people compare | design `share.md` |
//!
//! Vocabulary is the design's: *handle, block, inode, directory, root record, volume id, floor*.

pub mod calendar;
pub mod device;
pub mod encode;
pub mod error;
pub mod frame;
pub mod handle;
pub mod history;
pub mod key;
pub mod kind;
pub mod published;
pub mod reach;
pub mod record;
pub mod signer;
pub mod statement;
pub mod text;
pub mod tree;
pub mod volume_id;
pub mod words;

pub use history::{prefix, tiles};
pub use published::{
    checkpoint, earlier, evidence, floor, forks, head, judge, offer, path_proof, proposal, request,
    root, sighting, split_view, timestamp, timestamp_request, verdict, version_name, witness,
};
pub use statement::{algorithm, chain, policy, roles, signatures, tally};
pub use tree::{array, change, inode, map};

pub use error::Reject;
pub use frame::Frame;
pub use handle::{
    Any, ArrayNode, Block, BlockKind, Data, Handle, Hasher, InodeBlock, Kind, MapNode,
};
pub use record::Record;
