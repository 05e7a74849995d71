//! The envelope of everything that is signed (design `trees.md`, *Statements*).
//!
//! ```text
//! format u16 | purpose u8 | compatible flags u16 | incompatible flags u16 | volume [32] | body | extensions
//! ```
//!
//! A statement is kept as the exact bytes that were signed. Its hash covers those bytes and not the
//! signatures, so that more or renewed signatures do not make it another statement. The signed message is
//! [`SIGNING_DOMAIN`] followed by those bytes. A [`Signed`] adds the list of (algorithm, key, signature),
//! sorted, each key once. What this build does not know in that list does not count, and is kept.
//!
//! A statement is read for one [`Job`]. What belongs to another job is unsupported, so no code for published volumes
//! meets a shared one.

pub mod algorithm;
pub mod chain;
pub mod policy;
pub mod roles;
pub mod shared_roles;
pub mod signatures;
pub mod tally;

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES, SecretKey};
use crate::signer::{self, NoSignature, Signer};
use crate::statement::algorithm::{ED25519, KeyBytes, MAX_SIGNATURE_BYTES, UnknownKey};
use crate::statement::policy::Policy;
use crate::statement::roles::Threshold;
use crate::statement::shared_roles::SharedRoles;

pub use crate::volume_id::VolumeId;

/// Put before a statement's bytes when it is signed, so that the signature fits no other use of the key.
pub const SIGNING_DOMAIN: &[u8] = b"bulla statement signature 0\n";
/// Largest statement without signatures, bytes. There is room for keys of post-quantum algorithms.
pub const MAX_STATEMENT_BYTES: usize = 128 << 10;
/// Most signatures under one statement.
pub const MAX_SIGNATURES: usize = 80;

/// Largest signed statement, bytes.
pub const MAX_SIGNED_BYTES: usize = 256 << 10;
/// Most extensions of one statement.
pub const MAX_EXTENSIONS: u64 = 64;

const FORMAT: u16 = 0;
const HEADER_BYTES: usize = 39;

/// The purpose of a statement. Signed bytes of one purpose are never accepted for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Names the keys of the volume.
    Policy = 1,
    /// Names the volume's tree.
    Root = 2,
    /// States that a root is still current.
    Timestamp = 3,
    /// States what entries of a shared volume's log come to.
    Checkpoint = 4,
}

/// What a volume is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    /// Its publisher signs versions.
    Published,
    /// Its devices write a log that an orderer keeps.
    Shared,
}

/// Incompatible flag of all policies of a shared volume.
const SHARED: u16 = 1;

impl Job {
    fn purposes(self) -> &'static [Purpose] {
        match self {
            Job::Published => &[Purpose::Policy, Purpose::Root, Purpose::Timestamp],
            Job::Shared => &[Purpose::Policy, Purpose::Checkpoint],
        }
    }

    /// The incompatible flags that a statement must have.
    fn flags(self, purpose: Option<Purpose>) -> u16 {
        match (self, purpose) {
            (Job::Shared, Some(Purpose::Policy)) => SHARED,
            _ => 0,
        }
    }

    /// The odd extensions that a statement may have.
    fn extensions(self, purpose: Purpose) -> &'static [u64] {
        match (self, purpose) {
            (Job::Shared, Purpose::Policy) => &shared_roles::TAGS,
            _ => &[],
        }
    }
}

impl Purpose {
    fn from_byte(job: Job, byte: u8) -> Option<Purpose> {
        job.purposes().iter().copied().find(|p| *p as u8 == byte)
    }

    fn hash_domain(self) -> &'static str {
        match self {
            Purpose::Policy => "bulla 0 statement policy",
            Purpose::Root => "bulla 0 statement root",
            Purpose::Timestamp => "bulla 0 statement timestamp",
            Purpose::Checkpoint => "bulla 0 statement checkpoint",
        }
    }
}

/// The content of a statement of one purpose, with exactly one encoding.
pub trait Body: Sized {
    /// The purpose under which it is signed.
    const PURPOSE: Purpose;
    /// Appends the body's bytes.
    fn encode(&self, out: &mut Encoder);
    /// Reads the body; the caller refuses trailing bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a valid body.
    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject>;
}

/// The exact bytes of a statement. Its header was read, its body not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    bytes: Bytes,
    purpose: Purpose,
    job: Job,
    volume: VolumeId,
}

