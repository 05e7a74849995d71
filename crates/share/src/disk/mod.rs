//! What a device must not forget, on disk: its floor, and the entries that it has sent.
//!
//! The engine's records go to a journal of crate `state`, in the order in which the engine gave them. So a power cut
//! leaves a prefix of them, and never a later record without an earlier one. When the journal is long, its leaves move
//! to a file of their own: they are appended and fsynced, and only then the journal is replaced by one that begins
//! with how much of that file counts. A process that is killed between leaves bytes behind that nobody counts.
//!
//! | what happens | what the next start finds |
//! |---|---|
//! | the process is killed | everything |
//! | the power fails | everything but the last second, and everything that was synced |
//! | bytes are damaged or gone | an error; nothing is changed, and no device starts again from nothing |
//!
//! A start reads the leaves after a snapshot of the ledger ([`crate::snapshot`]), if there is one of this floor. Damage of
//! leaves before it is found when somebody reads them.
//!
//! What is read here was verified before it was written, and is not verified again. Checksums and the root of the log
//! detect accidents. They detect no forgery: who can write here has the device's key too.
//!
//! | file | what lives there |
//! |---|---|
//! | `closed` | the files of a device that no engine has open |
//! | `item` | what the journal's records say |
//! | `leaves` | the file of leaves |
//! | `read` | leaves of the floor, wherever they lie |

mod closed;
mod item;
mod leaves;
mod read;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use state::{Journal, StateError, private};
use trust_shared::note::SignedNote;

pub use closed::{Closed, Remembered, own_entries};
use item::{Base, Item, Join};
pub(crate) use item::{decode_leaf, encode_leaf};
use leaves::Leaves;
pub use leaves::Span;
use ordering::engine::{Durable, Record, Sent};
use ordering::ledger::Ledger;
use ordering::scheme::Leaf;
use ordering::signed::{Codec, Signed};
use ordering::volume::Volume;

