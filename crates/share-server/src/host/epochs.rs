//! The directory of a server when the owners have begun the log again (decision 0052).
//!
//! The log of epoch 0 lies in the directory itself, that of a later epoch N below `epoch-N`. The leaves that stand are
//! copied there, durably. Then the policies are written: the last of them is the moment at which the directory is that
//! of the new epoch. A crash before leaves the old epoch and a copy that the next call makes anew. The temporary log
//! says of which epoch its leaves are, and the first start of the new epoch gives those of the old one up. Blocks are
//! those of all epochs. What is beyond the prefix stays in the files of the old epoch, and nobody serves it.

use std::sync::Arc;
use std::time::Duration;

use store::disk::{Disk, io_error, replace_file};
use store::names::{self, TEMPORARY};
use trust::key::PublicKey;
use trust::signatures::Signatures;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::genesis::{Epoch, Policies};

use super::below::disk;
use super::directory::{LEAVES, Place, is_orderer};
use super::leaves::Leaves;
use super::record::StoredLeaf;
use super::start::{Opened, open_blocks, read_log};
use super::trail::Trail;
use super::{HostError, HostOptions};
use ordering::roster::Roster;

/// Leaves are copied in parts of so many bytes.
const PART_BYTES: usize = 8 << 20;
/// Leaves that are read at once.
const AT_ONCE: u64 = 256;

/// See [`super::Host::renew`].
pub(super) fn renew(
    place: &Place,
    policies: &[Signed],
    orderer: &PublicKey,
) -> Result<VolumeId, HostError> {
    let (known, old) = place.policies()?;
    let volume = known.chain().volume();
    if policies.first().map(Signed::hash) != old.first().map(Signed::hash) {
        return Ok(volume);
    }
    let mut signatures = Signatures::new(64);
    let new = Policies::verify(volume, policies, &mut signatures).map_err(HostError::Policy)?;
    let is_same = |(one, other): (&Signed, &Signed)| one.hash() == other.hash();
    if !old.iter().zip(policies).all(is_same) {
        let why = "the owners have signed two rules with one number";
        return Err(HostError::OtherPolicies { why });
    }
    if policies.len() <= old.len() {
        // An earlier state of the same chain says nothing new.
        return Ok(volume);
    }
    is_orderer(&new, orderer)?;
    let epoch = *new.newest_epoch();
    if epoch.number > known.newest_epoch().number {
        let root = Arc::clone(&place.root);
        copy(place, &known, &disk(&root, epoch.number), &epoch)?;
    }
    for (number, policy) in policies.iter().enumerate().skip(old.len()) {
        let name = names::policy(number as u64);
        let temporary = format!("{name}{TEMPORARY}");
        let bytes = policy.to_bytes();
        replace_file(&*place.root, &name, &temporary, names::POLICY_DIR, &bytes)?;
    }
    Ok(volume)
}

/// Copies the leaves with which an epoch begins.
fn copy(
    place: &Place,
    known: &Policies,
    to: &Arc<dyn Disk>,
    epoch: &Epoch,
) -> Result<(), HostError> {
    let options = HostOptions::default().blocks;
    let clock = Arc::new(|| Duration::ZERO);
    let (storage, found) = open_blocks(place, known, options, clock)?;
    let Opened {
        leaves,
        ledger,
        tail,
        ..
    } = read_log(place, known, &storage, found)?;
    let published = ledger.size();
    let other = HostError::OtherStart {
        size: epoch.start.size,
        published,
    };
    if epoch.start.size > published || !epoch.takes_over(published) {
        return Err(other);
    }
    let target = emptied(to)?;
    let volume = known.chain().volume();
    let roster = Roster::new(volume, known.founder()).map_err(HostError::Policy)?;
    let mut copying = Copying {
        to: target,
        trail: Trail::new(roster),
        part: Vec::new(),
        bytes: 0,
    };
    let mut next = 0;
    while next < epoch.start.size {
        let until = epoch.start.size.min(next.saturating_add(AT_ONCE));
        let split = tail.first().clamp(next, until);
        let mut some = leaves.read(next..split)?;
        some.extend(tail.get(split..until).into_iter().flatten().cloned());
        next = next.saturating_add(some.len() as u64);
        if some.is_empty() {
            return Err(other);
        }
        copying.add(some)?;
    }
    copying.write()?;
    if copying.trail.frontier.root() != epoch.start.root {
        return Err(other);
    }
    // Without it the first start takes longer.
    copying.trail.write(&**to, volume, epoch.number)?;
    Ok(())
}

/// The files of an epoch's leaves, without any that an interrupted call left.
fn emptied(to: &Arc<dyn Disk>) -> Result<Leaves, HostError> {
    let failed = |e| HostError::from(io_error(&**to, LEAVES, e));
    to.make_dir(LEAVES).map_err(failed)?;
    for name in to.list(LEAVES).map_err(failed)? {
        to.remove(&format!("{LEAVES}/{name}")).map_err(failed)?;
    }
    to.sync_dir(LEAVES).map_err(failed)?;
    Ok(Leaves::open(Arc::clone(to))?.0)
}

/// Leaves on their way into the files of another epoch.
struct Copying {
    to: Leaves,
    /// What is in the files.
    trail: Trail,
    part: Vec<StoredLeaf>,
    bytes: usize,
}

impl Copying {
    fn add(&mut self, leaves: Vec<StoredLeaf>) -> Result<(), HostError> {
        for leaf in leaves {
            self.bytes = self.bytes.saturating_add(leaf.bytes());
            self.part.push(leaf);
        }
        match self.bytes >= PART_BYTES {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), HostError> {
        let part = std::mem::take(&mut self.part);
        self.bytes = 0;
        if part.is_empty() {
            return Ok(());
        }
        let before = self.trail.frontier.clone();
        let mut roots = Vec::new();
        for stored in &part {
            let leaf = stored.decode().map_err(HostError::Policy)?;
            roots.extend(self.trail.push(&leaf));
        }
        Ok(self.to.append(&part, &before, &roots)?)
    }
}