impl Statement {
    /// Makes a statement of `body` about `volume`.
    pub fn new<B: Body>(volume: VolumeId, body: &B) -> Self {
        let job = match B::PURPOSE {
            Purpose::Checkpoint => Job::Shared,
            _ => Job::Published,
        };
        Statement::with_extensions(job, volume, body, &[])
    }

    /// Makes a policy of a shared volume.
    pub fn shared_policy(volume: VolumeId, policy: &Policy, roles: &SharedRoles) -> Self {
        Statement::with_extensions(Job::Shared, volume, policy, &roles.extensions())
    }

    pub(crate) fn with_extensions<B: Body>(
        job: Job,
        volume: VolumeId,
        body: &B,
        extensions: &[(u64, Vec<u8>)],
    ) -> Self {
        let mut e = Encoder::new();
        e.u16(FORMAT).u8(B::PURPOSE as u8).u16(0);
        e.u16(job.flags(Some(B::PURPOSE))).raw(volume.as_bytes());
        body.encode(&mut e);
        e.varint(extensions.len() as u64);
        for (tag, value) in extensions {
            e.varint(*tag).bytes(value);
        }
        Statement {
            bytes: e.finish().into(),
            purpose: B::PURPOSE,
            job,
            volume,
        }
    }

    /// Takes bytes that claim to be a statement about a published volume.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a format, a purpose or an incompatible flag of a later bulla or another job,
    /// [`Reject::Malformed`] for any other bytes that are not a statement.
    pub fn decode(bytes: Bytes) -> Result<Self, Reject> {
        Statement::decode_of(Job::Published, bytes)
    }

    /// Takes bytes that claim to be a statement about a volume of this job.
    ///
    /// # Errors
    /// Those of [`Statement::decode`]; [`Reject::Malformed`] for a policy of a published volume where one of a
    /// shared volume is expected.
    pub fn decode_of(job: Job, bytes: Bytes) -> Result<Self, Reject> {
        let mut d = Decoder::new(&bytes, "statement");
        if bytes.len() > MAX_STATEMENT_BYTES {
            return Err(d.bad("too long"));
        }
        let format = d.u16()?;
        if format != FORMAT {
            return Err(unsupported(format!("format {format}")));
        }
        let byte = d.u8()?;
        let purpose = Purpose::from_byte(job, byte);
        let _compatible = d.u16()?;
        let (incompatible, flags) = (d.u16()?, job.flags(purpose));
        if incompatible & !flags != 0 {
            return Err(unsupported(format!("flags {incompatible:#06x}")));
        }
        if incompatible != flags {
            return Err(d.bad("a policy of a published volume"));
        }
        let volume = VolumeId::from_bytes(d.array()?);
        let purpose = purpose.ok_or_else(|| unsupported(format!("purpose {byte}")))?;
        Ok(Statement {
            bytes,
            purpose,
            job,
            volume,
        })
    }

    /// The exact bytes that are hashed, signed and logged.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The volume field: [`VolumeId::UNBORN`] in a genesis policy.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The statement's hash: over its bytes without signatures, with a domain for each purpose.
    pub fn hash(&self) -> [u8; 32] {
        blake3::derive_key(self.purpose.hash_domain(), &self.bytes)
    }

    /// Reads the body of a statement about `volume`. Signatures are not checked.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`]; [`Reject::Malformed`] for another purpose or a bad body;
    /// [`Reject::Unsupported`] for an extension of a later bulla that must not be ignored.
    pub fn read<B: Body>(&self, volume: VolumeId) -> Result<B, Reject> {
        let (body, extensions) = self.parts(volume)?;
        if self.has_shared_roles() {
            SharedRoles::decode(&extensions, self.is_genesis())?;
        }
        Ok(body)
    }

    /// The roles in a policy of a shared volume.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another statement; those of [`Statement::read`].
    pub fn shared_roles(&self) -> Result<SharedRoles, Reject> {
        if !self.has_shared_roles() {
            return Err(Decoder::new(&[], "statement").bad("no policy of a shared volume"));
        }
        let (_, extensions) = self.parts::<Policy>(self.volume)?;
        SharedRoles::decode(&extensions, self.is_genesis())
    }

    /// The value of an even extension with this tag, if the statement can be read as a `B` and has it.
    pub(crate) fn extension<B: Body>(&self, tag: u64) -> Option<Vec<u8>> {
        let (_, extensions) = self.parts_with::<B>(self.volume, &[tag]).ok()?;
        let found = extensions.iter().find(|(found, _)| *found == tag);
        found.map(|(_, value)| value.to_vec())
    }

