//! Form of an entry: the rules by which every device and the orderer judge each entry of a shared volume's log.
//!
//! An entry with a fault convicts the orderer that put it into the log. So these rules use only what each device
//! has without reading any file: the log itself, the list of devices, and one row for each device ([`Author`]).
//! Permission is judged elsewhere, for each operation. Signature and epoch are checked before.
//!
//! All faults are reported, not only the first: evidence names them, and a test can ask what one rule is worth.

use std::fmt;

/// A prefix of a log: its size, and its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point<H> {
    /// Number of leaves.
    pub size: u64,
    /// Root hash of these leaves.
    pub root: H,
}

/// What an entry says about itself and about its author's view, under the author's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heading<H, I> {
    /// One run of the author's engine.
    pub incarnation: I,
    /// Number of the entry in its incarnation. The Resume that begins it has number 0.
    pub n: u64,
    /// The author's entry before this one.
    pub previous: H,
    /// The longest prefix that the author had verified when it signed.
    pub seen: Point<H>,
    /// Size of the author's floor on disk when it signed. A power cut cannot take the author back before it.
    pub kept: u64,
    /// The entry begins an incarnation.
    pub resume: bool,
    /// A Resume without any operation beside it. True for other entries.
    pub alone: bool,
}

impl<H, I> Heading<H, I> {
    /// Size of the prefix that the entry attests. A prefix that its author could still forget is not attested.
    pub fn attests(&self) -> u64 {
        self.kept.min(self.seen.size)
    }
}

/// What the log says about one device, up to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Author<H, I> {
    /// The incarnation that the last Resume began.
    pub incarnation: I,
    /// Number of the last entry.
    pub n: u64,
    /// Hash of the last entry.
    pub last: H,
    /// Position of the last entry.
    pub last_at: u64,
    /// Position of the last Resume.
    pub resume_at: u64,
    /// The largest prefix that the device's entries attest.
    pub attested: u64,
}

impl<H: Copy, I: Copy> Author<H, I> {
    /// The row after an entry without faults.
    pub fn after(before: Option<&Self>, heading: &Heading<H, I>, hash: H, at: u64) -> Self {
        Author {
            incarnation: heading.incarnation,
            n: heading.n,
            last: hash,
            last_at: at,
            resume_at: match before {
                Some(before) if !heading.resume => before.resume_at,
                _ => at,
            },
            attested: heading
                .attests()
                .max(before.map_or(0, |before| before.attested)),
        }
    }
}

/// What is known about an author where an entry is judged.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a, H, I> {
    /// Its row. None: the log has no entry of it.
    pub author: Option<&'a Author<H, I>>,
    /// Its admission is in effect, and no removal.
    pub active: bool,
    /// Size of the log at which its admission came into effect. 0 for members by the genesis policy.
    pub admitted: u64,
}

/// One way in which an entry may not stand where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fault {
    /// The device is not, or no longer, a member.
    Inactive,
    /// The prefix that the author has seen is not a prefix of this log.
    SeenElsewhere,
    /// The author has not seen its own previous entry.
    SeenMissesPrevious,
    /// The number does not follow the author's last one.
    Number,
    /// `previous` is not the author's last entry.
    Previous,
    /// An entry of an incarnation that is not the last one, or a Resume that begins no new one.
    Incarnation,
    /// A Resume whose author has not seen the device's last Resume.
    ResumeMissesResume,
    /// The floor on disk is said to be beyond what was seen.
    KeptBeyondSeen,
    /// A device's first entry does not cover its admission.
    SeenMissesAdmission,
    /// A device's first entry begins no incarnation.
    NoResume,
    /// A Resume beside operations.
    ResumeNotAlone,
}

/// All faults, for tests that go through them.
pub const FAULTS: [Fault; 11] = [
    Fault::Inactive,
    Fault::SeenElsewhere,
    Fault::SeenMissesPrevious,
    Fault::Number,
    Fault::Previous,
    Fault::Incarnation,
    Fault::ResumeMissesResume,
    Fault::KeptBeyondSeen,
    Fault::SeenMissesAdmission,
    Fault::NoResume,
    Fault::ResumeNotAlone,
];

/// A set of faults.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults(u16);

impl Faults {
    /// Whether the entry may stand.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `fault` is one of them.
    pub fn contains(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u8) != 0
    }

    /// These, and `fault` if `found`.
    #[must_use]
    pub fn with(self, fault: Fault, found: bool) -> Faults {
        Faults(self.0 | (u16::from(found) << fault as u8))
    }

    /// These without `others`.
    #[must_use]
    pub fn without(self, others: Faults) -> Faults {
        Faults(self.0 & !others.0)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = FAULTS.into_iter().filter(|fault| self.contains(*fault));
        f.debug_set().entries(found).finish()
    }
}

