//! What a witness decides: whether a log that it is shown continues the one that it cosigned last (C2SP `tlog-witness`).
//!
//! A [`Submission`] is the body of an `add-checkpoint` request, and the file of a witness without a network. All of it is
//! hostile. [`Submission::check`] and then [`Signed::admit`] are the checks of the specification. The caller keeps the new
//! state durably before any cosignature leaves, and lets no two calls of [`Signed::admit`] about one log overlap.

use crate::error::Reject;
use crate::history::signed_note::{
    ED25519, SIGNATURE_PREFIX, base64, checkpoint_lines, key_id, origin, unbase64,
};
use crate::history::{Frontier, LogPoint, verify_consistency};
use crate::key::{PublicKey, SIGNATURE_BYTES};
use crate::published::checkpoint::{
    COSIGNATURE_V1, MAX_CHECKPOINT_BYTES, MAX_SIGNATURE_LINES, cosignatures,
};
use crate::statement::VolumeId;
use crate::statement::roles::Threshold;

/// Most hashes of a consistency proof in a request.
pub const MAX_PROOF_LINES: usize = 63;
/// Longest body of a request, bytes: the size, 63 lines of 45 bytes, and a note.
pub const MAX_SUBMISSION_BYTES: usize = MAX_CHECKPOINT_BYTES + (4 << 10);
/// Longest name of a witness, bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// A checkpoint of a volume's log with the lines of its signatures. Nothing is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The volume that its first line names.
    pub volume: VolumeId,
    /// The log that it states.
    pub log: LogPoint,
    /// The signature lines, each with its end.
    lines: String,
}

/// A checkpoint for a witness, with the proof that it continues the one of `old` leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Number of leaves of the log that the witness has cosigned, as the sender believes.
    pub old: u64,
    /// The consistency proof from there (RFC 6962, 2.1.2).
    pub proof: Vec<[u8; 32]>,
    /// The checkpoint.
    pub note: Note,
}

/// Why a witness does not cosign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request breaks a rule of its form.
    #[error("{0}")]
    Malformed(&'static str),
    /// The witness does not follow this volume.
    #[error("this witness does not follow this volume")]
    UnknownVolume,
    /// The witness has cosigned a later log of this volume, so this one is over.
    #[error("this log is over: the witness has cosigned the log {later} of this volume")]
    Ended {
        /// The epoch of the later log.
        later: u64,
    },
    /// None of the log's keys has signed the checkpoint.
    #[error("no key of this log has signed the checkpoint")]
    NotSigned,
    /// The sender believes that the witness has cosigned another size.
    #[error("this witness has cosigned the log of {size} leaves")]
    OtherSize {
        /// What it has cosigned.
        size: u64,
    },
    /// The log has other leaves than the log of the same size that the witness has cosigned.
    #[error("this witness has cosigned another log of {size} leaves")]
    OtherRoot {
        /// The size of both.
        size: u64,
    },
    /// Nothing shows that the log continues the one that the witness has cosigned.
    #[error(
        "the proof does not show that the log continues the {size} leaves that this witness has cosigned"
    )]
    BadProof {
        /// What it has cosigned.
        size: u64,
    },
}

impl Note {
    /// A note without signatures.
    pub fn new(volume: VolumeId, log: LogPoint) -> Note {
        Note {
            volume,
            log,
            lines: String::new(),
        }
    }

    /// Reads a note. Extension lines are refused: logs of volumes have none.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Note, Reject> {
        if bytes.len() > MAX_CHECKPOINT_BYTES {
            return Err(bad("too long"));
        }
        let note = std::str::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
        let (text, lines) = note.split_once("\n\n").ok_or(bad("no empty line"))?;
        let mut parts = text.split('\n');
        let (Some(first), Some(size), Some(root), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad("its text has not three lines"));
        };
        let (volume, epoch) = read_origin(first).ok_or(bad("not the log of a bulla volume"))?;
        let root = unbase64(root).and_then(|root| root.try_into().ok());
        let log = LogPoint {
            epoch,
            size: size.parse().map_err(|_| bad("not a size"))?,
            root: root.ok_or(bad("not a root"))?,
        };
        let note = Note {
            volume,
            log,
            lines: lines.to_owned(),
        };
        // One spelling: what is signed is computed again from the parts.
        if note.text().strip_suffix('\n') != Some(text) {
            return Err(bad("not in its one spelling"));
        }
        let is_line = |line: &str| line.starts_with(SIGNATURE_PREFIX);
        let ends = lines.is_empty() || lines.ends_with('\n');
        if !ends || !lines.lines().all(is_line) || lines.lines().count() > MAX_SIGNATURE_LINES {
            return Err(bad("other lines than signatures, or too many"));
        }
        Ok(note)
    }

    /// The signed text: origin, size, root.
    pub fn text(&self) -> String {
        checkpoint_lines(self.volume, &self.log)
    }

    /// The signature lines.
    pub fn lines(&self) -> &str {
        &self.lines
    }

    /// The whole note.
    pub fn encode(&self) -> String {
        format!("{}\n{}", self.text(), self.lines)
    }

    /// Adds signature lines that are not there yet, each with its end.
    pub fn add(&mut self, lines: &str) {
        for line in lines.split_inclusive('\n') {
            if !self.lines.split_inclusive('\n').any(|own| own == line) {
                self.lines.push_str(line);
            }
        }
    }

    /// The note with one line of each of these keys that has signed it as the log's own, and no other lines.
    pub fn signed_by(&self, keys: &[PublicKey]) -> Note {
        let (name, text) = (origin(self.volume, self.log.epoch), self.text());
        let mut note = Note::new(self.volume, self.log);
        let mut found = Vec::new();
        let signed = |line: &str| {
            let (by, encoded) = line.strip_prefix(SIGNATURE_PREFIX)?.split_once(' ')?;
            let payload = unbase64(encoded).filter(|_| by == name)?;
            let (id, signature) = payload.split_first_chunk::<4>()?;
            let signature: &[u8; SIGNATURE_BYTES] = signature.try_into().ok()?;
            keys.iter()
                .filter(|key| key_id(&name, ED25519, key) == *id)
                .find(|key| key.verify(text.as_bytes(), signature))
        };
        for line in self.lines.split_inclusive('\n') {
            if let Some(key) = signed(line.trim_end_matches('\n'))
                && !found.contains(key)
            {
                found.push(*key);
                note.lines.push_str(line);
            }
        }
        note
    }

    /// The line by which the witness of this name and key has cosigned it.
    pub fn line_of(&self, name: &str, key: PublicKey) -> Option<String> {
        let witness = Threshold::new(1, vec![key]).ok()?;
        // The line of this name may not be the first one of the key.
        self.lines.split_inclusive('\n').find_map(|line| {
            let good = cosignatures(line.as_bytes(), self.volume, &self.log, &witness);
            let own = good.into_iter().find(|good| good.name == name)?;
            Some(own.line)
        })
    }
}

