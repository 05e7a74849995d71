//! How the server of a shared volume works, and its bounds.

use std::time::Duration;

use super::mailbox::Bounds;
use super::rate::Rate;
use crate::blocks;
use crate::collect::book::Boot;
use ordering::orderer::Limits;
use trust_shared::members::Members;

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
    /// When blocks that nobody needs are removed.
    pub collection: CollectionOptions,
}

/// When collections run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collections {
    /// Once a day, in a quiet moment, and when space is short.
    Auto,
    /// Never.
    Never,
    /// At the start, and then as with `Auto`.
    Now,
}

/// When blocks that nobody needs are removed.
#[derive(Debug, Clone, Copy)]
pub struct CollectionOptions {
    /// When collections run.
    pub runs: Collections,
    /// For how long what was replaced is kept, if the administrators have not decided it. A day at least.
    pub keep: Duration,
    /// How long a quarter of a day lasts. Another value is for tests.
    pub quarter: Duration,
    /// The run of the machine's kernel.
    pub boot: Boot,
    /// How long the files of a removed segment stay for reads that have begun.
    pub grace: Duration,
    /// A collection rests so many times as long as it works.
    pub rest: u32,
}

impl Default for CollectionOptions {
    fn default() -> Self {
        CollectionOptions {
            runs: Collections::Auto,
            keep: Duration::from_hours(30 * 24),
            quarter: QUARTER,
            boot: Boot::current(),
            grace: Duration::from_mins(10),
            rest: 5,
        }
    }
}

impl CollectionOptions {
    /// The retention in quarters of a day: what the administrators have decided, or else what the operator wishes.
    pub(super) fn kept_for(&self, members: &Members) -> u32 {
        let keep = members.retention_s().map(Duration::from_secs);
        quarters(keep.unwrap_or(self.keep))
    }
}

/// A quarter of a day: the unit in which the age of blocks is counted.
pub const QUARTER: Duration = Duration::from_hours(6);
/// The shortest retention: clients rely on a block for half a day after they have asked for it.
pub const MIN_KEEP: Duration = Duration::from_hours(24);

/// Quarters of a day in a retention.
pub(super) fn quarters(keep: Duration) -> u32 {
    let keep = keep.max(MIN_KEEP).as_secs();
    u32::try_from(keep.div_ceil(QUARTER.as_secs())).unwrap_or(u32::MAX)
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
            collection: CollectionOptions::default(),
        }
    }
}
