//! A shared volume: what its devices and its orderer sign, and the rules by which each of them judges it (design
//! `share.md`, SUNDR). Bytes in docs/formats/shared.md. Relies on [`crate::encode`], [`crate::key`],
//! [`crate::history`] and [`crate::statement`].
//!
//! | module | what it does |
//! |---|---|
//! | [`form`] | whether an entry may stand at a position of the log |

pub mod form;
