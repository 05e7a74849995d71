//! The versions of each sector of one device, which of them are durable, and writes that are in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::SECTOR_BYTES;

/// What a sector holds: `None` is a hole.
pub type Content = Option<Bytes>;

/// Sectors are kept in groups, so that a copy of a device copies few pointers.
const GROUP: u64 = 8;

#[derive(Clone, Default)]
pub struct Sectors {
    groups: BTreeMap<u64, Arc<[Sector; GROUP as usize]>>,
    /// Sectors with a version after the durable one.
    unsynced: BTreeSet<u64>,
    pub flights: BTreeMap<u64, Writing>,
    /// The operation of the last sync that failed. No later sync makes durable what was written before it.
    failed_sync: u64,
    masks: Vec<Mask>,
    /// The sum of the hashes of all versions that a read or a crash can find.
    sum: u64,
}

/// Bytes that differ without meaning from run to run, such as random names.
#[derive(Clone)]
pub struct Mask {
    pub sectors: Range<u64>,
    /// Offsets on the device.
    pub hidden: Vec<Range<u64>>,
}

impl Mask {
    fn visible(&self, sector: u64, content: &[u8]) -> Vec<u8> {
        let mut visible = content.to_vec();
        let start = sector * SECTOR_BYTES;
        for hidden in &self.hidden {
            let from = hidden.start.max(start);
            let to = hidden.end.min(start + SECTOR_BYTES);
            if from < to {
                visible[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
        visible
    }
}

/// A write that has not returned.
#[derive(Clone)]
pub struct Writing {
    pub offset: u64,
    pub bytes: u64,
    pub content: Content,
    /// Sectors that a read already sees.
    pub shown: BTreeSet<u64>,
}

/// What a sync makes durable: sectors, each with the operation of its newest version that counts.
pub struct Returned {
    versions: Vec<(u64, u64)>,
}

/// One version of a sector and the operation that wrote it.
#[derive(Clone)]
pub struct Version {
    pub operation: u64,
    /// The operation that first wrote it: a crash that keeps a version is an operation of its own.
    pub origin: u64,
    pub content: Content,
    hash: u64,
}

#[derive(Clone)]
struct Sector {
    versions: Vec<Version>,
    durable: usize,
}

impl Default for Sector {
    fn default() -> Sector {
        Sector {
            versions: vec![Version {
                operation: 0,
                origin: 0,
                content: None,
                hash: hash(&[]),
            }],
            durable: 0,
        }
    }
}

impl Sector {
    fn settle(&mut self, version: Version) {
        self.versions.push(version);
        self.durable = self.versions.len() - 1;
    }

    fn hash(&self, sector: u64) -> u64 {
        let found = self.versions[self.durable..].iter().zip(1u64..);
        found.fold(0, |sum, (version, number)| {
            sum.wrapping_add(mix(version.hash ^ mix(sector ^ (number << 48))))
        })
    }
}

/// FNV-1a over words.
fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(padded)
    });
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| mix(hash ^ word))
}

