//! The read rule: may a device use an entry of another device that its author has not attested on this chain?
//!
//! Until the author has signed something that covers the entry, the orderer can have put the same entry into two
//! branches of the log. No protocol keeps readers of two branches apart and never waits; this rule is where bulla
//! waits.

pub use trust_shared::genesis::Silence;

/// What speaks for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Support {
    /// The reader wrote it.
    Own,
    /// Its author signed something on this chain that covers it.
    Attested,
    /// An administrator's decision that is in effect counts it.
    Accepted,
    /// Nothing yet.
    None,
}

/// What the reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Uses the entry.
    Use,
    /// Asks the author, and waits.
    Ask,
    /// Uses the entry, and says that it is not attested.
    UseMarked,
    /// Gives up: the server or the author is silent.
    Fail,
}

/// Decides on one entry. `waited`: the time to wait for its author has passed.
pub fn judge(silence: Silence, support: Support, waited: bool) -> Verdict {
    match (support, waited, silence) {
        (Support::Own | Support::Attested | Support::Accepted, _, _) => Verdict::Use,
        (Support::None, false, _) => Verdict::Ask,
        (Support::None, true, Silence::Relaxed) => Verdict::UseMarked,
        (Support::None, true, Silence::Strict) => Verdict::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_entry_is_used_at_once() {
        for support in [Support::Own, Support::Attested, Support::Accepted] {
            for silence in [Silence::Strict, Silence::Relaxed] {
                assert_eq!(judge(silence, support, false), Verdict::Use);
            }
        }
    }

    #[test]
    fn unattested_entry_waits_and_then_follows_the_policy() {
        assert_eq!(judge(Silence::Strict, Support::None, false), Verdict::Ask);
        assert_eq!(judge(Silence::Relaxed, Support::None, false), Verdict::Ask);
        assert_eq!(judge(Silence::Strict, Support::None, true), Verdict::Fail);
        assert_eq!(
            judge(Silence::Relaxed, Support::None, true),
            Verdict::UseMarked
        );
    }
}
