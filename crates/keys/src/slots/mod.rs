//! Key slots: ways to open one volume key, as in LUKS. Each slot has the volume key, sealed under a key of its own:
//! from a passphrase, from the bytes of a key file, from a printed recovery key, or from the output of a command.
//!
//! The slots lie on a device that nobody trusts. A slot that was changed, or taken from another volume, opens nothing:
//! the seal covers the volume id, the slot's number and everything that the slot says. What the device can do is to
//! withhold slots and to show old ones again, so a removed slot opens an old copy of the device for ever. Commands are
//! never stored in slots: a command line from a hostile device would be run by whoever attaches it.
//!
//! | module | content |
//! |---|---|
//! | `format` | the bytes: `docs/formats/key-slots.md` |
//! | `recovery` | the recovery key and its printed form |

mod format;
mod recovery;

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::stretch::{Cost, SALT_BYTES};
use format::{Body, NONCE_BYTES, Seal, Slot};
pub use format::{MAX_REGION_BYTES, MAX_SLOTS};
pub use recovery::{BadRecoveryKey, RecoveryKey};

/// The fewest bytes of a key file or of a command's output. Fewer could be guessed.
pub const MIN_KEY_BYTES: usize = 32;
/// The most bytes of a key file or of a command's output.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// Bytes that [`new_key_bytes`] makes.
pub const NEW_KEY_BYTES: usize = 64;

/// Argon2 work of one [`KeySlots::open`] over all its slots: 16 passes over 1 GiB, some ten seconds.
const MAX_WORK_KIB: u64 = 16 << 20;

/// The key of a volume. Wiped when it is dropped.
pub type VolumeKey = Zeroizing<[u8; 32]>;

/// The kind of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// A passphrase.
    Passphrase,
    /// A file with random bytes.
    KeyFile,
    /// A printed code.
    Recovery,
    /// The output of a command.
    Command,
    /// A kind of a later version. It is kept, and opens nothing here.
    Unknown(u8),
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotKind::Passphrase => "passphrase",
            SlotKind::KeyFile => "key-file",
            SlotKind::Recovery => "recovery",
            SlotKind::Command => "command",
            SlotKind::Unknown(code) => return write!(f, "unknown-{code}"),
        })
    }
}

/// What opens a slot of one kind.
pub enum Credential<'a> {
    /// A passphrase.
    Passphrase(&'a [u8]),
    /// The bytes of a key file, [`MIN_KEY_BYTES`] to [`MAX_KEY_BYTES`].
    KeyFile(&'a [u8]),
    /// A recovery key.
    Recovery(&'a RecoveryKey),
    /// The output of a command, [`MIN_KEY_BYTES`] to [`MAX_KEY_BYTES`].
    Command(&'a [u8]),
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.kind())
    }
}

impl Credential<'_> {
    /// The kind of slot that it opens.
    pub fn kind(&self) -> SlotKind {
        match self {
            Credential::Passphrase(_) => SlotKind::Passphrase,
            Credential::KeyFile(_) => SlotKind::KeyFile,
            Credential::Recovery(_) => SlotKind::Recovery,
            Credential::Command(_) => SlotKind::Command,
        }
    }

    /// The bytes and the purpose of a credential that needs no stretching; `None` for a passphrase.
    fn strong(&self) -> Result<Option<(&[u8], &'static str)>, SlotError> {
        let (bytes, purpose): (&[u8], _) = match self {
            Credential::Passphrase([]) => return Err(SlotError::Empty),
            Credential::Passphrase(_) => return Ok(None),
            Credential::Recovery(key) => {
                return Ok(Some((key.bytes(), "bulla key slot: recovery key")));
            }
            Credential::KeyFile(bytes) => (bytes, "bulla key slot: key file"),
            Credential::Command(bytes) => (bytes, "bulla key slot: command"),
        };
        if (MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&bytes.len()) {
            return Ok(Some((bytes, purpose)));
        }
        Err(SlotError::KeyLength {
            kind: self.kind(),
            bytes: bytes.len(),
        })
    }
}

