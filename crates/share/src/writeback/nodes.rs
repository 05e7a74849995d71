//! The files that a kernel knows, and their numbers.
//!
//! A number is the beginning of a keyed hash of the file's identity: the same after the kernel forgot it, and in the next
//! mount. Two live files never share one. A node leaves the table when the kernel has forgotten it and nothing has it open.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trust::inode::{Inode, Time};
use trust_shared::principal::{FileId, Name};

use super::cached::Cached;
use super::effect::Kinds;
use crate::files::{File, MAX_PLACE_NAMES};

/// The number of the mount's root, given by the protocol.
pub const ROOT: u64 = 1;

/// A file that the kernel knows, or that is open or changed.
pub struct Node<K: Kinds> {
    number: u64,
    id: FileId,
    /// Where it was found last: its directory and its name there.
    place: Mutex<Option<(Arc<Node<K>>, Name)>>,
    /// The count of look-ups when it was found last.
    found_at: AtomicU64,
    cached: Mutex<Cached<K>>,
    /// The version that the last OPEN showed.
    opened: Mutex<Option<Version>>,
}

/// What makes the kernel read a file again: length, time of modification, ctime.
type Version = (u64, Time, Option<Time>);

fn version(inode: &Inode) -> Version {
    (inode.size, inode.mtime, inode.ctime)
}

impl<K: Kinds> fmt::Debug for Node<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Node");
        shown.field("number", &self.number).field("id", &self.id);
        shown.finish_non_exhaustive()
    }
}

impl<K: Kinds> Node<K> {
    /// The number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Its newest version, and what is changed of it here.
    pub fn cached(&self) -> MutexGuard<'_, Cached<K>> {
        lock(&self.cached)
    }

    /// An OPEN shows the file as programs see it now. Gives whether the last one showed the same: then the kernel has
    /// learnt of this version since.
    pub fn shows_same_as_last_open(&self) -> bool {
        let shown = version(&self.cached().shown());
        lock(&self.opened).replace(shown) == Some(shown)
    }

    /// The count of look-ups when it was found last.
    pub fn found_at(&self) -> u64 {
        self.found_at.load(Ordering::Relaxed)
    }

    /// Where it was found last. None for the root.
    pub fn place(&self) -> Option<(Arc<Node<K>>, Name)> {
        lock(&self.place).clone()
    }

    /// The directory and names from the root to it, as they were found last. None if it is nested in itself.
    pub fn path(&self) -> Option<Vec<Name>> {
        let mut names = Vec::new();
        let mut at = self.place();
        while let Some((parent, name)) = at {
            if names.len() >= MAX_PLACE_NAMES {
                return None;
            }
            names.push(name);
            at = parent.place();
        }
        names.reverse();
        Some(names)
    }

    /// The path for people.
    pub fn shown(&self) -> String {
        let names = self.path().unwrap_or_default();
        let names: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
        trust::text::printable(&names.join(&b'/'))
    }

    fn set_place(&self, parent: &Arc<Node<K>>, name: &Name) {
        if self.number != ROOT && parent.number != self.number {
            *lock(&self.place) = Some((parent.clone(), name.clone()));
        }
    }
}

/// Threads whose OPEN was answered by ESTALE, with the count of look-ups then and the number of the file.
pub(super) type Stale = HashMap<u32, (u64, u64)>;

/// The files that the kernel knows.
pub struct Nodes<K: Kinds> {
    key: [u8; 32],
    lookups: AtomicU64,
    table: Mutex<Table<K>>,
    pub(super) stale: Mutex<Stale>,
}

struct Table<K: Kinds> {
    nodes: HashMap<u64, Entry<K>>,
    numbers: HashMap<FileId, u64>,
}

struct Entry<K: Kinds> {
    node: Arc<Node<K>>,
    /// How often the kernel was given the number.
    lookups: u64,
    /// Open descriptions, and changes that are on their way.
    uses: u64,
}

impl<K: Kinds> Nodes<K> {
    /// Knows only the root. `key` is the volume's id.
    pub fn new(key: [u8; 32], root: File) -> Nodes<K> {
        let nodes = Nodes {
            key,
            lookups: AtomicU64::new(0),
            table: Mutex::new(Table {
                nodes: HashMap::new(),
                numbers: HashMap::new(),
            }),
            stale: Mutex::default(),
        };
        {
            let mut table = lock(&nodes.table);
            let id = root.id;
            let node = Arc::new(Node {
                number: ROOT,
                id,
                place: Mutex::default(),
                found_at: AtomicU64::new(0),
                cached: Mutex::new(Cached::new(root.inode, 0)),
                opened: Mutex::default(),
            });
            table.numbers.insert(id, ROOT);
            let entry = Entry {
                node,
                lookups: 1,
                uses: 0,
            };
            table.nodes.insert(ROOT, entry);
        }
        nodes
    }

