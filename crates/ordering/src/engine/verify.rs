//! Signatures of entries, verified as late as possible and before anything rests on them (decision 0051).
//!
//! An entry signs the hash of its author's entry before it, and the form of every entry is checked: so a signature
//! that is verified vouches for all entries of its author back to the last Resume. One signature for each author is
//! enough, however many entries a page has. Until it is verified, an entry is the orderer's word. So it is
//! verified before this device answers, evaluates for its own entry, or signs anything, and at once where others hang
//! on it: a Resume, which names no entry before it, and what [`Roll::is_weighty`](crate::volume::Roll::is_weighty) says.

use super::{Effects, Engine, Evidence, Unverified};
use crate::ablation::{Rule, Rules};
use crate::scheme::DeviceScheme;
use crate::volume::Volume;
use trust_shared::form::Faults;

/// What is wrong with an entry whose author did not sign it.
pub(super) const FORGED: &str = "the signature is not the author's";

/// What is wrong with an entry of another epoch than its position has.
pub(super) const OTHER_EPOCH: &str = "it is of another epoch of the log";

/// What is wrong with a reply.
pub(super) enum Wrong<S: DeviceScheme> {
    /// It proves nothing.
    Unfit(&'static str),
    /// The orderer has signed it.
    Evidence(Box<Evidence<S>>),
}

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// Verifies the last entry of each author, where nothing has vouched for it yet. After an entry that its author
    /// did not sign, the engine has stopped.
    pub fn verify(&mut self) -> Effects<S, V, T> {
        let mut out = Vec::new();
        match self.ledger.note().cloned().filter(|_| self.is_stopped()) {
            // What it had stays readable if its authors signed it.
            Some(note) => drop(self.verify_all(&note)),
            None => {
                self.is_verified(&mut out);
            }
        }
        out
    }

    /// Whether nothing vouches for the last entry of some author. After [`Engine::verify`] that is so only if it is
    /// forged: then nothing may be read from this log.
    pub fn is_unverified(&self) -> bool {
        !self.unverified.is_empty()
    }

    /// As [`Engine::verify`]. Gives whether the engine may go on.
    pub(super) fn is_verified(&mut self, out: &mut Effects<S, V, T>) -> bool {
        if self.unverified.is_empty() || self.is_stopped() {
            return !self.is_stopped();
        }
        let Some(note) = self.ledger.note().cloned() else {
            // Leaves come with a note.
            return true;
        };
        match self.verify_all(&note) {
            Ok(()) => true,
            Err(wrong) => {
                self.wrong(wrong, out);
                false
            }
        }
    }

    /// Verifies the last entry of each author. `note` names a log with them, or this log's newest note does.
    pub(super) fn verify_all(&mut self, note: &S::Note) -> Result<(), Wrong<S>> {
        if !self.scheme.rules().has(Rule::VerifyBeforeUse) {
            return Ok(());
        }
        self.verify_each(|_| true, note)?;
        self.unverified = Unverified::default();
        Ok(())
    }

    /// Verifies the last entry of an author, before something follows that does not vouch for it.
    pub(super) fn verify_last_of(
        &mut self,
        author: S::Device,
        note: &S::Note,
    ) -> Result<(), Wrong<S>> {
        self.verify_each(|other| other == author, note)?;
        self.unverified.remove(author);
        Ok(())
    }

    fn verify_each(
        &self,
        wanted: impl Fn(S::Device) -> bool,
        note: &S::Note,
    ) -> Result<(), Wrong<S>> {
        for (author, (at, entry)) in self.unverified.iter() {
            if wanted(author) && self.is_forged(entry) {
                return Err(self.forged(*at, entry, note));
            }
        }
        Ok(())
    }

    /// Whether its author did not sign it. What this device has sent, it has signed: the hash covers the signature.
    pub(super) fn is_forged(&self, entry: &S::Entry) -> bool {
        let sent = || self.flight.iter().any(|mine| S::id(mine) == S::id(entry));
        let signed = || sent() || self.scheme.entry_is_signed(entry);
        self.scheme.rules().has(Rule::Signature) && !signed()
    }

    fn forged(&self, at: u64, entry: &S::Entry, note: &S::Note) -> Wrong<S> {
        // A reply may end before what this device has.
        let newest = self.ledger.note();
        let newest = newest.filter(|mine| S::noted(mine).size > S::noted(note).size);
        Wrong::Evidence(Box::new(Evidence::Form {
            note: newest.unwrap_or(note).clone(),
            at,
            entry: entry.clone(),
            faults: Faults::default(),
            malformed: Some(FORGED),
        }))
    }

    /// Whether the signature of the next entry is verified before anything else is taken.
    pub(super) fn is_urgent(&self, entry: &S::Entry) -> bool {
        let own = S::author(entry) == self.scheme.me();
        own || S::heading(entry).resume || self.ledger.volume().is_weighty(entry)
    }

    /// An entry is in the log whose signature is verified, or not.
    pub(super) fn note_verified(&mut self, at: u64, entry: &S::Entry, verified: bool) {
        match verified {
            true => self.unverified.remove(S::author(entry)),
            false => self.unverified.insert(at, entry),
        }
    }
}
