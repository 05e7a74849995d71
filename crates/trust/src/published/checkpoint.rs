//! Witnessed checkpoints of a volume's log: C2SP signed notes with cosignatures
//! (c2sp.org/signed-note, c2sp.org/tlog-checkpoint, c2sp.org/tlog-cosignature), so that witnesses
//! which already exist can be named in a policy.
//!
//! ```text
//! bulla/VOLUMEID/EPOCH        origin
//! SIZE                        decimal
//! BASE64(ROOT)
//!                             an empty line
//! — NAME BASE64(key id [4] ‖ signature)      one line a signature
//! ```
//!
//! A reader needs only the cosignatures of witnesses. The record itself is signed by its publishers and names
//! the log.

use crate::error::Reject;
use crate::history::LogPoint;
use crate::history::signed_note::{
    SIGNATURE_PREFIX, base64, checkpoint_lines, key_id, signature_line, unbase64,
};
use crate::key::{PublicKey, SIGNATURE_BYTES};
use crate::signer::{self, NoSignature, Signer};
use crate::statement::VolumeId;
use crate::statement::roles::Threshold;

pub use crate::history::signed_note::origin;

/// Largest checkpoint, bytes.
pub const MAX_CHECKPOINT_BYTES: usize = 16 << 10;
/// Highest number of signature lines that are read.
pub const MAX_SIGNATURE_LINES: usize = 100;

/// Algorithm byte of a timestamped Ed25519 cosignature in key ids (C2SP signed-note).
pub(crate) const COSIGNATURE_V1: u8 = 0x04;
/// Key id, time and signature of a cosignature.
const PAYLOAD_BYTES: usize = 4 + 8 + SIGNATURE_BYTES;

/// The signed text of a checkpoint (without signatures and the empty line before them).
pub fn text(volume: VolumeId, log: &LogPoint) -> String {
    checkpoint_lines(volume, log)
}

/// The note that a publisher gives to witnesses: the text and the log's own signature.
///
/// # Errors
/// [`NoSignature`].
pub fn note(volume: VolumeId, log: &LogPoint, key: &dyn Signer) -> Result<String, NoSignature> {
    let text = text(volume, log);
    let signature = signer::signature(key, text.as_bytes())?;
    let line = log_line(volume, log, &key.public(), &signature);
    Ok(format!("{text}\n{line}"))
}

/// The line of the log's own signature, which `key` made over [`text`].
pub fn log_line(
    volume: VolumeId,
    log: &LogPoint,
    key: &PublicKey,
    signature: &[u8; SIGNATURE_BYTES],
) -> String {
    signature_line(&origin(volume, log.epoch), key, signature)
}

/// What a witness signs, at a time in unix seconds (C2SP tlog-cosignature, cosignature/v1).
pub fn cosigned_message(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

/// The line that a witness adds to a note.
pub fn cosignature_line(name: &str, key: &PublicKey, time: u64, signature: &[u8; 64]) -> String {
    let payload = [
        key_id(name, COSIGNATURE_V1, key).as_slice(),
        &time.to_be_bytes(),
        signature.as_slice(),
    ]
    .concat();
    format!("{SIGNATURE_PREFIX}{name} {}\n", base64(&payload))
}

/// Verifies that enough distinct `witnesses` cosigned exactly the log at `log`.
///
/// Lines by others, and lines that cannot be read, are ignored.
///
/// # Errors
/// [`Reject::NotSigned`] for another checkpoint or a quorum that is not reached; [`Reject::Malformed`] for
/// bytes that are not a note.
pub fn verify(
    note: &[u8],
    volume: VolumeId,
    log: &LogPoint,
    witnesses: &Threshold,
) -> Result<(), Reject> {
    let (_, signed) = cosigned(note, volume, log, witnesses)?;
    if signed.len() < usize::from(witnesses.needed()) {
        return Err(witnesses.too_few("too few witnesses cosigned the checkpoint"));
    }
    Ok(())
}

/// A cosignature that is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoodCosignature {
    /// The key that made it.
    pub witness: PublicKey,
    /// The name that the witness gives itself.
    pub name: String,
    /// When it was made, by the witness's clock, unix seconds.
    pub time: u64,
    /// The line, with its end.
    pub line: String,
}

