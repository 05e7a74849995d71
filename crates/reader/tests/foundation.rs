//! A small writable volume on `trust`, `store`, `state` and `reader` alone. It checks the rule that `share`
//! builds on these crates only.
//!
//! Two devices write one directory by turns. A device puts its blocks into the overlay, edits the
//! directory, reads its own work before any store has it, uploads the blocks, and signs the new root.
//! Each device keeps its floor in its own state directory and refuses a store that was set back.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::{Blocks, Expect, Fetch, Overlay, Position, Prefetcher, ReadError, Spawner, Tree, now};
use state::VolumeState;
use store::Replica;
use store::memory::MemoryStore;
use store::mirrors::Mirrors;
use trust::array::{self, Extent};
use trust::error::Class;
use trust::head::{Head, first_log};
use trust::inode::{Content, Entry, FileContent, Inode, Mtime};
use trust::judge::Terms;
use trust::key::SecretKey;
use trust::map::{self, MapRoot, Nodes};
use trust::policy::Genesis;
use trust::roles::Roles;
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::statement::{Signed, VolumeId};
use trust::{ArrayNode, Block, Data, Handle, InodeBlock, MapNode, Reject};

const NOW: u64 = 1_800_000_000;

fn soon() -> Fetch {
    Fetch::Until(Instant::now() + Duration::from_secs(10))
}

/// The key of the devices, and the policy that names it.
struct Keys {
    secret: SecretKey,
    genesis: Genesis,
    signed: Signed,
}

impl Keys {
    fn new() -> Keys {
        let secret = SecretKey::from_seed(&[3; 32]);
        let roles = Roles::single(secret.public());
        let genesis = Genesis::new("shared", [1; 32], [2; 32], roles).unwrap();
        let signed = genesis.statement().sign(&[&secret]);
        Keys {
            secret,
            genesis,
            signed,
        }
    }

    fn volume(&self) -> VolumeId {
        self.genesis.volume_id()
    }

    /// The statement of a root, after `last`.
    fn sign(&self, last: Option<&Head>, root: Handle<InodeBlock>) -> Head {
        let (version, (log, frontier)) = match last {
            None => (1, first_log(&self.signed).unwrap()),
            Some(head) => {
                let record: RootRecord = head.record.statement().read(self.volume()).unwrap();
                let next = head.next_log(self.volume()).unwrap();
                (record.version + 1, next)
            }
        };
        let record = RootRecord {
            version,
            start: NOW,
            duration: 3600,
            root,
            totals: Totals::default(),
            policy_number: 0,
            policy_hash: self.signed.hash(),
            log,
            mirrors: Vec::new(),
        };
        Head {
            policies: vec![self.signed.clone()],
            record: record.statement(self.volume()).sign(&[&self.secret]),
            timestamp: None,
            checkpoint: None,
            frontier,
            later_log: None,
        }
    }
}

/// The nodes of a directory that are in memory. Remembers a node that was missing, so that the caller
/// can fetch it and begin again.
struct NodesInMemory<'a> {
    blocks: &'a Blocks,
    missing: Cell<Option<Handle<MapNode>>>,
}

#[derive(Debug)]
enum EditError {
    Missing,
    Read(ReadError),
}

impl From<Reject> for EditError {
    fn from(why: Reject) -> Self {
        EditError::Read(ReadError::Malformed(why))
    }
}

impl Nodes for NodesInMemory<'_> {
    type Error = EditError;

    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, EditError> {
        match now(self.blocks.get(handle, Expect::Nothing, Fetch::Cached)) {
            Ok(node) => Ok(self
                .blocks
                .hasher()
                .check(handle, node.as_bytes().clone())?),
            Err(ReadError::NotCached) => {
                self.missing.set(Some(*handle));
                Err(EditError::Missing)
            }
            Err(error) => Err(EditError::Read(error)),
        }
    }
}

/// A device that reads and writes the volume.
struct Device<'a> {
    keys: &'a Keys,
    store: Arc<MemoryStore>,
    state: VolumeState,
    prefetcher: Arc<Prefetcher>,
    head: Option<Head>,
    root: Inode,
}

