//! Inode numbers, and the files that they stand for (SFSRO 3.4.2).
//!
//! A *directory* number stands for a path; at an update it is bound to the directory that the new version
//! has at that path. A *file* number stands for (path or hard-link set, content): equal files at two paths
//! are two files, and a file that is open while its path gets other content keeps its number, its inode and
//! its bytes. A number is the beginning of a keyed hash of the file's identity, so it is the same after an
//! update, after the kernel forgot it, and in the next mount; two live identities never share one. An entry
//! leaves the table when the kernel forgets the number.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trust::inode::{Content, FileContent, FileKind, Inode};

/// The number of the mount's root, given by the protocol.
pub const ROOT: u64 = 1;
const SHARDS: usize = 64;
/// Most looked-up names that are remembered for an opaque directory.
const MAX_SEEN_NAMES: usize = 1 << 16;

/// Hash of the file that a number stands for.
type Identity = [u8; 32];

/// A file or directory that the kernel knows.
#[derive(Debug)]
pub struct Node {
    number: u64,
    identity: Identity,
    parent: Option<Arc<Node>>,
    name: Box<[u8]>,
    kind: NodeKind,
}

#[derive(Debug)]
enum NodeKind {
    /// Anything but a directory. The inode may change, its content does not.
    File(Mutex<Arc<Inode>>),
    Directory {
        binding: Mutex<Binding>,
        /// Names that were looked up in an opaque directory.
        seen: Mutex<BTreeSet<Bytes>>,
        /// When it was used last, counted by the table.
        used: AtomicU64,
    },
}

impl NodeKind {
    fn directory(serial: u64, inode: Arc<Inode>) -> NodeKind {
        let inode = Some(inode);
        NodeKind::Directory {
            binding: Mutex::new(Binding { serial, inode }),
            seen: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }
}

/// The directory at a path in one version.
#[derive(Debug, Clone)]
pub struct Binding {
    /// Which version, counted by the mount.
    pub serial: u64,
    /// The directory; `None` if that version has none at the path.
    pub inode: Option<Arc<Inode>>,
}

impl Node {
    /// The file number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The directory in which it was looked up; `None` for the root.
    pub fn parent(&self) -> Option<&Arc<Node>> {
        self.parent.as_ref()
    }

    /// The name by which it was looked up.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The inode of anything but a directory.
    pub fn file(&self) -> Option<Arc<Inode>> {
        match &self.kind {
            NodeKind::File(inode) => Some(lock(inode).clone()),
            NodeKind::Directory { .. } => None,
        }
    }

    /// The directory that was last bound.
    pub fn binding(&self) -> Option<Binding> {
        match &self.kind {
            NodeKind::File(_) => None,
            NodeKind::Directory { binding, .. } => Some(lock(binding).clone()),
        }
    }

    /// Binds the directory that version `serial` has at this path, unless a later version was bound.
    pub fn bind(&self, serial: u64, inode: Option<Arc<Inode>>) {
        if let NodeKind::Directory { binding, .. } = &self.kind {
            let mut binding = lock(binding);
            if binding.serial <= serial {
                *binding = Binding { serial, inode };
            }
        }
    }

    /// Remembers that `name` was looked up in an opaque directory.
    pub fn saw(&self, name: &Bytes) {
        if let NodeKind::Directory { seen, .. } = &self.kind {
            let mut seen = lock(seen);
            if seen.len() < MAX_SEEN_NAMES {
                seen.insert(name.clone());
            }
        }
    }

    /// The names that were looked up in an opaque directory, sorted.
    pub fn seen(&self) -> Vec<Bytes> {
        match &self.kind {
            NodeKind::File(_) => Vec::new(),
            NodeKind::Directory { seen, .. } => lock(seen).iter().cloned().collect(),
        }
    }

    /// The path below the mount's root, names with `/` between them.
    pub fn bytes(&self) -> Vec<u8> {
        let line = std::iter::successors(Some(self), |node| node.parent.as_deref());
        let mut names: Vec<&[u8]> = line.map(|node| &*node.name).collect();
        // The root has no name.
        names.pop();
        names.reverse();
        names.join(&b'/')
    }

