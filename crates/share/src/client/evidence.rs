//! Evidence as a file: what the engine found, with the proofs that a third person needs.
//!
//! The proofs are made from the hashes of the floor's leaves and of the reply that convicts the server. Several
//! offences may fit one fault; the first that [`trust_shared::evidence`] accepts becomes the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use state::private;
use trust::history::Frontier;
use trust::history::proof::Roots;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::checkpoint::Window;
use trust_shared::evidence::{
    Convicted, Evidence as Proved, Included, MAX_EVIDENCE_BYTES, Offence, verify,
};
use trust_shared::genesis::{Epoch, Policies};
use trust_shared::note::SignedNote;

use super::error::Stopped;
use crate::disk::{Disk, DiskError};
use ordering::engine::{Evidence, Reply};
use ordering::prefixes::{PAGE, Rfc6962};
use ordering::roster::{OpsCodec, Product};
use ordering::scheme::{Leaf, Scheme};
use ordering::signed::Entry;

/// Where evidence lies in a home.
const EVIDENCE: &str = "evidence";
/// Where that of closed epochs lies.
const ARCHIVE: &str = "archive";
/// Leaves of a block whose root [`Roots`] keeps.
const BLOCK: usize = 256;
/// Most files of evidence in a home, beside one that convicts the server. The first ones matter most.
const MAX_FILES: usize = 64;

/// Where evidence goes, and the policies that it carries.
#[derive(Debug, Clone)]
pub(super) struct Court {
    pub(super) directory: PathBuf,
    pub(super) volume: VolumeId,
    pub(super) epoch: Epoch,
    /// From the genesis to the one that begins the epoch.
    pub(super) policies: Vec<Signed>,
    /// The end of the log with which a checkpoint began.
    pub(super) window: Option<Arc<Window>>,
}

/// Hashes of a log's leaves, as far as a device has them.
#[derive(Debug, Clone, Default)]
pub(super) struct Hashes {
    /// The log before.
    before: Frontier,
    leaves: Vec<[u8; 32]>,
}

impl Hashes {
    /// Those of the first so many leaves of the log, and these after them. None: leaves between are not here.
    fn up_to(&self, size: u64, then: impl Iterator<Item = [u8; 32]>) -> Option<Hashes> {
        let count = usize::try_from(size.checked_sub(self.before.size())?).ok()?;
        let common = self.leaves.get(..count).unwrap_or(&self.leaves);
        Some(Hashes {
            before: self.before.clone(),
            leaves: common.iter().copied().chain(then).collect(),
        })
    }
}

/// The leaves of a log, from which proofs are made.
pub(super) struct Proofs {
    roots: Roots,
    hashes: Arc<Hashes>,
}

impl Proofs {
    pub(super) fn new(hashes: Hashes) -> Proofs {
        // The log of a checkpoint ends with a full block.
        let mut roots = Roots::after(hashes.before.clone()).unwrap_or_default();
        for hash in &hashes.leaves {
            roots.push(*hash);
        }
        Proofs {
            roots,
            hashes: Arc::new(hashes),
        }
    }

    fn block(&self, block: u64) -> Option<Vec<[u8; 32]>> {
        let start = block.checked_mul(BLOCK as u64)?;
        let start = start.checked_sub(self.hashes.before.size())?;
        let start = usize::try_from(start).ok()?;
        let hashes = self.hashes.leaves.get(start..start.checked_add(BLOCK)?)?;
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
        offences.extend(self.twice(at, entry));
        offences
    }

