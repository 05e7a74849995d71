//! A volume that many devices write through a server that none of them trusts (SUNDR, design `share.md`).
//!
//! So far only the read rule. The model in `tests/model` explores it together with the form of entries
//! (`trust::shared::form`).
//!
//! | module | what it decides |
//! |---|---|
//! | [`reading`] | whether a device may use an entry that its author has not attested |

pub mod reading;
