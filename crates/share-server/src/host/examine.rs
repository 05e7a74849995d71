//! A check of a server's directory: all leaves with their tree and the signatures of their authors, all else that a start
//! reads, and each block against its name. It names each file that is wrong, with the leaf or the block, and goes on after
//! it. It changes nothing.
//!
//! The server keeps no notes of its own, so a log that was changed as a whole, with all its hashes, is not noticed here:
//! devices notice it, by the notes that they have.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use store::disk::{Disk, damaged, io_error};
use store::names;
use store::survey::{Told, segment_bytes};
use store::{Repository, StoreError, format};
use trust::device::{DeviceKey, KnownDevice};
use trust::history::{Frontier, leaf_hash};
use trust::volume_id::VolumeId;
use trust::{Handle, Hasher};
use trust_shared::genesis::Policies;

use super::HostError;
use super::directory::{LEAVES, RING, read_policies};
use super::leaves::file::{Head, Row};
use super::moving::Released;
use super::parts::Parts;
use super::record::{LEAVES as KIND, StoredLeaf, read_record};
use super::small;
use ordering::prefixes::PAGE;
use ordering::roster::Product;
use ordering::scheme::{Leaf, Scheme};

/// Most faults that are named. More are counted.
const MAX_FAULTS: usize = 256;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Examined {
    /// The volume, if its first policy can be read.
    pub volume: Option<VolumeId>,
    /// Files of leaves.
    pub files: u64,
    /// Leaves that are whole, in these files and in the temporary log.
    pub leaves: u64,
    /// Entries among these, whose authors' signatures are right.
    pub entries: u64,
    /// Blocks that were read and are what their names say.
    pub blocks: u64,
    /// Bytes of their records.
    pub block_bytes: u64,
    /// Bytes of all segments, which have the blocks.
    pub segment_bytes: u64,
    /// What is wrong: the first ones.
    pub faults: Vec<Fault>,
    /// How much is wrong.
    pub fault_count: u64,
    /// How many blocks are wrong: no start needs them.
    pub wrong_blocks: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The file or directory.
    pub path: PathBuf,
    /// The block that is wrong.
    pub block: Option<Handle>,
    /// What it is, and at which leaf or offset.
    pub why: String,
}

/// Is shown how far a check is.
pub type Watch<'a> = dyn FnMut(&Examined) + 'a;

/// See [`super::Host::examine`].
pub(super) fn examine(
    dir: &Path,
    reads_blocks: bool,
    watch: &mut Watch<'_>,
) -> Result<Examined, HostError> {
    examine_parts(&Parts::open(dir)?, reads_blocks, watch)
}

pub(super) fn examine_parts(
    parts: &Parts,
    reads_blocks: bool,
    watch: &mut Watch<'_>,
) -> Result<Examined, HostError> {
    let mut examining = Examining {
        found: Examined::default(),
        devices: HashMap::new(),
        watch,
    };
    examining.format(&*parts.root, format::is_shared(&*parts.root).map(drop))?;
    examining.format(&*parts.blocks, format::read(&*parts.blocks).map(drop))?;
    let policies = match read_policies(&*parts.root) {
        Ok((policies, _)) => policies,
        Err(error) => {
            // Without them nothing can be verified.
            let path = parts.root.path(names::POLICY_DIR);
            examining.fault(path, of_damage(error)?);
            return Ok(examining.found);
        }
    };
    let newest = policies.newest_epoch().number;
    examining.found.volume = Some(policies.chain().volume());
    let mut log = (0, Some(Frontier::new()));
    for epoch in 0..=newest {
        log = examining.epoch(&*parts.disk(epoch))?;
    }
    examining.small(parts, &policies)?;
    examining.blocks(parts, &policies.chain().hasher(), reads_blocks)?;
    examining.ring(parts, &policies, log);
    Ok(examining.found)
}

/// What an error says of damage. Other errors end the check.
fn of_damage(error: HostError) -> Result<String, HostError> {
    match &error {
        HostError::Disk(why) if matches!(**why, StoreError::Damaged { .. }) => {
            Ok(with_causes(&error))
        }
        _ => Err(error),
    }
}

/// An error and its causes in one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        let why_text = why.to_string();
        if !text.contains(&why_text) {
            text = format!("{text}: {why_text}");
        }
        cause = why.source();
    }
    text
}

struct Examining<'a> {
    found: Examined,
    devices: HashMap<DeviceKey, Option<KnownDevice>>,
    watch: &'a mut Watch<'a>,
}