    /// Two entries of one number, if the author's key has signed them.
    fn twice(&self, at: u64, entry: &Entry) -> Option<Offence> {
        let number = |entry: &Entry| {
            let heading = Product::heading(entry);
            (heading.incarnation, heading.n)
        };
        let mut own = self.own_before(at, entry);
        let (_, other) = own.find(|(_, own)| number(own) == number(entry))?;
        let (one, other) = (entry.signed().clone(), other.signed().clone());
        Some(Offence::signed_twice(one, other))
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
    /// The hashes of all leaves that this device has.
    pub(super) fn hashes(&self, disk: &Disk<OpsCodec>) -> Result<Hashes, DiskError> {
        let Some(window) = &self.window else {
            return Ok(Hashes {
                before: Frontier::new(),
                leaves: disk.hashes()?,
            });
        };
        let mut leaves = window.leaves.clone();
        leaves.extend(disk.hashes()?);
        Ok(Hashes {
            before: window.before.clone(),
            leaves,
        })
    }

    /// For the newest epoch of these policies. `signed`: the same ones.
    pub(super) fn new(home: &Path, policies: &Policies, signed: Vec<Signed>) -> Court {
        let epoch = *policies.newest_epoch();
        let begins = |number: &u64| {
            let policy = policies.chain().get(*number);
            policy.is_some_and(|(policy, _)| policy.log_epoch() == epoch.number)
        };
        let first = (0..signed.len() as u64).find(begins).unwrap_or(0);
        let mut signed = signed;
        signed.truncate(usize::try_from(first.saturating_add(1)).unwrap_or(usize::MAX));
        let court = Court {
            directory: home.join(EVIDENCE),
            volume: policies.chain().volume(),
            epoch,
            policies: signed,
            window: None,
        };
        court.archive();
        court
    }

    /// Evidence of an epoch that is closed stops nobody any more, and is kept.
    fn archive(&self) {
        let Ok(files) = std::fs::read_dir(&self.directory) else {
            return;
        };
        let archive = self.directory.join(ARCHIVE);
        let is_closed = |path: &PathBuf| {
            let verdict = read(path).and_then(|bytes| verify(&bytes).ok());
            verdict.is_some_and(|verdict| {
                verdict.volume == self.volume && verdict.epoch < self.epoch.number
            })
        };
        let paths = files.filter_map(Result::ok);
        for path in paths.map(|file| file.path()).filter(is_closed) {
            let Some(name) = path.file_name() else {
                continue;
            };
            let moved = private::create_directory(&archive)
                .map_err(|e| e.to_string())
                .and_then(|()| {
                    std::fs::rename(&path, archive.join(name)).map_err(|e| e.to_string())
                });
            if let Err(error) = moved {
                tracing::warn!(%error, "evidence of a closed epoch stays where it is");
            }
        }
    }

    /// Makes a file of what the engine found, if it can be proved to others.
    pub(super) fn convict(
        &self,
        evidence: &Evidence<Product>,
        reply: Option<&Reply<Product>>,
        disk: &Disk<OpsCodec>,
    ) -> Stopped {
        let words = words(evidence);
        let offences = match (reply, evidence) {
            (Some(reply), _) => self.offences(evidence, reply, disk),
            // What the floor has needs no reply.
            (None, Evidence::Form { note, .. }) => {
                self.offences(evidence, &nothing(note, disk), disk)
            }
            (None, Evidence::Notes { .. } | Evidence::Start { .. }) => Vec::new(),
        };
        // What convicts the server does not hide that a device has signed twice.
        let (devices, servers): (Vec<_>, Vec<_>) =
            offences.into_iter().partition(Offence::accuses_device);
        let found = servers
            .into_iter()
            .find_map(|offence| self.keep(offence).ok());
        for offence in devices {
            if let Ok((what, path)) = self.keep(offence) {
                tracing::warn!(what, file = %path.display(), "a device is convicted");
            }
        }
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
            let verdict = verify(&read(&path)?).ok()?;
            let is_orderer = matches!(verdict.convicted, Convicted::Orderer(_));
            let is_ours = verdict.volume == self.volume && verdict.epoch == self.epoch.number;
            (is_orderer && is_ours).then(|| Stopped::Convicted {
                what: verdict.what.to_owned(),
                evidence: Some(path),
            })
        };
        let paths = files.filter_map(Result::ok);
        paths.map(|file| file.path()).find_map(convicts)
    }

    /// Writes a file that [`trust_shared::evidence::verify`] accepts. Gives what it proves.
    pub(super) fn keep(&self, offence: Offence) -> Result<(String, PathBuf), String> {
        let file = Proved {
            volume: self.volume,
            epoch: self.epoch.number,
            policies: match offence.accuses_device() {
                true => Vec::new(),
                false => self.policies.clone(),
            },
            offence,
        };
        let verdict = file.judge().map_err(|why| why.to_string())?;
        let bytes = file.encode().map_err(|why| why.to_string())?;
        private::create_directory(&self.directory).map_err(|why| why.to_string())?;
        let name = blake3::hash(&bytes).to_hex();
        let name = format!("{}.evidence", &name[..32]);
        let path = self.directory.join(name);
        // Files about devices, of which a member can make any number, must not keep out the first one that stops this
        // device.
        let is_needed =
            matches!(verdict.convicted, Convicted::Orderer(_)) && self.convicted().is_none();
        if !path.exists() {
            if !is_needed && count(&self.directory) >= MAX_FILES {
                return Err(format!("there are {MAX_FILES} files of evidence already"));
            }
            private::replace(&path, &bytes).map_err(|why| why.to_string())?;
        }
        Ok((verdict.what.to_owned(), path))
    }
}

/// A file of evidence, as far as one may be long.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = MAX_EVIDENCE_BYTES as u64 + 1;
    let file = File::open(path).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn count(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, |files| files.take(MAX_FILES).count())
}

fn words(evidence: &Evidence<Product>) -> String {
    match evidence {
        Evidence::Start { .. } => {
            "its log does not begin with the prefix that the owners of the volume have named"
                .to_owned()
        }
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
        unstored: None,
    }
}

impl Court {
    /// Offences that may be proved, the likeliest first.
    fn offences(
        &self,
        evidence: &Evidence<Product>,
        reply: &Reply<Product>,
        disk: &Disk<OpsCodec>,
    ) -> Vec<Offence> {
        let Ok(own) = self.hashes(disk) else {
            return Vec::new();
        };
        let new = reply.leaves.iter().map(Product::leaf_hash);
        let Some(shown) = own.up_to(reply.from, new) else {
            return Vec::new();
        };
        match evidence {
            Evidence::Start { note, .. } => {
                let start = self.epoch.start.size;
                let proof = Proofs::new(shown).prefix(start, note.note().log.size);
                let offence = proof.map(|proof| Offence::OtherStart { note: *note, proof });
                offence.into_iter().collect()
            }
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
