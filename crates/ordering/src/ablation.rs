//! The rules of the client that tests leave out, one at a time, to see what each is worth.
//!
//! A scheme names its rules as a type. The product's scheme names [`All`], whose answers are constants: the product
//! has no value that could leave a rule out, and pays nothing for the question.

use trust_shared::form::{Fault, Faults};

/// A rule that a test can leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    // What a client checks.
    /// One fault of form.
    Form(Fault),
    /// An entry is signed by its author.
    Signature,
    /// Whether its author signed it is known before an entry is used.
    VerifyBeforeUse,
    /// An entry has the epoch of its position.
    EpochOfPosition,
    /// The log of an epoch begins with the prefix that the owners have named.
    BeginsWithStart,
    /// An Attest counts only on the chain that it names.
    AttestOnChain,
    /// An Attest counts only for entries of the device that signed it.
    AttestByAuthor,

    // What an author does.
    /// A device signs nothing in an epoch before its log has the start of the epoch.
    SignsFromStart,
    /// An entry's `seen` attests only as far as its `kept`.
    Kept,
    /// An Attest is signed after the floor that it names is synced.
    AttestAfterSync,
    /// One entry in flight for each device.
    OneInFlight,
    /// A Resume is alone in its entry.
    ResumeAlone,
    /// Journaled entries run again only after the Resume's receipt shows that they were not ordered.
    RerunAfterReceipt,
    /// Journaled calls do not run again after a power cut, if the log has an entry of the device that its journal has
    /// forgotten.
    ForgottenRunOnce,
    /// The floor is journaled before the answer.
    FloorBeforeAnswer,
    /// A read waits for a mark that is sent after the read began.
    MarkForReads,
    /// Two reads share a mark only if it is not yet sent.
    MarkNotInFlight,
    /// A lock's time to live runs from when the device has its last renewal in its log.
    LapseFromWatch,

    // What is used.
    /// A read waits for the authors of the entries that it rests on.
    ReadsWait,
    /// So does the outcome of one's own operation.
    OutcomesWait,
    /// A fold covers only what is attested.
    FoldAttested,
}

/// Which rules an engine follows.
pub trait Rules: Copy {
    /// Whether it follows this one.
    fn has(self, rule: Rule) -> bool;
    /// Faults of form that it does not look at.
    fn ignored(self) -> Faults;
}

/// All rules: what the product follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct All;

impl Rules for All {
    #[inline(always)]
    fn has(self, _: Rule) -> bool {
        true
    }

    #[inline(always)]
    fn ignored(self) -> Faults {
        Faults::default()
    }
}
