//! Plans and writes the files of leaves of one epoch. What is whole stays as it is. A damaged leaf is what its own bytes say, or
//! what a copy has, and it must be the one that was written: the check beside it says so, or a root that was computed over it
//! when it was whole. Such roots are in the heads of files, in the temporary log, in confirmations, in policies, and in later
//! entries, whose authors signed what they had seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::disk::{Disk, io_error, replace_file};
use store::names::TEMPORARY;
use trust::device::{DeviceKey, KnownDevice};
use trust::history::{Frontier, leaf_hash};
use trust::volume_id::VolumeId;

use super::super::HostError;
use super::super::directory::LEAVES;
use super::super::examine::judge;
use super::super::leaves::file::{Content, Head, Row, Salvaged, salvage};
use super::super::record::StoredLeaf;
use super::source::Source;
use super::{keep_copy, unmended};
use ordering::prefixes::PAGE;
use ordering::scheme::Leaf;

/// Leaves of a file that is made where one is missing.
const MISSING_AT_ONCE: u64 = 4096;
/// Roots that are remembered while it is not proved that a leaf is right.
const MAX_ROOTS: usize = 1 << 16;

/// The log of an epoch, and all that is known of it.
pub(super) struct Log<'a> {
    pub volume: VolumeId,
    pub disk: Arc<dyn Disk>,
    /// Where damaged leaves are sought. Each has the same leaves up to a position.
    pub sources: Vec<(Source, u64)>,
    /// The same log in a copy, which may be older.
    pub copy: Option<(&'a Path, Source)>,
    /// How many leaves every copy must have in common with this log. Those of an epoch that is over do not stand beyond the
    /// start of the next one: there a device may have others, or more. None: all.
    pub common: Option<u64>,
    /// What the files must have at least.
    pub least: u64,
    /// Leaves of the temporary log, and where they end.
    pub tail: BTreeMap<u64, StoredLeaf>,
    pub tail_end: u64,
    /// Roots that were computed when all was whole, by the number of leaves; each with who says so.
    pub witnesses: BTreeMap<u64, Vec<([u8; 32], String)>>,
}

/// What is to be done for one epoch.
pub(super) struct Plan {
    /// Files to write.
    pub files: Vec<Build>,
    /// The log of all files.
    pub tree: Frontier,
    /// The leaves after them.
    pub tail: Vec<StoredLeaf>,
    /// Leaves that were damaged and are mended from their own bytes, and from elsewhere.
    pub mended: u64,
    pub taken: u64,
}

/// A file to write.
pub(super) struct Build {
    range: Range<u64>,
    before: Frontier,
    root: [u8; 32],
    /// Whether there is a damaged one.
    is_there: bool,
}

/// The tree while the log is read.
#[derive(Clone)]
struct Walk {
    tree: Frontier,
    /// Leaves of which it is not proved that they are right.
    unproved: BTreeSet<u64>,
    /// Roots after the first of these.
    roots: BTreeMap<u64, [u8; 32]>,
    mended: u64,
    taken: u64,
}

impl Walk {
    fn after(tree: Frontier) -> Walk {
        Walk {
            tree,
            unproved: BTreeSet::new(),
            roots: BTreeMap::new(),
            mended: 0,
            taken: 0,
        }
    }

    /// So many leaves are proved.
    fn prove(&mut self, size: u64) {
        self.unproved = self.unproved.split_off(&size);
        if self.unproved.is_empty() {
            self.roots.clear();
        }
    }
}

/// A leaf for a file.
struct Chosen {
    leaf: StoredLeaf,
    is_proved: bool,
}

