//! SFSRO (Fu, Kaashoek, Mazieres 2002): a tree becomes a signed volume, and is read back verified.
//!
//! | module | what lives there |
//! |---|---|
//! | [`pipeline`] | `publish`: the threads, and the order of the last steps |
//! | [`progress`] | what it tells meanwhile and in the end |
//! | [`publish_error`] | what can go wrong |
//! | `work` | what the threads send to one another |
//! | `gather`, `walk`, [`exclude`] | the tree in its one order |
//! | `reading`, `attributes` | a file as it was at one moment |
//! | [`chunk`], `blocks_out` | where content is cut; from plaintext to blocks |
//! | `assemble` | directories from the bottom up |
//! | `destination` | where new blocks go |
//! | `succession` | which version is next, and the head that makes it stand |
//! | [`keyfile`] | the secret key on disk |

mod assemble;
mod attributes;
mod blocks_out;
pub mod chunk;
mod destination;
pub mod exclude;
mod gather;
pub mod keyfile;
pub mod pipeline;
pub mod progress;
pub mod publish_error;
mod reading;
mod succession;
mod walk;
mod work;

pub use pipeline::{PublishOptions, publish};