    /// The path from the mount's root, for people.
    pub fn path(&self) -> String {
        let mut names = Vec::new();
        let mut at = Some(self);
        while let Some(node) = at {
            names.push(String::from_utf8_lossy(&node.name).into_owned());
            at = node.parent.as_deref();
        }
        names.reverse();
        if names.len() == 1 {
            "/".to_owned()
        } else {
            names.join("/")
        }
    }
}

/// All nodes that the kernel knows.
#[derive(Debug)]
pub struct Nodes {
    key: [u8; 32],
    root: Arc<Node>,
    shards: Vec<Mutex<HashMap<u64, Slot>>>,
    /// Counts the uses of directories.
    uses: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    /// Look-ups that the kernel was given and has not forgotten.
    lookups: u64,
}

impl Nodes {
    /// An empty table for the volume whose id is `key`, with `root` as the root of version `serial`.
    pub fn new(key: [u8; 32], root: Arc<Inode>, serial: u64) -> Self {
        let root = Node {
            number: ROOT,
            identity: [0; 32],
            parent: None,
            name: Box::default(),
            kind: NodeKind::directory(serial, root),
        };
        Nodes {
            key,
            root: Arc::new(root),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            uses: AtomicU64::new(0),
        }
    }

    /// The node of a number that the kernel holds.
    pub fn get(&self, number: u64) -> Option<Arc<Node>> {
        if number == ROOT {
            return Some(self.root.clone());
        }
        lock(self.shard(number))
            .get(&number)
            .map(|slot| slot.node.clone())
    }

    /// The number that `inode` at `name` in `parent` has or would be given.
    pub fn number_of(&self, parent: &Node, name: &[u8], inode: &Inode) -> u64 {
        candidate(&self.identity(parent, name, inode), 0)
    }

    /// Counts one more look-up of `inode`, found as `name` in `parent` in version `serial`.
    pub fn enter(&self, parent: &Arc<Node>, name: &[u8], inode: Inode, serial: u64) -> Arc<Node> {
        let identity = self.identity(parent, name, &inode);
        let inode = Arc::new(inode);
        let mut turn = 0;
        loop {
            let number = candidate(&identity, turn);
            let mut shard = lock(self.shard(number));
            match shard.entry(number) {
                Entry::Vacant(vacant) => {
                    let node = node(number, identity, parent, name, inode, serial);
                    vacant.insert(Slot {
                        node: node.clone(),
                        lookups: 1,
                    });
                    return node;
                }
                Entry::Occupied(mut occupied) if occupied.get().node.identity == identity => {
                    let slot = occupied.get_mut();
                    slot.lookups = slot.lookups.saturating_add(1);
                    let node = slot.node.clone();
                    drop(shard);
                    match &node.kind {
                        NodeKind::File(old) => *lock(old) = inode,
                        NodeKind::Directory { .. } => node.bind(serial, Some(inode)),
                    }
                    return node;
                }
                Entry::Occupied(_) => turn += 1,
            }
        }
    }

    /// The kernel forgot `lookups` look-ups of a number.
    pub fn forget(&self, number: u64, lookups: u64) {
        let mut shard = lock(self.shard(number));
        if let Entry::Occupied(mut occupied) = shard.entry(number) {
            let slot = occupied.get_mut();
            slot.lookups = slot.lookups.saturating_sub(lookups);
            if slot.lookups == 0 {
                let slot = occupied.remove();
                // Dropping a node may drop its parents, which must not happen under the lock.
                drop(shard);
                drop(slot);
            }
        }
    }

    /// Every directory that the kernel knows, the root among them.
    pub fn directories(&self) -> Vec<Arc<Node>> {
        let mut found = vec![self.root.clone()];
        for shard in &self.shards {
            let shard = lock(shard);
            let directories = shard.values().map(|slot| &slot.node);
            found.extend(
                directories
                    .filter(|n| matches!(n.kind, NodeKind::Directory { .. }))
                    .cloned(),
            );
        }
        found
    }

    /// Notes that a directory is used now, for [`Nodes::in_use`].
    pub fn note_use(&self, node: &Node) {
        if let NodeKind::Directory { used, .. } = &node.kind {
            let now = self.uses.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            used.store(now, Ordering::Relaxed);
        }
    }

