//! Evidence as a file: what the engine found, with the proofs that a third person needs.
//!
//! The proofs are made from the hashes of the floor's leaves and of the reply that convicts the server. Several
//! offences may fit one fault; the first that [`trust::shared::evidence`] accepts becomes the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use state::private;
use trust::history::proof::Roots;
use trust::shared::evidence::{
    Convicted, Evidence as Proved, Included, MAX_EVIDENCE_BYTES, Offence, verify,
};
use trust::shared::note::SignedNote;
use trust::statement::Signed;
use trust::volume_id::VolumeId;

use super::error::Stopped;
use crate::disk::Disk;
use crate::engine::{Evidence, Reply};
use crate::prefixes::{PAGE, Rfc6962};
use crate::roster::{OpsCodec, Product};
use crate::scheme::{Leaf, Scheme};
use crate::signed::Entry;

/// Leaves of a block whose root [`Roots`] keeps.
const BLOCK: usize = 256;
/// Most files of evidence in a home. The first ones matter most.
const MAX_FILES: usize = 64;

/// Where evidence goes, and the policies that it carries.
#[derive(Debug, Clone)]
pub(super) struct Court {
    pub(super) directory: PathBuf,
    pub(super) volume: VolumeId,
    pub(super) epoch: u64,
    /// From the genesis to the one that begins the epoch.
    pub(super) policies: Vec<Signed>,
}

/// The leaves of a log, from which proofs are made.
pub(super) struct Proofs {
    roots: Roots,
    hashes: Arc<Vec<[u8; 32]>>,
}

impl Proofs {
    pub(super) fn new(hashes: Vec<[u8; 32]>) -> Proofs {
        let mut roots = Roots::new();
        for hash in &hashes {
            roots.push(*hash);
        }
        Proofs {
            roots,
            hashes: Arc::new(hashes),
        }
    }

    fn block(&self, block: u64) -> Option<Vec<[u8; 32]>> {
        let start = usize::try_from(block).ok()?.checked_mul(BLOCK)?;
        let hashes = self.hashes.get(start..start.checked_add(BLOCK)?)?;
        Some(hashes.to_vec())
    }

    /// The root of a prefix.
    pub(super) fn root_at(&self, size: u64) -> Option<[u8; 32]> {
        self.roots.root_at(size, |block| self.block(block))
    }

    fn inclusion(&self, index: u64, size: u64) -> Option<Vec<[u8; 32]>> {
        let block = |block| self.block(block);
        self.roots.inclusion(index, size, block)
    }

    pub(super) fn prefix(&self, prefix: u64, size: u64) -> Option<Vec<[u8; 32]>> {
        self.roots.prefix(prefix, size, |block| self.block(block))
    }
}

/// A log that a note names: that of the floor, and then the leaves of a reply.
struct Case<'a> {
    note: SignedNote,
    proofs: Proofs,
    disk: &'a Disk<OpsCodec>,
    reply: &'a Reply<Product>,
}

