//! What a call comes to: an answer, or an op and the blocks that it names.

use bytes::Bytes;
use trust::handle::Handle;
use trust::kind::Kind;
use trust_shared::ops::Op;

use super::answer::Answer;
use super::sight::Halt;

/// A block that is stored before the entry that names it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub handle: Handle,
    /// Its content.
    pub bytes: Bytes,
}

/// What is known of a call that is made, beside the values.
#[derive(Clone, Copy, Default)]
pub(super) struct Try {
    /// Entries that were sent for the call and had no effect.
    pub failed: u8,
    /// How far a fold may go.
    pub foldable: u64,
    /// A lock that was renewed before this position for the last time may be taken over.
    pub lapsed: u64,
}

/// What a call comes to.
pub(super) enum Plan {
    /// It changes nothing.
    Says(Answer),
    /// It needs an op, and these blocks stored first.
    Op(Op, Vec<Made>),
    /// Another device has a lock, and renewed it last at this position.
    Blocked(u64),
}

impl Plan {
    /// An op that names no new blocks.
    pub fn op(op: Op) -> Result<Plan, Halt> {
        Ok(Plan::Op(op, Vec::new()))
    }
}
