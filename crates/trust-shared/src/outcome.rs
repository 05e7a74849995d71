//! What became of an op, and who wrote the entry that holds it. Relies on [`super::principal`].

use super::principal::Device;

/// Every reason why an op has no effect, in the order of its number in bytes.
const REASONS: [NoEffect; 14] = [
    NoEffect::NotPermitted,
    NoEffect::Exists,
    NoEffect::NotFound,
    NoEffect::NotEmpty,
    NoEffect::NotADirectory,
    NoEffect::IsADirectory,
    NoEffect::Needed,
    NoEffect::Stale,
    NoEffect::Locked,
    NoEffect::LockLost,
    NoEffect::BelowItself,
    NoEffect::Misformed,
    NoEffect::TooMany,
    NoEffect::Damaged,
];

/// The parts of an entry's heading that decide what its ops do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Position of the entry in the log.
    pub position: u64,
    /// Its author.
    pub device: Device,
    /// Size of the longest prefix that the author had verified.
    pub seen: u64,
    /// Size of the author's floor on disk.
    pub kept: u64,
}

impl Written {
    /// Size of the prefix that the entry attests. A prefix that its author could still forget is not attested.
    pub fn attests(&self) -> u64 {
        self.kept.min(self.seen)
    }
}

/// What became of an op at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was permitted, and its guards held: all its changes happened.
    Effect,
    /// It is a decision about members, or an Accept, and its author may make it. It takes effect after its author's
    /// next entry that attests it, if it still can ([`super::members::Members::take_effect`]).
    Late,
    /// Nothing happened.
    None(NoEffect),
}

impl Outcome {
    /// A byte for an outcome that may be unknown: 0 not known, 1 effect, 2 effect at a later entry, 3 and more: none, by the
    /// number of the reason.
    pub fn to_byte(outcome: Option<Outcome>) -> u8 {
        match outcome {
            None => 0,
            Some(Outcome::Effect) => 1,
            Some(Outcome::Late) => 2,
            Some(Outcome::None(why)) => 3 + why as u8,
        }
    }

    /// Reads what [`Outcome::to_byte`] gives. The outer `None`: no outcome has this byte.
    pub fn from_byte(byte: u8) -> Option<Option<Outcome>> {
        Some(match byte {
            0 => None,
            1 => Some(Outcome::Effect),
            2 => Some(Outcome::Late),
            reason => Some(Outcome::None(*REASONS.get(usize::from(reason - 3))?)),
        })
    }
}

/// Why an op has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoEffect {
    /// EACCES: the author may not make one of the changes.
    #[error("the author has no permission")]
    NotPermitted,
    /// EEXIST: the name, file, device or principal exists already.
    #[error("it exists already")]
    Exists,
    /// ENOENT: the name, file, device or principal does not exist.
    #[error("it does not exist")]
    NotFound,
    /// ENOTEMPTY: the directory has entries, or the user has devices.
    #[error("it is not empty")]
    NotEmpty,
    /// ENOTDIR: a file that is no directory stands where a directory must.
    #[error("it is not a directory")]
    NotADirectory,
    /// EISDIR: a directory stands where another kind of file must.
    #[error("it is a directory")]
    IsADirectory,
    /// EBUSY: the root directory, or the last administrator, must stay.
    #[error("the volume needs it")]
    Needed,
    /// EAGAIN: a value is not what the author saw. The call may be tried again with the newer value.
    #[error("somebody else was first; try again")]
    Stale,
    /// EAGAIN: another device has the lock.
    #[error("another device has the lock")]
    Locked,
    /// ENOLCK: the author's device has the lock no more.
    #[error("the lock was taken over")]
    LockLost,
    /// EINVAL: a directory cannot be moved below itself.
    #[error("a directory cannot lie below itself")]
    BelowItself,
    /// EINVAL: a guard that the change needs is missing, a guard is about something else, or the op mixes kinds of
    /// changes. No program that keeps the rules sends such an op.
    #[error("the op breaks a rule of ops")]
    Misformed,
    /// ENOSPC: more devices or principals than a volume may have.
    #[error("the volume has too many members")]
    TooMany,
    /// EIO: the op depends on a tree that a member signed and that breaks a rule of trees.
    #[error("it depends on a malformed tree that a member signed")]
    Damaged,
}

impl NoEffect {
    /// Whether the error is no answer to any call: it only says that another device was first, or has the lock.
    pub fn is_no_answer(self) -> bool {
        matches!(self, NoEffect::Stale | NoEffect::Locked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_byte_of_its_own() {
        for byte in 0..=16 {
            let outcome = Outcome::from_byte(byte).unwrap();
            assert_eq!(Outcome::to_byte(outcome), byte, "{outcome:?}");
        }
        assert_eq!(Outcome::from_byte(17), None);
    }
}