    fn has_shared_roles(&self) -> bool {
        (self.job, self.purpose) == (Job::Shared, Purpose::Policy)
    }

    fn is_genesis(&self) -> bool {
        self.volume == VolumeId::UNBORN
    }

    /// The body, and the odd extensions that this build knows.
    fn parts<B: Body>(&self, volume: VolumeId) -> Result<(B, Vec<Extension<'_>>), Reject> {
        self.parts_with(volume, self.job.extensions(self.purpose))
    }

    /// The body, and the extensions with these tags.
    fn parts_with<B: Body>(
        &self,
        volume: VolumeId,
        known: &[u64],
    ) -> Result<(B, Vec<Extension<'_>>), Reject> {
        let mut d = Decoder::new(&self.bytes, "statement");
        if self.volume != volume {
            return Err(Reject::WrongVolume);
        }
        if self.purpose != B::PURPOSE {
            return Err(d.bad("a statement of another purpose"));
        }
        d.raw(HEADER_BYTES)?;
        let body = B::decode(&mut d)?;
        let extensions = read_extensions(&mut d, known)?;
        d.finish()?;
        Ok((body, extensions))
    }

    /// The message that a key signs.
    pub fn signed_message(&self) -> Vec<u8> {
        [SIGNING_DOMAIN, &self.bytes].concat()
    }

    /// Signs with each of `keys`.
    pub fn sign(&self, keys: &[&SecretKey]) -> Signed {
        let mut signed = Signed {
            statement: self.clone(),
            signatures: Vec::new(),
            unknown: Vec::new(),
        };
        for key in keys {
            signed.add(key);
        }
        signed
    }

    /// Signs with each of `keys`, which may lie elsewhere.
    ///
    /// # Errors
    /// [`NoSignature`] of the first one that does not sign.
    pub fn sign_by(&self, keys: &[&dyn Signer]) -> Result<Signed, NoSignature> {
        let mut signed = self.sign(&[]);
        for key in keys {
            signed.add_by(*key)?;
        }
        Ok(signed)
    }
}

/// Tag and value.
type Extension<'a> = (u64, &'a [u8]);

/// Reads the extensions at the end of a body: tags ascending, each once. Gives those with the tags in `known`.
/// Other even tags are ignored.
fn read_extensions<'a>(d: &mut Decoder<'a>, known: &[u64]) -> Result<Vec<Extension<'a>>, Reject> {
    let count = d.bounded(MAX_EXTENSIONS, "too many extensions")?;
    let mut found = Vec::new();
    let mut last = None;
    for _ in 0..count {
        let tag = d.varint()?;
        let value = d.bytes(MAX_STATEMENT_BYTES)?;
        if last.is_some_and(|last| last >= tag) {
            return Err(d.bad("extensions not sorted, or one twice"));
        }
        match known.contains(&tag) {
            true => found.push((tag, value)),
            false if tag % 2 == 1 => return Err(unsupported(format!("extension {tag}"))),
            false => {}
        }
        last = Some(tag);
    }
    Ok(found)
}

fn unsupported(why: String) -> Reject {
    Reject::Unsupported {
        what: "statement",
        why,
    }
}

/// One Ed25519 signature and the key that claims it. Not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The key's 32 bytes. Compared with the keys of a policy, never used as a key itself.
    pub key: [u8; 32],
    /// The signature.
    pub signature: [u8; SIGNATURE_BYTES],
}

/// A signature of an algorithm that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UnknownSignature {
    key: UnknownKey,
    signature: Bytes,
}

/// A statement with its signatures. None of them was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    statement: Statement,
    signatures: Vec<Signature>,
    /// Those of unknown algorithms: they never count, and are kept.
    unknown: Vec<UnknownSignature>,
}

impl Signed {
    /// The statement.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// The Ed25519 signatures, sorted by key, each key once.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The statement's hash, without the signatures.
    pub fn hash(&self) -> [u8; 32] {
        self.statement.hash()
    }

    /// The signature that claims to be by `key`.
    pub fn by(&self, key: &PublicKey) -> Option<&Signature> {
        self.signatures.iter().find(|s| s.key == *key.as_bytes())
    }

    /// The statement with the signatures of only these roles' keys, also those of unknown algorithms.
    pub fn reduced_to(&self, roles: &[&Threshold]) -> Signed {
        let is_kept = |key: KeyBytes<'_>| roles.iter().any(|role| role.has(key));
        let mut reduced = self.clone();
        let known = |s: &Signature| is_kept(KeyBytes::ed25519(&s.key));
        reduced.signatures.retain(known);
        reduced.unknown.retain(|s| is_kept(s.key.as_key()));
        reduced
    }