    /// The file with a number, which the kernel must have been given.
    pub fn get(&self, number: u64) -> Option<Arc<Node<K>>> {
        let table = lock(&self.table);
        table.nodes.get(&number).map(|entry| entry.node.clone())
    }

    /// The node of a file, if the kernel was given its number.
    pub fn of(&self, id: &FileId) -> Option<Arc<Node<K>>> {
        let table = lock(&self.table);
        let number = table.numbers.get(id)?;
        table.nodes.get(number).map(|entry| entry.node.clone())
    }

    /// All nodes.
    pub fn all(&self) -> Vec<Arc<Node<K>>> {
        let table = lock(&self.table);
        let nodes = table.nodes.values().map(|entry| entry.node.clone());
        nodes.collect()
    }

    /// A file was found after a prefix of the log, at a place, and the kernel is told its number.
    pub fn found(&self, file: File, at: u64, place: (&Arc<Node<K>>, &Name)) -> Arc<Node<K>> {
        let mut table = lock(&self.table);
        let number = table.number(&self.key, &file.id);
        let entry = table.nodes.entry(number).or_insert_with(|| Entry {
            node: Arc::new(Node {
                number,
                id: file.id,
                place: Mutex::default(),
                found_at: AtomicU64::new(0),
                cached: Mutex::new(Cached::new(file.inode.clone(), at)),
                opened: Mutex::default(),
            }),
            lookups: 0,
            uses: 0,
        });
        entry.lookups += 1;
        let node = entry.node.clone();
        table.numbers.insert(file.id, number);
        drop(table);
        node.cached().see(&file.inode, at);
        node.set_place(place.0, place.1);
        let count = self.lookups.fetch_add(1, Ordering::Relaxed) + 1;
        node.found_at.store(count, Ordering::Relaxed);
        node
    }

    /// A file was moved to a place.
    pub fn moved(&self, id: &FileId, place: (&Arc<Node<K>>, &Name)) {
        if let Some(node) = self.of(id) {
            node.set_place(place.0, place.1);
        }
    }

    /// How many files were found so far.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// The number that a file has or would get.
    pub fn number_of(&self, id: &FileId) -> u64 {
        lock(&self.table).number(&self.key, id)
    }

    /// The kernel has dropped look-ups.
    pub fn forget(&self, number: u64, lookups: u64) {
        self.release(number, lookups, 0);
    }

    /// Something uses the file: it stays in the table.
    pub fn hold(&self, number: u64) {
        if let Some(entry) = lock(&self.table).nodes.get_mut(&number) {
            entry.uses += 1;
        }
    }

    /// Something that used the file does so no more.
    pub fn let_go(&self, number: u64) {
        self.release(number, 0, 1);
    }

    fn release(&self, number: u64, lookups: u64, uses: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.nodes.get_mut(&number) else {
            return;
        };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        entry.uses = entry.uses.saturating_sub(uses);
        if number != ROOT && entry.lookups == 0 && entry.uses == 0 {
            let id = entry.node.id;
            table.nodes.remove(&number);
            table.numbers.remove(&id);
        }
    }

    /// Files that the kernel or a program has.
    pub fn count(&self) -> usize {
        lock(&self.table).nodes.len()
    }

    /// Those of them that have local changes.
    pub fn changed(&self) -> Vec<Arc<Node<K>>> {
        let mut changed = self.all();
        changed.retain(|node| node.cached().local().is_some());
        changed
    }
}

impl<K: Kinds> Table<K> {
    fn number(&self, key: &[u8; 32], id: &FileId) -> u64 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(id.principal.as_bytes());
        hasher.update(&id.number.device.0.to_le_bytes());
        hasher.update(&id.number.counter.to_le_bytes());
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        let mut number = u64::from_le_bytes(bytes);
        // 0 is nobody's, 1 the root's.
        while number <= ROOT || self.nodes.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        number
    }
}

/// Locks, also after a thread has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
