//! Mends the directory of a server that was stopped: what is damaged is made again from what is whole, or taken from a copy of
//! the directory. Everything is planned before the first change. A log that cannot be mended whole stays as it is:
//! a server that has forgotten what it signed would sign a fork.
//!
//! Each file is written aside and renamed, so a repair that is killed is begun again. Damaged files are kept with names that end
//! with `.damaged`. Nothing that is right is changed.
//!
//! | module | what lives there |
//! |---|---|
//! | `source` | where leaves are found |
//! | `copied` | a copy of the directory, or the directory of a device |
//! | `leaves` | the files of leaves |
//! | `tail` | the leaves of the temporary log |
//! | `ring` | a new temporary log |
//! | `policies` | policies |

mod copied;
mod leaves;
mod policies;
mod ring;
pub(super) mod source;
mod tail;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::disk::{Disk, io_error, replace_file};
use store::mend::{DAMAGED, kept_name};
use store::names::{self, TEMPORARY};
use store::survey::Told;
use store::{Repository, StoreError, format};
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust::{Handle, Hasher, Record};
use trust_shared::genesis::Policies;
use trust_shared::note::SignedNote;

pub(super) use self::copied::Copied;
use self::copied::noted;
use self::leaves::{Log, Plan};
use self::source::Source;
use super::directory::{CONFIRMED, EVIDENCE, RING, SNAPSHOT};
use super::examine::{Examined, Watch, examine_parts};
use super::moving::Released;
use super::parts::Parts;
use super::record::{StoredLeaf, read_record};
use super::{HostError, confirmed, small};
use crate::blocks::peek::Peeked;
use ordering::roster::Product;
use ordering::scheme::Leaf;

/// Where a repair takes what the directory lacks: a copy of the directory, of any age, in which no server runs; or the
/// directory of a device of the volume, which no engine uses.
pub struct RepairSource<'a> {
    /// The directory.
    pub path: &'a Path,
    /// Opens what a device remembers, if the directory is that of a device. Errors are for people.
    pub open_device: OpenDevice,
}

/// See [`RepairSource::open_device`].
pub type OpenDevice = fn(&Path) -> Result<Option<Box<dyn DeviceMemory>>, String>;

/// What a device of the volume remembers. Errors are for people.
pub trait DeviceMemory {
    /// The policies, the first one first.
    ///
    /// # Errors
    /// When they cannot be read.
    fn policies(&self) -> Result<Vec<Signed>, String>;

    /// The log of an epoch, if the device has one.
    ///
    /// # Errors
    /// When it cannot be read.
    fn log(&self, epoch: u64) -> Result<Option<Box<dyn DeviceLog>>, String>;
}

/// A log that a device remembers.
pub trait DeviceLog {
    /// Number of its leaves.
    fn end(&self) -> u64;

    /// A leaf, if the device has it. An entry may lack its body.
    fn leaf(&self, at: u64) -> Option<Leaf<Product>>;

    /// What the server has signed of this log, as far as the device keeps it. Nothing of it is verified.
    fn notes(&self) -> &[SignedNote];
}

/// What was done.
#[derive(Debug, Clone)]
pub struct Repaired {
    /// What was mended: a file, and what became of it.
    pub mended: Vec<(PathBuf, String)>,
    /// Damaged files that are kept.
    pub kept: Vec<PathBuf>,
    /// Damaged leaves that were mended from their own bytes.
    pub own_leaves: u64,
    /// Damaged leaves that were taken from elsewhere.
    pub taken_leaves: u64,
    /// Blocks that nobody has: the first ones.
    pub lost: Vec<Handle>,
    /// How many there are.
    pub lost_count: u64,
    /// Bytes of the temporary log that are destroyed. Blocks in them may be lost, and nothing names them.
    pub destroyed_bytes: u64,
    /// What a check finds after that.
    pub left: Examined,
}

/// See [`super::Host::repair`].
pub(super) fn repair(
    dir: &Path,
    from: Option<RepairSource<'_>>,
    reads_blocks: bool,
    watch: &mut Watch<'_>,
) -> Result<Repaired, HostError> {
    let parts = Parts::open(dir)?;
    let copy = from.map(Copied::open).transpose()?;
    repair_parts(&parts, copy.as_ref(), reads_blocks, watch)
}