    /// The `most` directories that matter most to the user: those in `open` (by number) before the others, and then
    /// those that were used last. Never more memory than for `most`.
    pub fn in_use(&self, open: &HashSet<u64>, most: usize) -> Vec<Arc<Node>> {
        let mut first: BTreeMap<_, Arc<Node>> = BTreeMap::new();
        let mut offer = |node: &Arc<Node>| {
            let NodeKind::Directory { used, .. } = &node.kind else {
                return;
            };
            let used = used.load(Ordering::Relaxed);
            let rank = Reverse((open.contains(&node.number), used, node.number));
            let is_better = first.last_key_value().is_none_or(|(last, _)| rank < *last);
            if is_better || first.len() < most {
                first.insert(rank, node.clone());
            }
            if first.len() > most {
                first.pop_last();
            }
        };
        offer(&self.root);
        for shard in &self.shards {
            lock(shard).values().for_each(|slot| offer(&slot.node));
        }
        first.into_values().collect()
    }

    /// How many numbers the kernel holds, without the root.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether the kernel holds nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Slot>> {
        // The remainder is below the number of shards, which is not zero.
        &self.shards[(number % SHARDS as u64) as usize]
    }

    fn identity(&self, parent: &Node, name: &[u8], inode: &Inode) -> Identity {
        let mut hash = blake3::Hasher::new_keyed(&self.key);
        match (inode.kind(), &inode.link_group) {
            (FileKind::Directory, _) => {
                hash.update(b"d").update(&parent.identity).update(name);
                return *hash.finalize().as_bytes();
            }
            (_, Some(group)) => hash.update(b"g").update(group),
            (_, None) => {
                let length = [name.len().min(255) as u8];
                hash.update(b"p")
                    .update(&parent.identity)
                    .update(&length)
                    .update(name)
            }
        };
        update_content(&mut hash, &inode.content);
        *hash.finalize().as_bytes()
    }
}

fn node(
    number: u64,
    identity: Identity,
    parent: &Arc<Node>,
    name: &[u8],
    inode: Arc<Inode>,
    serial: u64,
) -> Arc<Node> {
    let kind = match inode.kind() {
        FileKind::Directory => NodeKind::directory(serial, inode),
        _ => NodeKind::File(Mutex::new(inode)),
    };
    Arc::new(Node {
        number,
        identity,
        parent: Some(parent.clone()),
        name: name.into(),
        kind,
    })
}

/// Adds the content: two versions of a path are one file only if it is equal.
fn update_content(hash: &mut blake3::Hasher, content: &Content) {
    match content {
        Content::Regular(FileContent::Empty) => hash.update(b"e"),
        Content::Regular(FileContent::Inline(bytes)) => hash.update(b"i").update(bytes),
        Content::Regular(FileContent::Array(root)) => hash
            .update(b"a")
            .update(&root.len.to_le_bytes())
            .update(&[root.height])
            .update(&root.top),
        Content::Symlink(target) => hash.update(b"l").update(target),
        Content::CharDevice { major, minor } => hash
            .update(b"c")
            .update(&major.to_le_bytes())
            .update(&minor.to_le_bytes()),
        Content::BlockDevice { major, minor } => hash
            .update(b"b")
            .update(&major.to_le_bytes())
            .update(&minor.to_le_bytes()),
        Content::Fifo => hash.update(b"f"),
        Content::Socket => hash.update(b"s"),
        Content::Directory { .. } => hash.update(b"d"),
    };
}

