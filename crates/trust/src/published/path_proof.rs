//! Proofs for paths: that a path is in a volume, with its inode, or that it is not. Anybody who knows the
//! volume id and the time can check a proof offline. Relies on [`crate::published::judge`] for the head and
//! on [`crate::reach::Lookup`] for following the path; bytes in docs/formats/path-proof.md.
//!
//! ```text
//! path proof = format u16 (0) | incompatible flags u16 (0) | path length varint | path
//!            | head length varint | head | count varint | { older policy } * count
//!            | count varint | { block length varint | block } * count
//! ```
//!
//! Every byte of the head (policies, root record, timestamp, checkpoint) is covered by a check. So a proof
//! leaves out, and the verifier refuses, signatures by keys without a role, a timestamp or checkpoint that no
//! policy requires, and lines of a checkpoint that no witness of the policy signed. The blocks are those that
//! a reader fetches on the way, in that order.

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::Hasher;
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::{Head, MAX_HEAD_BYTES};
use crate::published::judge::Terms;
use crate::published::reduced::reduced;
use crate::published::root::RootRecord;
use crate::published::standing::signed_record;
use crate::reach::{Lookup, MAX_COMPONENTS, Outcome, Wanted};
use crate::statement::chain::Chain;
use crate::statement::signatures::Signatures;
use crate::statement::{Signed, VolumeId};
use crate::tree::map::{MAX_HEIGHT, MAX_NODE_BYTES};

/// Largest encoded proof, bytes.
pub const MAX_PATH_PROOF_BYTES: usize = 16 << 20;
/// Longest path, bytes: [`MAX_COMPONENTS`] names of 255 bytes.
const MAX_PATH_BYTES: usize = MAX_COMPONENTS * 256;
/// Highest number of blocks: the root's inode, then for each name the nodes of a directory and an inode.
const MAX_BLOCKS: usize = 1 + MAX_COMPONENTS * (MAX_HEIGHT as usize + 1);

/// Highest number of older policies; the length of a proof bounds them earlier.
const MAX_OLDER: usize = 1 << 16;

const FORMAT: u16 = 0;
const WHAT: &str = "path proof";

/// A proof. Only its form was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathProof {
    path: Vec<u8>,
    head: Head,
    /// The policies between the genesis and the others of the head.
    older: Vec<Signed>,
    blocks: Vec<Bytes>,
}

/// The requirements of a proof's reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demands {
    /// The time, unix seconds.
    pub now: u64,
    /// Lowest number of the newest policy in the proof. A reader that knows that policy 3 exists sets 3: then
    /// the keys of policy 2 cannot prove anything to it. 0 accepts any policy.
    pub least_policy: u64,
}

/// The statement that a proof shows.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The path exists, with this inode, or does not exist.
    pub outcome: Outcome,
    /// The root record that this holds for.
    pub record: RootRecord,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// The publishers whose valid signatures the record has. None if its policy is older than the newest seven: then the
    /// owners vouch for it.
    pub signers: Vec<PublicKey>,
    /// Number of the newest policy.
    pub policy_number: u64,
    /// Its hash.
    pub policy_hash: [u8; 32],
    /// Until when its publishers confirm it, unix seconds (exclusive).
    pub valid_until: u64,
}

impl PathProof {
    /// The path that the proof is about: names joined by slashes, empty for the root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The volume that it claims to be about. Nothing is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it has no policy.
    pub fn volume(&self) -> Result<VolumeId, Reject> {
        self.head.volume()
    }

    /// Checks the proof for `path` in `volume`.
    ///
    /// # Errors
    /// [`Reject::Rollback`] under an older policy than required; [`Reject::Expired`] and the others of
    /// [`Floor::judge`]; [`Reject::WrongBlock`], [`Reject::BadTree`] or [`Reject::Malformed`] unless the
    /// blocks are exactly those on the way to `path`.
    pub fn verify(
        &self,
        volume: VolumeId,
        path: &[u8],
        demands: &Demands,
    ) -> Result<Shown, Reject> {
        if self.path != path {
            return Err(bad("about another path"));
        }
        let mut signatures = Signatures::default();
        let known = self.known(volume, &mut signatures)?;
        let chain = known.known_chain(&self.head, &mut signatures)?;
        let policy_number = chain.newest().number();
        if policy_number < demands.least_policy {
            return Err(Reject::Rollback {
                offered: policy_number,
                floor: demands.least_policy,
            });
        }
        let terms = Terms::strict(demands.now);
        let offer = known.judge(&self.head, &terms, &mut signatures)?;
        if reduced(&self.head, &chain, &offer.record)? != self.head {
            return Err(bad("a signature or statement that is not required"));
        }
        Ok(Shown {
            outcome: self.follow(&chain.hasher(), &offer.record)?,
            signers: self.signers(&chain, &offer.record),
            record: offer.record,
            record_hash: offer.record_hash,
            policy_number,
            policy_hash: chain.newest_hash(),
            valid_until: offer.valid_until,
        })
    }