pub(super) fn repair_parts(
    parts: &Parts,
    copy: Option<&Copied>,
    reads_blocks: bool,
    watch: &mut Watch<'_>,
) -> Result<Repaired, HostError> {
    let is_unmarked = is_unmarked(parts)?;
    let chosen = policies::choose(parts, copy)?;
    let mut repair = Repair {
        parts,
        copy,
        policies: &chosen.policies,
        hasher: chosen.policies.chain().hasher(),
        mended: Vec::new(),
        kept: Vec::new(),
    };
    let peeked = repair.peek()?;
    let volume = chosen.policies.chain().volume();
    let copied = copy.and_then(Copied::parts);
    let copied = copied.and_then(|copy| peek_copy(copy, volume));
    let tail = tail::read(&peeked, chosen.policies.newest_epoch())?;
    let newest = chosen.policies.newest_epoch().number;
    let mut plans = Vec::new();
    for epoch in 0..=newest {
        let mut log = repair.log(epoch, &tail, copied.as_ref())?;
        let plan = log.plan()?;
        plans.push((log, plan));
    }
    if peeked.broken.is_some() {
        repair.path()?;
    }
    // From here on the directory changes.
    for (name, bytes) in &chosen.taken {
        repair.replace(&*parts.root, name, names::POLICY_DIR, bytes)?;
    }
    for (log, plan) in &plans {
        repair.files(log, plan)?;
    }
    let (lost, lost_count) = repair.blocks(&peeked, copied.as_ref(), reads_blocks)?;
    let ring = match (&peeked.broken, plans.last()) {
        (Some(_), Some((_, plan))) => Ok(repair.ring(&peeked, plan)?),
        _ => parts.ring.clone(),
    };
    repair.small()?;
    if is_unmarked {
        let text = format::SHARED_TEXT.as_bytes();
        repair.replace(&*parts.root, names::FORMAT_FILE, "", text)?;
    }
    let holes = peeked.holes.iter();
    let destroyed_bytes = holes
        .map(|hole| hole.end.0.saturating_sub(hole.start.0))
        .sum();
    drop(peeked);
    let now = Parts {
        root: Arc::clone(&parts.root),
        blocks: Arc::clone(&parts.blocks),
        ring,
        ring_path: None,
        _lock: None,
    };
    let left = examine_parts(&now, reads_blocks, watch)?;
    let sum = |count: fn(&Plan) -> u64| plans.iter().map(|(_, plan)| count(plan)).sum();
    Ok(Repaired {
        own_leaves: sum(|plan| plan.mended),
        taken_leaves: sum(|plan| plan.taken),
        mended: repair.mended,
        kept: repair.kept,
        lost,
        lost_count,
        destroyed_bytes,
        left,
    })
}

fn unmended(why: String) -> HostError {
    HostError::Unmended { why }
}

/// What the temporary log of a copy holds, if it can be read.
fn peek_copy(copy: &Parts, volume: VolumeId) -> Option<Peeked> {
    match copy.peek(volume) {
        Ok(peeked) => Some(peeked),
        Err(HostError::Disk(error)) if is_missing(&error) => None,
        Err(error) => {
            let (path, why) = (copy.root.path(RING), super::examine::with_causes(&error));
            let path = path.display();
            tracing::warn!(%path, %why, "the temporary log of the copy cannot be read; what only it has is not used");
            None
        }
    }
}

fn is_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

/// Whether the format file of the directory is damaged. One of a later format is an error, also that of the blocks.
fn is_unmarked(parts: &Parts) -> Result<bool, HostError> {
    let is_wrong = |read: Result<(), StoreError>| match read {
        Ok(()) => Ok(false),
        Err(StoreError::Damaged { .. } | StoreError::NoRepository { .. }) => Ok(true),
        Err(error) => Err(error),
    };
    is_wrong(format::read(&*parts.blocks).map(drop))?;
    Ok(is_wrong(format::is_shared(&*parts.root).map(drop))?)
}

/// Keeps a copy of a damaged file beside it.
fn keep_copy(disk: &dyn Disk, name: &str, dir: &str) -> Result<PathBuf, StoreError> {
    const AT_ONCE: usize = 1 << 20;
    let kept = kept_name(disk, name)?;
    let temporary = format!("{name}{DAMAGED}{TEMPORARY}");
    let copy = || {
        let (from, to) = (disk.open(name)?, disk.create(&temporary)?);
        let mut at = 0;
        let mut bytes = vec![0; AT_ONCE];
        loop {
            let count = from.read_at(&mut bytes, at)?;
            to.write_at(bytes.get(..count).unwrap_or_default(), at)?;
            at += count as u64;
            if count < AT_ONCE {
                break;
            }
        }
        to.sync()?;
        disk.rename(&temporary, &kept)?;
        disk.sync_dir(dir)
    };
    copy().map_err(|e| io_error(disk, &kept, e))?;
    Ok(disk.path(&kept))
}

struct Repair<'a> {
    parts: &'a Parts,
    copy: Option<&'a Copied>,
    policies: &'a Policies,
    hasher: Hasher,
    mended: Vec<(PathBuf, String)>,
    kept: Vec<PathBuf>,
}

