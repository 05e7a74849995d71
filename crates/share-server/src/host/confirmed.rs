//! The newest Attest of each device, in a file. Without it, a server that was started again would show the others what a
//! device wrote, and not that the device has confirmed it, until that device comes back. It is written as soon as there is
//! a new one; after that it rests nine times as long as that took, 0.1 to 1 s. Each Attest has its device's signature, so
//! a file that was changed convinces nobody. Bytes: `docs/formats/shared-server.md`.

use bytes::Bytes;
use store::StoreError;
use store::disk::{Disk, read_file, replace_file};
use store::names::TEMPORARY;
use trust::Reject;
use trust::volume_id::VolumeId;
use trust_shared::attest::SignedAttest;

use super::Core;
use super::directory::CONFIRMED;
use crate::blocks::storage::lock;
use ordering::checked_file::FileKind;

const FORM: FileKind = FileKind {
    what: "file of confirmations",
    magic: *b"bullacf\n",
};
/// Longest Attest, bytes.
const MAX_ATTEST_BYTES: usize = 256;
/// The longest file. A longer one is not written.
pub(super) const MAX_BYTES: usize = 16 << 20;

pub(super) fn encode(volume: VolumeId, epoch: u64, attests: &[SignedAttest]) -> Vec<u8> {
    let mut out = FORM.begin(volume, epoch);
    out.varint(attests.len() as u64);
    for attest in attests {
        out.bytes(attest.bytes());
    }
    FileKind::end(out)
}

pub(super) fn decode(
    bytes: &[u8],
    volume: VolumeId,
    epoch: u64,
) -> Result<Vec<SignedAttest>, Reject> {
    let mut d = FORM.open(bytes, volume, epoch)?;
    let count = d.bounded(bytes.len() as u64, "too many")?;
    let mut attests = Vec::new();
    for _ in 0..count {
        let bytes = Bytes::copy_from_slice(d.bytes(MAX_ATTEST_BYTES)?);
        attests.push(SignedAttest::decode(bytes)?);
    }
    d.finish()?;
    Ok(attests)
}

/// Reads the file. Without it, or if it is damaged, devices confirm anew when they come.
pub(super) fn read(disk: &dyn Disk, volume: VolumeId, epoch: u64) -> Vec<SignedAttest> {
    let read = read_file(disk, CONFIRMED, MAX_BYTES);
    let decoded = match read {
        Ok(None) => return Vec::new(),
        Ok(Some(bytes)) => decode(&bytes, volume, epoch).map_err(|why| why.to_string()),
        Err(error) => Err(error.to_string()),
    };
    decoded.unwrap_or_else(|error| {
        tracing::warn!(%error, "the devices' confirmations are not used");
        Vec::new()
    })
}

impl Core {
    /// Writes the file if there are newer Attests than those of number `kept`. Returns the number of the newest.
    pub(super) fn keep_attests(&self, kept: u64) -> u64 {
        let (number, attests) = {
            let state = lock(&self.state);
            let number = state.orderer.attest_number();
            if number == kept {
                return kept;
            }
            (number, state.orderer.attests().cloned().collect::<Vec<_>>())
        };
        match self.write_attests(&attests) {
            Ok(()) => number,
            Err(error) => {
                tracing::warn!(%error, "the devices' confirmations are not kept");
                kept
            }
        }
    }

    fn write_attests(&self, attests: &[SignedAttest]) -> Result<(), StoreError> {
        let bytes = encode(self.volume, self.epoch, attests);
        if bytes.len() > MAX_BYTES {
            return Ok(());
        }
        let temporary = format!("{CONFIRMED}{TEMPORARY}");
        replace_file(&*self.place.disk, CONFIRMED, &temporary, "", &bytes)
    }
}

#[cfg(test)]
mod tests {
    use trust::device::DeviceKey;
    use trust::key::SecretKey;
    use trust_shared::attest::Attest;
    use trust_shared::entry::Prefix;

    use super::*;

    const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

    fn attests() -> Vec<SignedAttest> {
        let signed = |seed: u8| {
            let key = SecretKey::from_seed(&[seed; 32]);
            let attest = Attest {
                epoch: 0,
                device: DeviceKey::from(&key.public()),
                seen: Prefix {
                    size: 300,
                    root: [9; 32],
                },
            };
            attest.sign(VOLUME, &key).unwrap()
        };
        vec![signed(1), signed(2)]
    }

    #[test]
    fn file_has_one_encoding_and_is_refused_with_any_bit_changed() {
        for attests in [Vec::new(), attests()] {
            let bytes = encode(VOLUME, 0, &attests);
            let read = decode(&bytes, VOLUME, 0).unwrap();
            let same = |all: &[SignedAttest]| {
                all.iter()
                    .map(|one| one.bytes().clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(same(&read), same(&attests));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert!(decode(&changed, VOLUME, 0).is_err(), "byte {at}");
                assert!(decode(&bytes[..at], VOLUME, 0).is_err(), "cut at {at}");
            }
        }
        let bytes = encode(VOLUME, 0, &attests());
        assert!(decode(&bytes, VOLUME, 1).is_err());
        assert!(decode(&bytes, VolumeId::from_bytes([8; 32]), 0).is_err());
    }
}