impl Case<'_> {
    fn size(&self) -> u64 {
        self.note.note().log.size
    }

    fn leaf(&self, at: u64) -> Option<Leaf<Product>> {
        let place = at.checked_sub(self.reply.from);
        let place = place.and_then(|place| usize::try_from(place).ok());
        match place.and_then(|place| self.reply.leaves.get(place)) {
            Some(leaf) => Some(leaf.clone()),
            None => self.disk.leaf(at).ok().flatten(),
        }
    }

    fn included(&self, index: u64) -> Option<Included> {
        Some(Included {
            index,
            leaf: bytes_of(&self.leaf(index)?),
            path: self.proofs.inclusion(index, self.size())?,
        })
    }

    /// The author's entries before a position, the last first. Reads the floor in pages.
    fn own_before(&self, at: u64, entry: &Entry) -> impl Iterator<Item = (u64, Entry)> {
        let device = Product::author(entry);
        let pages = (0..at.div_ceil(PAGE)).rev();
        let leaves = pages.flat_map(move |page| {
            let from = page.saturating_mul(PAGE);
            self.leaves(from, at.min(from.saturating_add(PAGE)))
        });
        leaves.filter_map(move |(at, leaf)| match leaf {
            Leaf::Entry(entry) if Product::author(&entry) == device => Some((at, entry)),
            _ => None,
        })
    }

    /// The leaves of a range, the last first.
    fn leaves(&self, from: u64, to: u64) -> Vec<(u64, Leaf<Product>)> {
        let mut leaves: BTreeMap<u64, Leaf<Product>> = BTreeMap::new();
        match self.disk.range(from, to) {
            Ok(found) => leaves.extend(found),
            // A damaged floor lacks some.
            Err(_) => leaves.extend((from..to).filter_map(|at| {
                let leaf = self.disk.leaf(at).ok().flatten();
                Some((at, leaf?))
            })),
        }
        let replied = (self.reply.from..).zip(&self.reply.leaves);
        let replied = replied.filter(|(at, _)| (from..to).contains(at));
        leaves.extend(replied.map(|(at, leaf)| (at, leaf.clone())));
        leaves.into_iter().rev().collect()
    }

    /// What may be wrong with an entry at its place.
    fn offences(&self, at: u64, entry: &Entry) -> Vec<Offence> {
        let Some(included) = self.included(at) else {
            return Vec::new();
        };
        let note = self.note;
        let mut offences = vec![Offence::BadLeaf {
            note,
            leaf: included.clone(),
        }];
        let seen = entry.signed().entry().seen.size;
        if let Some(proof) = self.proofs.prefix(seen, self.size()) {
            offences.push(Offence::SeenElsewhere {
                note,
                entry: included.clone(),
                proof,
            });
        }
        let resume = entry.signed().entry().is_resume();
        let mut own = self.own_before(at, entry);
        let before = own.find(|(_, before)| !resume || before.signed().entry().is_resume());
        let Some((last_at, last)) = before else {
            return offences;
        };
        if let Some(before) = self.included(last_at) {
            offences.push(Offence::SeenMissesOwn {
                note,
                before,
                entry: included.clone(),
            });
        }
        offences.extend(self.passed(at, entry, (last_at, last), &included));
        offences
    }

    /// An entry that names another one than its author's last.
    fn passed(
        &self,
        at: u64,
        entry: &Entry,
        (last_at, last): (u64, Entry),
        included: &Included,
    ) -> Vec<Offence> {
        let note = self.note;
        let Some(named) = entry.signed().entry().ops().map(|ops| ops.previous) else {
            return Vec::new();
        };
        let named = if last.signed().hash() == named {
            Some((last_at, last))
        } else {
            let mut own = self.own_before(at, entry);
            own.find(|(_, own)| own.signed().hash() == named)
        };
        let Some((named_at, named)) = named else {
            return Vec::new();
        };
        let mut offences = vec![Offence::OtherPrevious {
            note,
            previous: named.signed().bytes().clone(),
            entry: included.clone(),
        }];
        let both = self.included(named_at).zip(self.included(last_at));
        offences.extend(both.map(|(previous, passed)| Offence::PassesOver {
            note,
            previous,
            passed,
            entry: included.clone(),
        }));
        offences
    }
}

fn bytes_of(leaf: &Leaf<Product>) -> Bytes {
    match leaf {
        Leaf::Entry(entry) => entry.signed().bytes().clone(),
        Leaf::Marks(marks) => Bytes::copy_from_slice(&marks.leaf().encode()),
    }
}

impl Court {
    /// Makes a file of what the engine found, if it can be proved to others.
    pub(super) fn convict(
        &self,
        evidence: &Evidence<Product>,
        reply: Option<&Reply<Product>>,
        disk: &Disk<OpsCodec>,
    ) -> Stopped {
        let words = words(evidence);
        let offences = match (reply, evidence) {
            (Some(reply), _) => offences(evidence, reply, disk),
            // What the floor has needs no reply.
            (None, Evidence::Form { note, .. }) => offences(evidence, &nothing(note, disk), disk),
            (None, Evidence::Notes { .. }) => Vec::new(),
        };
        let found = offences
            .into_iter()
            .find_map(|offence| self.keep(offence).ok());
        match found {
            Some((what, path)) => Stopped::Convicted {
                what,
                evidence: Some(path),
            },
            None => Stopped::Convicted {
                what: words,
                evidence: None,
            },
        }
    }

