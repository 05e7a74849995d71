//! The one walk over a tree: which blocks a root needs, which of them to fetch next, and when all of them
//! have been seen. Relies on [`crate::tree::inode`], [`crate::tree::array`] and [`crate::tree::map`] for the
//! nodes and for checking each node against its parent.
//!
//! | module | what it does |
//! |---|---|
//! | `need` | a wanted block, the path that it belongs to, and the proof that bytes are this block |
//! | `walk`, `expand`, `compare` | [`Reach`]: walks a tree, or what differs from a complete base |
//! | `lookup` | [`Lookup`]: follows one path to its inode, or to the node that proves its absence |
//!
//! Sans-I/O: the caller reads blocks where and how it likes and in any order. It handles duplicates too:
//! [`Reach::skip`] says that everything below a wanted block is known. A publisher can nest a tree in itself
//! 2^40 times with 40 blocks, so every caller has to skip what it has seen.
//!
//! Memory: the walk is depth first. A node waits as long as it has children that were not handed out. With
//! `n` blocks under way at most `n` nodes wait at each level of the tree. Above 16 MiB the walk hands out one
//! block at a time, and above 256 MiB it refuses the tree. A comparison with a base holds the references of
//! one level of the two directories that it compares.

mod compare;
mod expand;
mod lookup;
mod need;
#[cfg(test)]
mod tests;
mod walk;

pub use lookup::{Absence, Lookup, MAX_COMPONENTS, Outcome};
pub use need::{Found, Need, Path, Wanted};
pub use walk::{MAX_DEPTH, Reach, Refused, Step};
