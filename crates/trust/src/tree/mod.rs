//! The trees: content as array trees, directories as map trees, and the inodes that name their roots. Relies
//! only on blocks and their encoding.

pub mod array;
pub mod change;
pub mod inode;
pub mod map;
