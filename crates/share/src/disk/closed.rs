//! The memory of a device that no engine has open: whether something of it was not sent to its end.

use std::path::Path;
use std::time::Instant;

use state::Journal;

use trust::device::DeviceKey;
use trust_shared::note::SignedNote;

use super::item::{Item, Join};
use super::leaves::{Leaves, Span};
use super::{DiskError, JOURNAL, LEAVES, Read, damaged};
use ordering::roster::{OpsCodec, Product};
use ordering::scheme::{Leaf, Scheme};
use ordering::signed::Entry;

/// Entries of a device in its memory that no engine has open: those of the log that it knew, and then those that were
/// sent, in their order. An entry that was sent and then ordered comes once. Waits for a process that has the memory
/// open, until the deadline.
///
/// # Errors
/// [`DiskError`].
pub fn own_entries(
    directory: &Path,
    deadline: Instant,
    device: DeviceKey,
) -> Result<Vec<Entry>, DiskError> {
    let path = directory.join(JOURNAL);
    let (_journal, read) = opened(&path, deadline)?;
    let mut own = Vec::new();
    let mut take = |leaf: Leaf<Product>| match leaf {
        Leaf::Entry(entry) if Product::author(&entry) == device => own.push(entry),
        _ => {}
    };
    if let Some(base) = read.base {
        let (known, all) = (Span::begin(base.first), (base.leaves, base.bytes));
        Leaves::open(&directory.join(LEAVES), known, all, &mut take)?;
    }
    let mut sent = Vec::new();
    for item in read.items {
        match item {
            Item::Floor { leaves, .. } => leaves.into_iter().for_each(&mut take),
            Item::Sent { entry, .. } => sent.push(entry),
            // What is settled was ordered, or its calls run again in other entries.
            Item::Settled => sent.clear(),
            Item::Base(_) => {}
        }
    }
    for entry in sent {
        if !own
            .iter()
            .any(|known| Product::id(known) == Product::id(&entry))
        {
            own.push(entry);
        }
    }
    Ok(own)
}

fn opened(path: &Path, deadline: Instant) -> Result<(Journal, Read<OpsCodec>), DiskError> {
    let mut read = Read::<OpsCodec> {
        base: None,
        items: Vec::new(),
        join: Join::default(),
        wrong: None,
    };
    let (journal, _) = Journal::open(path, deadline, |record| read.record(record))?;
    match read.wrong.take() {
        Some(why) => Err(damaged(path, why)),
        None => Ok((journal, read)),
    }
}

/// The log that a device remembers, to read leaves of it. No engine can open its files while this lives.
pub struct Remembered {
    leaves: Option<Leaves>,
    /// The first leaf that is in the journal, and all of them.
    from: u64,
    tail: Vec<Leaf<Product>>,
    notes: Vec<SignedNote>,
    _journal: Journal,
}

impl Remembered {
    /// Reads the memory of one epoch. Waits for a process that has it open, until the deadline.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(directory: &Path, deadline: Instant) -> Result<Remembered, DiskError> {
        let (journal, read) = opened(&directory.join(JOURNAL), deadline)?;
        let mut remembered = Remembered {
            leaves: None,
            from: 0,
            tail: Vec::new(),
            notes: Vec::new(),
            _journal: journal,
        };
        if let Some(base) = read.base {
            let (known, all) = (Span::begin(base.first), (base.leaves, base.bytes));
            let leaves = Leaves::open(&directory.join(LEAVES), known, all, |_: Leaf<Product>| ());
            remembered.leaves = Some(leaves?);
            remembered.from = base.leaves;
            remembered.notes.extend(base.note);
        }
        for item in read.items {
            if let Item::Floor { from, leaves, note } = item {
                if remembered.tail.is_empty() && remembered.leaves.is_none() {
                    remembered.from = from;
                }
                remembered.tail.extend(leaves);
                remembered.notes.push(note);
            }
        }
        Ok(remembered)
    }

    /// Number of leaves of the log.
    pub fn end(&self) -> u64 {
        self.from.saturating_add(self.tail.len() as u64)
    }

    /// A leaf, if the device has it. An entry may lack its body.
    pub fn leaf(&self, at: u64) -> Option<Leaf<Product>> {
        match at.checked_sub(self.from) {
            Some(behind) => self.tail.get(usize::try_from(behind).ok()?).cloned(),
            None => self.leaves.as_ref()?.get(at).ok()?,
        }
    }

    /// What the server has signed of this log, as far as the device keeps it.
    pub fn notes(&self) -> &[SignedNote] {
        &self.notes
    }
}

/// The files of a device, locked. No engine can open them while this lives.
#[derive(Debug)]
pub struct Closed {
    unsettled: usize,
    is_new: bool,
    size: u64,
    _journal: Journal,
}

impl Closed {
    /// Locks the files, and reads the journal. Waits for a process that has them open, until the deadline.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(directory: &Path, deadline: Instant) -> Result<Closed, DiskError> {
        let (journal, read) = opened(&directory.join(JOURNAL), deadline)?;
        let mut size = read.base.map_or(0, |base| base.leaves);
        let mut sent: Vec<[u8; 32]> = Vec::new();
        for item in &read.items {
            match item {
                Item::Sent { entry, .. } => sent.push(entry.signed().hash()),
                Item::Settled => sent.clear(),
                Item::Floor { from, leaves, .. } => {
                    size = from.saturating_add(leaves.len() as u64);
                    let entries = leaves.iter().filter_map(|leaf| match leaf {
                        Leaf::Entry(entry) => Some(entry.signed().hash()),
                        Leaf::Marks(_) => None,
                    });
                    let ordered: Vec<[u8; 32]> = entries.collect();
                    sent.retain(|hash| !ordered.contains(hash));
                }
                Item::Base(_) => {}
            }
        }
        Ok(Closed {
            is_new: read.base.is_none() && read.items.is_empty(),
            unsettled: sent.len(),
            size,
            _journal: journal,
        })
    }

    /// Whether the device has seen nothing of the log yet.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Number of leaves of the log that the device knows.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Entries that were sent, and of which this device does not know whether they have a place in the log.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }
}
