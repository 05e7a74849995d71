//! The server of a shared volume (SUNDR, design `share.md`). It orders entries and keeps blocks, and nobody trusts it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`host`] | the server of a volume: the orderer of [`ordering`] and the block server over one directory |
//! | [`blocks`] | the block server |

pub mod blocks;
pub mod host;