/// Why key slots cannot be read, opened or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// The bytes are damaged or were never key slots.
    #[error("the key slots are damaged: {why}")]
    Malformed {
        /// Which rule they break.
        why: &'static str,
    },
    /// A later form.
    #[error(
        "the key slots have format {format} and flags {flags:#x}, which this version does not know"
    )]
    Unsupported {
        /// The format's number.
        format: u32,
        /// The flags that every reader must know.
        flags: u32,
    },
    /// The slots belong to another volume.
    #[error("the key slots belong to another volume")]
    OtherVolume,
    /// Slots of this kind exist, and none opens. Damage looks the same.
    #[error("no {kind} slot opens")]
    WrongKey {
        /// The kind that was tried.
        kind: SlotKind,
    },
    /// There is no slot of this kind, or not with this number.
    #[error("there is no {kind} slot{}", number.map(|n| format!(" {n}")).unwrap_or_default())]
    NoSuchKind {
        /// The kind that was asked for.
        kind: SlotKind,
        /// The number that was asked for.
        number: Option<u8>,
    },
    /// No slot has this number.
    #[error("there is no slot {number}")]
    NoSlot {
        /// The number that was asked for.
        number: u8,
    },
    /// It is the last slot that this version can open.
    #[error("slot {number} is the last one that opens the volume")]
    LastSlot {
        /// The slot to be removed.
        number: u8,
    },
    /// All slots are used.
    #[error("all {MAX_SLOTS} slots are used")]
    Full,
    /// The slots ask for more time than any that this program makes, so opening stopped.
    #[error("slot {number} asks for an unreasonable amount of work, or the slots before it did")]
    TooCostly {
        /// The slot that was not tried.
        number: u8,
    },
    /// A passphrase of no bytes.
    #[error("the passphrase is empty")]
    Empty,
    /// A key file or an output has too few bytes to be a key, or too many.
    #[error("the {kind} key has {bytes} bytes; it must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")]
    KeyLength {
        /// Where it comes from.
        kind: SlotKind,
        /// How many it has.
        bytes: usize,
    },
    /// The system gave no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// Argon2 or the cipher failed.
    #[error("cannot derive a key from the passphrase: {0}")]
    Derivation(String),
}

/// Random bytes for a new key file.
///
/// # Errors
/// [`SlotError::Random`].
pub fn new_key_bytes() -> Result<Zeroizing<[u8; NEW_KEY_BYTES]>, SlotError> {
    let mut bytes = Zeroizing::new([0; NEW_KEY_BYTES]);
    random(&mut *bytes)?;
    Ok(bytes)
}

fn random(bytes: &mut [u8]) -> Result<(), SlotError> {
    getrandom::fill(bytes).map_err(|e| SlotError::Random(e.to_string()))
}

/// The slots of one volume. There is always one that this version can open, except in what a later version wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySlots {
    volume: [u8; 16],
    slots: Vec<Slot>,
}

