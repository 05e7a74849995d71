//! A snapshot of the state after the floor's last leaf, so that a restart need not replay the log: it reads this file, and
//! the leaves after it (decision 0062). Everything in it follows from the leaves, so a damaged or missing file costs time
//! and nothing else.
//!
//! ```text
//! head     = "bullasf\n" | format u32 = 0 | volume [32] | epoch varint | first varint | size varint | root [32]
//! span     = bytes of the leaves varint | offsets varint | (offset - offset before varint) * offsets
//! window   = frontier | hashes varint | hash [32] * hashes
//! authors  = authors varint | (device [32] | bytes of the author) * authors
//! deciding = entries varint | (position varint | leaf) * entries          the members follow from these
//! open     = entries varint | (position varint | leaf) * entries          nobody has verified the signatures of these
//! files    = (`files::snapshot`) | replay (`trust_shared::effect::replay`)
//! ```
//!
//! `first` is the position of the first leaf of the floor; a leaf has the bytes that it has in the floor. The file is
//! cut into sections (`pieces`).
//!
//! The rule for crashes: a snapshot of `size` leaves is written when `size` leaves are in the file of leaves, durably, and
//! the journal says so; it takes the place of the one before by a rename after it was synced. So a kill or a power cut
//! leaves the snapshot before, or this one, and neither has more than the floor. A start uses a snapshot only if
//! the leaves after it lead from its root to that of the floor.

mod pieces;

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind};
use std::path::Path;

use bytes::Bytes;
use state::private;
use trust::Reject;
use trust::device::DeviceKey;
use trust::history::Frontier;
use trust::volume_id::VolumeId;
use trust_shared::checkpoint::{LEAVES_OF_ROW, WINDOW, Window};
use trust_shared::effect::replay::{Sink, Source};
use trust_shared::entry::Author;

use crate::disk::{Disk, DiskError, Resumed, Span, decode_leaf, encode_leaf};
use crate::files::Files;
use ordering::engine::{Durable, Unverified};
use ordering::ledger::Ledger;
use ordering::prefixes::{PAGE, Recent};
use ordering::roster::{OpsCodec, Product};
use ordering::rows::Rows;
use ordering::scheme::{Leaf, Log};
use ordering::signed::Entry;
use pieces::{Reader, Writer};

const FILE: &str = "snapshot";
const MAGIC: [u8; 8] = *b"bullasf\n";
const FORMAT: u32 = 0;
const WHAT: &str = "snapshot of a shared volume";
/// Most devices that a volume ever has.
const MAX_AUTHORS: u64 = 1 << 16;

/// A snapshot could not be written. The one before is still there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The floor cannot be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file cannot be written.
    #[error(transparent)]
    State(#[from] state::StateError),
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}

/// A ledger, and the entries of it that nobody has verified yet.
pub(crate) struct State<'a> {
    pub(crate) ledger: &'a Ledger<Product, Files>,
    pub(crate) unverified: &'a Unverified<Product>,
}

/// Writes the snapshot of a floor, durably. Gives whether it did: not where the ledger is not that of the floor, or
/// cannot say what the volume has.
pub(crate) fn write(
    memory: &Path,
    (volume, epoch): (VolumeId, u64),
    state: &State<'_>,
    disk: &mut Disk<OpsCodec>,
) -> Result<bool, SnapshotError> {
    let point = state.ledger.point();
    let files = state.ledger.volume();
    if (disk.len(), disk.root()) != (point.size, point.root) || files.is_mute() {
        return Ok(false);
    }
    let span = disk.settle()?.clone();
    let mut deciding = Vec::new();
    for at in files.deciding() {
        let Some(Leaf::Entry(entry)) = disk.leaf(*at)? else {
            return Ok(false);
        };
        deciding.push((*at, entry));
    }
    private::replace_with(&memory.join(FILE), |file| {
        let mut out = Writer::new(BufWriter::new(file));
        out.put(|e| {
            e.raw(&MAGIC).u32(FORMAT).raw(volume.as_bytes());
            e.varint(epoch).varint(span.first);
            e.varint(point.size).raw(&point.root)
        });
        // The first section is that of this log.
        out.flush();
        put_span(&span, &mut out);
        put_window(&state.ledger.log().window(), &mut out);
        put_authors(state.ledger, &mut out);
        let open = state.unverified.iter();
        let open = open.map(|(_, (at, entry))| (*at, entry.clone()));
        for entries in [deciding, open.collect()] {
            out.put(|e| e.varint(entries.len() as u64));
            for (at, entry) in entries {
                let leaf: Leaf<Product> = Leaf::Entry(entry);
                out.put(|e| {
                    encode_leaf(&leaf, e.varint(at));
                    e
                });
            }
        }
        files.store(&mut out);
        out.finish()
    })?;
    Ok(true)
}

fn put_span(span: &Span, out: &mut impl Sink) {
    let count = span.index.len() as u64;
    out.put(|e| e.varint(span.end).varint(count));
    let mut before = 0;
    for offset in &span.index {
        out.put(|e| e.varint(offset.saturating_sub(before)));
        before = *offset;
    }
}