pub(crate) const JOURNAL: &str = "journal";
const LEAVES: &str = "leaves";
/// Length of a journal that is replaced by a short one.
const COMPACT_BYTES: u64 = 2 << 20;
/// Room for more leaves that are in the journal only, bytes: more than a leaf has.
const TAIL_ROOM: usize = 128 << 10;
/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The device's files cannot be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DiskError {
    /// The state directory cannot be read or written, or another process has the volume open.
    #[error(transparent)]
    State(#[from] StateError),
    /// The files lack something that was durable.
    #[error(
        "{}: {why}. The memory of this device is damaged; it does not start without it. Put the file back, or remove \
         this device from the volume and admit this machine as a new one",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

fn damaged(path: &Path, why: impl Display) -> DiskError {
    DiskError::Damaged {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// How calls are written: entries that were sent keep the calls that they are for.
pub trait Keep: Sized {
    /// Its bytes.
    fn encode(&self) -> Vec<u8>;
    /// Reads them.
    ///
    /// # Errors
    /// [`trust::Reject`].
    fn decode(bytes: &[u8]) -> Result<Self, trust::Reject>;
}

/// The open files of one device.
#[derive(Debug)]
pub struct Disk<C: Codec> {
    path: PathBuf,
    journal: Journal,
    leaves: Leaves,
    /// Leaves that are in the journal only, as they lie in the file of leaves, and the length of each.
    tail: Vec<u8>,
    lengths: Vec<u32>,
    /// The log's end, as the journal has it.
    note: Option<SignedNote>,
    root: [u8; 32],
    /// Entries that were sent and are not in the log: hash, and item.
    sent: Vec<([u8; 32], Vec<u8>)>,
    /// The journal is replaced by a short one when it is longer.
    compact_bytes: u64,
    compact_at: u64,
    /// A write has failed. What the journal has is unknown.
    broken: Option<DiskError>,
    codec: std::marker::PhantomData<C>,
}

/// Makes the files of a device that has seen nothing yet.
///
/// # Errors
/// [`DiskError`].
pub fn create(directory: &Path) -> Result<(), DiskError> {
    private::replace(&directory.join(LEAVES), leaves::HEADER)?;
    let path = directory.join(JOURNAL);
    let deadline = Instant::now() + PATIENCE;
    let (journal, replayed) = Journal::open(&path, deadline, |_| ())?;
    if replayed.records != 0 {
        return Err(damaged(&path, "a new device has a journal already"));
    }
    Ok(journal.sync_blocking(deadline)?)
}

/// A leaf, and its position.
pub type Placed<C> = (u64, Leaf<Signed<C>>);

/// The open files, and what they have.
pub type Opened<C, V> = (Disk<C>, Durable<Signed<C>, V>);

/// The ledger with which a floor begins, and what a snapshot says.
type Begins<C, V> = (Ledger<Signed<C>, V>, Option<Resumed<C, V>>);

/// What a snapshot says of the floor up to some leaf.
pub struct Resumed<C: Codec, V: Volume<Signed<C>>> {
    /// What a restart begins with after these leaves.
    pub durable: Durable<Signed<C>, V>,
    /// Where they lie.
    pub span: Span,
}

/// What the journal holds, read from its beginning.
struct Read<C: Codec> {
    base: Option<Base>,
    items: Vec<Item<C>>,
    join: Join,
    wrong: Option<String>,
}

impl<C: Codec> Read<C> {
    fn record(&mut self, record: &[u8]) {
        if self.wrong.is_some() {
            return;
        }
        match self.join.take(record) {
            Err(why) => self.wrong = Some(why.to_owned()),
            Ok(None) => {}
            Ok(Some(item)) => match Item::decode(&item) {
                Err(why) => self.wrong = Some(why.to_string()),
                Ok(Item::Base(base)) if self.base.is_none() && self.items.is_empty() => {
                    self.base = Some(base);
                }
                Ok(Item::Base(_)) => self.wrong = Some("a base in the middle".to_owned()),
                Ok(item) => self.items.push(item),
            },
        }
    }
}

/// Reads the leaves after those that are known.
fn read_leaves<C: Codec, V: Volume<Signed<C>>>(
    path: &Path,
    base: &Base,
    mut durable: Durable<Signed<C>, V>,
    known: Span,
) -> Result<(Durable<Signed<C>, V>, Leaves), DiskError> {
    let all = (base.leaves, base.bytes);
    let leaves = Leaves::open(path, known, all, |leaf| durable.extend(&leaf))?;
    if durable.ledger.point().root != base.root {
        let why = "its leaves do not lead to the root that the journal names";
        return Err(damaged(path, why));
    }
    Ok((durable, leaves))
}

/// Goes on where a snapshot ends. None: it is not of this floor, and all leaves must be read.
fn resume<C: Codec, V: Volume<Signed<C>>>(
    path: &Path,
    base: &Base,
    resumed: Resumed<C, V>,
) -> Option<(Durable<Signed<C>, V>, Leaves)> {
    let read = read_leaves(path, base, resumed.durable, resumed.span);
    let failed = |error: &DiskError| tracing::warn!(%error, "the snapshot is not used");
    read.inspect_err(failed).ok()
}

impl<C: Codec> Disk<C> {
    /// Opens the files, and extends `ledger`, which is that of an empty log or of the checkpoint with which the device
    /// began, by what they have. Waits for another process that has them open, until the deadline. Leaves that `resumed`
    /// knows are not read, if it is of this floor.
    ///
    /// # Errors
    /// [`DiskError`]; then nothing was changed.
    pub fn open<V>(
        directory: &Path,
        deadline: Instant,
        ledger: Ledger<Signed<C>, V>,
        resumed: Option<Resumed<C, V>>,
    ) -> Result<Opened<C, V>, DiskError>
    where
        V: Volume<Signed<C>>,
        V::Call: Keep,
    {
        Disk::open_with(directory, deadline, (ledger, resumed), COMPACT_BYTES)
    }

    fn open_with<V>(
        directory: &Path,
        deadline: Instant,
        (ledger, resumed): Begins<C, V>,
        compact_bytes: u64,
    ) -> Result<Opened<C, V>, DiskError>
    where
        V: Volume<Signed<C>>,
        V::Call: Keep,
    {
        let path = directory.join(JOURNAL);
        if !path.try_exists().map_err(|e| damaged(&path, e))? {
            return Err(damaged(&path, "it is gone"));
        }
        let mut read = Read {
            base: None,
            items: Vec::new(),
            join: Join::default(),
            wrong: None,
        };
        let (journal, _) = Journal::open(&path, deadline, |record| read.record(record))?;
        if let Some(why) = read.wrong {
            return Err(damaged(&path, why));
        }
        let first = ledger.size();
        let base = read.base.unwrap_or(Base {
            first,
            leaves: first,
            bytes: leaves::HEADER.len() as u64,
            root: ledger.point().root,
            note: ledger.note().copied(),
        });
        if base.first != first {
            return Err(damaged(&path, "its leaves begin elsewhere in the log"));
        }
        if base.leaves > 0 && base.note.is_none() {
            return Err(damaged(&path, "no note names its leaves"));
        }
        let place = directory.join(LEAVES);
        let resumed = resumed.and_then(|resumed| resume(&place, &base, resumed));
        let (mut durable, leaves) = match resumed {
            Some(resumed) => resumed,
            None => read_leaves(&place, &base, Durable::new(ledger), Span::begin(first))?,
        };
        if let Some(note) = &base.note {
            durable.met(note);
        }
        let compact_at = compact_bytes.max(journal.len_bytes());
        let mut disk = Disk {
            path,
            journal,
            leaves,
            tail: Vec::new(),
            lengths: Vec::new(),
            note: base.note,
            root: base.root,
            sent: Vec::new(),
            compact_bytes,
            compact_at,
            broken: None,
            codec: std::marker::PhantomData,
        };
        for item in read.items {
            disk.replay(item, &mut durable)?;
        }
        disk.root = durable.ledger.point().root;
        if read.join.is_torn() {
            // Otherwise the next item would be read as the rest of this one.
            disk.compact()?;
        }
        Ok((disk, durable))
    }

    fn replay<V>(
        &mut self,
        item: Item<C>,
        durable: &mut Durable<Signed<C>, V>,
    ) -> Result<(), DiskError>
    where
        V: Volume<Signed<C>>,
        V::Call: Keep,
    {
        let size = durable.ledger.size();
        match item {
            Item::Floor { from, leaves, note } => {
                let end = from.checked_add(leaves.len() as u64);
                if from != size || end != Some(note.note().log.size) {
                    return Err(damaged(&self.path, "leaves are missing"));
                }
                self.grown(&leaves, note);
                durable.apply(&Record::Floor { leaves, note });
            }
            Item::Sent { entry, calls } => {
                let bytes = Item::<C>::Sent {
                    entry: entry.clone(),
                    calls: calls.clone(),
                };
                self.sent.push((entry.signed().hash(), bytes.encode()));
                let calls = calls.iter().map(|call| V::Call::decode(call));
                let calls = calls.collect::<Result<_, _>>();
                let calls = calls.map_err(|why| damaged(&self.path, why))?;
                durable.apply(&Record::Sent(Sent { entry, calls }));
            }
            Item::Settled => {
                self.sent.clear();
                durable.apply(&Record::Settled);
            }
            Item::Base(_) => return Err(damaged(&self.path, "a base in the middle")),
        }
        Ok(())
    }

    /// Notes that the journal has these leaves.
    fn grown(&mut self, leaves: &[Leaf<Signed<C>>], note: SignedNote) {
        self.hold(leaves);
        self.met(leaves, note);
    }

    /// These leaves, which a note names, were written.
    fn met(&mut self, leaves: &[Leaf<Signed<C>>], note: SignedNote) {
        for leaf in leaves {
            if let Leaf::Entry(entry) = leaf {
                let id = entry.signed().hash();
                self.sent.retain(|(sent, _)| *sent != id);
            }
        }
        self.note = Some(note);
        self.root = note.note().log.root;
    }

    /// Keeps leaves as they lie in their file.
    fn hold(&mut self, leaves: &[Leaf<Signed<C>>]) {
        for leaf in leaves {
            let (before, at) = (self.tail.len(), self.len());
            if self.tail.capacity() - before < TAIL_ROOM {
                // Doubling would take twice what is needed.
                self.tail.reserve_exact(8 * TAIL_ROOM);
            }
            leaves::push(leaf, at, &mut self.tail);
            // Bounded by what a leaf and its body may have.
            self.lengths.push((self.tail.len() - before) as u32);
        }
    }

    /// Position of the first leaf of the floor. A device that began with a checkpoint does not have those before.
    pub fn first(&self) -> u64 {
        self.leaves.first()
    }

    /// Size of the log that the floor has.
    pub fn len(&self) -> u64 {
        self.leaves.len().saturating_add(self.lengths.len() as u64)
    }

    /// Whether it has no leaf.
    pub fn is_empty(&self) -> bool {
        self.len() == self.first()
    }

    /// Writes a record. It is durable after [`Disk::sync`], and survives the end of the process at once.
    ///
    /// # Errors
    /// [`DiskError`]; then nothing more can be written, and the device must start again.
    pub fn write<V>(&mut self, record: &Record<Signed<C>, V>) -> Result<(), DiskError>
    where
        V: Volume<Signed<C>>,
        V::Call: Keep,
    {
        match record {
            Record::Floor { leaves, note } => self.write_floor(leaves, *note)?,
            Record::Sent(Sent { entry, calls }) => {
                let item = Item::<C>::Sent {
                    entry: entry.clone(),
                    calls: calls
                        .iter()
                        .map(|call| Bytes::from(call.encode()))
                        .collect(),
                };
                let bytes = item.encode();
                self.append(&bytes)?;
                self.sent.push((entry.signed().hash(), bytes));
            }
            Record::Settled => {
                self.append(&Item::<C>::Settled.encode())?;
                self.sent.clear();
            }
        }
        if self.journal.len_bytes() > self.compact_at {
            self.compact_at = self.journal.len_bytes().saturating_add(self.compact_bytes);
            // The journal still has everything, so a full disk is no error yet.
            if let Err(error) = self.compact() {
                tracing::warn!(%error, "the journal of a shared volume stays long");
            }
        }
        Ok(())
    }

    /// Each leaf is encoded once, for its file and for the journal.
    fn write_floor(
        &mut self,
        leaves: &[Leaf<Signed<C>>],
        note: SignedNote,
    ) -> Result<(), DiskError> {
        let (from, tail, held) = (self.len(), self.tail.len(), self.lengths.len());
        self.hold(leaves);
        let mut rest = self.tail.get(tail..).unwrap_or_default();
        let contents = self.lengths.iter().skip(held).map(|length| {
            let (leaf, more) = rest.split_at_checked(*length as usize).unwrap_or_default();
            rest = more;
            leaves::content(leaf)
        });
        let item = item::encode_floor(from, contents, &note);
        if let Err(error) = self.append(&item) {
            // The floor has what the journal has.
            self.tail.truncate(tail);
            self.lengths.truncate(held);
            return Err(error);
        }
        self.met(leaves, note);
        Ok(())
    }

    fn append(&mut self, item: &[u8]) -> Result<(), DiskError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        if item.len() > item::MAX_ITEM_BYTES {
            return Err(damaged(&self.path, "a record would be too long"));
        }
        let deadline = Instant::now() + PATIENCE;
        for record in item::cut(item, state::journal::MAX_RECORD_BYTES) {
            let written = self.journal.append_blocking(deadline, &record);
            written.map_err(|error| self.broken_by(error.into()))?;
        }
        Ok(())
    }

    fn broken_by(&mut self, error: DiskError) -> DiskError {
        self.broken = Some(error.clone());
        error
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn sync(&mut self) -> Result<(), DiskError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let synced = self.journal.sync_blocking(Instant::now() + PATIENCE);
        synced.map_err(|error| self.broken_by(error.into()))
    }

    /// Moves the journal's leaves to their file, and makes the journal short.
    fn compact(&mut self) -> Result<(), DiskError> {
        self.leaves.append(&self.tail, &self.lengths)?;
        self.tail.clear();
        self.lengths.clear();
        let base = Item::<C>::Base(Base {
            first: self.leaves.first(),
            leaves: self.leaves.len(),
            bytes: self.leaves.end(),
            root: self.root,
            note: self.note,
        });
        let base = base.encode();
        let items = std::iter::once(&base).chain(self.sent.iter().map(|(_, item)| item));
        let records = items.flat_map(|item| item::cut(item, state::journal::MAX_RECORD_BYTES));
        let records: Vec<Vec<u8>> = records.collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let rewritten = self.journal.rewrite(Instant::now() + PATIENCE, &records);
        // The journal may be the old one or the new one. Both are right on disk; which one, only a new start knows.
        rewritten.map_err(|error| self.broken_by(error.into()))?;
        self.compact_at = self
            .compact_bytes
            .max(self.journal.len_bytes().saturating_mul(2));
        Ok(())
    }

    /// Moves all leaves to their file, durably, and returns where they lie in it. Call it before a snapshot is written: a
    /// snapshot must never have more than the floor that a power cut leaves.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn settle(&mut self) -> Result<&Span, DiskError> {
        if !self.lengths.is_empty() {
            self.compact()?;
        }
        Ok(self.leaves.span())
    }

    /// Root of the log that the floor has.
    pub fn root(&self) -> [u8; 32] {
        self.root
    }

    /// Whether every entry that was sent is in the log, or will never be.
    pub fn is_settled(&self) -> bool {
        self.sent.is_empty()
    }
}
