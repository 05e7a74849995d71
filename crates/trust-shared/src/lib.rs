//! A shared volume: what its devices and its orderer sign, and the rules by which each of them judges it (design
//! `share.md`, SUNDR). Bytes in docs/formats/shared.md. Sans-I/O as `trust`: no clock, no network, no files, no async.
//!
//! | module | what it does |
//! |---|---|
//! | [`form`] | whether an entry may stand at a position of the log |
//! | [`entry`] | entries: what devices write, each verified alone |
//! | [`mark`] | marks: proof that a log is newer than a question |
//! | [`leaf`] | the leaves of the log: entries, and the marks of a group commit |
//! | [`attest`] | what a device says that it has seen |
//! | [`note`] | the orderer's checkpoints |
//! | [`genesis`] | policies, and the epochs of the log |
//! | [`evidence`] | files that convict an orderer or a device |
//! | [`checkpoint`], [`row`] | the state at a position, signed by those who replayed the log; the keys of its rows |
//! | [`invitation`] | how a device is admitted |
//! | [`principal`], [`key`] | users, groups, devices, names of files; the keys of the state |
//! | [`decision`], [`change`], [`guard`] | what an op changes, and what must hold for it |
//! | [`hold`] | locks of programs |
//! | [`ops`], [`outline`] | what an entry does, as bytes: its body, and the list of keys that it changes |
//! | [`calls`] | the op of each system call |
//! | [`outcome`], [`members`] | what became of an op; who may read and write, at each position of the log |
//! | [`itable`], [`fold`] | all files of a principal as one tree, and how changes get into it |
//! | [`effect`] | which ops have effect, and the values after them |

pub mod attest;
pub mod calls;
pub mod change;
pub mod checkpoint;
pub mod decision;
pub mod effect;
pub mod entry;
pub mod evidence;
pub mod fold;
pub mod form;
pub mod genesis;
pub mod guard;
pub mod hold;
pub mod invitation;
pub mod itable;
pub mod key;
pub mod leaf;
pub mod mark;
pub mod members;
pub mod note;
pub mod ops;
pub mod outcome;
pub mod outline;
pub mod principal;
pub mod row;
#[cfg(test)]
mod samples;
