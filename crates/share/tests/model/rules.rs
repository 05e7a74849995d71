//! The rules that can be left out, one at a time, to see what each is worth.

use trust::shared::form::{Fault, Faults};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    // What a client checks.
    /// One fault of form.
    Form(Fault),
    /// A reply extends the log that the client has.
    Extends,
    /// An entry is signed by its author.
    Signature,
    /// An Attest counts only on the chain that it names.
    AttestOnChain,
    /// An Attest counts only for entries of the device that signed it.
    AttestByAuthor,

    // What an author does.
    /// An entry's `seen` attests only as far as its `kept`.
    Kept,
    /// An Attest is signed after the floor that it names is synced.
    AttestAfterSync,
    /// One entry in flight for each device.
    OneInFlight,
    /// A Resume is alone in its entry.
    ResumeAlone,
    /// Every start of the engine begins a fresh incarnation.
    FreshIncarnation,
    /// Journaled entries run again only after the Resume's receipt shows that they were not ordered.
    RerunAfterReceipt,
    /// The floor is journaled before the answer.
    FloorBeforeAnswer,
    /// A read waits for a mark that is sent after the read began.
    MarkForReads,
    /// Two reads share a mark only if it is not yet sent.
    MarkNotInFlight,

    // What has effect.
    /// A read waits for the authors of the entries that it rests on.
    ReadsWait,
    /// So does the outcome of one's own operation.
    OutcomesWait,
    /// Permission is judged for each operation, not as part of an entry's form.
    PermissionIsNoForm,
    /// All guards of an operation hold at its position, or it has no effect.
    Guards,
    /// A directory move guards the path from the new parent to the root.
    MovePath,
    /// Membership and Accept take effect at their author's next entry, not at once.
    LateEffect,
    /// That entry's `kept` covers them, not only its `seen`.
    LateEffectKept,
    /// An Accept counts only what its `seen` covers.
    AcceptSeen,
    /// A fold covers only what is attested.
    FoldAttested,
    /// After three failures an operation takes the file's lock.
    Lock,
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

    /// Faults of form that nobody looks at.
    pub fn ignored(self) -> Faults {
        let left_out = self.without.into_iter().flatten();
        left_out.fold(Faults::default(), |faults, rule| match rule {
            Rule::Form(fault) => faults.with(fault, true),
            Rule::ResumeAlone => faults.with(Fault::ResumeNotAlone, true),
            _ => faults,
        })
    }
}