    /// Checks the proof as [`PathProof::verify`] does, for a reader that has read the volume before: what contradicts
    /// `floor` proves nothing. An earlier version than the adopted one does not contradict it.
    ///
    /// # Errors
    /// As [`PathProof::verify`]; [`Reject::Rollback`] under an older policy than the newest known one; [`Reject::Fork`]
    /// for another policy or record in the place of a known one, and for those of a fork that stands;
    /// [`Reject::Refused`] for those that the user refused.
    pub fn verify_after(
        &self,
        floor: &Floor,
        path: &[u8],
        demands: &Demands,
    ) -> Result<Shown, Reject> {
        let known = floor.policy().map_or(0, |(number, _)| number);
        let demands = Demands {
            least_policy: demands.least_policy.max(known),
            ..*demands
        };
        let shown = self.verify(floor.volume(), path, &demands)?;
        let mut policies: Vec<[u8; 32]> = self.policies().map(Signed::hash).collect();
        floor.check_known(&policies)?;
        policies.push(shown.record_hash);
        floor.check_not_contradicted(&policies)?;
        floor.check_same_version(&shown.record, &shown.record_hash)?;
        Ok(shown)
    }

    /// All policies, by number: a proof that was verified has each of them.
    fn policies(&self) -> impl Iterator<Item = &Signed> {
        let shown = &self.head.policies;
        let (genesis, later) = shown.split_at(shown.len().min(1));
        genesis.iter().chain(&self.older).chain(later)
    }

    /// The publishers that signed the record, which was verified.
    fn signers(&self, chain: &Chain, record: &RootRecord) -> Vec<PublicKey> {
        let policy = chain.get(record.policy_number);
        let keys = policy.map_or(&[][..], |(policy, _)| policy.roles().publishers.keys());
        let signed = |key: &&PublicKey| self.head.record.by(key).is_some();
        keys.iter().filter(signed).copied().collect()
    }

    /// The floor of a reader that knows the genesis and the older policies.
    fn known(&self, volume: VolumeId, signatures: &mut Signatures) -> Result<Floor, Reject> {
        if self.older.len() as u64 != self.head.begins().saturating_sub(1) {
            return Err(bad("not the policies before those of the head"));
        }
        let mut floor = Floor::new(volume);
        for policy in self.head.policies.iter().take(1).chain(&self.older) {
            floor = floor.after(policy, signatures)?;
            if floor.policies().last() != Some(policy) {
                return Err(bad("a signature or statement that is not required"));
            }
        }
        Ok(floor)
    }