/// A checkpoint that a key of the volume's log has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed<'a> {
    submission: &'a Submission,
    note: Note,
}

impl Signed<'_> {
    /// The note with the log's own lines, and without those of others.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// Whether a witness may cosign that has cosigned `last` last, of the volume's newest log. A later log begins without a
    /// predecessor; an earlier one is over.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn admit(&self, last: Option<&LogPoint>) -> Result<(), Refusal> {
        let Submission { old, proof, note } = self.submission;
        if let Some(last) = last.filter(|last| note.log.epoch < last.epoch) {
            return Err(Refusal::Ended { later: last.epoch });
        }
        let empty = LogPoint {
            epoch: note.log.epoch,
            size: 0,
            root: Frontier::new().root(),
        };
        let last = last.filter(|last| last.epoch == note.log.epoch);
        let last = last.unwrap_or(&empty);
        let size = last.size;
        if *old != size {
            return Err(Refusal::OtherSize { size });
        }
        match verify_consistency(last, &note.log, proof) {
            Ok(()) => Ok(()),
            Err(Reject::Fork(_)) => Err(Refusal::OtherRoot { size }),
            Err(_) => Err(Refusal::BadProof { size }),
        }
    }
}

impl Submission {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Submission, Reject> {
        if bytes.len() > MAX_SUBMISSION_BYTES {
            return Err(bad("too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
        let (head, note) = text.split_once("\n\n").ok_or(bad("no empty line"))?;
        let mut lines = head.split('\n');
        let old = lines.next().and_then(|line| line.strip_prefix("old "));
        let old = old.and_then(decimal).ok_or(bad("no old size"))?;
        let mut proof = Vec::new();
        for line in lines {
            let hash = unbase64(line).and_then(|hash| hash.try_into().ok());
            proof.push(hash.ok_or(bad("not a hash of a proof"))?);
            if proof.len() > MAX_PROOF_LINES {
                return Err(bad("a proof of more than 63 hashes"));
            }
        }
        let note = Note::decode(note.as_bytes())?;
        Ok(Submission { old, proof, note })
    }

    /// The body of a request.
    pub fn encode(&self) -> String {
        let mut body = format!("old {}\n", self.old);
        for hash in &self.proof {
            body += &base64(hash);
            body.push('\n');
        }
        body.push('\n');
        body + &self.note.encode()
    }

    /// What a witness checks without a look at what it has cosigned: the form, and a signature of the volume's log. `keys` are
    /// those of this log.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check(&self, keys: &[PublicKey]) -> Result<Signed<'_>, Refusal> {
        if keys.is_empty() {
            return Err(Refusal::UnknownVolume);
        }
        let note = self.note.signed_by(keys);
        if note.lines.is_empty() {
            return Err(Refusal::NotSigned);
        }
        if self.old > note.log.size {
            return Err(Refusal::Malformed("the old size is above the new one"));
        }
        Ok(Signed {
            submission: self,
            note,
        })
    }
}

/// A verifier key of C2SP `signed-note`, by which programs for transparency logs name a witness: the name, the key id and
/// the key of cosignatures.
pub fn verifier_key(name: &str, key: &PublicKey) -> String {
    let id = u32::from_be_bytes(key_id(name, COSIGNATURE_V1, key));
    let typed = [[COSIGNATURE_V1].as_slice(), key.as_bytes()].concat();
    format!("{name}+{id:08x}+{}", base64(&typed))
}

/// The same of a log's own key, by which a witness of another make learns which log to follow.
pub fn log_verifier_key(volume: VolumeId, epoch: u64, key: &PublicKey) -> String {
    let name = origin(volume, epoch);
    let id = u32::from_be_bytes(key_id(&name, ED25519, key));
    let typed = [[ED25519].as_slice(), key.as_bytes()].concat();
    format!("{name}+{id:08x}+{}", base64(&typed))
}

/// Whether a witness may call itself so: a name in a signature line has no spaces and no `+` (C2SP `signed-note`).
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '+';
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(fits)
}

/// The volume and the epoch of a log's name.
fn read_origin(name: &str) -> Option<(VolumeId, u64)> {
    let (volume, epoch) = name.strip_prefix("bulla/")?.split_once('/')?;
    let (volume, epoch) = (volume.parse().ok()?, decimal(epoch)?);
    (origin(volume, epoch) == name).then_some((volume, epoch))
}

/// A decimal number without leading zeros.
fn decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "checkpoint for witnesses",
        why,
    }
}
