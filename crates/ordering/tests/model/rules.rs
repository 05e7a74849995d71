//! The rules that can be left out, a few at a time, to see what each is worth.

use trust_shared::form::{Fault, Faults};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A rule of the client.
    Client(ordering::ablation::Rule),

    // What surrounds the client.
    /// A reply extends the log that the client has.
    Extends,
    /// Every start of the engine begins a fresh incarnation.
    FreshIncarnation,

    /// A checkpointer signs a prefix in which every entry is attested or accepted.
    CheckpointAttested,
    /// Its floor has the prefix durably.
    CheckpointKept,
    /// A device that has seen anything of the log begins with no checkpoint.
    BeginsNew,

    // What has effect.
    /// Permission is judged for each operation, not as part of an entry's form.
    PermissionIsNoForm,
    /// All guards of an operation hold at its position, or it has no effect.
    Guards,
    /// A directory move guards the path from the new parent to the root.
    MovePath,
    /// Membership and Accept take effect at their author's next entry, not at once.
    LateEffect,
    /// The `kept` of that entry covers a change of members, not only its `seen`.
    LateEffectKept,
    /// The same for an Accept.
    AcceptKept,
    /// An Accept counts only what its `seen` covers.
    AcceptSeen,
    /// After one failure (`ordering::volume::PATIENCE`) a write claims the file's lock.
    Lock,
    /// A lock that its holder does not renew is taken over.
    Takeover,
    /// A takeover is guarded by the position of the holder's last renewal.
    HolderLast,
    /// What is written under a lock is guarded by having it.
    Holds,
    /// A write whose file is locked says in the log that it waits, and the lock goes to whom the log has first.
    Queue,
    /// A write that passes the lock on is guarded by having it.
    PassHolds,
    /// A place in the queue outlives one Unlock.
    PlaceStays,
    /// A call that finds its file locked claims it once.
    ClaimOnce,
    /// The lock goes to the device that has waited longest.
    FirstOfQueue,
    /// A lock is passed only to a device that may write the file.
    PassToWriters,
    /// A lock whose holder may not write the file is taken over at once.
    ReadersHoldNothing,
    /// A lock that a device has for one change, and does not use, goes on at once.
    Leftover,
    /// A program's lock stays until the program gives it up.
    ProgramsLock,
    /// No value rests on a Claim in vain.
    RestsOnNoWait,

    // The memory of a device.
    /// A snapshot has the entries that nobody has verified.
    SnapshotUnverified,
}

/// Leaving out a fault of form.
pub const fn form(fault: Fault) -> Rule {
    Rule::Client(ordering::ablation::Rule::Form(fault))
}

/// Rules that are left out together, at most.
const TOGETHER: usize = 5;

/// The rules of a protocol, of which some may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    pub without: [Option<Rule>; TOGETHER],
}

impl Rules {
    pub fn without(rules: &[Rule]) -> Rules {
        assert!(rules.len() <= TOGETHER);
        Rules {
            without: std::array::from_fn(|at| rules.get(at).copied()),
        }
    }

    pub fn has(self, rule: Rule) -> bool {
        !self.without.contains(&Some(rule))
    }
}

impl ordering::ablation::Rules for Rules {
    fn has(self, rule: ordering::ablation::Rule) -> bool {
        Rules::has(self, Rule::Client(rule))
    }

    /// Faults of form that nobody looks at.
    fn ignored(self) -> Faults {
        let left_out = self.without.into_iter().flatten();
        left_out.fold(Faults::default(), |faults, rule| match rule {
            Rule::Client(ordering::ablation::Rule::Form(fault)) => faults.with(fault, true),
            Rule::Client(ordering::ablation::Rule::ResumeAlone) => {
                faults.with(Fault::ResumeNotAlone, true)
            }
            _ => faults,
        })
    }
}