    /// Why this device writes no more, if a file of the home convicts the server of this epoch. A file that proves
    /// nothing, or convicts a device, stops nobody.
    pub(super) fn convicted(&self) -> Option<Stopped> {
        let files = std::fs::read_dir(&self.directory).ok()?;
        let convicts = |path: PathBuf| {
            let mut bytes = Vec::new();
            let most = MAX_EVIDENCE_BYTES as u64 + 1;
            let file = File::open(&path).ok()?;
            file.take(most).read_to_end(&mut bytes).ok()?;
            let verdict = verify(&bytes).ok()?;
            let is_orderer = matches!(verdict.convicted, Convicted::Orderer(_));
            let is_ours = verdict.volume == self.volume && verdict.epoch == self.epoch;
            (is_orderer && is_ours).then(|| Stopped::Convicted {
                what: verdict.what.to_owned(),
                evidence: Some(path),
            })
        };
        let paths = files.take(MAX_FILES).filter_map(Result::ok);
        paths.map(|file| file.path()).find_map(convicts)
    }

    /// Writes a file that [`trust::shared::evidence::verify`] accepts. Gives what it proves.
    pub(super) fn keep(&self, offence: Offence) -> Result<(String, PathBuf), String> {
        let accuses_device = matches!(offence, Offence::SignedTwice(_));
        let file = Proved {
            volume: self.volume,
            epoch: self.epoch,
            policies: match accuses_device {
                true => Vec::new(),
                false => self.policies.clone(),
            },
            offence,
        };
        let verdict = file.judge().map_err(|why| why.to_string())?;
        let bytes = file.encode().map_err(|why| why.to_string())?;
        let path = self.write(&bytes).map_err(|why| why.to_string())?;
        Ok((verdict.what.to_owned(), path))
    }

    fn write(&self, bytes: &[u8]) -> Result<PathBuf, state::StateError> {
        private::create_directory(&self.directory)?;
        let name = blake3::hash(bytes).to_hex();
        let name = format!("{}.evidence", &name[..32]);
        let path = self.directory.join(name);
        if !path.exists() && count(&self.directory) < MAX_FILES {
            private::replace(&path, bytes)?;
        }
        Ok(path)
    }
}

fn count(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, |files| files.take(MAX_FILES).count())
}

fn words(evidence: &Evidence<Product>) -> String {
    match evidence {
        Evidence::Notes { .. } => "it shows this device another log than before".to_owned(),
        Evidence::Form {
            faults, malformed, ..
        } => match malformed {
            Some(why) => format!("it put an entry into the log that no server may take: {why}"),
            None => format!("it put an entry where it may not stand: {faults:?}"),
        },
    }
}

/// A reply without anything new.
fn nothing(note: &SignedNote, disk: &Disk<OpsCodec>) -> Reply<Product> {
    Reply {
        from: disk.len(),
        leaves: Vec::new(),
        note: *note,
        more: false,
        attests: Vec::new(),
        asked: false,
        refused: None,
    }
}

/// Offences that may be proved, the likeliest first.
fn offences(
    evidence: &Evidence<Product>,
    reply: &Reply<Product>,
    disk: &Disk<OpsCodec>,
) -> Vec<Offence> {
    let Ok(own) = disk.hashes() else {
        return Vec::new();
    };
    let from = usize::try_from(reply.from).unwrap_or(usize::MAX);
    let common = own.get(..from).unwrap_or(&own);
    let new = reply.leaves.iter().map(Product::leaf_hash);
    let shown: Vec<[u8; 32]> = common.iter().copied().chain(new).collect();
    match evidence {
        Evidence::Notes { mine, theirs, .. } => {
            let logs = [(mine, Proofs::new(own)), (theirs, Proofs::new(shown))];
            fork(logs).into_iter().collect()
        }
        Evidence::Form {
            note, at, entry, ..
        } => {
            let case = Case {
                note: *note,
                proofs: Proofs::new(shown),
                disk,
                reply,
            };
            case.offences(*at, entry)
        }
    }
}

/// Two notes, each with the leaves of its log.
pub(super) fn fork(logs: [(&SignedNote, Proofs); 2]) -> Option<Offence> {
    let mut logs = logs;
    logs.sort_by_key(|(note, _)| (note.note().log.size, note.note().log.root));
    let [(first, _), (second, proofs)] = &logs;
    let sizes = (first.note().log.size, second.note().log.size);
    Some(Offence::Fork {
        first: **first,
        second: **second,
        proof: proofs.prefix(sizes.0, sizes.1)?,
    })
}