impl<'a> Device<'a> {
    fn new(keys: &'a Keys, store: &Arc<MemoryStore>, state: &Path) -> Device<'a> {
        let mirrors = Arc::new(Mirrors::new(vec![store.clone()]));
        let blocks = Blocks::new(keys.genesis.hasher(), mirrors, 8 << 20, None);
        let blocks = Arc::new(blocks.with_overlay(1 << 20));
        let content = Content::Directory {
            map: None,
            opaque: false,
        };
        Device {
            keys,
            store: store.clone(),
            state: VolumeState::at(state, &keys.volume()),
            prefetcher: Prefetcher::new(blocks, Spawner::none()),
            head: None,
            root: Inode::new(0o755, Mtime::default(), content),
        }
    }

    fn blocks(&self) -> &Blocks {
        self.prefetcher.blocks()
    }

    fn overlay(&self) -> &Overlay {
        self.blocks().overlay().unwrap()
    }

    /// Follows the newest head of the store, if the floor allows it.
    async fn follow(&mut self) -> Result<(), Reject> {
        let head = Head::decode(&self.store.head().await.unwrap())?;
        let root = self.adopt(&head)?;
        let tree = self.tree(&root).await;
        self.root = tree.root().as_ref().clone();
        self.head = Some(head);
        Ok(())
    }

    /// Judges a head by the floor, and keeps the floor that follows.
    fn adopt(&self, head: &Head) -> Result<Handle<InodeBlock>, Reject> {
        let locked = self
            .state
            .lock(Instant::now() + Duration::from_secs(5))
            .unwrap();
        let floor = locked.load().unwrap();
        let offer = floor.judge(head, &Terms::strict(NOW), &mut Signatures::default())?;
        locked.store(&floor.adopt(&offer)?).unwrap();
        Ok(offer.record.root)
    }

    async fn tree(&self, root: &Handle<InodeBlock>) -> Tree {
        Tree::open(self.prefetcher.clone(), root, soon())
            .await
            .unwrap()
    }

    /// Puts a file into the overlay and into the directory.
    async fn write(&mut self, name: &[u8], content: &[u8]) {
        let hasher = self.blocks().hasher().clone();
        let mut nodes = Vec::new();
        let mut builder = array::Builder::new(&hasher, |_, node: &Bytes| nodes.push(node.clone()));
        for chunk in content.chunks(4096) {
            let handle = self.overlay().put::<Data>(chunk).unwrap();
            let len = chunk.len() as u32;
            builder.push(Extent::Data { handle, len }).unwrap();
        }
        let array = builder.finish().unwrap().unwrap();
        for node in nodes {
            self.overlay().put::<ArrayNode>(&node).unwrap();
        }
        let content = Content::Regular(FileContent::Array(array));
        let file = Inode::new(0o644, Mtime::default(), content);
        let (value, block) = Entry::place(name, &file, &hasher);
        assert!(block.is_none(), "this inode is small");
        self.edit(name, Some(value)).await;
    }

    async fn remove(&mut self, name: &[u8]) {
        self.edit(name, None).await;
    }

    /// Changes one entry of the directory. The new nodes go into the overlay.
    async fn edit(&mut self, name: &[u8], value: Option<Vec<u8>>) {
        let Content::Directory { map: base, .. } = self.root.content else {
            panic!("the root is a directory");
        };
        let map = loop {
            let nodes = NodesInMemory {
                blocks: self.blocks(),
                missing: Cell::new(None),
            };
            let change = [(name, value.clone())];
            match self.try_edit(base.as_ref(), change, &nodes) {
                Ok(map) => break map,
                Err(EditError::Read(error)) => panic!("{error}"),
                Err(EditError::Missing) => {
                    let missing = nodes.missing.take().unwrap();
                    let get = self.blocks().get(&missing, Expect::Nothing, soon());
                    get.await.unwrap();
                }
            }
        };
        let opaque = false;
        self.root.content = Content::Directory { map, opaque };
    }

    fn try_edit(
        &self,
        base: Option<&MapRoot>,
        change: [(&[u8], Option<Vec<u8>>); 1],
        nodes: &NodesInMemory<'_>,
    ) -> Result<Option<MapRoot>, EditError> {
        let mut new = Vec::new();
        let hasher = self.blocks().hasher();
        let sink = |_, node: &Bytes| new.push(node.clone());
        let root = map::edit(hasher, base, change, nodes, sink)?;
        for node in new {
            self.overlay().put::<MapNode>(&node).unwrap();
        }
        Ok(root)
    }

    /// The root as it is now, which no store may have yet.
    fn root(&self) -> Handle<InodeBlock> {
        self.overlay().put(&self.root.encode()).unwrap()
    }

    async fn read(&self, name: &[u8]) -> Option<Vec<u8>> {
        let tree = self.tree(&self.root()).await;
        let file = tree.resolve(name, soon()).await.unwrap()?;
        let read = tree.read(&file, 0, 1 << 20, soon()).await.unwrap();
        Some(read.concat())
    }

    /// Stores the blocks of the overlay, then signs the root and publishes it to the other device.
    fn commit(&mut self) {
        let root = self.root();
        let mut after = Position::default();
        loop {
            let upload = self.overlay().upload(after, 16 << 10).unwrap();
            if upload.records.is_empty() {
                break;
            }
            let handles: Vec<Handle> = upload.records.iter().map(|r| r.handle).collect();
            for record in upload.records {
                self.store.insert(record);
            }
            self.blocks().stored(&handles);
            after = upload.next;
        }
        let head = self.keys.sign(self.head.as_ref(), root);
        self.adopt(&head).unwrap();
        self.store.set_head(head.encode().unwrap().into());
        self.head = Some(head);
    }
}

fn content(number: usize) -> Vec<u8> {
    format!("line of file {number}\n").repeat(500).into_bytes()
}

#[tokio::test]
async fn two_devices_share_a_directory_and_read_their_own_writes() {
    let keys = Keys::new();
    let store = Arc::new(MemoryStore::new("server"));
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = Device::new(&keys, &store, here.path());
    for number in 0..40 {
        let name = format!("file{number}");
        first.write(name.as_bytes(), &content(number)).await;
    }
    assert!(store.is_empty());
    assert_eq!(first.read(b"file7").await, Some(content(7)));
    first.commit();
    assert!(first.overlay().is_empty());

    let mut second = Device::new(&keys, &store, there.path());
    second.follow().await.unwrap();
    assert_eq!(second.read(b"file7").await, Some(content(7)));
    let before = store.len();
    second.write(b"file7", &content(700)).await;
    second.remove(b"file8").await;
    assert_eq!(second.read(b"file7").await, Some(content(700)));
    assert_eq!(second.read(b"file8").await, None);
    assert_eq!(store.len(), before, "nothing is stored before the commit");
    assert_eq!(first.read(b"file8").await, Some(content(8)));
    second.commit();

    first.follow().await.unwrap();
    assert_eq!(first.read(b"file7").await, Some(content(700)));
    assert_eq!(first.read(b"file8").await, None);
    assert_eq!(first.read(b"file9").await, Some(content(9)));
}

#[tokio::test]
async fn device_that_restarts_refuses_a_store_that_was_set_back() {
    let keys = Keys::new();
    let store = Arc::new(MemoryStore::new("server"));
    let directory = tempfile::tempdir().unwrap();
    let mut device = Device::new(&keys, &store, directory.path());
    device.write(b"a", &content(1)).await;
    device.commit();
    let old = store.head().await.unwrap();
    device.write(b"a", &content(2)).await;
    device.commit();

    let mut again = Device::new(&keys, &store, directory.path());
    again.follow().await.unwrap();
    assert_eq!(again.read(b"a").await, Some(content(2)));
    store.set_head(old);
    let refused = again.follow().await.unwrap_err();
    assert_eq!(refused.class(), Class::Rollback, "{refused}");
    let mut restarted = Device::new(&keys, &store, directory.path());
    let refused = restarted.follow().await.unwrap_err();
    assert_eq!(refused.class(), Class::Rollback, "{refused}");
}

/// The crates of this workspace that a manifest names and that are not below the reader.
fn forbidden(manifest: &str) -> Vec<&str> {
    let above = [
        "wire", "volume", "replica", "publish", "serve", "mount", "bulla", "sim",
    ];
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    let lines = dependencies.lines();
    let words = lines.filter_map(|line| line.split(['.', '=', ' ']).next());
    words.filter(|word| above.contains(word)).collect()
}

#[test]
fn reader_and_its_tests_depend_on_trust_store_and_state_alone() {
    let manifest = include_str!("../Cargo.toml");
    assert_eq!(forbidden(manifest), Vec::<&str>::new());
    let spoiled = format!("{manifest}wire.workspace = true\n");
    assert_eq!(forbidden(&spoiled), ["wire"]);
}