/// Judges an entry that would be the next leaf of a log. `root_at` gives the root of each prefix of the log, and
/// nothing beyond its end.
pub fn faults<H: Copy + PartialEq, I: PartialEq>(
    standing: &Standing<'_, H, I>,
    heading: &Heading<H, I>,
    root_at: impl Fn(u64) -> Option<H>,
) -> Faults {
    let seen = &heading.seen;
    let always = Faults::default()
        .with(Fault::Inactive, !standing.active)
        .with(Fault::SeenElsewhere, root_at(seen.size) != Some(seen.root))
        .with(Fault::KeptBeyondSeen, heading.kept > seen.size)
        .with(Fault::ResumeNotAlone, heading.resume && !heading.alone);
    let Some(author) = standing.author else {
        return always
            .with(Fault::SeenMissesAdmission, seen.size < standing.admitted)
            .with(Fault::NoResume, !heading.resume);
    };
    if heading.resume {
        return always
            .with(Fault::Number, heading.n != 0)
            .with(
                Fault::Incarnation,
                heading.incarnation == author.incarnation,
            )
            .with(Fault::ResumeMissesResume, seen.size <= author.resume_at);
    }
    always
        .with(Fault::SeenMissesPrevious, seen.size <= author.last_at)
        .with(Fault::Number, author.n.checked_add(1) != Some(heading.n))
        .with(Fault::Previous, heading.previous != author.last)
        .with(
            Fault::Incarnation,
            heading.incarnation != author.incarnation,
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roots of a log of ten leaves, and of no other.
    fn root(size: u64) -> Option<u64> {
        (size <= 10).then_some(100 + size)
    }

    fn point(size: u64) -> Point<u64> {
        Point {
            size,
            root: 100 + size,
        }
    }

    fn heading() -> Heading<u64, char> {
        Heading {
            incarnation: 'a',
            n: 4,
            previous: 77,
            seen: point(9),
            kept: 9,
            resume: false,
            alone: true,
        }
    }

    fn resume() -> Heading<u64, char> {
        Heading {
            incarnation: 'b',
            n: 0,
            resume: true,
            ..heading()
        }
    }

    fn author() -> Author<u64, char> {
        Author {
            incarnation: 'a',
            n: 3,
            last: 77,
            last_at: 8,
            resume_at: 2,
            attested: 5,
        }
    }

    fn judge(heading: &Heading<u64, char>, author: Option<&Author<u64, char>>) -> Vec<Fault> {
        let standing = Standing {
            author,
            active: true,
            admitted: 2,
        };
        let found = faults(&standing, heading, root);
        FAULTS
            .into_iter()
            .filter(|fault| found.contains(*fault))
            .collect()
    }

    #[test]
    fn entry_that_follows_its_author_has_no_fault() {
        assert!(judge(&heading(), Some(&author())).is_empty());
        assert!(judge(&resume(), Some(&author())).is_empty());
        assert!(judge(&resume(), None).is_empty());
    }

    #[test]
    fn each_fault_of_an_entry_is_found_alone() {
        let cases = [
            (
                Heading {
                    seen: Point { size: 9, root: 3 },
                    ..heading()
                },
                Fault::SeenElsewhere,
            ),
            (
                Heading {
                    seen: point(11),
                    ..heading()
                },
                Fault::SeenElsewhere,
            ),
            (
                Heading {
                    seen: point(8),
                    kept: 8,
                    ..heading()
                },
                Fault::SeenMissesPrevious,
            ),
            (Heading { n: 5, ..heading() }, Fault::Number),
            (Heading { n: 3, ..heading() }, Fault::Number),
            (
                Heading {
                    previous: 78,
                    ..heading()
                },
                Fault::Previous,
            ),
            (
                Heading {
                    incarnation: 'b',
                    ..heading()
                },
                Fault::Incarnation,
            ),
            (
                Heading {
                    kept: 10,
                    ..heading()
                },
                Fault::KeptBeyondSeen,
            ),
            (Heading { n: 1, ..resume() }, Fault::Number),
            (
                Heading {
                    incarnation: 'a',
                    ..resume()
                },
                Fault::Incarnation,
            ),
            (
                Heading {
                    seen: point(2),
                    kept: 2,
                    ..resume()
                },
                Fault::ResumeMissesResume,
            ),
            (
                Heading {
                    alone: false,
                    ..resume()
                },
                Fault::ResumeNotAlone,
            ),
        ];
        for (heading, fault) in cases {
            assert_eq!(judge(&heading, Some(&author())), [fault], "{heading:?}");
        }
    }

    #[test]
    fn first_entry_of_a_device_resumes_and_covers_its_admission() {
        assert_eq!(judge(&heading(), None), [Fault::NoResume]);
        let early = Heading {
            seen: point(1),
            kept: 1,
            ..resume()
        };
        assert_eq!(judge(&early, None), [Fault::SeenMissesAdmission]);
        let author = author();
        let standing = Standing {
            author: Some(&author),
            active: false,
            admitted: 2,
        };
        assert!(faults(&standing, &heading(), root).contains(Fault::Inactive));
    }

    #[test]
    fn entry_attests_no_more_than_its_author_keeps() {
        let heading = Heading {
            kept: 6,
            ..heading()
        };
        assert_eq!(heading.attests(), 6);
        let after = Author::after(Some(&author()), &heading, 78, 10);
        assert_eq!((after.attested, after.resume_at, after.last_at), (6, 2, 10));
        let resumed = Author::after(
            Some(&after),
            &Heading {
                kept: 1,
                ..resume()
            },
            79,
            11,
        );
        assert_eq!((resumed.attested, resumed.resume_at, resumed.n), (6, 11, 0));
    }
}
