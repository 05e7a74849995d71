//! What an auditor must read: everything that decides whether bytes are believed.
//!
//! Sans-I/O: no clock, no network, no files, no async, no `unsafe`. Every other crate hands bytes
//! in and gets verified values or a [`Reject`] out. The map of the crate:
//!
//! | module | what it settles | source |
//! |---|---|---|
//! | [`handle`] | the name of a block: keyed hash of kind and plaintext | SFSRO 3.2 |
//! | [`text`] | how handles, volume ids and keys are written and mistyped ones refused | design `trees.md` |
//! | [`encode`] | the one encoding style: canonical, bounded, never panicking | |
//! | [`frame`] | a block as it lies in stores and on the wire | |
//! | [`array`] | the array tree: file content as ordered blocks with lengths | SFSRO 3.2.1, design `trees.md` |
//! | [`map`] | the map tree: sorted keys, one root per set, proofs of presence and absence | design `trees.md` |
//! | [`inode`] | what a directory entry says about a file | SFSRO 3.2.1 |
//! | [`change`] | how two versions of a tree differ, for people | |
//! | [`record`] | a frame beside its claimed handle: the unit of segments and answers | |
//! | [`key`], [`signatures`] | Ed25519, and who of a role signed | RFC 8032 |
//! | [`statement`] | the envelope of everything signed; the volume id | `trees.md`, *Statements* |
//! | [`policy`], [`roles`], [`chain`] | who answers for a volume, from its genesis on | rules 1, 2, 5 |
//! | [`root`], [`timestamp`] | what the tree is, and that it still is | SFSRO 3.1 |
//! | [`head`] | the one mutable file of a replica | `trees.md`, *Head* |
//! | [`floor`], [`judge`], [`verdict`] | what a reader has seen, and whether it believes a head | rules 2-6, *Floor* |
//! | [`history`], [`checkpoint`] | the append-only log and who witnessed it | RFC 6962, C2SP |
//! | [`tiles`], [`prefix`] | the log's inner hashes, and that it only grew | C2SP, `docs/decisions/0015` |
//! | [`earlier`] | records that a newer one has replaced, out of the log | |
//! | [`request`] | a version on its way to a machine that holds the key, and back | design `publish.md`, *Publishing* |
//!
//! Vocabulary is the design's: *handle, block, inode, directory, root record, volume id, floor*.

pub mod array;
pub mod chain;
pub mod change;
pub mod checkpoint;
pub mod earlier;
pub mod encode;
pub mod error;
pub mod floor;
pub mod frame;
pub mod handle;
pub mod head;
pub mod history;
pub mod inode;
pub mod judge;
pub mod key;
pub mod map;
pub mod policy;
pub mod prefix;
pub mod record;
pub mod request;
pub mod roles;
pub mod root;
pub mod signatures;
pub mod statement;
pub mod text;
pub mod tiles;
pub mod timestamp;
pub mod verdict;

pub use error::Reject;
pub use frame::Frame;
pub use handle::{
    Any, ArrayNode, Block, BlockKind, Data, Handle, Hasher, InodeBlock, Kind, MapNode,
};
pub use record::Record;
