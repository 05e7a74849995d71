//! SFSRO (Fu, Kaashoek, Mazieres 2002): a tree becomes a signed volume, and is read back verified.
//!
//! | module | what lives there |
//! |---|---|
//! | [`chunk`] | where content is cut into blocks and holes |
//! | [`exclude`] | names that are left out |
//! | [`keyfile`] | the secret key on disk |
//! | `walk` | the tree in its order |
//! | [`publish_error`] | what can go wrong |

pub mod chunk;
pub mod exclude;
pub mod keyfile;
pub mod publish_error;
mod walk;
