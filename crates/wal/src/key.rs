//! The volume's key, the keys that are derived from it, and keyed digests of payloads.

use std::fmt;

use zeroize::Zeroizing;

/// Names a volume: 16 random bytes that are chosen when it is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub [u8; 16]);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeId({self})")
    }
}

/// The secret of a volume. Wiped when it is dropped.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// The key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(Zeroizing::new(bytes))
    }

    /// A random key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Key, getrandom::Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes)?;
        Ok(Key(bytes))
    }

    /// The bytes, to wrap them for a key slot.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key for one purpose and one volume: `BLAKE3 derive_key("bulla " ‖ purpose, key ‖ volume)`.
    pub fn derive(&self, purpose: &str, volume: VolumeId) -> Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_derive_key(&format!("bulla {purpose}"));
        hasher.update(&*self.0).update(&volume.0);
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// A keyed digest of a page: the first 16 bytes of keyed BLAKE3. Only someone who has the key can make two pages with
/// the same digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The key for digests of payloads.
#[derive(Clone)]
pub struct DigestKey(Zeroizing<[u8; 32]>);

impl DigestKey {
    /// The digest key of a volume.
    pub fn new(key: &Key, volume: VolumeId) -> DigestKey {
        DigestKey(key.derive("log digest", volume))
    }

    /// The digest of one page. Values below 2^64, read as a big-endian number, are left to clients that
    /// keep digests beside other values: the highest bit of such a digest is set.
    pub fn digest(&self, page: &[u8]) -> Digest {
        let hash = blake3::keyed_hash(&self.0, page);
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.as_bytes()[..16]);
        if digest[..8] == [0; 8] {
            digest[0] = 0x80;
        }
        Digest(digest)
    }
}
