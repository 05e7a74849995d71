//! The server of a shared volume (SUNDR, design `share.md`). It orders entries and keeps blocks, and nobody trusts it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`host`] | the server of a volume: the orderer of [`ordering`] and the block server over one directory |
//! | [`blocks`] | the block server |
//! | [`collect`] | which blocks nobody needs any more, and how old they are |

pub mod blocks;
pub mod collect;
pub mod host;
