//! A volume that many devices write through a server that none of them trusts (SUNDR, design `share.md`).
//!
//! So far only the rules that decide by themselves, without input or output. They are generic over the type of a
//! hash, because the model in `tests/model` uses them with symbolic hashes.
//!
//! | module | what it decides |
//! |---|---|
//! | [`blocks`] | the block server |
//! | [`form`] | whether an entry may stand at a position of the log |
//! | [`reading`] | whether a device may use an entry that its author has not attested |

pub mod blocks;
pub mod form;
pub mod reading;