impl Examining<'_> {
    fn fault(&mut self, path: PathBuf, why: String) {
        self.any_fault(Fault {
            path,
            block: None,
            why,
        });
    }

    fn any_fault(&mut self, fault: Fault) {
        self.found.fault_count += 1;
        self.found.wrong_blocks += u64::from(fault.block.is_some());
        if self.found.faults.len() < MAX_FAULTS {
            self.found.faults.push(fault);
        }
    }

    /// A format file.
    fn format(&mut self, disk: &dyn Disk, read: Result<(), StoreError>) -> Result<(), HostError> {
        match read {
            Err(error @ (StoreError::Damaged { .. } | StoreError::NoRepository { .. })) => {
                self.fault(disk.path(names::FORMAT_FILE), error.to_string());
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// The small files of the newest epoch, and evidence.
    fn small(&mut self, parts: &Parts, policies: &Policies) -> Result<(), HostError> {
        for (path, why) in small::wrong(parts, policies)? {
            self.fault(path, why);
        }
        Ok(())
    }

    /// The segments and their index.
    fn blocks(
        &mut self,
        parts: &Parts,
        hasher: &Hasher,
        reads_blocks: bool,
    ) -> Result<(), HostError> {
        let disk = &*parts.blocks;
        self.found.segment_bytes = segment_bytes(disk)?;
        let hasher = reads_blocks.then_some(hasher);
        let surveyed = Repository::survey_on(disk, hasher, &mut |told| match told {
            Told::Read { blocks, bytes } => {
                self.found.blocks += blocks;
                self.found.block_bytes += bytes;
                (self.watch)(&self.found);
            }
            Told::Wrong(wrong) => {
                let (path, why) = (wrong.path.display(), wrong.why);
                let why = match wrong.block {
                    Some((handle, offset)) => {
                        format!("{path} is damaged: block {handle} at offset {offset}: {why}")
                    }
                    None => format!("{path} is damaged: {why}"),
                };
                self.any_fault(Fault {
                    block: wrong.block.map(|(handle, _)| handle),
                    path: wrong.path,
                    why,
                });
            }
        });
        Ok(surveyed?)
    }

    /// The temporary log, after the files of leaves with so many leaves.
    fn ring(&mut self, parts: &Parts, policies: &Policies, log: (u64, Option<Frontier>)) {
        let (end, tree) = log;
        let path = parts.root.path(RING);
        let peeked = match parts.peek(policies.chain().volume()) {
            Ok(peeked) => peeked,
            Err(error) => return self.fault(path, with_causes(&error)),
        };
        if let Some(error) = &peeked.broken {
            self.fault(path.clone(), with_causes(error));
        }
        let epoch = policies.newest_epoch().number;
        let released = Released::decode(&peeked.cookie);
        match released {
            Some(released) if released.epoch > epoch => {
                let why = "the temporary log is of a later epoch: policies are missing";
                return self.fault(path, why.to_owned());
            }
            Some(released) if released.epoch == epoch => {
                let (size, root) = (released.size, released.root);
                let is_other = |tree: &Frontier| tree.size() == size && tree.root() != root;
                if size > end {
                    let why = format!(
                        "there are {end} leaves, and {size} were written: files of leaves are missing"
                    );
                    self.fault(parts.disk(epoch).path(LEAVES), why);
                } else if tree.as_ref().is_some_and(is_other) {
                    let why = format!("the first {size} leaves are not those that were written");
                    self.fault(parts.disk(epoch).path(LEAVES), why);
                }
            }
            // Its records are of the epoch before, and given up by a start.
            _ if epoch > 0 => return,
            _ => {}
        }
        let mut next = end;
        for entry in &peeked.entries {
            if let Err(why) = self.tail(entry.kind, &entry.body, &mut next) {
                self.fault(path.clone(), format!("{}: {why}", path.display()));
                break;
            }
        }
        let hasher = policies.chain().hasher();
        let stored = Repository::open_on(parts.blocks.clone()).ok();
        for handle in peeked.handles() {
            let is_stored = |it: &Repository| it.whole_record(handle, &hasher).is_some();
            if peeked.block(handle, &hasher).is_some() || stored.as_ref().is_some_and(is_stored) {
                continue;
            }
            self.any_fault(Fault {
                block: Some(*handle),
                why: format!("{} is damaged: it has lost block {handle}", path.display()),
                path: path.clone(),
            });
        }
    }

    /// A record of leaves of the temporary log.
    fn tail(&mut self, kind: u8, body: &bytes::Bytes, next: &mut u64) -> Result<(), String> {
        if kind != KIND {
            return Err(format!("a record of the unknown kind {kind}"));
        }
        let read = read_record(body);
        let (first, leaves) = read.map_err(|why| format!("a record of leaves: {why}"))?;
        for (at, stored) in (first..).zip(leaves) {
            if at > *next {
                return Err(format!("leaves {next} to {at} are missing"));
            }
            if at == *next {
                let judged = self.leaf(&stored);
                judged.map_err(|why| format!("leaf {at}: {why}"))?;
                self.found.leaves += 1;
                *next += 1;
            }
        }
        Ok(())
    }

    /// The files of leaves of an epoch. Gives their end, and the tree if all of them are whole.
    fn epoch(&mut self, disk: &dyn Disk) -> Result<(u64, Option<Frontier>), HostError> {
        let names = disk.list(LEAVES).map_err(|e| io_error(disk, LEAVES, e))?;
        let mut ranges: Vec<Range<u64>> =
            names.iter().filter_map(|name| Row::parse(name)).collect();
        ranges.sort_by_key(|range| (range.start, u64::MAX - range.end));
        // The tree up to here, as long as all leaves were whole.
        let mut tree = Some(Frontier::new());
        let mut end = 0;
        for range in ranges {
            let name = format!("{LEAVES}/{:016x}-{:016x}", range.start, range.end);
            // A crash came before its removal.
            if range.end <= end {
                continue;
            }
            if range.start != end {
                let why = format!("leaves {end} to {} are missing or twice there", range.start);
                self.fault(disk.path(&name), damaged(disk, &name, &why).to_string());
            }
            end = range.end;
            self.found.files += 1;
            tree = match self.file(disk, &name, range, tree) {
                Ok(tree) => tree,
                Err(error) => {
                    self.fault(disk.path(&name), with_causes(&error));
                    None
                }
            };
        }
        Ok((end, tree))
    }

    /// One file. Gives the tree after it, if all of it was whole.
    fn file(
        &mut self,
        disk: &dyn Disk,
        name: &str,
        range: Range<u64>,
        before: Option<Frontier>,
    ) -> Result<Option<Frontier>, StoreError> {
        let file = disk.open(name).map_err(|e| io_error(disk, name, e))?;
        let head = Head::read(disk, &*file, range.clone())?;
        if before.is_some_and(|tree| tree.root() != head.frontier.root()) {
            let why = format!("it does not continue the {} leaves before it", range.start);
            self.fault(disk.path(name), damaged(disk, name, &why).to_string());
        }
        let mut tree = Some(head.frontier);
        let mut roots = head.roots.into_iter();
        let step = usize::try_from(PAGE).unwrap_or(usize::MAX);
        for from in range.clone().step_by(step) {
            let to = range.end.min(from.saturating_add(PAGE));
            let page = match head.row.read(disk, &*file, from..to) {
                Ok(leaves) => leaves.into_iter().map(Ok).collect(),
                // Which of them it is.
                Err(_) => (from..to)
                    .map(|at| head.row.read(disk, &*file, at..at + 1))
                    .map(|read| read.map(|mut leaves| leaves.pop()))
                    .map(|read| {
                        read.and_then(|leaf| {
                            leaf.ok_or_else(|| damaged(disk, name, "a leaf is missing"))
                        })
                    })
                    .collect::<Vec<_>>(),
            };
            for (at, leaf) in (from..to).zip(page) {
                let judged = leaf.map_err(|error| with_causes(&error)).and_then(|leaf| {
                    let judged = self.leaf(&leaf);
                    judged.map_err(|why| {
                        damaged(disk, name, &format!("leaf {at}: {why}")).to_string()
                    })?;
                    Ok(leaf)
                });
                match judged {
                    Ok(leaf) => {
                        self.found.leaves += 1;
                        tree = tree.and_then(|mut tree| {
                            tree.push_hash(leaf_hash(&leaf.leaf)).ok()?;
                            Some(tree)
                        });
                    }
                    Err(what) => {
                        self.fault(disk.path(name), what);
                        tree = None;
                    }
                }
                if !(at + 1).is_multiple_of(PAGE) {
                    continue;
                }
                (self.watch)(&self.found);
                let root = roots.next();
                if tree.as_ref().is_some_and(|tree| Some(tree.root()) != root) {
                    let why = format!("the root of the first {} leaves is another one", at + 1);
                    self.fault(disk.path(name), damaged(disk, name, &why).to_string());
                    tree = None;
                }
            }
        }
        Ok(tree)
    }

    /// A leaf's form, and its author's signature.
    fn leaf(&mut self, stored: &StoredLeaf) -> Result<(), String> {
        let volume = self.found.volume.ok_or("its volume is not known")?;
        self.found.entries += u64::from(judge(stored, volume, &mut self.devices)?);
        Ok(())
    }
}

/// Whether a leaf is an entry. Its form and its author's signature are right then.
pub(super) fn judge(
    stored: &StoredLeaf,
    volume: VolumeId,
    devices: &mut HashMap<DeviceKey, Option<KnownDevice>>,
) -> Result<bool, String> {
    let Leaf::Entry(entry) = stored.decode().map_err(|why| why.to_string())? else {
        return Ok(false);
    };
    let device = Product::author(&entry);
    let known = devices.entry(device);
    let known = known.or_insert_with(|| KnownDevice::new(device).ok());
    let known = known.as_ref().ok_or("its author's key is none")?;
    let signed = entry.signed().verify_by(volume, known);
    signed.map_err(|why| why.to_string())?;
    Ok(true)
}