/// The good cosignatures among `lines`, one of each witness. All other lines are passed over: a witness and a file may hold
/// anything.
pub fn cosignatures(
    lines: &[u8],
    volume: VolumeId,
    log: &LogPoint,
    witnesses: &Threshold,
) -> Vec<GoodCosignature> {
    let text = text(volume, log);
    let Ok(lines) = std::str::from_utf8(lines) else {
        return Vec::new();
    };
    let good = |signed: Cosignature<'_>| {
        let Cosignature {
            name,
            payload,
            witness,
        } = signed;
        let time = payload.get(4..).and_then(|rest| rest.first_chunk::<8>());
        GoodCosignature {
            witness: *witness,
            name: name.to_owned(),
            time: time.map_or(0, |time| u64::from_be_bytes(*time)),
            line: format!("{SIGNATURE_PREFIX}{name} {}\n", base64(&payload)),
        }
    };
    signed_lines(lines, &text, witnesses)
        .into_iter()
        .map(good)
        .collect()
}

/// The checkpoint with one line of each witness that cosigned it, without all other lines.
///
/// # Errors
/// As [`verify`], except for the quorum.
pub(crate) fn reduced(
    note: &[u8],
    volume: VolumeId,
    log: &LogPoint,
    witnesses: &Threshold,
) -> Result<Vec<u8>, Reject> {
    let (mut reduced, signed) = cosigned(note, volume, log, witnesses)?;
    reduced.push('\n');
    for cosignature in signed {
        let Cosignature { name, payload, .. } = cosignature;
        reduced += &format!("{SIGNATURE_PREFIX}{name} {}\n", base64(&payload));
    }
    Ok(reduced.into_bytes())
}

/// A line that a witness signed.
struct Cosignature<'a> {
    name: &'a str,
    payload: [u8; PAYLOAD_BYTES],
    witness: &'a PublicKey,
}

/// The text of a checkpoint and its cosignatures, one of each witness, in the order of the lines.
fn cosigned<'a>(
    note: &'a [u8],
    volume: VolumeId,
    log: &LogPoint,
    witnesses: &'a Threshold,
) -> Result<(String, Vec<Cosignature<'a>>), Reject> {
    let bad = |why| Reject::Malformed {
        what: "checkpoint",
        why,
    };
    if note.len() > MAX_CHECKPOINT_BYTES {
        return Err(bad("too long"));
    }
    let note = std::str::from_utf8(note).map_err(|_| bad("not UTF-8"))?;
    let expected = text(volume, log);
    let Some(lines) = note
        .strip_prefix(expected.as_str())
        .and_then(|rest| rest.strip_prefix('\n'))
    else {
        return Err(Reject::NotSigned("the checkpoint is of another log"));
    };
    let signed = signed_lines(lines, &expected, witnesses);
    Ok((expected, signed))
}

/// The cosignatures of a text among the first lines, one of each witness.
fn signed_lines<'a>(lines: &'a str, text: &str, witnesses: &'a Threshold) -> Vec<Cosignature<'a>> {
    let mut signed: Vec<Cosignature<'_>> = Vec::new();
    // A line ends with a newline alone (C2SP signed-note).
    for line in lines.split('\n').take(MAX_SIGNATURE_LINES) {
        if let Some(found) = cosignature(line, text, witnesses)
            && !signed.iter().any(|before| before.witness == found.witness)
        {
            signed.push(found);
        }
    }
    signed
}

/// The signature line of a witness.
fn cosignature<'a>(line: &'a str, text: &str, witnesses: &'a Threshold) -> Option<Cosignature<'a>> {
    let (name, encoded) = line.strip_prefix(SIGNATURE_PREFIX)?.split_once(' ')?;
    let payload: [u8; PAYLOAD_BYTES] = unbase64(encoded)?.try_into().ok()?;
    let (id, rest) = payload.split_first_chunk::<4>()?;
    let (time, signature) = rest.split_first_chunk::<8>()?;
    let signature: &[u8; SIGNATURE_BYTES] = signature.try_into().ok()?;
    let message = cosigned_message(text, u64::from_be_bytes(*time));
    let witness = witnesses
        .keys()
        .iter()
        .filter(|key| key_id(name, COSIGNATURE_V1, key) == *id)
        .find(|key| key.verify(message.as_bytes(), signature))?;
    Some(Cosignature {
        name,
        payload,
        witness,
    })
}