    /// Adds (or replaces) the signature of `key`. This is how k of n owners sign one after another.
    pub fn add(&mut self, key: &SecretKey) {
        let signature = key.sign(&self.statement.signed_message());
        self.put(&key.public(), signature);
    }

    /// Adds (or replaces) the signature of a key that may lie elsewhere, verified.
    ///
    /// # Errors
    /// [`NoSignature`]; nothing has changed then.
    pub fn add_by(&mut self, key: &dyn Signer) -> Result<(), NoSignature> {
        let signature = signer::signature(key, &self.statement.signed_message())?;
        self.put(&key.public(), signature);
        Ok(())
    }

    fn put(&mut self, key: &PublicKey, signature: [u8; SIGNATURE_BYTES]) {
        let key = *key.as_bytes();
        self.signatures.retain(|s| s.key != key);
        self.signatures.push(Signature { key, signature });
        self.signatures.sort_by_key(|s| s.key);
    }

    /// Takes over the signatures of keys that have not signed here from another copy of the same statement. Nothing
    /// is verified.
    pub(crate) fn merge(&mut self, other: &Signed) {
        for signature in &other.signatures {
            if !self.signatures.iter().any(|s| s.key == signature.key) {
                self.signatures.push(signature.clone());
            }
        }
        self.signatures.sort_by_key(|s| s.key);
    }

    /// Appends the canonical bytes.
    pub fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.statement.bytes);
        let count = self.signatures.len().saturating_add(self.unknown.len());
        out.varint(count as u64);
        for s in &self.signatures {
            KeyBytes::ed25519(&s.key).encode(out);
            out.bytes(&s.signature);
        }
        for s in &self.unknown {
            s.key.as_key().encode(out);
            out.bytes(&s.signature);
        }
    }

    /// Reads a signed statement about a published volume.
    ///
    /// # Errors
    /// As [`Signed::decode_of`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Signed::decode_of(Job::Published, d)
    }

    /// Reads a signed statement about a volume of this job.
    ///
    /// # Errors
    /// Those of [`Statement::decode_of`]; also for too many signatures, signatures out of order, and two by one key.
    /// A signature of an unknown algorithm is no error.
    pub fn decode_of(job: Job, d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let before = d.remaining();
        let bytes = d.bytes(MAX_STATEMENT_BYTES)?;
        let statement = Statement::decode_of(job, Bytes::copy_from_slice(bytes))?;
        let count = d.bounded(MAX_SIGNATURES as u64, "too many signatures")?;
        let (mut signatures, mut unknown) = (Vec::new(), Vec::new());
        let mut last = None;
        for _ in 0..count {
            let key = KeyBytes::decode_after(&mut last, d)?;
            let signature = d.bytes(MAX_SIGNATURE_BYTES)?;
            if key.algorithm != ED25519 {
                unknown.push(UnknownSignature {
                    key: UnknownKey::copy(key),
                    signature: Bytes::copy_from_slice(signature),
                });
                continue;
            }
            let (Ok(key), Ok(signature)) = (key.bytes.try_into(), signature.try_into()) else {
                return Err(d.bad("an Ed25519 key or signature of another length"));
            };
            signatures.push(Signature { key, signature });
        }
        if before.saturating_sub(d.remaining()) > MAX_SIGNED_BYTES {
            return Err(d.bad("too long with its signatures"));
        }
        Ok(Signed {
            statement,
            signatures,
            unknown,
        })
    }

    /// The canonical bytes, for a file of its own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        self.encode(&mut e);
        e.finish()
    }

    /// Reads a file that holds one signed statement about a published volume and nothing else.
    ///
    /// # Errors
    /// As [`Signed::from_bytes_of`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Reject> {
        Signed::from_bytes_of(Job::Published, bytes)
    }

    /// Reads a file that holds one signed statement and nothing else.
    ///
    /// # Errors
    /// As [`Signed::decode_of`]; trailing bytes.
    pub fn from_bytes_of(job: Job, bytes: &[u8]) -> Result<Self, Reject> {
        let mut d = Decoder::new(bytes, "signed statement");
        let signed = Signed::decode_of(job, &mut d)?;
        d.finish()?;
        Ok(signed)
    }
}