/// The number to try at attempt `turn`; never 0 or the root's.
fn candidate(identity: &Identity, turn: u64) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&identity[..8]);
    // Candidates lie far apart, so that one collision does not lead to another.
    let number = u64::from_le_bytes(first).wrapping_add(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    if number <= ROOT {
        number.wrapping_add(2)
    } else {
        number
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use trust::inode::Time;

    use super::*;

    fn file(text: &'static str) -> Inode {
        let content = FileContent::Inline(Bytes::from_static(text.as_bytes()));
        Inode::new(0o644, Time::default(), Content::Regular(content))
    }

    fn directory() -> Inode {
        let content = Content::Directory {
            map: None,
            opaque: false,
        };
        Inode::new(0o755, Time::default(), content)
    }

    fn nodes() -> (Nodes, Arc<Node>) {
        let nodes = Nodes::new([7; 32], Arc::new(directory()), 1);
        let root = nodes.get(ROOT).unwrap();
        (nodes, root)
    }

    #[test]
    fn equal_files_at_two_paths_are_two_files() {
        let (nodes, root) = nodes();
        let a = nodes.enter(&root, b"a", file("same"), 1);
        let b = nodes.enter(&root, b"b", file("same"), 1);
        assert_ne!(a.number(), b.number());
    }

    #[test]
    fn hard_links_are_one_file_for_each_content() {
        let (nodes, root) = nodes();
        let linked = |text| Inode {
            links: 2,
            link_group: Some([1; 16]),
            ..file(text)
        };
        let a = nodes.enter(&root, b"a", linked("one"), 1);
        let b = nodes.enter(&root, b"b", linked("one"), 1);
        assert_eq!(a.number(), b.number());
        let later = nodes.enter(&root, b"a", linked("two"), 2);
        assert_ne!(a.number(), later.number());
    }

    #[test]
    fn an_update_keeps_the_old_bytes_under_the_old_number() {
        let (nodes, root) = nodes();
        let old = nodes.enter(&root, b"f", file("old"), 1);
        let new = nodes.enter(&root, b"f", file("new"), 2);
        assert_ne!(old.number(), new.number());
        assert_eq!(old.file().unwrap().content, file("old").content);
        let touched = Inode {
            mode: 0o600,
            ..file("new")
        };
        let again = nodes.enter(&root, b"f", touched, 3);
        assert_eq!(again.number(), new.number());
        assert_eq!(new.file().unwrap().mode, 0o600);
    }

    #[test]
    fn a_directory_keeps_its_number_and_is_bound_forward_only() {
        let (nodes, root) = nodes();
        let d = nodes.enter(&root, b"d", directory(), 2);
        let again = nodes.enter(
            &root,
            b"d",
            Inode {
                mode: 0o700,
                ..directory()
            },
            3,
        );
        assert_eq!(d.number(), again.number());
        d.bind(2, None);
        assert_eq!(d.binding().unwrap().inode.unwrap().mode, 0o700);
    }

    #[test]
    fn nodes_leave_the_table_when_all_look_ups_are_forgotten() {
        let (nodes, root) = nodes();
        let number = nodes.enter(&root, b"f", file("x"), 1).number();
        nodes.enter(&root, b"f", file("x"), 1);
        nodes.forget(number, 1);
        assert!(nodes.get(number).is_some());
        nodes.forget(number, 1);
        assert!(nodes.get(number).is_none() && nodes.is_empty());
        assert_eq!(
            nodes.enter(&root, b"f", file("x"), 1).number(),
            number,
            "stable"
        );
        nodes.forget(ROOT, 99);
        assert!(nodes.get(ROOT).is_some());
    }

    #[test]
    fn open_directories_come_first_then_those_used_last() {
        let (nodes, root) = nodes();
        let names: Vec<String> = (0..100).map(|i| format!("d{i}")).collect();
        let entered = names
            .iter()
            .map(|name| nodes.enter(&root, name.as_bytes(), directory(), 1));
        let all: Vec<Arc<Node>> = entered.collect();
        let deep = nodes.enter(&all[3], b"deep", directory(), 1);
        nodes.enter(&root, b"file", file("x"), 1);
        nodes.note_use(&deep);
        nodes.note_use(&all[7]);
        let in_use = |open: &[&Arc<Node>], most| -> Vec<u64> {
            let open = open.iter().map(|node| node.number()).collect();
            nodes
                .in_use(&open, most)
                .iter()
                .map(|node| node.number())
                .collect()
        };
        let numbers =
            |nodes: &[&Arc<Node>]| -> Vec<u64> { nodes.iter().map(|n| n.number()).collect() };
        assert_eq!(in_use(&[], 2), numbers(&[&all[7], &deep]));
        assert_eq!(in_use(&[&all[50]], 3), numbers(&[&all[50], &all[7], &deep]));
        assert_eq!(in_use(&[&all[50], &deep], 2), numbers(&[&deep, &all[50]]));
        assert_eq!(in_use(&[], 0), [0u64; 0]);
        assert_eq!(
            in_use(&[], 1000).len(),
            102,
            "all directories, with the root"
        );
    }

    #[test]
    fn a_collision_gets_the_next_number() {
        let identity = [0; 32];
        assert!(candidate(&identity, 0) > ROOT);
        assert_ne!(candidate(&identity, 0), candidate(&identity, 1));
    }

    #[test]
    fn paths_in_logs_are_printable() {
        let (nodes, root) = nodes();
        let d = nodes.enter(&root, b"d", directory(), 1);
        let f = nodes.enter(&d, b"f", file("x"), 1);
        assert_eq!((root.path().as_str(), f.path().as_str()), ("/", "/d/f"));
        assert_eq!((root.bytes(), f.bytes()), (b"".to_vec(), b"d/f".to_vec()));
    }
}
