//! Parts of C2SP signed notes (c2sp.org/signed-note) that checkpoints of published and of shared volumes have in
//! common: the log's name, key ids, signature lines, base64.

use sha2::{Digest, Sha256};

use crate::history::LogPoint;
use crate::key::{PublicKey, SIGNATURE_BYTES};
use crate::volume_id::VolumeId;

/// Algorithm byte of an Ed25519 signature in key ids, for the log's own signature.
pub const ED25519: u8 = 0x01;
/// What a signature line begins with: an em dash and a space.
pub const SIGNATURE_PREFIX: &str = "\u{2014} ";

/// The log's name: one log for each volume and epoch.
pub fn origin(volume: VolumeId, epoch: u64) -> String {
    format!("bulla/{volume}/{epoch}")
}

/// The first three lines of a checkpoint's text: origin, size, root.
pub fn checkpoint_lines(volume: VolumeId, log: &LogPoint) -> String {
    let origin = origin(volume, log.epoch);
    format!("{origin}\n{}\n{}\n", log.size, base64(&log.root))
}

/// The first four bytes of a signature line. They identify the name and key that made it.
pub fn key_id(name: &str, algorithm: u8, key: &PublicKey) -> [u8; 4] {
    let digest: [u8; 32] = Sha256::new()
        .chain_update(name)
        .chain_update([b'\n', algorithm])
        .chain_update(key.as_bytes())
        .finalize()
        .into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

/// The line of the log's own signature.
pub fn signature_line(name: &str, key: &PublicKey, signature: &[u8; SIGNATURE_BYTES]) -> String {
    let id = key_id(name, ED25519, key);
    let payload = [id.as_slice(), signature].concat();
    format!("{SIGNATURE_PREFIX}{name} {}\n", base64(&payload))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding (RFC 4648, 4).
pub fn base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = 0u32;
        for i in 0..3 {
            group = group << 8 | u32::from(chunk.get(i).copied().unwrap_or(0));
        }
        for i in 0..4usize {
            let index = (group >> (18 - 6 * i)) & 63;
            let letter = ALPHABET.get(index as usize).copied().unwrap_or(b'=');
            out.push(if i > chunk.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    out
}

/// Decodes a base64 text, if it is the one encoding of its bytes.
pub fn unbase64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for chunk in text.as_bytes().chunks(4) {
        let mut group = 0u32;
        let mut letters = 0usize;
        for letter in chunk.iter().filter(|l| **l != b'=') {
            let value = ALPHABET.iter().position(|a| a == letter)?;
            group = group << 6 | value as u32;
            letters += 1;
        }
        group <<= 6 * (4 - letters);
        let [_, bytes @ ..] = group.to_be_bytes();
        out.extend_from_slice(bytes.get(..letters.checked_sub(1)?)?);
    }
    (base64(&out) == text).then_some(out)
}
