//! What the log says of its authors and members at the end of the files of leaves, and the file that keeps this for a
//! restart. It follows from the leaves, so a damaged or missing file costs time and nothing else. Bytes:
//! `docs/formats/shared-server.md`.
//!
//! The members are not in the file, but the positions of the entries that they follow from.

use store::StoreError;
use store::disk::{Disk, read_file, replace_file};
use store::names::TEMPORARY;
use trust::Reject;
use trust::device::{DeviceKey, Incarnation};
use trust::history::Frontier;
use trust::volume_id::VolumeId;
use trust_shared::entry::Author;

use super::directory::SNAPSHOT;
use ordering::checked_file::FileKind;
use ordering::prefixes::{PAGE, Rfc6962};
use ordering::roster::{Product, Roster};
use ordering::rows::Rows;
use ordering::scheme::{Leaf, Scheme};
use ordering::volume::Roll;

const FORM: FileKind = FileKind {
    what: "snapshot",
    magic: *b"bullasn\n",
};
/// The longest file. A longer one is not written, and a restart reads more leaves.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// See the head of this file.
#[derive(Clone)]
pub struct Trail {
    /// The log.
    pub frontier: Frontier,
    /// What it says of each device that wrote.
    pub authors: Rows<DeviceKey, Author>,
    /// The members.
    pub roster: Roster,
    /// Positions of the entries that the members follow from.
    pub deciding: Vec<u64>,
}

/// What the file says.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The log.
    pub frontier: Frontier,
    /// What it says of each device that wrote.
    pub authors: Rows<DeviceKey, Author>,
    /// Positions of the entries that the members follow from.
    pub deciding: Vec<u64>,
}

impl Trail {
    /// An empty log with the first members.
    pub fn new(roster: Roster) -> Trail {
        Trail {
            frontier: Frontier::new(),
            authors: Rows::default(),
            roster,
            deciding: Vec::new(),
        }
    }

    /// Adds a leaf. Gives the root if the leaf ends a page.
    pub fn push(&mut self, leaf: &Leaf<Product>) -> Option<[u8; 32]> {
        let at = self.frontier.size();
        if let Leaf::Entry(entry) = leaf {
            if self.roster.concerns(entry) {
                self.deciding.push(at);
            }
            let device = Product::author(entry);
            let before = self.authors.get(device);
            let row = Author::after(before, &Product::heading(entry), Product::id(entry), at);
            self.authors.insert(device, row);
            self.roster.extend(at, entry);
        }
        // A log of 2⁶⁴ leaves would take longer than anybody waits.
        self.frontier.push_hash(Product::leaf_hash(leaf)).ok()?;
        let is_end = self.frontier.size().is_multiple_of(PAGE);
        is_end.then(|| self.frontier.root())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the file is as before then.
    pub fn write(&self, disk: &dyn Disk, volume: VolumeId, epoch: u64) -> Result<(), StoreError> {
        let bytes = self.encode(volume, epoch);
        if bytes.len() > MAX_BYTES {
            tracing::warn!("the snapshot is too long: the next start takes longer");
            return Ok(());
        }
        let temporary = format!("{SNAPSHOT}{TEMPORARY}");
        replace_file(disk, SNAPSHOT, &temporary, "", &bytes)
    }

    pub(super) fn encode(&self, volume: VolumeId, epoch: u64) -> Vec<u8> {
        let mut out = FORM.begin(volume, epoch);
        self.frontier.encode(&mut out);
        out.varint(self.authors.len() as u64);
        for (device, row) in self.authors.iter() {
            out.raw(device.as_bytes()).raw(row.incarnation.as_bytes());
            out.varint(row.n).raw(&row.last);
            out.varint(row.last_at).varint(row.resume_at);
            out.varint(row.attested);
        }
        out.varint(self.deciding.len() as u64);
        let mut before = 0;
        for at in &self.deciding {
            out.varint(at - before);
            before = *at;
        }
        FileKind::end(out)
    }
}

impl Snapshot {
    /// Reads the file. None: there is none, or it is damaged or of another log; then all leaves must be read.
    pub fn read(disk: &dyn Disk, volume: VolumeId, epoch: u64) -> Option<Snapshot> {
        let read = read_file(disk, SNAPSHOT, MAX_BYTES);
        let decoded = read.map(|bytes| bytes.map(|bytes| Snapshot::decode(&bytes, volume, epoch)));
        match decoded {
            Ok(None) => None,
            Ok(Some(Ok(snapshot))) => Some(snapshot),
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "the snapshot of the log is not used");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the snapshot of the log is not used");
                None
            }
        }
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// [`Reject`] for anything but a snapshot of this log.
    pub fn decode(bytes: &[u8], volume: VolumeId, epoch: u64) -> Result<Snapshot, Reject> {
        let mut d = FORM.open(bytes, volume, epoch)?;
        let beyond = || Reject::Malformed {
            what: FORM.what,
            why: "beyond the log",
        };
        let frontier = Frontier::decode(&mut d)?;
        let size = frontier.size();
        let mut authors = Rows::default();
        for _ in 0..d.bounded(bytes.len() as u64, "too many authors")? {
            let device = DeviceKey::from_bytes(d.array()?);
            let row = Author {
                incarnation: Incarnation::from_bytes(d.array()?),
                n: d.varint()?,
                last: d.array()?,
                last_at: d.varint()?,
                resume_at: d.varint()?,
                attested: d.varint()?,
            };
            authors.insert(device, row);
        }
        let mut deciding = Vec::new();
        let mut before = 0u64;
        for _ in 0..d.bounded(bytes.len() as u64, "too many entries")? {
            let at = before.checked_add(d.varint()?);
            before = at.filter(|at| *at < size).ok_or_else(beyond)?;
            deciding.push(before);
        }
        d.finish()?;
        Ok(Snapshot {
            frontier,
            authors,
            deciding,
        })
    }
}
