//! A check of a server's directory: all leaves with their tree and the signatures of their authors, and all else that a
//! start reads. It names each file of leaves that is wrong, with the leaf, and goes on after it. It changes no more than
//! a start does.
//!
//! The server keeps no notes of its own, so a log that was changed as a whole, with all its hashes, is not noticed here:
//! devices notice it, by the notes that they have.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use store::disk::{Disk, damaged, io_error};
use trust::history::{Frontier, leaf_hash};
use trust::shared::device::{DeviceKey, KnownDevice};
use trust::volume_id::VolumeId;

use super::directory::{LEAVES, Place, RING};
use super::leaves::file::{Head, Row};
use super::record::StoredLeaf;
use super::start::{open_blocks, read_log};
use super::{HostError, HostOptions, below};
use crate::prefixes::PAGE;
use crate::roster::Product;
use crate::scheme::{Leaf, Scheme};

/// Most faults that are named. More are counted.
const MAX_FAULTS: usize = 256;

/// What was found.
#[derive(Debug, Clone)]
pub struct Examined {
    /// The volume.
    pub volume: VolumeId,
    /// Files of leaves.
    pub files: u64,
    /// Leaves that are whole, in these files and in the temporary log.
    pub leaves: u64,
    /// Entries among these, whose authors' signatures are right.
    pub entries: u64,
    /// What is wrong: the first ones.
    pub faults: Vec<Fault>,
    /// How much is wrong.
    pub fault_count: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The file or directory.
    pub path: PathBuf,
    /// What it is, and at which leaf.
    pub why: String,
}

/// See [`super::Host::examine`].
pub(super) fn examine(dir: &Path) -> Result<Examined, HostError> {
    examine_place(&Place::open(dir)?)
}

pub(super) fn examine_place(place: &Place) -> Result<Examined, HostError> {
    let (policies, _) = place.policies()?;
    let volume = policies.chain().volume();
    let mut examining = Examining {
        found: Examined {
            volume,
            files: 0,
            leaves: 0,
            entries: 0,
            faults: Vec::new(),
            fault_count: 0,
        },
        devices: HashMap::new(),
    };
    for epoch in 0..=policies.newest_epoch().number {
        examining.epoch(&*below::disk(&place.root, epoch))?;
    }
    // What only a start sees: the temporary log, and whether its leaves follow. A start stops at the first fault.
    if examining.found.fault_count == 0 {
        let clock = Arc::new(|| Duration::ZERO);
        let options = HostOptions::default().blocks;
        let read = open_blocks(place, &policies, options, clock)
            .and_then(|(storage, found)| read_log(place, &policies, &storage, found));
        match read {
            Ok(opened) => {
                let tail = opened.tail.whole().map(|(leaves, _)| leaves);
                for (_, stored) in tail.into_iter().flatten() {
                    match examining.leaf(&stored) {
                        Ok(()) => examining.found.leaves += 1,
                        Err(why) => {
                            let why = format!("a leaf in the temporary log: {why}");
                            examining.fault(place.root.path(RING), why);
                        }
                    }
                }
            }
            Err(error) => examining.fault(place.root.path(""), with_causes(&error)),
        }
    }
    Ok(examining.found)
}

/// An error and its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
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

struct Examining {
    found: Examined,
    devices: HashMap<DeviceKey, Option<KnownDevice>>,
}

impl Examining {
    fn fault(&mut self, path: PathBuf, why: String) {
        self.found.fault_count += 1;
        if self.found.faults.len() < MAX_FAULTS {
            self.found.faults.push(Fault { path, why });
        }
    }

    /// The files of leaves of an epoch.
    fn epoch(&mut self, disk: &dyn Disk) -> Result<(), HostError> {
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
        Ok(())
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
        let Leaf::Entry(entry) = stored.decode().map_err(|why| why.to_string())? else {
            return Ok(());
        };
        let device = Product::author(&entry);
        let known = self.devices.entry(device);
        let known = known.or_insert_with(|| KnownDevice::new(device).ok());
        let known = known.as_ref().ok_or("its author's key is none")?;
        let signed = entry.signed().verify_by(self.found.volume, known);
        signed.map_err(|why| why.to_string())?;
        self.found.entries += 1;
        Ok(())
    }
}
