//! Why bytes were not believed. One enum for the whole crate; callers add volume, path and replica.

use crate::calendar::rfc3339;
use crate::kind::Kind;
use crate::volume_id::VolumeId;

/// The message about a statement that is refused only because a remembered fork stands.
pub(crate) const UNSETTLED: &str = "an earlier fork is not settled";

/// A reason to refuse bytes that came from outside.
///
/// [`Reject::class`] gives the product's error name for it. Exit codes, errno and metrics follow from that
/// class alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The bytes do not hash to the requested handle.
    #[error("block does not hash to the requested handle")]
    WrongBlock,
    /// The bytes are a block of another kind.
    #[error("expected a {expected:?} block, the frame says kind {found}")]
    WrongKind {
        /// What the handle's owner expects.
        expected: Kind,
        /// The kind byte found.
        found: u8,
    },
    /// A frame or record that no honest store keeps.
    #[error("malformed frame: {0}")]
    BadFrame(&'static str),
    /// A frame of a kind or codec that this build does not know. Nothing proves that the block is really
    /// kept so: another replica may have it in a form that this build knows.
    #[error("a frame that this bulla cannot unpack: {0}")]
    UnknownFrame(&'static str),
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
    /// A signature is bad or missing, or its key does not have the role.
    #[error("not signed as the policy demands: {0}")]
    NotSigned(&'static str),
    /// The statement was good under the policies that came with it, but not under a later policy that the reader
    /// knows. It is old, and nobody's lie.
    #[error("superseded: {0}")]
    Superseded(&'static str),
    /// The statement is about another volume.
    #[error("the statement belongs to another volume")]
    WrongVolume,
    /// The version is older than one that this reader has already seen.
    #[error("rollback: offered version {offered}, already seen {floor}")]
    Rollback {
        /// What was offered.
        offered: u64,
        /// The highest adopted.
        floor: u64,
    },
    /// Two statements that an honest publisher cannot both have signed.
    #[error("fork: {0}")]
    Fork(&'static str),
    /// A second successor of a policy whose successor has a successor too, as the reader knows. Removed owners can
    /// make one at any time. It stops no reader.
    #[error("a policy beside those that count: {0}")]
    StrayPolicy(&'static str),
    /// The user of this machine settled a fork in favour of the other side. A mirror that shows this
    /// side may be honest.
    #[error("refused on this machine: {0}")]
    Refused(&'static str),
    /// The statement's validity has ended.
    #[error("it expired at {}; now is {}", rfc3339(*until), rfc3339(*now))]
    Expired {
        /// End of validity, unix seconds.
        until: u64,
        /// The reader's notion of now, unix seconds.
        now: u64,
    },
    /// The statement starts in the future: a clock is wrong, the reader's or the publisher's.
    #[error("it starts at {}, more than ten minutes after now ({})", rfc3339(*start), rfc3339(*now))]
    NotYetValid {
        /// Claimed start, unix seconds.
        start: u64,
        /// The reader's notion of now, unix seconds.
        now: u64,
    },
    /// The owners ended the volume.
    #[error("the owners revoked this volume{}", successor_text(.successor.as_ref()))]
    Revoked {
        /// The volume that they recommend instead. Show it to the user; never follow it automatically.
        successor: Option<VolumeId>,
    },
    /// A proof about the volume's log does not hold.
    #[error("history: {0}")]
    BadHistory(&'static str),
    /// The statement's policies do not connect with those that the reader knows, and no replica has shown the
    /// policies between.
    #[error("no replica has shown the policies from {from} to {}", until.saturating_sub(1))]
    PoliciesMissing {
        /// Number of the first that is missing.
        from: u64,
        /// Number after the last that is missing.
        until: u64,
    },
    /// No replica has shown yet that the record's log contains the log that this reader knows.
    #[error("no replica has shown that the newer log contains the log that this reader knows")]
    Unproved,
    /// The reader asked for exactly one version, or for a chain with a given policy, and this is another one.
    #[error("pinned: {0}")]
    NotPinned(&'static str),
    /// A format version or flag that this build does not know.
    #[error("{what} needs a newer bulla: {why}")]
    Unsupported {
        /// Which structure.
        what: &'static str,
        /// Which version or flag.
        why: String,
    },
}

/// The error names that exit codes, errno, metrics and logs share. In ascending order: of several errors the
/// greatest is reported, because evidence of an attack matters more than an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// No answer, or an answer that decides nothing.
    Unavailable,
    /// Needs a newer bulla: the form is unknown to this version. No replica is blamed.
    Unsupported,
    /// The statement is too old to be believed.
    Expired,
    /// Bytes differ from what was signed.
    Integrity,
    /// An older statement than one already seen.
    Rollback,
    /// Two statements that contradict one another.
    Fork,
}

impl Reject {
    /// The same rejection for bytes that were already proved to match their handle: the publisher is at
    /// fault, not the mirror.
    pub fn signed(self) -> Reject {
        match self {
            Reject::Malformed { what, why } => Reject::BadTree { what, why },
            other => other,
        }
    }

    /// Whether the statement is refused only because a fork that the reader remembers is not settled. Then it is no
    /// evidence, and who showed it is not to blame.
    pub fn is_unsettled_fork(&self) -> bool {
        *self == Reject::Fork(UNSETTLED)
    }

    /// Whether the rejected block matches its handle all the same. Then every honest replica gives the same
    /// bytes: the publisher is at fault, or uses a later bulla.
    pub fn is_publishers_fault(&self) -> bool {
        matches!(self, Reject::BadTree { .. } | Reject::Unsupported { .. })
    }

    /// The error name that the whole product uses for this rejection.
    pub fn class(&self) -> Class {
        match self {
            Reject::Rollback { .. } => Class::Rollback,
            Reject::Fork(_) => Class::Fork,
            Reject::Expired { .. }
            | Reject::NotYetValid { .. }
            | Reject::Superseded(_)
            | Reject::Revoked { .. } => Class::Expired,
            Reject::NotPinned(_)
            | Reject::Refused(_)
            | Reject::Unproved
            | Reject::PoliciesMissing { .. }
            | Reject::UnknownFrame(_) => Class::Unavailable,
            Reject::Unsupported { .. } => Class::Unsupported,
            Reject::WrongBlock
            | Reject::WrongKind { .. }
            | Reject::BadFrame(_)
            | Reject::Malformed { .. }
            | Reject::BadTree { .. }
            | Reject::NotSigned(_)
            | Reject::StrayPolicy(_)
            | Reject::WrongVolume
            | Reject::BadHistory(_) => Class::Integrity,
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
            Class::Unsupported,
            Class::Expired,
            Class::Integrity,
            Class::Rollback,
            Class::Fork,
        ];
        assert!(order.is_sorted_by(|a, b| a < b));
        let later = Reject::Unsupported {
            what: "x",
            why: "format 9".into(),
        };
        assert_eq!(later.class(), Class::Unsupported);
    }
}
