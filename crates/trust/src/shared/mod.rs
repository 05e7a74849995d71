//! A shared volume: what its devices and its orderer sign, and the rules by which each of them judges it (design
//! `share.md`, SUNDR). Bytes in docs/formats/shared.md. Relies on [`crate::encode`], [`crate::key`],
//! [`crate::history`] and [`crate::statement`].
//!
//! | module | what it does |
//! |---|---|
//! | [`form`] | whether an entry may stand at a position of the log |
//! | [`device`] | devices, and the runs of their engines |
//! | [`entry`] | entries: what devices write, each verified alone |
//! | [`mark`] | marks: proof that a log is newer than a question |
//! | [`leaf`] | the leaves of the log: entries, and the marks of a group commit |
//! | [`attest`] | what a device says that it has seen |
//! | [`note`] | the orderer's checkpoints |
//! | [`genesis`] | policies, and the epochs of the log |
//! | [`evidence`] | files that convict an orderer or a device |
//! | [`checkpoint`] | the state at a position, signed by those who replayed the log |
//! | [`invitation`], [`words`] | how a device is admitted; words that people compare |

pub mod attest;
pub mod checkpoint;
pub mod device;
pub mod entry;
pub mod evidence;
pub mod form;
pub mod genesis;
pub mod invitation;
pub mod leaf;
pub mod mark;
pub mod note;
#[cfg(test)]
mod samples;
pub mod words;
