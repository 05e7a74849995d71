//! SFSRO (Fu, Kaashoek, Mazières 2002): a tree becomes a signed volume, and is read back as if it
//! were local and checked as if every place that holds it were hostile.
//!
//! The publisher, in the order of the work: `gather` (the walk) → `reading` (files) → `assemble`
//! (directories) → `succession` (the signed head) → `store::writer` (one commit).
//!
//! The reader, from the outside in: [`source`] (what people type) → [`volume`] (heads, floor,
//! adoption) → [`snapshot`] (names, attributes, content of one version) → [`blocks`] (every byte
//! hashed) → `store::Replica` (believed in nothing).
//!
//! | module | what lives there |
//! |---|---|
//! | [`pipeline`] | `publish`: the threads, and the order of the last steps |
//! | [`progress`] | what it tells meanwhile and in the end |
//! | [`publish_error`] | what can go wrong in publishing |
//! | `work` | what the threads send to one another |
//! | `gather`, `walk`, [`exclude`] | the tree in its one order |
//! | `reading`, `attributes` | a file as it was at one moment |
//! | [`chunk`], `blocks_out` | where content is cut; from plaintext to blocks |
//! | `tar` | the same from an archive |
//! | `assemble` | directories from the bottom up |
//! | `statcache` | files that need not be read again |
//! | [`changes`] | how a tree differs from the version before |
//! | `destination`, `beginning` | where new blocks go; a repository that is taken back |
//! | `succession` | which version is next, and the head that makes it stand |
//! | [`keyfile`] | the secret key on disk |
//! | [`renewal`], [`signing`] | a version's time made longer; versions signed on another machine |
//! | `closure` | whether a repository has all of a version |
//! | [`source`], [`volume`], [`snapshot`], [`blocks`] | the verified reader |
//! | [`history`], [`difference`] | versions before the newest, and how two of them differ |
//! | [`state`] | the floor on disk |
//! | `offline` | a start while no place answers |
//! | [`extract`], [`verify`] | what walks a whole volume |
//! | [`pull`] | a repository that follows a volume |
//! | [`prune`] | what no kept version reaches gives its room back |
//! | `clock` | what time it is |
//! | [`error`] | what a reader is told |

mod ahead;
pub mod around;
mod asker;
mod assemble;
mod attributes;
mod beginning;
pub mod blocks;
mod blocks_out;
pub mod changes;
pub mod chunk;
mod clock;
mod closure;
mod destination;
pub mod difference;
pub mod error;
pub mod exclude;
pub mod extract;
mod gather;
mod growth;
pub mod history;
pub mod keyfile;
mod offline;
mod pieces;
pub mod pipeline;
pub mod progress;
pub mod prune;
pub mod publish_error;
pub mod pull;
mod reading;
pub mod renewal;
mod siblings;
pub mod signing;
pub mod snapshot;
pub mod source;
mod statcache;
pub mod state;
mod succession;
mod tar;
pub mod verify;
pub mod volume;
mod walk;
mod work;

pub use blocks::Fetch;
pub use error::ReadError;
pub use pipeline::{PublishOptions, publish};
pub use snapshot::Snapshot;
pub use source::{Location, Source};
pub use volume::{Refreshed, Volume, VolumeOptions};
