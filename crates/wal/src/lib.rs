//! A write-ahead log on a device that may lie, crash or be put back: the log service of PFS
//! (Stein, Howard and Seltzer 2001, section 4.3: WAFS), for several clients at once.
//!
//! Frames of records lie in a ring. Each frame is authenticated under a key, names the frame before it, and is
//! never rewritten, so that a server that stores the log can neither change, omit nor reorder it. What it can do
//! is to cut off the end; a [`Mark`] that is kept elsewhere shows that too. Frames cover digests of
//! their payloads, so a client verifies a payload with the digest that it keeps anyway.
//!
//! The log knows nothing about what records mean, and key slots are opaque bytes to it. No asynchronous runtime,
//! no network. Why it is as it is: `docs/decisions/0041-log.md`. Bytes: `docs/formats/log.md`; the encoding style is
//! that of `trust::encode` (bounded, canonical, never panicking), which this crate uses for all fields.
//!
//! | module | what lives there |
//! |---|---|
//! | `device` | the trait of everything that can be read, written and synced by offset |
//! | `buffer` | memory that devices without a page cache accept |
//! | `key` | the volume's key and what is derived from it; digests of payloads |
//! | `position` | [`Lsn`] and [`Mark`] |
//! | `record` | what clients append |
//! | `error` | what goes wrong |
//! | `file` | a file or block device without a page cache |
//! | `layout`, `format`, `slots`, `superblock`, `frame` | where bytes lie on the device, and what they say |
//! | `ring`, `chain`, `recovery`, `cursor` | reading the ring; the end of the log; opening; a client's records |
//! | `salvage` | what is left of a log with destroyed frames |
//! | [`claim`] | who uses the log, where several hosts share its device |
//! | `machine` | the state of an open log, without I/O |
//! | `log`, `shared`, `durable`, `checkpoint` | the open log: appends, reads, group commit, superblocks |
//! | `mending`, `copies`, `patrol` | a scrub of superblocks and key slots, and of the ring |
//! | `inspect` | what single frames and superblocks say |
//! | `conformance` | what every device must do |

mod buffer;
mod chain;
mod checkpoint;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copies;
mod cursor;
mod device;
mod durable;
mod error;
mod file;
mod format;
mod frame;
pub mod inspect;
mod key;
mod layout;
mod log;
mod machine;
mod mending;
mod patrol;
mod position;
mod record;
mod recovery;
mod ring;
mod salvage;
mod shared;
mod slots;
mod superblock;

pub use buffer::{Buffer, PAGE_BYTES};
pub use claim::{ClaimOptions, Fenced, Host, Keeper, Lease, Life, Process};
pub use copies::{Copied, CopyDefect};
pub use cursor::{Cursor, Entry};
pub use device::Device;
pub use durable::Durable;
pub use error::{AppendError, LogError, Owner, Witness};
pub use file::FileDevice;
pub use format::{format, prepare};
pub use frame::{MAX_BODY_BYTES, MAX_PIECES};
pub use key::{Digest, DigestKey, Key, VolumeId};
pub use layout::{Geometry, Layout, MAX_CLIENTS, MAX_RING_BYTES, MIN_RING_BYTES};
pub use log::Log;
pub use machine::{Appended, Pressure};
pub use patrol::{Patrol, Patrolled, RingDefect, WrongPage};
pub use position::{Lsn, Mark};
pub use record::{Client, Piece, Record};
pub use recovery::{Cut, OpenOptions, Recovery, open};
pub use salvage::{Salvage, salvage};
pub use slots::{MAX_SLOTS_BYTES, key_slots, set_key_slots};
pub use superblock::MAX_COOKIE_BYTES;
