//! The product's hashes and signatures: trees of SHA-256, Ed25519, and the formats of [`trust_shared`].
//!
//! One value holds one key: a device's, or the orderer's. Randomness and time come from outside. What operations are
//! is left to a [`Codec`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use trust::device::{DeviceKey, Incarnation, KnownDevice};
use trust::error::Reject;
use trust::history::{LogPoint, leaf_hash};
use trust::key::{PublicKey, SecretKey, Verifier};
use trust::volume_id::VolumeId;
use trust_shared::attest::{Attest, SignedAttest};
use trust_shared::entry::{self, Content, Heading, Ops, Prefix, SignedEntry, body_hash};
use trust_shared::genesis::Policies;
use trust_shared::mark::{self, MarkProof, MarkTree, Nonce};
use trust_shared::note::{Note, SignedNote};

use crate::ablation::All;
use crate::keys::Keys;
use crate::prefixes::{Recent, Rfc6962};
use crate::scheme::{DeviceScheme, Leaf, Notary, Scheme};

/// How operations are written.
pub trait Codec: Clone {
    /// One operation.
    type Op: Clone + fmt::Debug;
    /// Outline and body of these operations. None: they are more than an entry may have.
    fn encode(ops: Vec<Self::Op>) -> Option<(Bytes, Bytes)>;
}

/// Where randomness comes from.
pub trait Source: Send + Sync {
    /// 32 random bytes.
    fn draw(&self) -> [u8; 32];
}

/// An entry, and its body where somebody sent it.
#[derive(Clone, Debug)]
pub struct Entry {
    signed: Arc<SignedEntry>,
    body: Option<Bytes>,
    /// The volume for which its signature was verified.
    verified: Option<VolumeId>,
}

impl Entry {
    /// An entry without its body.
    pub fn new(signed: SignedEntry) -> Entry {
        Entry {
            signed: Arc::new(signed),
            body: None,
            verified: None,
        }
    }

    /// An entry and its body.
    ///
    /// # Errors
    /// [`Reject::WrongBlock`] when it is another entry's body; [`Reject::Malformed`] when it is too long, or the entry
    /// has none.
    pub fn with_body(signed: SignedEntry, body: Bytes) -> Result<Entry, Reject> {
        let what = "entry";
        let why = "a Resume has no body";
        let ops = signed.entry().ops();
        ops.ok_or(Reject::Malformed { what, why })?
            .check_body(&body)?;
        Ok(Entry {
            signed: Arc::new(signed),
            body: Some(body),
            verified: None,
        })
    }

    /// An entry that this device has written down, with its body where it had that: nothing is compared again.
    pub fn known(signed: SignedEntry, body: Option<Bytes>) -> Entry {
        Entry {
            signed: Arc::new(signed),
            body,
            verified: None,
        }
    }

    /// The same entry, whose signature for this volume need not be verified again. `by`: who must have signed it.
    ///
    /// # Errors
    /// [`Reject::NotSigned`].
    pub fn verified(&self, volume: VolumeId, by: &KnownDevice) -> Result<Entry, Reject> {
        self.signed.verify_by(volume, by)?;
        Ok(Entry {
            verified: Some(volume),
            ..self.clone()
        })
    }

    /// The entry as it was signed.
    pub fn signed(&self) -> &SignedEntry {
        &self.signed
    }

    /// Its body, if somebody sent it.
    pub fn body(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }
}

/// The marks of a group commit, and proofs for some of them.
#[derive(Clone, Debug)]
pub struct Marks {
    leaf: mark::Marks,
    proofs: Vec<(Nonce, MarkProof)>,
}

impl Marks {
    /// The leaf, and what somebody sent to prove marks.
    pub fn new(leaf: mark::Marks, proofs: Vec<(Nonce, MarkProof)>) -> Marks {
        Marks { leaf, proofs }
    }

    /// The leaf of the log.
    pub fn leaf(&self) -> &mark::Marks {
        &self.leaf
    }

