//! What can be wrong with a state: the check that finds it, and what it finds.

/// Each check by name, so that a rule that is left out must be found by the check that is there for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// A device signs two entries with one number.
    Once,
    /// What a program was told is not in its device's log any more.
    Whole,
    /// An answer rests on an entry that nothing speaks for.
    Support,
    /// A call has effect twice.
    Twice,
    /// No machine gives these answers.
    Answers,
    /// A call comes before one that had ended when it began.
    Time,
    /// A device writes that is no member.
    Members,
    /// Two views count one entry, in two logs.
    Tree,
    /// More of a device lies in two logs than one entry and a Resume.
    Crossed,
    /// More Resumes of a device than one lie in two logs.
    Resumes,
    /// A device stops as if its key ran elsewhere, and it does not.
    Stops,
    /// A device of the second epoch reads and writes on a log without the start of the epoch.
    Start,
    /// An honest server is taken for a liar.
    Alarm,
    /// An honest server refuses an entry, and nothing has happened to its author.
    Refused,
    /// A device has another log than an honest server.
    Log,
    /// A call needs too many entries.
    Attempts,
    /// Others get a lock again and again that a device waits for.
    Overtaken,
    /// Nothing more happens, and somebody still waits.
    Waits,
    /// A lock is taken over before its time.
    Lapse,
    /// The same state comes again.
    Circle,
    /// The search finds no orders of the calls that fork consistency allows.
    Search,
}

#[derive(Clone, Debug)]
pub struct Broken {
    pub check: Check,
    /// For people to read.
    pub what: String,
}

impl Check {
    pub fn finds(self, what: impl Into<String>) -> Broken {
        Broken {
            check: self,
            what: what.into(),
        }
    }
}
