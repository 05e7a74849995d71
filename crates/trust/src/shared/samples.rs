//! For the tests of this module: keys, a volume, entries, and decoders given every cut and every flipped bit.

use bytes::Bytes;

use super::device::{DeviceKey, Incarnation};
use super::entry::{Content, Entry, Ops, Prefix, SignedEntry, body_hash};
use crate::error::Reject;
use crate::key::SecretKey;
use crate::volume_id::VolumeId;

pub const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

pub fn device(number: u8) -> DeviceKey {
    DeviceKey::from(&key(number).public())
}

/// The `n`th entry of a device in an incarnation: a Resume for 0.
pub fn entry(number: u8, incarnation: u8, n: u64) -> Entry {
    let ops = Ops {
        n,
        previous: [n as u8; 32],
        outline: Bytes::from_static(b"outline"),
        body_hash: body_hash(b"body"),
    };
    Entry {
        epoch: 0,
        device: device(number),
        incarnation: Incarnation::from_bytes([incarnation; 16]),
        seen: Prefix {
            size: 300,
            root: [9; 32],
        },
        kept: 290,
        content: match n {
            0 => Content::Resume,
            _ => Content::Ops(ops),
        },
    }
}

pub fn signed(number: u8, entry: &Entry) -> SignedEntry {
    entry.sign(VOLUME, &key(number)).unwrap()
}

/// Shortened and prolonged bytes are refused.
pub fn refuses_cuts(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<(), Reject>) {
    assert_eq!(decode(bytes), Ok(()));
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [bytes, &[0]].concat();
    assert!(decode(&longer).is_err(), "a byte more");
}

/// With any bit flipped the bytes are refused.
pub fn refuses_flips(bytes: &[u8], accept: impl Fn(&[u8]) -> Result<(), Reject>) {
    assert_eq!(accept(bytes), Ok(()));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            assert!(accept(&flipped).is_err(), "bit {bit} of byte {at}");
        }
    }
}