    fn follow(&self, hasher: &Hasher, record: &RootRecord) -> Result<Outcome, Reject> {
        let mut lookup = Lookup::new(record.root, &self.path)?;
        let mut blocks = self.blocks.iter();
        while let Some(wanted) = lookup.wants() {
            let block = blocks.next().ok_or_else(|| bad("ends before the path"))?;
            lookup.supply(wanted.prove(hasher, block.clone())?)?;
        }
        if blocks.next().is_some() {
            return Err(bad("goes on after the end of the path"));
        }
        let outcome = lookup
            .outcome()
            .ok_or_else(|| bad("ends before the path"))?;
        Ok(outcome.clone())
    }

    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when there would be more than [`MAX_PATH_PROOF_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.u16(FORMAT).u16(0);
        e.bytes(&self.path).bytes(&self.head.encode()?);
        e.varint(self.older.len() as u64);
        for policy in &self.older {
            policy.encode(&mut e);
        }
        e.varint(self.blocks.len() as u64);
        for block in &self.blocks {
            e.bytes(block);
        }
        if e.len() > MAX_PATH_PROOF_BYTES {
            return Err(bad("too long"));
        }
        Ok(e.finish())
    }

    /// Takes bytes that claim to be a proof.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one
    /// encoding of a proof.
    pub fn decode(bytes: &[u8]) -> Result<PathProof, Reject> {
        if bytes.len() > MAX_PATH_PROOF_BYTES {
            return Err(bad("too long"));
        }
        let mut d = Decoder::new(bytes, WHAT);
        let (format, flags) = (d.u16()?, d.u16()?);
        if format != FORMAT || flags != 0 {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("format {format}, flags {flags:#06x}"),
            });
        }
        let path = d.bytes(MAX_PATH_BYTES)?.to_vec();
        let head = Head::decode(d.bytes(MAX_HEAD_BYTES)?)?;
        let count = d.bounded(MAX_OLDER as u64, "too many policies")?;
        let mut older = Vec::new();
        for _ in 0..count {
            older.push(Signed::decode(&mut d)?);
        }
        let count = d.bounded(MAX_BLOCKS as u64, "too many blocks")?;
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push(Bytes::copy_from_slice(d.bytes(MAX_NODE_BYTES)?));
        }
        d.finish()?;
        Ok(PathProof {
            path,
            head,
            older,
            blocks,
        })
    }
}

/// Makes a proof. Takes the blocks on the way, one after another: give the block that [`Prover::wants`] names to
/// [`Prover::supply`] until it wants none, then call [`Prover::finish`].
#[derive(Debug)]
pub struct Prover {
    proof: PathProof,
    hasher: Hasher,
    lookup: Lookup,
    bytes: usize,
}

impl Prover {
    /// Begins the proof for `path` under a head. `older` are the policies between the genesis and the others that the
    /// head shows. The head's time is not checked, because the verifier of the
    /// proof supplies the time.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an impossible path; [`Reject::WrongVolume`] or [`Reject::NotSigned`] for
    /// a head that proves nothing.
    pub fn new(
        head: &Head,
        older: &[Signed],
        volume: VolumeId,
        path: &[u8],
    ) -> Result<Prover, Reject> {
        let mut signatures = Signatures::default();
        let mut proof = PathProof {
            path: path.to_vec(),
            head: head.clone(),
            older: Vec::new(),
            blocks: Vec::new(),
        };
        let mut known = Floor::new(volume);
        for policy in head.policies.iter().take(1) {
            known = known.after(policy, &mut signatures)?;
        }
        for policy in older {
            known = known.after(policy, &mut signatures)?;
            proof.older.extend(known.policies().last().cloned());
        }
        let chain = known.known_chain(head, &mut signatures)?;
        let record = signed_record(&head.record, &chain, &mut signatures)?;
        proof.head = reduced(head, &chain, &record)?;
        Ok(Prover {
            proof,
            hasher: chain.hasher(),
            lookup: Lookup::new(record.root, path)?,
            bytes: 0,
        })
    }

    /// The block that is wanted next; `None` when the proof is complete.
    pub fn wants(&self) -> Option<Wanted> {
        self.lookup.wants()
    }

    /// Takes the plaintext of the block that [`Prover::wants`] names.
    ///
    /// # Errors
    /// [`Reject::WrongBlock`] for other bytes: read the block elsewhere. [`Reject::BadTree`] when the tree
    /// breaks a rule; [`Reject::Malformed`] when the proof becomes too long.
    pub fn supply(&mut self, plaintext: Bytes) -> Result<(), Reject> {
        let wanted = self.wants().ok_or(Reject::WrongBlock)?;
        self.bytes = self.bytes.saturating_add(plaintext.len());
        if self.bytes > MAX_PATH_PROOF_BYTES {
            return Err(bad("too long"));
        }
        let found = wanted.prove(&self.hasher, plaintext.clone())?;
        self.lookup.supply(found)?;
        self.proof.blocks.push(plaintext);
        Ok(())
    }

    /// The proof.
    ///
    /// # Errors
    /// [`Reject::Malformed`] while a block is wanted.
    pub fn finish(self) -> Result<PathProof, Reject> {
        match self.lookup.outcome() {
            Some(_) => Ok(self.proof),
            None => Err(bad("ends before the path")),
        }
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
