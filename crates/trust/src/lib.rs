//! What an auditor must read: everything that decides whether bytes are believed.
//!
//! Sans-I/O: no clock, no network, no files, no async, no `unsafe`. Every other crate hands bytes
//! in and gets verified values or a [`Reject`] out. The modules lie in directories, each of which
//! relies on those before it: blocks and their encoding at the top, [`tree`], [`reach`], [`history`],
//! [`statement`], [`published`]. Each module is also found at the root of the crate:
//!
//! | module | what it settles | source |
//! |---|---|---|
//! | [`handle`], [`kind`] | the name of a block: keyed hash of kind and plaintext | SFSRO 3.2 |
//! | [`text`] | how handles, volume ids and keys are written and mistyped ones refused | design `trees.md` |
//! | [`encode`] | the one encoding style: canonical, bounded, never panicking | |
//! | [`frame`] | a block as it lies in stores and on the wire | |
//! | [`array`] | the array tree: file content as ordered blocks with lengths | SFSRO 3.2.1, design `trees.md` |
//! | [`map`] | the map tree: sorted keys, one root per set, proofs of presence and absence | design `trees.md` |
//! | [`inode`] | what a directory entry says about a file | SFSRO 3.2.1 |
//! | [`reach`] | the one walk of what a root needs, and of one path | design `README.md` |
//! | [`change`] | how two versions of a tree differ, for people | |
//! | [`record`] | a frame beside its claimed handle: the unit of segments and answers | |
//! | [`key`], [`signatures`] | Ed25519, and who of a role signed | RFC 8032 |
//! | [`statement`], [`volume_id`] | the envelope of everything signed; the volume id | `trees.md`, *Statements* |
//! | [`policy`], [`roles`], [`chain`] | who answers for a volume, from its genesis on | rules 1, 2, 5 |
//! | [`root`], [`timestamp`] | what the tree is, and that it still is | SFSRO 3.1 |
//! | [`head`] | the one mutable file of a replica | `trees.md`, *Head* |
//! | [`floor`], [`judge`], [`offer`], [`verdict`] | what a reader has seen, and whether it believes a head | rules 2-6, *Floor* |
//! | [`history`], [`checkpoint`] | the append-only log and who witnessed it | RFC 6962, C2SP |
//! | [`tiles`], [`prefix`] | the log's inner hashes, and that it only grew | C2SP, `docs/decisions/0015` |
//! | [`earlier`] | records that a newer one has replaced, out of the log | |
//! | [`path_proof`] | that a path is in a volume or is not, for a reader without a network | design `trees.md`, *Proofs* |
//! | [`request`] | a version on its way to a machine that holds the key, and back | design `publish.md`, *Publishing* |
//!
//! Vocabulary is the design's: *handle, block, inode, directory, root record, volume id, floor*.

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
pub mod statement;
pub mod text;
pub mod tree;
pub mod volume_id;

pub use history::{prefix, tiles};
pub use published::{
    checkpoint, earlier, floor, head, judge, offer, path_proof, request, root, timestamp, verdict,
};
pub use statement::{chain, policy, roles, signatures};
pub use tree::{array, change, inode, map};

pub use error::Reject;
pub use frame::Frame;
pub use handle::{
    Any, ArrayNode, Block, BlockKind, Data, Handle, Hasher, InodeBlock, Kind, MapNode,
};
pub use record::Record;
