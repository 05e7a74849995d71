//! How the server of a shared volume works, and its bounds.

use std::time::Duration;

use super::mailbox::Bounds;
use super::rate::Rate;
use crate::blocks;
use ordering::orderer::Limits;

/// How a [`Host`](super::Host) works.
#[derive(Debug, Clone, Copy)]
pub struct HostOptions {
    /// Sessions at a time, and entries and marks that wait for a commit.
    pub limits: Limits,
    /// Bytes of messages and answers of each device, as they are counted.
    pub bytes: Rate,
    /// Entries of each device.
    pub entries: Rate,
    /// Bytes of entries of each device: they are kept for ever.
    pub entry_bytes: Rate,
    /// The window of dereferencing, and what each device may store.
    pub blocks: blocks::Options,
    /// Bounds of the mailbox.
    pub mailbox: Bounds,
    /// A device that was sent nothing for so long is sent the newest note, if it wishes for no shorter pause.
    pub heartbeat: Duration,
    /// How long a commit waits for more entries at most, when many devices write.
    pub gather: Duration,
    /// Bytes of leaves that wait in the temporary log before they move to a file of leaves.
    pub move_bytes: u64,
    /// How long leaves wait there at most.
    pub move_after: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            limits: Limits {
                sessions: 10_000,
                ..Limits::default()
            },
            bytes: Rate {
                per_second: 1 << 30,
                burst: 1 << 30,
            },
            entries: Rate {
                per_second: 4000,
                burst: 8000,
            },
            entry_bytes: Rate {
                per_second: 1 << 20,
                burst: 64 << 20,
            },
            blocks: blocks::Options::default(),
            mailbox: Bounds::default(),
            heartbeat: Duration::from_secs(10),
            gather: Duration::from_millis(1),
            move_bytes: 8 << 20,
            move_after: Duration::from_mins(10),
        }
    }
}
