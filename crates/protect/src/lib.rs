//! A block device on a disk that may lie: the protected file system of Stein, Howard and Seltzer (PFS, 2001) as a
//! device, below any file system.
//!
//! Every block of a data device is checked against a keyed digest. Digests lie in a map on another device, changes of
//! it in a log (crate `wal`). The data device keeps its layout, so that an existing file system is protected where it
//! lies.
//!
//! | module | what lives there |
//! |---|---|
//! | `beside` | a thread that reads the map while a reader reads the data device |
//! | `block` | the interface between a protected device and the programs that show it to the kernel |
//! | `core` | the state machine, without I/O |
//! | `engine` | the state machine, the log, the map and the data device; its actors |
//! | `device` | the engine in operation, with threads |
//! | `enrol` | making log and map of an existing device |
//! | `scrub` | checking every block, slowly |
//! | `recovery` | attaching: from two devices and a key to an engine; `replay` is its pure half |
//! | `reading` | what the data device has, and what the map says, while it is attached |
//! | `likeness` | whether a data device is the one that a log protects |
//! | `records`, `volume` | what stands in the log and in its superblock |
//! | `ranges` | ranges of blocks |
//! | [`map`] | the tree of authenticated pages with the digest of each block |
//! | [`anchor`] | where the newest mark of the log is kept, so that devices that were put back are refused |
//! | `hosts` | this machine among others that share its disks |
//! | `error` | why a device cannot be attached |
//! | [`nbd`] | a server of the NBD protocol over it |

pub mod anchor;
mod beside;
mod block;
mod core;
mod device;
mod engine;
pub mod enrol;
mod error;
mod hosts;
mod likeness;
pub mod map;
pub mod nbd;
mod ranges;
mod reading;
mod records;
mod recovery;
mod replay;
pub mod scrub;
mod volume;

pub use block::{Block, BlockError};
pub use core::{BLOCK_BYTES, Counts, Limits, Redos};
pub use device::{Blocks, LogDefect, LogScrub, Pace, Part, Protected, Traffic};
pub use engine::{
    Admission, Commit, Committed, Engine, EngineError, Homed, Homing, SettledDone, Settling, Watch,
};
pub use error::AttachError;
pub use hosts::ThisHost;
pub use recovery::{Attach, Recovered};
pub use replay::Contradiction;
pub use volume::{Cookie, Shape};
