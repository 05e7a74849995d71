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
    /// Messages of each device to the orderer.
    pub rate: Rate,
    /// KiB of entries of each device: they are kept for ever.
    pub entry_kib: Rate,
    /// The window of dereferencing, and what each device may store.
    pub blocks: blocks::Options,
    /// Bounds of the mailbox.
    pub mailbox: Bounds,
    /// How often a device that has everything is sent the newest note.
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
            rate: Rate::default(),
            entry_kib: Rate {
                per_second: 1 << 10,
                burst: 64 << 10,
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
