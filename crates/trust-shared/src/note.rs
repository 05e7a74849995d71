//! Notes: the orderer's signed checkpoints of the log, one for each group commit (docs/formats/shared.md, *Note*).
//!
//! What is signed is the text of a C2SP checkpoint with the time as its extension line, so that tools and witnesses
//! for such logs can read it. Devices keep and send the same statement in a compact form of 120 bytes.

use super::entry::Prefix;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::history::LogPoint;
use trust::history::signed_note::{
    ED25519, SIGNATURE_PREFIX, checkpoint_lines, key_id, origin, signature_line, unbase64,
};
use trust::key::{PublicKey, SIGNATURE_BYTES, SecretKey, Verifier};
use trust::volume_id::VolumeId;

/// Bytes of a note in its compact form.
pub const NOTE_BYTES: usize = 48 + 8 + SIGNATURE_BYTES;
/// Longest note as a text, bytes.
pub const MAX_NOTE_TEXT_BYTES: usize = 1 << 10;
const WHAT: &str = "note";

/// The log at some time, as the orderer states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Note {
    /// Number of the log, size and root.
    pub log: LogPoint,
    /// The orderer's clock, unix milliseconds.
    pub time_ms: u64,
}

impl Note {
    /// Signs the note.
    pub fn sign(&self, volume: VolumeId, key: &SecretKey) -> SignedNote {
        SignedNote {
            note: *self,
            signature: key.sign(self.text(volume).as_bytes()),
        }
    }

    /// What is signed: origin, size, root, time.
    pub fn text(&self, volume: VolumeId) -> String {
        let lines = checkpoint_lines(volume, &self.log);
        format!("{lines}time {}\n", self.time_ms)
    }

    /// The prefix that entries and attests name as seen.
    pub fn prefix(&self) -> Prefix {
        Prefix {
            size: self.log.size,
            root: self.log.root,
        }
    }
}

/// A note with its signature, which is not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedNote {
    note: Note,
    signature: [u8; SIGNATURE_BYTES],
}

impl SignedNote {
    /// What it says. Nobody has verified who says it.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// Appends the compact form.
    pub fn encode(&self, out: &mut Encoder) {
        self.note.log.encode(out);
        out.u64(self.note.time_ms).raw(&self.signature);
    }

    /// Reads what [`SignedNote::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for too few bytes.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(SignedNote {
            note: Note {
                log: LogPoint::decode(d)?,
                time_ms: d.u64()?,
            },
            signature: d.array()?,
        })
    }

    /// The C2SP signed note.
    pub fn to_text(&self, volume: VolumeId, orderer: &PublicKey) -> String {
        let origin = origin(volume, self.note.log.epoch);
        let line = signature_line(&origin, orderer, &self.signature);
        format!("{}\n{line}", self.note.text(volume))
    }

    /// Reads the text that [`SignedNote::to_text`] wrote; lines of witnesses are not expected.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for any other text; [`Reject::NotSigned`] for a bad signature.
    pub fn from_text(
        text: &str,
        volume: VolumeId,
        orderer: &PublicKey,
    ) -> Result<VerifiedNote, Reject> {
        let note = parse(text, volume, orderer).ok_or(Reject::Malformed {
            what: WHAT,
            why: "not a note of this volume and orderer",
        })?;
        note.verify(volume, orderer)
    }

    /// Verifies that the orderer signed this note for this volume.
    ///
    /// # Errors
    /// [`Reject::NotSigned`].
    pub fn verify(&self, volume: VolumeId, orderer: &PublicKey) -> Result<VerifiedNote, Reject> {
        let text = self.note.text(volume);
        self.verified(orderer.verify(text.as_bytes(), &self.signature))
    }

    /// As [`SignedNote::verify`], by who has worked out the orderer's key for many notes.
    ///
    /// # Errors
    /// [`Reject::NotSigned`].
    pub fn verify_by(&self, volume: VolumeId, orderer: &Verifier) -> Result<VerifiedNote, Reject> {
        let text = self.note.text(volume);
        self.verified(orderer.verify(text.as_bytes(), &self.signature))
    }

    fn verified(&self, signed: bool) -> Result<VerifiedNote, Reject> {
        match signed {
            true => Ok(VerifiedNote(*self)),
            false => Err(Reject::NotSigned("the orderer's signature is bad")),
        }
    }
}

/// A note whose signature was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedNote(SignedNote);

impl VerifiedNote {
    /// What the orderer states.
    pub fn note(&self) -> &Note {
        &self.0.note
    }

    /// The log that it states.
    pub fn log(&self) -> &LogPoint {
        &self.0.note.log
    }

    /// The note with its signature.
    pub fn signed(&self) -> &SignedNote {
        &self.0
    }
}

fn parse(text: &str, volume: VolumeId, orderer: &PublicKey) -> Option<SignedNote> {
    if text.len() > MAX_NOTE_TEXT_BYTES {
        return None;
    }
    let (signed, line) = text.split_once("\n\n")?;
    let mut lines = signed.split('\n');
    let epoch = lines.next()?.rsplit_once('/')?.1.parse().ok()?;
    let size = lines.next()?.parse().ok()?;
    let root = unbase64(lines.next()?)?.try_into().ok()?;
    let time_ms = lines.next()?.strip_prefix("time ")?.parse().ok()?;
    let name = origin(volume, epoch);
    let payload = line.strip_prefix(SIGNATURE_PREFIX)?.strip_prefix(&*name)?;
    let payload = unbase64(payload.strip_prefix(' ')?.strip_suffix('\n')?)?;
    let signature = payload.strip_prefix(&key_id(&name, ED25519, orderer))?;
    let note = SignedNote {
        note: Note {
            log: LogPoint { epoch, size, root },
            time_ms,
        },
        signature: signature.try_into().ok()?,
    };
    // One text for one note.
    (note.to_text(volume, orderer) == text).then_some(note)
}

#[cfg(test)]
mod tests;