impl KeySlots {
    /// The slots of a new volume: one, which `credential` opens.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn create(
        volume: [u8; 16],
        key: &[u8; 32],
        credential: &Credential<'_>,
    ) -> Result<KeySlots, SlotError> {
        let mut slots = KeySlots {
            volume,
            slots: Vec::new(),
        };
        slots.add(key, credential)?;
        Ok(slots)
    }

    /// Reads the slots of `volume`. Exactly what [`KeySlots::encode`] writes is accepted.
    ///
    /// # Errors
    /// [`SlotError::Malformed`], [`SlotError::Unsupported`] and [`SlotError::OtherVolume`].
    pub fn decode(bytes: &[u8], volume: [u8; 16]) -> Result<KeySlots, SlotError> {
        let (found, slots) = format::decode(bytes)?;
        if found != volume {
            return Err(SlotError::OtherVolume);
        }
        Ok(KeySlots { volume, slots })
    }

    /// The bytes of the slots: at most [`MAX_REGION_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        format::encode(&self.volume, &self.slots)
    }

    /// Number and kind of each slot.
    pub fn list(&self) -> impl Iterator<Item = (u8, SlotKind)> + '_ {
        self.slots.iter().map(|slot| (slot.number, slot.kind()))
    }

    /// Adds a slot that `credential` opens, under the first free number. Returns the number.
    ///
    /// # Errors
    /// [`SlotError::Full`], or the credential cannot be used.
    pub fn add(&mut self, key: &[u8; 32], credential: &Credential<'_>) -> Result<u8, SlotError> {
        let used = |number: &u8| self.slots.iter().any(|slot| slot.number == *number);
        let number = (0..MAX_SLOTS as u8).find(|number| !used(number));
        let number = number.ok_or(SlotError::Full)?;
        let mut seal = Seal {
            nonce: [0; NONCE_BYTES],
            sealed: [0; format::SEALED_BYTES],
        };
        random(&mut seal.nonce)?;
        let body = if credential.strong()?.is_some() {
            Body::Strong(credential.kind(), seal)
        } else {
            let mut salt = [0; SALT_BYTES];
            random(&mut salt)?;
            Body::Passphrase(Cost::NEW, salt, seal)
        };
        let mut slot = Slot { number, body };
        self.seal(&mut slot, key, credential)?;
        let at = self.slots.partition_point(|other| other.number < number);
        self.slots.insert(at, slot);
        Ok(number)
    }

    /// Removes a slot. Old copies of the device still have it.
    ///
    /// # Errors
    /// [`SlotError::NoSlot`] and [`SlotError::LastSlot`].
    pub fn remove(&mut self, number: u8) -> Result<(), SlotError> {
        let at = self.slots.iter().position(|slot| slot.number == number);
        let at = at.ok_or(SlotError::NoSlot { number })?;
        let mut others = self.slots.iter().filter(|slot| slot.number != number);
        if !others.any(|slot| !matches!(slot.kind(), SlotKind::Unknown(_))) {
            return Err(SlotError::LastSlot { number });
        }
        self.slots.remove(at);
        Ok(())
    }

    /// Opens the volume key with the slots of the credential's kind, or only with slot `only`. Returns the number of
    /// the slot that opened.
    ///
    /// # Errors
    /// [`SlotError::WrongKey`] when none opens, [`SlotError::NoSuchKind`] when there is none to try.
    pub fn open(
        &self,
        credential: &Credential<'_>,
        only: Option<u8>,
    ) -> Result<(u8, VolumeKey), SlotError> {
        let kind = credential.kind();
        let mut work_left_kib = MAX_WORK_KIB;
        let mut tried = false;
        for slot in &self.slots {
            if slot.kind() != kind || only.is_some_and(|only| only != slot.number) {
                continue;
            }
            let too_costly = SlotError::TooCostly {
                number: slot.number,
            };
            let work_kib = slot.cost().map_or(0, |cost| cost.work_kib());
            work_left_kib = work_left_kib.checked_sub(work_kib).ok_or(too_costly)?;
            tried = true;
            if let Some(key) = self.unseal(slot, credential)? {
                return Ok((slot.number, key));
            }
        }
        match tried {
            true => Err(SlotError::WrongKey { kind }),
            false => Err(SlotError::NoSuchKind { kind, number: only }),
        }
    }

    /// The key under which a slot's seal lies.
    fn wrapping_key(
        &self,
        slot: &Slot,
        credential: &Credential<'_>,
    ) -> Result<XChaCha20Poly1305, SlotError> {
        let key = match (&slot.body, credential, credential.strong()?) {
            (_, _, Some((bytes, purpose))) => {
                let mut hasher = blake3::Hasher::new_derive_key(purpose);
                hasher.update(&self.volume).update(bytes);
                Zeroizing::new(*hasher.finalize().as_bytes())
            }
            (Body::Passphrase(cost, salt, _), Credential::Passphrase(words), None) => {
                cost.derive(words, salt).map_err(SlotError::Derivation)?
            }
            _ => {
                let kind = credential.kind();
                let number = Some(slot.number);
                return Err(SlotError::NoSuchKind { kind, number });
            }
        };
        Ok(XChaCha20Poly1305::new((&*key).into()))
    }

    fn seal(
        &self,
        slot: &mut Slot,
        key: &[u8; 32],
        credential: &Credential<'_>,
    ) -> Result<(), SlotError> {
        let cipher = self.wrapping_key(slot, credential)?;
        let covered = format::covered(&self.volume, slot);
        let Some(seal) = slot.seal_mut() else {
            return Err(SlotError::Derivation("a slot without a seal".to_owned()));
        };
        let payload = Payload {
            msg: key,
            aad: &covered,
        };
        let sealed = cipher.encrypt(&XNonce::from(seal.nonce), payload);
        let sealed = sealed.map_err(|e| SlotError::Derivation(e.to_string()))?;
        let sealed = sealed.try_into();
        seal.sealed =
            sealed.map_err(|_| SlotError::Derivation("a seal of another length".to_owned()))?;
        Ok(())
    }

    /// The volume key, if this slot opens.
    fn unseal(
        &self,
        slot: &Slot,
        credential: &Credential<'_>,
    ) -> Result<Option<VolumeKey>, SlotError> {
        let Some(seal) = slot.seal() else {
            return Ok(None);
        };
        let cipher = self.wrapping_key(slot, credential)?;
        let payload = Payload {
            msg: &seal.sealed,
            aad: &format::covered(&self.volume, slot),
        };
        let Ok(plain) = cipher.decrypt(&XNonce::from(seal.nonce), payload) else {
            return Ok(None);
        };
        let plain = Zeroizing::new(plain);
        let mut key = Zeroizing::new([0; 32]);
        if plain.len() != key.len() {
            return Ok(None);
        }
        key.copy_from_slice(&plain);
        Ok(Some(key))
    }
}

#[cfg(test)]
mod tests;
