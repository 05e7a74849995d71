//! A reader's terms for a judgement: its clocks, how old a statement may be, and what is pinned.

/// How far ahead of the reader's clock a statement may start, seconds.
pub const MAX_AHEAD_SECONDS: u64 = 600;

/// How old a statement may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Until the end of validity.
    Strict,
    /// So many seconds longer than the record and timestamp say. The policy's end is not extended.
    Grace(u64),
    /// Exactly this record, regardless of the floor and the clock. Never changes the floor.
    Pinned {
        /// The record's version.
        version: u64,
        /// The record's hash.
        record_hash: [u8; 32],
    },
}

/// The reader's terms for a judgement.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The machine's wall clock, unix seconds. It bounds what the floor records as the newest start.
    pub wall: u64,
    /// The reader's time, unix seconds: the wall clock, or later if the reader has seen a later time. Validity
    /// is judged by this time. A value below `wall` or the floor's newest start counts as the later of them.
    pub now: u64,
    /// How old a statement may be.
    pub freshness: Freshness,
    /// A policy that must be the genesis or one of the newest seven.
    pub policy_pin: Option<[u8; 32]>,
}

impl Terms {
    /// The default: strict freshness, no pin, and a wall clock that shows `now`.
    pub fn strict(now: u64) -> Self {
        Terms {
            wall: now,
            now,
            freshness: Freshness::Strict,
            policy_pin: None,
        }
    }

    /// The latest start or issue that is recorded, unix seconds.
    pub(crate) fn latest_start(&self) -> u64 {
        self.wall.saturating_add(MAX_AHEAD_SECONDS)
    }
}
