//! A shared volume: what its devices and its orderer sign, and the rules by which each of them judges it (design
//! `share.md`, SUNDR). Bytes in docs/formats/shared.md. Relies on [`crate::encode`], [`crate::key`],
//! [`crate::tree`] and [`crate::reach`].
//!
//! | module | what it does |
//! |---|---|
//! | [`principal`], [`key`] | users, groups, devices, names of files; the keys of the state |
//! | [`decision`], [`change`], [`guard`] | what an op changes, and what must hold for it |
//! | [`ops`], [`outline`] | what an entry does, as bytes: its body, and the list of keys that it changes |
//! | [`calls`] | the op of each system call |
//! | [`outcome`], [`members`] | what became of an op; who may read and write, at each position of the log |
//! | [`itable`], [`fold`] | all files of a principal as one tree, and how changes get into it |
//! | [`effect`] | which ops have effect, and the values after them |

pub mod calls;
pub mod change;
pub mod decision;
pub mod effect;
pub mod fold;
pub mod guard;
pub mod itable;
pub mod key;
pub mod members;
pub mod ops;
pub mod outcome;
pub mod outline;
pub mod principal;
