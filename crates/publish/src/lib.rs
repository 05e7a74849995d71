//! SFSRO (Fu, Kaashoek, Mazières 2002): a directory tree becomes a signed version of a volume.
//!
//! Synchronous: threads and channels, no runtime and no network. The order of the work: `gather` (the
//! walk) → `reading` (files) → `assemble` (directories) → `succession` (the signed head) →
//! `store::writer` (one commit).
//!
//! | module | what lives there |
//! |---|---|
//! | [`pipeline`] | `publish`: the threads, and the order of the last steps |
//! | [`progress`] | what it reports while it works and at the end |
//! | [`publish_error`] | what can go wrong in publishing |
//! | `work` | what the threads send to one another |
//! | `gather`, `walk`, [`exclude`] | the tree in its one order |
//! | `reading` | a file as it was at one moment |
//! | `blocks_out` | from plaintext to blocks |
//! | `limits` | what no reader takes |
//! | `tar` | the same from an archive |
//! | `assemble` | directories from the bottom up |
//! | `statcache` | files that need not be read again |
//! | `changes` | how a tree differs from the version before |
//! | `destination`, `creation_guard` | where new blocks go; a new repository that is removed after a failure |
//! | [`PublishOptions`], [`NewVolume`] | what the caller decides; the first policy of a new volume |
//! | `succession` | the number of the next version, and the head that publishes it |
//! | [`renewal`] | a longer validity |
//! | [`signing`], [`installing`] | versions signed on another machine: on that machine, and where the repository is |
//! | [`rotation`] | the next policy: proposed, signed, installed |
//! | [`signing_files`] | files on their way between machines |
//! | `completeness` | whether a repository has all of a version |
//! | `confirming`, [`stamping`] | timestamps; those by keys on other machines |
//! | `release`, [`cosigning`] | a head on its way into a repository; cosignatures of witnesses |

mod assemble;
mod blocks_out;
mod changes;
mod completeness;
mod confirming;
pub mod cosigning;
mod creation_guard;
mod destination;
pub mod exclude;
mod gather;
pub mod installing;
mod limits;
mod new_volume;
mod options;
pub mod pipeline;
pub mod progress;
pub mod publish_error;
mod reading;
mod release;
pub mod renewal;
pub mod rotation;
pub mod signing;
pub mod signing_files;
mod signing_memory;
pub mod stamping;
mod statcache;
mod succession;
mod tar;
mod walk;
mod work;

pub use new_volume::NewVolume;
pub use options::PublishOptions;
pub use pipeline::publish;