fn mix(number: u64) -> u64 {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

impl Writing {
    pub fn sectors(&self) -> Range<u64> {
        self.offset / SECTOR_BYTES..(self.offset + self.bytes) / SECTOR_BYTES
    }

    pub fn content(&self, sector: u64) -> Content {
        let at = (sector * SECTOR_BYTES - self.offset) as usize;
        let content = self.content.as_ref()?;
        Some(content.slice(at..at + SECTOR_BYTES as usize))
    }
}

impl Sectors {
    fn sector(&self, sector: u64) -> Option<&Sector> {
        let group = self.groups.get(&(sector / GROUP))?;
        Some(&group[(sector % GROUP) as usize])
    }

    fn change(&mut self, sector: u64, change: impl FnOnce(&mut Sector)) {
        let group = self
            .groups
            .entry(sector / GROUP)
            .or_insert_with(|| Arc::new(std::array::from_fn(|_| Sector::default())));
        let entry = &mut Arc::make_mut(group)[(sector % GROUP) as usize];
        let before = entry.hash(sector);
        change(entry);
        let after = entry.hash(sector);
        self.sum = self.sum.wrapping_sub(before).wrapping_add(after);
    }

    fn version(&self, sector: u64, operation: u64, content: Content) -> Version {
        let mask = self
            .masks
            .iter()
            .find(|mask| mask.sectors.contains(&sector));
        let bytes = content.as_deref().unwrap_or_default();
        let hash = match mask {
            Some(mask) if !bytes.is_empty() => hash(&mask.visible(sector, bytes)),
            _ => hash(bytes),
        };
        Version {
            operation,
            origin: operation,
            content,
            hash,
        }
    }

    /// Hides bytes from the fingerprint, in what is written from now on.
    pub fn mask(&mut self, mask: Mask) {
        self.masks.push(mask);
    }

    /// What a read sees.
    pub fn content(&self, sector: u64) -> Content {
        self.sector(sector)?.versions.last()?.content.clone()
    }

    /// What a read saw after this operation.
    pub fn content_at(&self, sector: u64, operation: u64) -> Content {
        let versions = &self.sector(sector)?.versions;
        let version = versions.iter().rev().find(|v| v.operation <= operation)?;
        version.content.clone()
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let first = offset / SECTOR_BYTES;
        let end = first + (into.len() as u64).div_ceil(SECTOR_BYTES);
        for (group, sectors) in self.groups.range(first / GROUP..end.div_ceil(GROUP)) {
            for (sector, entry) in (group * GROUP..).zip(sectors.iter()) {
                let content = entry.versions.last().and_then(|v| v.content.as_ref());
                if let Some(content) = content.filter(|_| (first..end).contains(&sector)) {
                    let at = ((sector - first) * SECTOR_BYTES) as usize;
                    into[at..at + SECTOR_BYTES as usize].copy_from_slice(content);
                }
            }
        }
    }

    /// Adds what reads and crashes can find to `into`. Of what is masked only this: which sectors were written together.
    pub fn fingerprint(&self, into: &mut DefaultHasher) {
        self.sum.hash(into);
        for mask in &self.masks {
            let mut origins: Vec<u64> = Vec::new();
            for entry in mask
                .sectors
                .clone()
                .filter_map(|sector| self.sector(sector))
            {
                for version in &entry.versions[entry.durable..] {
                    let known = origins.iter().position(|origin| *origin == version.origin);
                    known.unwrap_or(origins.len()).hash(into);
                    if known.is_none() {
                        origins.push(version.origin);
                    }
                }
            }
        }
        for writing in self.flights.values() {
            let content = writing.content.as_deref().map(hash);
            (writing.offset, writing.bytes, content, &writing.shown).hash(into);
        }
    }

    /// Adds a version that is not durable.
    pub fn write(&mut self, sector: u64, operation: u64, content: Content) {
        let version = self.version(sector, operation, content);
        self.change(sector, |entry| entry.versions.push(version));
        self.unsynced.insert(sector);
    }

    /// The version that a crash left is the only one now, and durable.
    pub fn keep(&mut self, sector: u64, operation: u64, version: &Version) {
        let mut version = version.clone();
        version.operation = operation;
        self.change(sector, |entry| entry.settle(version));
        self.unsynced.remove(&sector);
    }

    /// Adds a version that is durable at once: the adversary's.
    pub fn settle(&mut self, sector: u64, operation: u64, content: Content) {
        let version = self.version(sector, operation, content);
        self.change(sector, |entry| entry.settle(version));
        self.unsynced.remove(&sector);
    }

    /// What a sync that begins now covers: calls that have returned.
    pub fn returned(&self) -> Returned {
        Returned {
            versions: self
                .unsynced
                .iter()
                .map(|&sector| (sector, self.newest(sector)))
                .collect(),
        }
    }

    fn newest(&self, sector: u64) -> u64 {
        let versions = self
            .sector(sector)
            .map_or(&[][..], |entry| &entry.versions[entry.durable..]);
        let mut settled = versions.iter().rev().filter(|version| {
            version.operation > self.failed_sync && !self.flights.contains_key(&version.operation)
        });
        settled.next().map_or(0, |version| version.operation)
    }

    /// Makes durable what was written by calls that had returned when the sync began.
    pub fn sync(&mut self, covered: &Returned) {
        for &(sector, operation) in &covered.versions {
            let mut settled = false;
            self.change(sector, |entry| {
                let versions = &entry.versions;
                let durable = versions.iter().rposition(|v| v.operation <= operation);
                entry.durable = entry.durable.max(durable.unwrap_or(0));
                settled = entry.durable + 1 == entry.versions.len();
            });
            if settled {
                self.unsynced.remove(&sector);
            }
        }
    }

    /// A sync failed: what is not durable now never will be, but it may survive.
    pub fn sync_failed(&mut self, operation: u64) {
        self.failed_sync = operation;
    }

    /// Sectors for which a power cut has a choice, each with the versions that it may leave, oldest first.
    pub fn after_power_cut(&self) -> BTreeMap<u64, Vec<Version>> {
        let mut found: BTreeMap<u64, Vec<Version>> = BTreeMap::new();
        for &sector in &self.unsynced {
            if let Some(entry) = self.sector(sector) {
                found.insert(sector, entry.versions[entry.durable..].to_vec());
            }
        }
        self.add_flights(&mut found);
        found
    }

    /// The same for the death of the process: only writes in flight leave a choice.
    pub fn after_kill(&self) -> BTreeMap<u64, Vec<Version>> {
        let mut found = BTreeMap::new();
        self.add_flights(&mut found);
        found
    }

    fn add_flights(&self, found: &mut BTreeMap<u64, Vec<Version>>) {
        for (&operation, writing) in &self.flights {
            for sector in writing.sectors().filter(|s| !writing.shown.contains(s)) {
                let versions = found.entry(sector).or_insert_with(|| {
                    let last = self.sector(sector).and_then(|s| s.versions.last()).cloned();
                    vec![last.unwrap_or_else(|| self.version(sector, 0, None))]
                });
                versions.push(self.version(sector, operation, writing.content(sector)));
            }
        }
    }

    /// The machine has restarted: no write is in flight, and after a power cut what is there is durable.
    pub fn restarted(&mut self, power_cut: bool) {
        self.flights.clear();
        if power_cut {
            self.failed_sync = 0;
        }
    }

    /// Sectors of `range` that were ever written.
    pub fn written(&self, range: Range<u64>) -> Vec<u64> {
        let groups = self
            .groups
            .range(range.start / GROUP..range.end.div_ceil(GROUP));
        let sectors = groups.flat_map(|(group, _)| group * GROUP..(group + 1) * GROUP);
        sectors.filter(|sector| range.contains(sector)).collect()
    }

    /// Drops versions before the durable one, and zeros that were written before everything else.
    pub fn forget(&mut self) {
        let plain = |sector: &Sector| {
            let content = sector.versions[0].content.as_deref().unwrap_or_default();
            sector.versions.len() == 1 && content.iter().all(|byte| *byte == 0)
        };
        for group in self.groups.values_mut() {
            if group.iter().any(|sector| sector.durable > 0) {
                for sector in Arc::make_mut(group) {
                    sector.versions.drain(..sector.durable);
                    sector.durable = 0;
                }
            }
        }
        self.groups.retain(|_, group| !group.iter().all(plain));
        let sectors = self
            .groups
            .iter()
            .flat_map(|(group, sectors)| (group * GROUP..).zip(sectors.iter()));
        let sums = sectors.map(|(sector, entry)| {
            entry
                .hash(sector)
                .wrapping_sub(Sector::default().hash(sector))
        });
        self.sum = sums.fold(0, u64::wrapping_add);
    }
}