    /// The proofs that are known here.
    pub fn proofs(&self) -> &[(Nonce, MarkProof)] {
        &self.proofs
    }
}

/// The volume and its log, and one key.
pub struct Signed<C> {
    volume: VolumeId,
    epoch: u64,
    /// The orderer's key, worked out for many notes. A key that was read always can be.
    orderer: Option<Verifier>,
    /// Where the epochs before this one ended and it began, this one last.
    starts: Arc<[Prefix]>,
    me: DeviceKey,
    key: SecretKey,
    source: Arc<dyn Source>,
    now_ms: u64,
    keys: Arc<Keys>,
    codec: PhantomData<C>,
}

impl<C> Clone for Signed<C> {
    fn clone(&self) -> Self {
        Signed {
            volume: self.volume,
            epoch: self.epoch,
            orderer: self.orderer,
            starts: Arc::clone(&self.starts),
            me: self.me,
            key: self.key.clone(),
            source: Arc::clone(&self.source),
            now_ms: self.now_ms,
            keys: Arc::clone(&self.keys),
            codec: PhantomData,
        }
    }
}

impl<C> fmt::Debug for Signed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signed({} in epoch {})", self.me, self.epoch)
    }
}

impl<C> Signed<C> {
    /// For one log epoch of a volume. `key`: the device's, or the orderer's.
    pub fn new(
        volume: VolumeId,
        epoch: u64,
        orderer: PublicKey,
        key: SecretKey,
        source: Arc<dyn Source>,
    ) -> Self {
        Signed {
            volume,
            epoch,
            orderer: orderer.verifier().ok(),
            starts: Arc::default(),
            me: DeviceKey::from(&key.public()),
            key,
            source,
            now_ms: 0,
            keys: Arc::default(),
            codec: PhantomData,
        }
    }

    /// For the newest epoch of these policies.
    pub fn of(policies: &Policies, key: SecretKey, source: Arc<dyn Source>) -> Self {
        let newest = policies.newest_epoch();
        let volume = policies.chain().volume();
        let epochs = (1..=newest.number).filter_map(|number| policies.epoch(number));
        Signed {
            starts: epochs.map(|epoch| epoch.start).collect(),
            ..Signed::new(volume, newest.number, newest.orderer, key, source)
        }
    }

    /// The epoch of the log.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The epoch of the leaf at a position.
    fn epoch_at(&self, at: u64) -> u64 {
        let later = self.starts.iter().filter(|start| start.size > at).count();
        self.epoch.saturating_sub(later as u64)
    }

    /// What notes say of the time from now on, unix milliseconds.
    pub fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }
}

impl<C> Signed<C> {
    /// Signs a note of this prefix. `time_ms`: unix milliseconds.
    pub fn note_at(&self, point: Prefix, time_ms: u64) -> SignedNote {
        let note = Note {
            log: LogPoint {
                epoch: self.epoch,
                size: point.size,
                root: point.root,
            },
            time_ms,
        };
        note.sign(self.volume, &self.key)
    }
}

impl<C: Codec> Scheme for Signed<C> {
    type Device = DeviceKey;
    type Hash = [u8; 32];
    type Incarnation = Incarnation;
    type Entry = Entry;
    type Mark = Nonce;
    type Marks = Marks;
    type Attest = SignedAttest;
    type Note = SignedNote;
    type Log = Recent;
    type Rules = All;

    fn rules(&self) -> All {
        All
    }

    fn author(entry: &Entry) -> DeviceKey {
        entry.signed.entry().device
    }

    fn heading(entry: &Entry) -> Heading {
        entry.signed.entry().heading()
    }

    fn id(entry: &Entry) -> [u8; 32] {
        entry.signed.hash()
    }

    fn has_mark(marks: &Marks, mark: &Nonce) -> bool {
        let mut proofs = marks.proofs.iter();
        proofs.any(|(nonce, proof)| nonce == mark && marks.leaf.contain(nonce, proof))
    }

