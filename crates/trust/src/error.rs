//! Why bytes were not believed. One enum for the whole crate; callers add volume, path and replica.

use crate::kind::Kind;
use crate::volume_id::VolumeId;

/// A reason to refuse bytes that came from outside.
///
/// [`Reject::class`] says which of the product's error names it bears; the edge (exit code, errno,
/// metric) follows from that class alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The bytes do not hash to the handle by which they were asked for.
    #[error("block does not hash to the handle it was asked by")]
    WrongBlock,
    /// The bytes are a block of another kind.
    #[error("expected a {expected:?} block, the frame says kind {found}")]
    WrongKind {
        /// What the handle's owner expects.
        expected: Kind,
        /// The kind byte found.
        found: u8,
    },
    /// A frame or record that no honest store holds.
    #[error("malformed frame: {0}")]
    BadFrame(&'static str),
    /// Bytes that are not the canonical encoding of anything.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Which structure.
        what: &'static str,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A structure that verifies by hash but breaks a rule of the trees: its signer's fault.
    #[error("the publisher signed a malformed {what}: {why}")]
    BadTree {
        /// Which structure.
        what: &'static str,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A signature is bad, missing, or by a key without that role.
    #[error("not signed as the policy demands: {0}")]
    NotSigned(&'static str),
    /// The statement is about another volume.
    #[error("the statement belongs to another volume")]
    WrongVolume,
    /// Older than what this reader has already seen.
    #[error("rollback: offered version {offered}, already seen {floor}")]
    Rollback {
        /// What was offered.
        offered: u64,
        /// The highest adopted.
        floor: u64,
    },
    /// Two statements that cannot both be honest.
    #[error("fork: {0}")]
    Fork(&'static str),
    /// The statement's time has passed.
    #[error("expired at {until} (unix seconds), now is {now}")]
    Expired {
        /// End of validity, unix seconds.
        until: u64,
        /// The reader's notion of now, unix seconds.
        now: u64,
    },
    /// The statement claims to start in the future: a wrong clock, here or there.
    #[error("starts at {start} (unix seconds), more than ten minutes after now ({now})")]
    NotYetValid {
        /// Claimed start, unix seconds.
        start: u64,
        /// The reader's notion of now, unix seconds.
        now: u64,
    },
    /// The owners ended the volume.
    #[error("the owners revoked this volume{}", successor_text(.successor.as_ref()))]
    Revoked {
        /// The volume that they recommend instead; to be shown, never to be followed silently.
        successor: Option<VolumeId>,
    },
    /// A proof about the volume's log does not prove it.
    #[error("history: {0}")]
    BadHistory(&'static str),
    /// Nobody has shown yet that the record's log has the one in it that this reader knows.
    #[error("no place shows that the log which this reader knows is part of the newer one")]
    Unproved,
    /// The reader wants exactly one version, or a chain with a certain policy, and this is not it.
    #[error("pinned: {0}")]
    NotPinned(&'static str),
    /// Format version or flags that this build does not know.
    #[error("{what} needs a newer bulla: {why}")]
    Unsupported {
        /// Which structure.
        what: &'static str,
        /// Which version or flag.
        why: String,
    },
}

/// The names that errors bear everywhere: exit codes, errno, metrics, logs. In ascending order: of
/// several errors the greatest is told, because evidence of an attack counts more than an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// No answer, or an answer that says nothing.
    Unavailable,
    /// The statement is too old to be believed.
    Expired,
    /// Bytes are not what was signed.
    Integrity,
    /// An older statement than one already seen.
    Rollback,
    /// Two statements that contradict one another.
    Fork,
}

impl Reject {
    /// The same rejection about bytes that were already proved to bear their handle: then the
    /// publisher, not the mirror, is at fault.
    pub(crate) fn signed(self) -> Reject {
        match self {
            Reject::Malformed { what, why } => Reject::BadTree { what, why },
            other => other,
        }
    }

    /// Whether a block that is rejected for this reason bears its handle all the same. Then every
    /// honest place gives the same bytes, and the publisher is at fault.
    pub fn is_publishers_fault(&self) -> bool {
        matches!(self, Reject::BadTree { .. } | Reject::Unsupported { .. })
    }

    /// The product-wide name of this rejection.
    pub fn class(&self) -> Class {
        match self {
            Reject::Rollback { .. } => Class::Rollback,
            Reject::Fork(_) => Class::Fork,
            Reject::Expired { .. } | Reject::NotYetValid { .. } | Reject::Revoked { .. } => {
                Class::Expired
            }
            Reject::NotPinned(_) | Reject::Unproved => Class::Unavailable,
            Reject::WrongBlock
            | Reject::WrongKind { .. }
            | Reject::BadFrame(_)
            | Reject::Malformed { .. }
            | Reject::BadTree { .. }
            | Reject::NotSigned(_)
            | Reject::WrongVolume
            | Reject::BadHistory(_)
            | Reject::Unsupported { .. } => Class::Integrity,
        }
    }
}

fn successor_text(successor: Option<&VolumeId>) -> String {
    successor.map_or(String::new(), |v| format!("; they recommend {v} instead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_of_an_attack_is_graver_than_an_outage() {
        let order = [
            Class::Unavailable,
            Class::Expired,
            Class::Integrity,
            Class::Rollback,
            Class::Fork,
        ];
        assert!(order.is_sorted_by(|a, b| a < b));
    }
}
