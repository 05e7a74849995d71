//! Whether evidence convicts, and whom. Each rule holds for an honest orderer and an honest device in every log, so a
//! liar cannot make evidence against them: what is hashed under a note is fixed by its root, and the rules of form
//! ([`crate::form`]) refuse all that convicts an orderer here.

use super::{Convicted, Evidence, Included, Offence, Verdict, bad};
use crate::entry::SignedEntry;
use crate::genesis::{Epoch, Policies};
use crate::leaf::Leaf;
use crate::note::SignedNote;
use trust::device::DeviceKey;
use trust::error::Reject;
use trust::history::proof::prefix_root;
use trust::history::{LogPoint, leaf_hash, verify_inclusion};
use trust::statement::signatures::Signatures;
use trust::statement::{Signed, VolumeId};

/// An epoch of which the orderer is accused.
struct Court {
    volume: VolumeId,
    epoch: Epoch,
}

/// A leaf that is proved to be in the log of a note, as an entry of the accused orderer's epoch.
struct Placed {
    index: u64,
    entry: SignedEntry,
}

const NO_FORK: Reject = Reject::BadHistory("the logs of the two notes agree");

impl Evidence {
    /// Judges the evidence.
    ///
    /// # Errors
    /// [`Reject::NotSigned`], [`Reject::BadHistory`] and [`Reject::Malformed`] when it proves nothing;
    /// [`Reject::Unsupported`] when a later bulla must judge it.
    pub fn judge(&self) -> Result<Verdict, Reject> {
        if let Offence::SignedTwice(both) = &self.offence {
            let [first, second] = both.as_ref();
            let device = self.signed_twice(first, second)?;
            return Ok(self.verdict(
                Convicted::Device(device),
                "signed two entries with one number",
            ));
        }
        let court = self.court()?;
        let what = court.offence(&self.offence)?;
        Ok(self.verdict(Convicted::Orderer(court.epoch.orderer), what))
    }

    fn verdict(&self, convicted: Convicted, what: &'static str) -> Verdict {
        Verdict {
            volume: self.volume,
            epoch: self.epoch,
            convicted,
            what,
        }
    }

    fn signed_twice(&self, first: &SignedEntry, second: &SignedEntry) -> Result<DeviceKey, Reject> {
        if !self.policies.is_empty() {
            return Err(bad("policies where a device is accused"));
        }
        if first.bytes() >= second.bytes() {
            return Err(bad("entries not in the order of their bytes"));
        }
        let (one, other) = (first.entry(), second.entry());
        let number = |entry: &SignedEntry| {
            let entry = entry.entry();
            (entry.epoch, entry.device, entry.incarnation, entry.n())
        };
        if number(first) != number(second) || one.epoch != self.epoch {
            return Err(Reject::BadHistory("entries with different numbers"));
        }
        // A second signature under the same words says nothing else.
        if one == other {
            return Err(Reject::BadHistory("the same entry, signed twice"));
        }
        first.verify(self.volume)?;
        second.verify(self.volume)?;
        Ok(one.device)
    }

    /// The epoch, as the owners of the volume have set it.
    fn court(&self) -> Result<Court, Reject> {
        let signatures = &mut Signatures::default();
        let policies = Policies::verify(self.volume, &self.policies, signatures)?;
        let epoch = *policies.newest_epoch();
        if epoch.number != self.epoch || !begins_epoch(&policies) {
            return Err(bad("policies that do not end where the epoch begins"));
        }
        if !only_owners_signed(&self.policies)? {
            return Err(bad("signatures of others under a policy"));
        }
        Ok(Court {
            volume: self.volume,
            epoch,
        })
    }
}

/// Whether the newest policy begins its epoch.
fn begins_epoch(policies: &Policies) -> bool {
    let newest = policies.chain().newest();
    let Some(before) = newest.number().checked_sub(1) else {
        return true;
    };
    let before = policies.chain().get(before);
    before.is_some_and(|(policy, _)| policy.log_epoch() != newest.log_epoch())
}