impl<'a> Repair<'a> {
    fn peek(&self) -> Result<Peeked, HostError> {
        let peeked = self.parts.peek(self.policies.chain().volume());
        peeked.map_err(|error| {
            let why = super::examine::with_causes(&error);
            unmended(format!(
                "the temporary log cannot be read ({why}). Entries that devices have seen may be lost; a server without them \
                 would sign a fork"
            ))
        })
    }

    /// What is known of the log of an epoch.
    fn log(
        &self,
        number: u64,
        tail: &tail::Tail,
        copied: Option<&Peeked>,
    ) -> Result<Log<'a>, HostError> {
        let newest = self.policies.newest_epoch().number;
        let is_newest = number == newest;
        let mut witnesses: BTreeMap<u64, Vec<([u8; 32], String)>> = BTreeMap::new();
        let mut know = |size: u64, root: [u8; 32], says: &str| {
            witnesses
                .entry(size)
                .or_default()
                .push((root, says.to_owned()));
        };
        let mut sources = Vec::new();
        let starts = [number, number.saturating_add(1)].map(|it| self.policies.epoch(it));
        for epoch in starts
            .into_iter()
            .flatten()
            .filter(|epoch| epoch.number > 0)
        {
            know(epoch.start.size, epoch.start.root, "the owners' policy");
            // The log of an epoch begins with leaves of the one before.
            let other = match epoch.number == number {
                true => number - 1,
                false => epoch.number,
            };
            let own = Source::open(self.parts.disk(other), HashMap::new())?;
            sources.push((own, epoch.start.size));
            if let Some(copy) = self.copy.and_then(Copied::parts) {
                let tail = copied.filter(|peeked| epoch_of(peeked) == other);
                let tail = tail.map(tail_of).unwrap_or_default();
                let source = Source::open(copy.disk(other), tail)?;
                sources.push((source, epoch.start.size));
            }
        }
        let disk = self.parts.disk(number);
        let mut least = self
            .policies
            .epoch(number)
            .map_or(0, |epoch| epoch.start.size);
        let own: HashMap<u64, StoredLeaf> = match is_newest {
            true => tail.leaves.clone().into_iter().collect(),
            false => HashMap::new(),
        };
        // Also files that a crash left, and leaves that are in the temporary log still.
        sources.push((Source::open(Arc::clone(&disk), own)?, u64::MAX));
        if is_newest {
            if let Some(released) = &tail.released {
                know(released.size, released.root, "the temporary log");
                least = least.max(released.size);
            }
            let volume = self.policies.chain().volume();
            for attest in confirmed::read(&*disk, volume, number) {
                if attest.verify(volume).is_ok() {
                    let seen = attest.attest().seen;
                    know(seen.size, seen.root, "a device's confirmation");
                }
            }
        }
        let copy = match self.copy {
            None => None,
            Some(copy) => {
                let tail = copied.filter(|peeked| epoch_of(peeked) == number);
                let tail = tail.map(tail_of).unwrap_or_default();
                let log = copy.log(number, tail)?;
                log.map(|log| (copy.path.as_path(), log))
            }
        };
        let next = self.policies.epoch(number.saturating_add(1));
        let common = next.map(|next| next.start.size);
        let notes = copy
            .iter()
            .flat_map(|(_, log)| noted(log, self.policies, number));
        for (size, root) in notes.filter(|(size, _)| common.is_none_or(|common| *size <= common)) {
            know(size, root, "a note of this server that the device has");
        }
        let (leaves, tail_end) = match is_newest {
            true => (tail.leaves.clone(), tail.end),
            false => (BTreeMap::new(), 0),
        };
        Ok(Log {
            volume: self.policies.chain().volume(),
            disk,
            sources,
            copy,
            common,
            least,
            tail: leaves,
            tail_end,
            witnesses,
        })
    }

    fn files(&mut self, log: &Log<'_>, plan: &Plan) -> Result<(), HostError> {
        for file in &plan.files {
            let (path, kept) = log.write(file)?;
            self.mended
                .push((path, "made again, with all its leaves".to_owned()));
            self.kept.extend(kept);
        }
        Ok(())
    }

    /// Replaces a file and keeps the damaged one.
    fn replace(
        &mut self,
        disk: &dyn Disk,
        name: &str,
        dir: &str,
        bytes: &[u8],
    ) -> Result<(), HostError> {
        match keep_copy(disk, name, dir) {
            Ok(kept) => self.kept.push(kept),
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            }
            Err(error) => return Err(error.into()),
        }
        replace_file(disk, name, &format!("{name}{TEMPORARY}"), dir, bytes)?;
        self.mended.push((disk.path(name), "made again".to_owned()));
        Ok(())
    }

    /// Segments and their index; blocks of a temporary log that is replaced.
    fn blocks(
        &mut self,
        peeked: &Peeked,
        copied: Option<&Peeked>,
        reads_blocks: bool,
    ) -> Result<(Vec<Handle>, u64), HostError> {
        let disk = &*self.parts.blocks;
        if let Err(StoreError::Damaged { .. } | StoreError::NoRepository { .. }) =
            format::read(disk)
        {
            self.replace_format()?;
        }
        let hasher = self.hasher.clone();
        let own = Repository::open_on(Arc::clone(&self.parts.blocks)).ok();
        let is_stored =
            |it: &Repository, handle: &Handle| it.whole_record(handle, &hasher).is_some();
        let must_move = |handle: &Handle| {
            let is_whole = peeked.block(handle, &hasher).is_some();
            let is_safe = peeked.broken.is_none() && is_whole;
            !is_safe && !own.as_ref().is_some_and(|own| is_stored(own, handle))
        };
        let wanted: Vec<Handle> = peeked.handles().copied().filter(must_move).collect();
        let copy = self.copy.and_then(Copied::parts);
        let copy = copy.map(|copy| Arc::clone(&copy.blocks));
        let copy = copy.and_then(|disk| Repository::open_on(disk).ok());
        let mut elsewhere = |handle: &Handle| -> Option<Record> {
            let ring = peeked.block(handle, &hasher);
            let ring = ring.or_else(|| copied?.block(handle, &hasher));
            ring.or_else(|| copy.as_ref()?.whole_record(handle, &hasher))
        };
        let mut wrong = Vec::new();
        let mended = Repository::mend_on(
            disk,
            &self.hasher,
            reads_blocks,
            &wanted,
            &mut elsewhere,
            &mut |told| {
                if let Told::Wrong(it) = told {
                    wrong.push(it.path);
                }
            },
        )?;
        wrong.dedup();
        for path in wrong {
            let how =
                "replaced, with the blocks that are whole and those that were found elsewhere";
            self.mended.push((path, how.to_owned()));
        }
        self.kept.extend(mended.kept);
        Ok((mended.lost, mended.lost_count))
    }

    fn replace_format(&mut self) -> Result<(), HostError> {
        let disk = Arc::clone(&self.parts.blocks);
        self.replace(&*disk, names::FORMAT_FILE, "", format::TEXT.as_bytes())
    }

    /// Small files of the newest epoch.
    fn small(&mut self) -> Result<(), HostError> {
        let number = self.policies.newest_epoch().number;
        let disk = self.parts.disk(number);
        for (name, _) in small::wrong_names(&*disk, self.policies)? {
            let dir = match name.starts_with(EVIDENCE) {
                true => EVIDENCE,
                false => "",
            };
            self.kept.push(keep_copy(&*disk, &name, dir)?);
            if let Some(bytes) = self.small_copy(number, &name) {
                replace_file(&*disk, &name, &format!("{name}{TEMPORARY}"), dir, &bytes)?;
                self.mended
                    .push((disk.path(&name), "taken from the copy".to_owned()));
                continue;
            }
            disk.remove(&name).map_err(|e| io_error(&*disk, &name, e))?;
            disk.sync_dir(dir).map_err(|e| io_error(&*disk, dir, e))?;
            let how = match name.as_str() {
                SNAPSHOT => "put aside; the next start reads all leaves and makes it again",
                CONFIRMED => "put aside; devices confirm again",
                _ if dir == EVIDENCE => "put aside; nothing else has it",
                _ => "put aside; checkpointers sign again",
            };
            self.mended.push((disk.path(&name), how.to_owned()));
        }
        Ok(())
    }

    /// The same file of the copy, if it is whole there and says the same at each time: evidence.
    fn small_copy(&self, number: u64, name: &str) -> Option<bytes::Bytes> {
        let copy = self.copy.filter(|_| name.starts_with(EVIDENCE))?.parts()?;
        let most = trust_shared::evidence::MAX_EVIDENCE_BYTES;
        let bytes = store::disk::read_file(&*copy.disk(number), name, most).ok()??;
        trust_shared::evidence::verify(&bytes).ok()?;
        Some(bytes)
    }
}

/// The epoch whose leaves a temporary log has.
fn epoch_of(peeked: &Peeked) -> u64 {
    Released::decode(&peeked.cookie).map_or(0, |released| released.epoch)
}

/// The leaves of a temporary log.
fn tail_of(peeked: &Peeked) -> HashMap<u64, StoredLeaf> {
    let records = peeked
        .entries
        .iter()
        .filter_map(|entry| read_record(&entry.body).ok());
    records
        .flat_map(|(first, leaves)| (first..).zip(leaves))
        .collect()
}