    fn attested(attest: &SignedAttest) -> (DeviceKey, Prefix) {
        let Attest { device, seen, .. } = *attest.attest();
        (device, seen)
    }

    fn noted(note: &SignedNote) -> Prefix {
        note.note().prefix()
    }

    fn start(&self) -> Option<Prefix> {
        self.starts.last().copied()
    }

    fn has_epoch_of(&self, at: u64, entry: &Entry) -> bool {
        entry.signed.entry().epoch == self.epoch_at(at)
    }

    fn entry_is_signed(&self, entry: &Entry) -> bool {
        let verified = entry.verified == Some(self.volume);
        let verify = || {
            let by = self.keys.of(Self::author(entry))?;
            entry.signed.verify_by(self.volume, &by)
        };
        verified || verify().is_ok()
    }

    fn attest_is_signed(&self, attest: &SignedAttest) -> bool {
        let here = attest.attest().epoch == self.epoch;
        let verify = || {
            let by = self.keys.of(attest.attest().device)?;
            attest.verify_by(self.volume, &by)
        };
        here && verify().is_ok()
    }

    fn note_is_signed(&self, note: &SignedNote) -> bool {
        let here = note.note().log.epoch == self.epoch;
        let signed = |orderer| note.verify_by(self.volume, orderer).is_ok();
        here && self.orderer.as_ref().is_some_and(signed)
    }
}

impl<C: Codec> Rfc6962 for Signed<C> {
    fn leaf_hash(leaf: &Leaf<Self>) -> [u8; 32] {
        match leaf {
            Leaf::Entry(entry) => entry.signed.hash(),
            Leaf::Marks(marks) => leaf_hash(&marks.leaf.encode()),
        }
    }
}

impl<C: Codec> DeviceScheme for Signed<C> {
    type Op = C::Op;

    fn me(&self) -> DeviceKey {
        self.me
    }

    fn sign(&self, heading: Heading, ops: Vec<C::Op>) -> Option<Entry> {
        let (content, body) = if heading.resume {
            (ops.is_empty().then_some(Content::Resume)?, None)
        } else {
            let (outline, body) = C::encode(ops)?;
            let ops = Ops {
                n: heading.n,
                previous: heading.previous,
                outline,
                body_hash: body_hash(&body),
            };
            ops.check_body(&body).ok()?;
            (Content::Ops(ops), Some(body))
        };
        let entry = entry::Entry {
            epoch: self.epoch,
            device: self.me,
            incarnation: heading.incarnation,
            seen: heading.seen,
            kept: heading.kept,
            content,
        };
        let signed = entry.sign(self.volume, &self.key).ok()?;
        Some(Entry {
            signed: Arc::new(signed),
            body,
            verified: None,
        })
    }

    fn attest(&self, seen: Prefix) -> Option<SignedAttest> {
        let attest = Attest {
            epoch: self.epoch,
            device: self.me,
            seen,
        };
        attest.sign(self.volume, &self.key).ok()
    }

    fn no_entry(&self) -> [u8; 32] {
        [0; 32]
    }

    fn incarnation(&mut self) -> Incarnation {
        let drawn = self.source.draw();
        let (first, _) = drawn.split_at(16);
        Incarnation::from_bytes(first.try_into().unwrap_or_default())
    }

    fn mark(&mut self) -> Nonce {
        Nonce::from_bytes(self.source.draw())
    }
}

impl<C: Codec> Notary for Signed<C> {
    fn note(&mut self, point: Prefix) -> SignedNote {
        self.note_at(point, self.now_ms)
    }

    fn marks(&self, marks: &[Nonce]) -> Option<Marks> {
        let tree = MarkTree::new(marks.to_vec())?;
        let proofs = marks
            .iter()
            .filter_map(|nonce| Some((*nonce, tree.prove(nonce)?)));
        Some(Marks {
            leaf: tree.marks(),
            proofs: proofs.collect(),
        })
    }
}