/// Whether the policies have no signatures but those that were verified.
fn only_owners_signed(policies: &[Signed]) -> Result<bool, Reject> {
    let mut before = None;
    for signed in policies {
        let policy: trust::statement::policy::Policy =
            signed.statement().read(signed.statement().volume())?;
        let owners = policy.roles().owners.clone();
        let role = before.as_ref().unwrap_or(&owners);
        if signed.reduced_to(&[role, &owners]) != *signed {
            return Ok(false);
        }
        before = Some(owners);
    }
    Ok(true)
}

impl Court {
    /// What the orderer did.
    fn offence(&self, offence: &Offence) -> Result<&'static str, Reject> {
        match offence {
            Offence::Fork {
                first,
                second,
                proof,
            } => self.fork(first, second, proof),
            Offence::OtherStart { note, proof } => self.other_start(note, proof),
            Offence::BadLeaf { note, leaf } => self.bad_leaf(note, leaf),
            Offence::SeenElsewhere { note, entry, proof } => {
                self.seen_elsewhere(note, entry, proof)
            }
            Offence::SeenMissesOwn {
                note,
                before,
                entry,
            } => self.seen_misses_own(note, before, entry),
            Offence::OtherPrevious {
                note,
                previous,
                entry,
            } => self.other_previous(note, previous.clone(), entry),
            Offence::PassesOver {
                note,
                previous,
                passed,
                entry,
            } => self.passes_over(note, [previous, passed, entry]),
            Offence::SignedTwice(_) => Err(bad("no offence of an orderer")),
        }
    }

    /// The log of a note that the orderer signed.
    fn log(&self, note: &SignedNote) -> Result<LogPoint, Reject> {
        if note.note().log.epoch != self.epoch.number {
            return Err(bad("a note of another epoch"));
        }
        Ok(*note.verify(self.volume, &self.epoch.orderer)?.log())
    }

    fn fork(
        &self,
        first: &SignedNote,
        second: &SignedNote,
        proof: &[[u8; 32]],
    ) -> Result<&'static str, Reject> {
        let (first, second) = (self.log(first)?, self.log(second)?);
        if (first.size, first.root) > (second.size, second.root) {
            return Err(bad("notes not in the order of their logs"));
        }
        if prefix_root(first.size, &second, proof)? == first.root {
            return Err(NO_FORK);
        }
        Ok("signed two logs, neither of which continues the other")
    }

    fn other_start(&self, note: &SignedNote, proof: &[[u8; 32]]) -> Result<&'static str, Reject> {
        let log = self.log(note)?;
        let start = self.epoch.start.in_epoch(self.epoch.number);
        // The orderer signs ends of pages too, for devices that catch up from the first leaf on.
        let agrees = match log.size < start.size {
            true => prefix_root(log.size, &start, proof)? == log.root,
            false => prefix_root(start.size, &log, proof)? == start.root,
        };
        if agrees {
            return Err(Reject::BadHistory("the log begins as the owners say"));
        }
        Ok("signed a log that does not begin with what the owners say")
    }

    /// Proves that a leaf is in the note's log, where the orderer of this epoch put it.
    fn place(&self, log: &LogPoint, included: &Included) -> Result<(), Reject> {
        let Included { index, leaf, path } = included;
        if *index < self.epoch.start.size {
            return Err(bad("a leaf of an earlier epoch"));
        }
        verify_inclusion(leaf, *index, log.size, &log.root, path)
    }

    /// An entry of this epoch in the note's log.
    fn entry(&self, log: &LogPoint, included: &Included) -> Result<Placed, Reject> {
        self.place(log, included)?;
        Ok(Placed {
            index: included.index,
            entry: SignedEntry::decode(included.leaf.clone())?,
        })
    }

    /// As [`Court::entry`], also in what the epochs before have left.
    fn earlier_entry(&self, log: &LogPoint, included: &Included) -> Result<Placed, Reject> {
        let Included { index, leaf, path } = included;
        verify_inclusion(leaf, *index, log.size, &log.root, path)?;
        Ok(Placed {
            index: *index,
            entry: SignedEntry::decode(leaf.clone())?,
        })
    }

    fn bad_leaf(&self, note: &SignedNote, leaf: &Included) -> Result<&'static str, Reject> {
        self.place(&self.log(note)?, leaf)?;
        let entry = match Leaf::decode(leaf.leaf.clone()) {
            Err(Reject::Malformed { .. }) => return Ok("accepted a malformed leaf"),
            Err(other) => return Err(other),
            Ok(Leaf::Marks(_)) => return Err(Reject::BadHistory("nothing is wrong with marks")),
            Ok(Leaf::Entry(entry)) => entry,
        };
        if entry.entry().epoch != self.epoch.number {
            return Ok("accepted an entry of another epoch");
        }
        if entry.verify(self.volume).is_err() {
            return Ok("accepted an entry that its author did not sign");
        }
        if entry.entry().seen.size > leaf.index {
            return Ok("accepted an entry whose author has seen more than there was");
        }
        Err(Reject::BadHistory("nothing is wrong with this leaf alone"))
    }

    fn seen_elsewhere(
        &self,
        note: &SignedNote,
        entry: &Included,
        proof: &[[u8; 32]],
    ) -> Result<&'static str, Reject> {
        let log = self.log(note)?;
        let seen = self.entry(&log, entry)?.entry.entry().seen;
        if prefix_root(seen.size, &log, proof)? == seen.root {
            return Err(Reject::BadHistory("the author has seen this log"));
        }
        Ok("accepted an entry whose author has seen another log")
    }

    fn seen_misses_own(
        &self,
        note: &SignedNote,
        before: &Included,
        entry: &Included,
    ) -> Result<&'static str, Reject> {
        let log = self.log(note)?;
        let (before, later) = (self.earlier_entry(&log, before)?, self.entry(&log, entry)?);
        let (one, other) = (before.entry.entry(), later.entry.entry());
        if before.index >= later.index || one.device != other.device {
            return Err(bad("no earlier entry of the author"));
        }
        // A Resume need not cover what a crash made the device forget, only the Resume before.
        if other.is_resume() && !one.is_resume() {
            return Err(bad("a Resume beside an entry that is none"));
        }
        if other.seen.size > before.index {
            return Err(Reject::BadHistory("the author has seen its entry before"));
        }
        Ok("accepted an entry whose author has not seen its own entry before")
    }

    fn other_previous(
        &self,
        note: &SignedNote,
        previous: bytes::Bytes,
        entry: &Included,
    ) -> Result<&'static str, Reject> {
        let placed = self.entry(&self.log(note)?, entry)?;
        let entry = placed.entry.entry();
        let named = entry.ops().map(|ops| ops.previous);
        if named != Some(leaf_hash(&previous)) {
            return Err(bad("not the leaf that the entry names"));
        }
        let follows = match Leaf::decode(previous) {
            Err(unsupported @ Reject::Unsupported { .. }) => return Err(unsupported),
            Err(_) | Ok(Leaf::Marks(_)) => false,
            Ok(Leaf::Entry(before)) => {
                let before = before.entry();
                before.device == entry.device
                    && before.incarnation == entry.incarnation
                    && before.n().checked_add(1) == Some(entry.n())
            }
        };
        if follows {
            return Err(Reject::BadHistory("the entry follows the one it names"));
        }
        Ok("accepted an entry that does not follow its author's entry before")
    }

    fn passes_over(
        &self,
        note: &SignedNote,
        [previous, passed, entry]: [&Included; 3],
    ) -> Result<&'static str, Reject> {
        let log = self.log(note)?;
        let previous = self.earlier_entry(&log, previous)?;
        let passed = self.earlier_entry(&log, passed)?;
        let later = self.entry(&log, entry)?;
        let named = later.entry.entry().ops().map(|ops| ops.previous);
        if named != Some(previous.entry.hash()) {
            return Err(bad("not the leaf that the entry names"));
        }
        if passed.entry.entry().device != later.entry.entry().device {
            return Err(bad("no other entry of the author"));
        }
        if previous.index >= passed.index || passed.index >= later.index {
            return Err(Reject::BadHistory("no entry is passed over"));
        }
        Ok("accepted an entry that passes over its author's entry before")
    }
}