fn take_span((first, len): (u64, u64), from: &mut impl Source) -> Result<Span, Reject> {
    let most = len.saturating_sub(first);
    let (end, count) = from.take(|d| Ok((d.varint()?, d.bounded(most, "too many offsets")?)))?;
    let (mut index, mut before) = (Vec::new(), 0_u64);
    for _ in 0..count {
        before = before.saturating_add(from.take(|d| d.varint())?);
        index.push(before);
    }
    let span = Span {
        first,
        len,
        end,
        index,
    };
    match span.is_possible() {
        true => Ok(span),
        false => Err(bad("leaves that lie nowhere")),
    }
}

fn put_window(window: &Window, out: &mut impl Sink) {
    out.put(|e| {
        window.before.encode(e);
        e.varint(window.leaves.len() as u64)
    });
    for hashes in window.leaves.chunks(LEAVES_OF_ROW) {
        out.put(|e| e.raw(&hashes.concat()));
    }
}

/// The end of a log, which must lead to this root.
fn take_window(size: u64, root: [u8; 32], from: &mut impl Source) -> Result<Recent, Reject> {
    let (before, count) = from.take(|d| {
        let before = Frontier::decode(d)?;
        Ok((before, d.bounded(WINDOW + PAGE, "too many hashes")?))
    })?;
    if before.size() != Window::begins(size) {
        return Err(bad("the hashes of leaves begin elsewhere"));
    }
    let mut leaves = Vec::new();
    while (leaves.len() as u64) < count {
        let part = LEAVES_OF_ROW.min(count as usize - leaves.len());
        from.take(|d| {
            for _ in 0..part {
                leaves.push(d.array()?);
            }
            Ok(())
        })?;
    }
    let log = Recent::begin(&Window { before, leaves });
    let point = Log::<Product>::point(&log);
    match (point.size, point.root) == (size, root) {
        true => Ok(log),
        false => Err(bad("the hashes of leaves do not lead to its root")),
    }
}

fn put_authors(ledger: &Ledger<Product, Files>, out: &mut impl Sink) {
    let authors: Vec<(DeviceKey, &Author)> = ledger.authors().collect();
    out.put(|e| e.varint(authors.len() as u64));
    for (device, author) in authors {
        out.put(|e| e.raw(device.as_bytes()).bytes(&author.encode()));
    }
}

fn take_authors(size: u64, from: &mut impl Source) -> Result<Rows<DeviceKey, Author>, Reject> {
    let mut authors = Rows::default();
    for _ in 0..from.take(|d| d.bounded(MAX_AUTHORS, "too many authors"))? {
        let (device, author) = from.take(|d| {
            let device = DeviceKey::from_bytes(d.array()?);
            Ok((device, Author::decode(d.bytes(256)?)?))
        })?;
        if author.last_at >= size {
            return Err(bad("an author beyond the log"));
        }
        authors.insert(device, author);
    }
    Ok(authors)
}

fn take_entries(size: u64, from: &mut impl Source) -> Result<Vec<(u64, Entry)>, Reject> {
    let mut entries: Vec<(u64, Entry)> = Vec::new();
    for _ in 0..from.take(|d| d.bounded(size, "too many entries"))? {
        let (at, leaf) = from.take(|d| {
            let at = d.varint()?;
            Ok((at, decode_leaf::<OpsCodec>(d, Bytes::copy_from_slice)?))
        })?;
        match leaf {
            Leaf::Entry(entry) if at < size => entries.push((at, entry)),
            _ => return Err(bad("no entry of the log")),
        }
    }
    Ok(entries)
}

/// Reads the snapshot of a memory. `begun` is the ledger with which its floor begins. None: there is none, or it is
/// damaged or of another log; then all leaves are read.
pub(crate) fn read(
    memory: &Path,
    log: (VolumeId, u64),
    begun: &Ledger<Product, Files>,
) -> Option<Resumed<OpsCodec, Files>> {
    let file = match File::open(memory.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(%error, "the snapshot is not used");
            return None;
        }
    };
    let decoded = decode(BufReader::new(file), log, begun);
    let failed = |why: &Reject| tracing::warn!(%why, "the snapshot is not used");
    decoded.inspect_err(failed).ok()
}

fn decode(
    file: impl std::io::Read,
    (volume, epoch): (VolumeId, u64),
    begun: &Ledger<Product, Files>,
) -> Result<Resumed<OpsCodec, Files>, Reject> {
    let mut from = Reader::new(file);
    let (first, size, root) = from.take(|d| {
        if d.array()? != MAGIC || d.u32()? != FORMAT {
            return Err(d.bad("not a snapshot of this format"));
        }
        if VolumeId::from_bytes(d.array()?) != volume || d.varint()? != epoch {
            return Err(d.bad("of another log"));
        }
        Ok((d.varint()?, d.varint()?, d.array()?))
    })?;
    if first != begun.size() || size < first {
        return Err(bad("of another floor"));
    }
    let span = take_span((first, size), &mut from)?;
    let recent = take_window(size, root, &mut from)?;
    let authors = take_authors(size, &mut from)?;
    let deciding = take_entries(size, &mut from)?;
    let open = take_entries(size, &mut from)?;
    let files = begun
        .volume()
        .restore(&authors, &deciding, size, &mut from)?;
    from.finish()?;
    let ledger = Ledger::resume(recent, authors, files, begun.begins());
    let mut durable = Durable::new(ledger);
    for (at, entry) in open {
        durable.add_unverified(at, &entry);
    }
    Ok(Resumed { durable, span })
}
