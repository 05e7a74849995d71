//! SFSRO (Fu, Kaashoek, Mazieres 2002): a tree becomes a signed volume, and is read back verified.
//!
//! | module | what lives there |
//! |---|---|
//! | [`chunk`] | where content is cut into blocks and holes |

pub mod chunk;
