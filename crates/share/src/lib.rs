//! A device of a shared volume, which many devices write through a server that none of them trusts (SUNDR, design
//! `share.md`). The state machines of the log are in [`ordering`]; here they get a disk, a connection and files.
//!
//! | module | what lives there |
//! |---|---|
//! | [`client`] | a device: engine, disk, connection, calls of programs |
//! | [`outbox`] | an entry goes after the blocks that it names; without I/O |
//! | [`files`] | the files of a volume: calls of programs, and their answers |
//! | [`writeback`] | what programs have open and have changed, and no log has yet; without I/O |
//! | [`conflict`] | names of conflict copies |
//! | [`disk`] | what a device must not forget: its floor, and what it has sent |
//! | [`home`] | the shared volumes of a user on this machine |
//! | [`locks`] | locks of programs on the files of a mount; without I/O |
//! | `snapshot` | what a device's floor comes to, for a restart |
//! | [`checkpoint`] | the state of a log as rows that checkpointers sign, and devices that start from them |
//! | [`admission`] | how a device is admitted, over a link |

pub mod admission;
pub mod checkpoint;
pub mod client;
pub mod conflict;
pub mod disk;
pub mod files;
pub mod home;
pub mod locks;
pub mod outbox;
mod snapshot;
pub mod writeback;
