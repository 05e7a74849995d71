//! A shared volume as a file system, read and write (SUNDR 3.5).
//!
//! Programs see the newest version of each file that this device may use, and their own changes over it. What they write
//! lies in a file of this machine until it is committed: at close, fsync, msync, and after some seconds. A commit is
//! guarded by the content that it was made of; if another device was first, the changes move onto its content. Names
//! change in the log at once. What differs from a local disk is in docs/semantics-shared.md. Decision: 0103.
//!
//! | file | what lives there |
//! |---|---|
//! | `mounted` | mounting, and the end of a mount |
//! | `file_system` | the kernel's requests |
//! | `names` | what requests about names and attributes mean |
//! | `files` | the same of open files: reads, writes, commits |
//! | `core` | calls of the log, and what a device may still do |
//! | `commit` | does what [`share::writeback`] asks for of files with local changes |
//! | `locks`, `lock_room` | locks of programs, and the calls of the log for them |
//! | `held_before` | what a mount that was killed held, on disk |
//! | `spool` | the local bytes, on disk |
//! | `kept` | local changes that cannot go there, on disk |
//! | `kernel`, `own_names` | what the kernel may keep, and how it hears of changes |
//! | `listing`, `directory` | open directories |
//! | `room` | what `df` shows |
//! | `report` | what the mount says about itself |
//! | `failure`, `loss` | errors, as programs see them |

mod commit;
mod core;
mod directory;
mod failure;
mod file_system;
mod files;
mod held_before;
mod kept;
mod kernel;
mod listing;
mod lock_room;
mod locks;
mod loss;
pub mod mounted;
mod names;
mod own_names;
pub mod report;
mod room;
mod spool;

pub use core::Shows;
pub use kept::{Kept, UNSENT};