impl Log<'_> {
    /// Plans.
    pub fn plan(&mut self) -> Result<Plan, HostError> {
        let pieces = self.pieces()?;
        for (range, is_there) in &pieces {
            if *is_there {
                self.note_head(range.clone());
            }
        }
        let mut walk = Walk::after(Frontier::new());
        let mut files = Vec::new();
        for (range, is_there) in pieces {
            let start = walk.clone();
            if is_there && self.is_whole(&mut walk, &range)? {
                continue;
            }
            walk = start;
            let before = walk.tree.clone();
            self.build(&mut walk, &range)?;
            files.push(Build {
                range,
                before,
                root: walk.tree.root(),
                is_there,
            });
        }
        let tree = walk.tree.clone();
        let mut tail = Vec::new();
        for at in tree.size()..self.tail_end {
            let chosen = match self.tail.get(&at) {
                Some(stored) => Chosen {
                    leaf: stored.clone(),
                    is_proved: true,
                },
                None => self.choose(&mut walk, at, &Salvaged::Lost(None))?,
            };
            self.agrees(at, &chosen.leaf)?;
            self.push(&mut walk, &chosen)?;
            tail.push(chosen.leaf);
        }
        if let Some(at) = walk.unproved.first() {
            return Err(unmended(format!(
                "nothing proves that leaf {at} of the copy is the one that was written"
            )));
        }
        let end = walk.tree.size();
        if let Some((path, copy)) = &self.copy
            && self.common.is_none()
            && copy.end() > end
        {
            return Err(HostError::NewerCopy {
                path: path.to_path_buf(),
                why: format!("it has {} leaves, and this directory has {end}", copy.end()),
            });
        }
        Ok(Plan {
            files,
            tree,
            tail,
            mended: walk.mended,
            taken: walk.taken,
        })
    }

    /// The ranges of the files, and whether each is there.
    fn pieces(&self) -> Result<Vec<(Range<u64>, bool)>, HostError> {
        let names = match self.disk.list(LEAVES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(|e| io_error(&*self.disk, LEAVES, e))?,
        };
        let mut ranges: Vec<Range<u64>> =
            names.iter().filter_map(|name| Row::parse(name)).collect();
        ranges.sort_by_key(|range| (range.start, u64::MAX - range.end));
        let (mut pieces, mut end) = (Vec::new(), 0);
        for range in ranges {
            // A crash came before its removal.
            if range.end <= end {
                continue;
            }
            if range.start < end {
                let path = self.disk.path(LEAVES);
                let why = format!(
                    "{}: leaves {} to {end} are twice there",
                    path.display(),
                    range.start
                );
                return Err(unmended(why));
            }
            missing(end..range.start, &mut pieces);
            end = range.end;
            pieces.push((range, true));
        }
        missing(end..self.least, &mut pieces);
        Ok(pieces)
    }

    /// The head of a file says what its log was.
    fn note_head(&mut self, range: Range<u64>) {
        let name = name_of(&range);
        let Ok(file) = self.disk.open(&name) else {
            return;
        };
        let Ok(head) = Head::read(&*self.disk, &*file, range.clone()) else {
            return;
        };
        let says = self.disk.path(&name).display().to_string();
        let ends = (range.start / PAGE + 1..).map(|page| page * PAGE);
        let roots = ends.zip(head.roots);
        for (size, root) in roots.chain([(range.start, head.frontier.root())]) {
            self.witnesses
                .entry(size)
                .or_default()
                .push((root, says.clone()));
        }
    }

    /// Reads a file. False: it is damaged, and the walk is somewhere in it.
    fn is_whole(&self, walk: &mut Walk, range: &Range<u64>) -> Result<bool, HostError> {
        let disk = &*self.disk;
        let name = name_of(range);
        let file = disk.open(&name).map_err(|e| io_error(disk, &name, e))?;
        let Ok(head) = Head::read(disk, &*file, range.clone()) else {
            return Ok(false);
        };
        let step = usize::try_from(PAGE).unwrap_or(usize::MAX);
        for from in range.clone().step_by(step) {
            let to = range.end.min(from.saturating_add(PAGE));
            let Ok(leaves) = head.row.read(disk, &*file, from..to) else {
                return Ok(false);
            };
            for (at, leaf) in (from..to).zip(leaves) {
                self.agrees(at, &leaf)?;
                let is_proved = true;
                self.push(walk, &Chosen { leaf, is_proved })?;
            }
        }
        Ok(true)
    }

    /// Refuses a copy that has another leaf where this directory has a whole one.
    fn agrees(&self, at: u64, leaf: &StoredLeaf) -> Result<(), HostError> {
        let Some((path, copy)) = &self.copy else {
            return Ok(());
        };
        if self.common.is_some_and(|common| at >= common) {
            return Ok(());
        }
        match copy.leaf(at) {
            Some(other) if other.leaf != leaf.leaf => Err(HostError::ForkedCopy {
                path: path.to_path_buf(),
                why: format!("its leaf {at} is another one"),
            }),
            _ => Ok(()),
        }
    }

    /// Adds a leaf to the tree, and compares with what is known of it.
    fn push(&self, walk: &mut Walk, chosen: &Chosen) -> Result<(), HostError> {
        let at = walk.tree.size();
        if !chosen.is_proved {
            walk.unproved.insert(at);
        }
        if let Some(first) = walk.unproved.first()
            && let Ok(Leaf::Entry(entry)) = chosen.leaf.decode()
        {
            let seen = entry.signed().entry().seen;
            match walk.roots.get(&seen.size) {
                Some(root) if seen.size > *first && *root == seen.root => walk.prove(seen.size),
                Some(root) if *root != seen.root => {
                    return Err(contradicts(seen.size, &format!("the author of leaf {at}")));
                }
                _ => {}
            }
        }
        let pushed = walk.tree.push_hash(leaf_hash(&chosen.leaf.leaf));
        pushed.map_err(HostError::Policy)?;
        let size = walk.tree.size();
        let root = walk.tree.root();
        if let Some(witnesses) = self.witnesses.get(&size) {
            for (known, says) in witnesses {
                if *known != root {
                    return Err(contradicts(size, says));
                }
            }
            walk.prove(size);
        }
        if !walk.unproved.is_empty() && walk.roots.len() < MAX_ROOTS {
            walk.roots.insert(size, root);
        }
        Ok(())
    }

    /// Makes the content of a file whose leaves may be damaged.
    fn build(&self, walk: &mut Walk, range: &Range<u64>) -> Result<Content, HostError> {
        let mut content = Content::after(walk.tree.clone());
        let left = salvage(&*self.disk, range)?;
        for (at, left) in range.clone().zip(&left) {
            let chosen = self.choose(walk, at, left)?;
            self.agrees(at, &chosen.leaf)?;
            self.push(walk, &chosen)?;
            let is_end = walk.tree.size().is_multiple_of(PAGE);
            let root = is_end.then(|| walk.tree.root());
            if !content.extend([&chosen.leaf], root.as_slice()) {
                return Err(unmended(format!("{} is too long", name_of(range))));
            }
        }
        Ok(content)
    }

    /// The leaf that was written at a position.
    fn choose(&self, walk: &mut Walk, at: u64, left: &Salvaged) -> Result<Chosen, HostError> {
        let proved = |leaf: StoredLeaf| Chosen {
            leaf,
            is_proved: true,
        };
        let assumed = |leaf: StoredLeaf| Chosen {
            leaf,
            is_proved: false,
        };
        if let Salvaged::Right(stored) = left {
            return Ok(proved(stored.clone()));
        }
        let mut devices: HashMap<DeviceKey, Option<KnownDevice>> = HashMap::new();
        let mut judged = |stored: &StoredLeaf| judge(stored, self.volume, &mut devices).ok();
        let sources = self.sources.iter().filter(|(_, until)| at < *until);
        let sources = sources.map(|(source, _)| source);
        let copies = self.copy.iter().map(|(_, source)| source);
        let mut found: Vec<StoredLeaf> = sources
            .chain(copies)
            .filter_map(|source| source.leaf(at))
            .collect();
        if let Salvaged::Unchecked(own, _) = left {
            // A device does not have all bodies.
            let lacks_body = |it: &&mut StoredLeaf| it.body.is_none() && it.decode().is_err();
            for stored in found.iter_mut().filter(lacks_body) {
                stored.body.clone_from(&own.body);
            }
        }
        // It says itself whether every device must read its body.
        for stored in &mut found {
            if let Ok(leaf) = stored.decode() {
                *stored = StoredLeaf::of(&leaf);
            }
        }
        found.retain(|stored| judged(stored).is_some());
        if let Some(place) = found.iter().position(|stored| left.is(at, stored)) {
            walk.taken += 1;
            return Ok(proved(found.swap_remove(place)));
        }
        let own = match left {
            Salvaged::Unchecked(stored, _) => judged(stored).map(|is_entry| (stored, is_entry)),
            _ => None,
        };
        match (own, found.into_iter().next()) {
            // Its author's signature is right.
            (Some((stored, true)), _) | (Some((stored, false)), None) => {
                walk.mended += 1;
                let leaf = stored.decode().map_err(HostError::Policy)?;
                Ok(assumed(StoredLeaf::of(&leaf)))
            }
            (_, Some(stored)) => {
                walk.taken += 1;
                Ok(assumed(stored))
            }
            (None, None) => Err(self.lost(at)),
        }
    }

    fn lost(&self, at: u64) -> HostError {
        let path = self.disk.path(LEAVES);
        let place = path.display();
        unmended(match &self.copy {
            None => format!("leaf {at} in {place} is damaged, and no copy of it is named"),
            Some((copy, _)) => {
                format!(
                    "leaf {at} in {place} is damaged, and {} does not have it",
                    copy.display()
                )
            }
        })
    }

    /// Writes a file that was planned. Gives the damaged one that is kept.
    pub fn write(&self, file: &Build) -> Result<(PathBuf, Option<PathBuf>), HostError> {
        let mut walk = Walk::after(file.before.clone());
        let (row, bytes) = self.build(&mut walk, &file.range)?.encode();
        if walk.tree.root() != file.root {
            return Err(unmended("a file changed while it was read".to_owned()));
        }
        let disk = &*self.disk;
        let name = row.name();
        let kept = match file.is_there {
            true => Some(keep_copy(disk, &name, LEAVES)?),
            false => None,
        };
        disk.make_dir(LEAVES)
            .map_err(|e| io_error(disk, LEAVES, e))?;
        replace_file(disk, &name, &format!("{name}{TEMPORARY}"), LEAVES, &bytes)?;
        Ok((disk.path(&name), kept))
    }
}

/// Files for leaves of which there is no file.
fn missing(range: Range<u64>, pieces: &mut Vec<(Range<u64>, bool)>) {
    let mut from = range.start;
    while from < range.end {
        let to = range.end.min(from.saturating_add(MISSING_AT_ONCE));
        pieces.push((from..to, false));
        from = to;
    }
}

fn name_of(range: &Range<u64>) -> String {
    format!("{LEAVES}/{:016x}-{:016x}", range.start, range.end)
}

fn contradicts(size: u64, says: &str) -> HostError {
    unmended(format!(
        "the first {size} leaves are not those that {says} names"
    ))
}
