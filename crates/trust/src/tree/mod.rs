//! What the trees are made of: content as array trees, directories as map trees, and the inodes that name
//! their roots. Relies on blocks and their encoding alone.

pub mod array;
pub mod change;
pub mod inode;
pub mod map;
