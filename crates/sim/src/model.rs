//! A simple publisher in memory: the reference for tests of readers, honest or malformed.
//!
//! It keeps a volume's records in memory, signs heads with one key, and lets a test store any bytes in the
//! place of correct ones. Only `trust` is shared with the real pipeline.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use trust::array::{self, ArrayRoot, Extent};
use trust::frame::Packer;
use trust::head::{Head, first_log};
use trust::history::leaf_hash;
use trust::inode::{Content, Entry, FileContent, Inode, Time};
use trust::key::SecretKey;
use trust::map::{self, MapRoot};
use trust::policy::{Genesis, Last, Revocation, Roles, Successor};
use trust::root::{RootRecord, Totals};
use trust::statement::{Signed, VolumeId};
use trust::tiles::{Edge, TileName};
use trust::version_name::VersionName;
use trust::{BlockKind, Handle, Hasher, InodeBlock, Kind, MapNode, Record, Reject};

/// A volume being made.
pub struct Model {
    key: SecretKey,
    genesis: Genesis,
    hasher: Hasher,
    packer: Packer,
    last: Option<Head>,
    /// The statements of the log.
    leaves: Vec<Bytes>,
    version: u64,
    /// Every policy so far, genesis first.
    pub policies: Vec<Signed>,
    /// The totals of every directory made so far.
    held: HashMap<Handle<MapNode>, Held>,
    /// Every record made so far, in order.
    pub records: Vec<Record>,
}

impl Model {
    /// A new volume; `seed` makes it another one.
    ///
    /// # Errors
    /// None in practice.
    pub fn new(seed: u8) -> Result<Model, Reject> {
        let key = SecretKey::from_seed(&[seed; 32]);
        let roles = Roles::single(key.public());
        let genesis = Genesis::new("model", [seed; 32], [seed ^ 0xff; 32], roles)?;
        let genesis_signed = genesis.statement().sign(&[&key]);
        let leaf = genesis_signed.statement().bytes().clone();
        Ok(Model {
            hasher: genesis.hasher(),
            key,
            genesis,
            packer: Packer::new(),
            last: None,
            leaves: vec![leaf],
            version: 0,
            policies: vec![genesis_signed.clone()],
            held: HashMap::new(),
            records: Vec::new(),
        })
    }

    /// The volume's id.
    pub fn id(&self) -> VolumeId {
        self.genesis.volume_id()
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// Stores any bytes as a block of kind `K`.
    ///
    /// # Errors
    /// When they are over 1 MiB.
    pub fn block<K: BlockKind>(&mut self, plain: &[u8]) -> Result<Handle<K>, Reject> {
        let handle: Handle<K> = self.hasher.handle(plain);
        let frame = self.packer.pack(K::KIND, plain)?;
        self.records.push(Record {
            handle: handle.any(),
            frame,
        });
        Ok(handle)
    }

    /// An array tree of `content` in blocks of `block_bytes`.
    ///
    /// # Errors
    /// None for honest arguments.
    pub fn array(
        &mut self,
        content: &[u8],
        block_bytes: usize,
    ) -> Result<Option<ArrayRoot>, Reject> {
        let mut extents = Vec::new();
        for chunk in content.chunks(block_bytes) {
            let handle = self.block::<trust::Data>(chunk)?;
            extents.push(Extent::Data {
                handle,
                len: chunk.len() as u32,
            });
        }
        self.extents(&extents)
    }

    /// An array tree of any extents.
    ///
    /// # Errors
    /// When the builder refuses them.
    pub fn extents(&mut self, extents: &[Extent]) -> Result<Option<ArrayRoot>, Reject> {
        let mut nodes = Vec::new();
        let mut builder = array::Builder::new(&self.hasher, |_, bytes: &Bytes| {
            nodes.push(bytes.clone());
        });
        for extent in extents {
            builder.push(*extent)?;
        }
        let root = builder.finish()?;
        for node in nodes {
            self.block::<trust::ArrayNode>(&node)?;
        }
        Ok(root)
    }

    /// The inode of a regular file.
    ///
    /// # Errors
    /// None for honest arguments.
    pub fn file(&mut self, content: &[u8], block_bytes: usize) -> Result<Inode, Reject> {
        let content = match content.len() {
            0 => FileContent::Empty,
            n if n <= 256 => FileContent::Inline(Bytes::copy_from_slice(content)),
            _ => match self.array(content, block_bytes)? {
                Some(root) => FileContent::Array(root),
                None => FileContent::Empty,
            },
        };
        Ok(inode(0o644, Content::Regular(content)))
    }

    /// A map tree of directory entries, which are sorted here.
    ///
    /// # Errors
    /// When two have one name.
    pub fn map(&mut self, mut entries: Vec<(Vec<u8>, Inode)>) -> Result<Option<MapRoot>, Reject> {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut nodes = Vec::new();
        let hasher = self.hasher.clone();
        let mut builder = map::Builder::new(&hasher, [0; 16], |_, bytes: &Bytes| {
            nodes.push(bytes.clone());
        });
        let mut large = Vec::new();
        for (name, inode) in &entries {
            let (value, block) = Entry::place(name, inode, &hasher);
            builder.push(name, &value)?;
            large.extend(block);
        }
        let root = builder.finish()?;
        if let Some(root) = &root {
            let mut held = Held::default();
            for (_, inode) in &entries {
                held.add(&self.held, inode);
            }
            self.held.insert(root.handle, held);
        }
        for node in nodes {
            self.block::<MapNode>(&node)?;
        }
        for (_, bytes) in large {
            self.block::<InodeBlock>(&bytes)?;
        }
        Ok(root)
    }

    /// The inode of a directory.
    ///
    /// # Errors
    /// As [`Model::map`].
    pub fn directory(&mut self, entries: Vec<(Vec<u8>, Inode)>) -> Result<Inode, Reject> {
        let map = self.map(entries)?;
        Ok(inode(0o755, Content::Directory { map, opaque: false }))
    }

    /// The inode of a directory with these names, in order, and any bytes as their entries.
    ///
    /// # Errors
    /// When the names are not in order, or an entry is too long.
    pub fn directory_of_values(&mut self, entries: &[(&[u8], Vec<u8>)]) -> Result<Inode, Reject> {
        let mut nodes = Vec::new();
        let hasher = self.hasher.clone();
        let mut builder = map::Builder::new(&hasher, [0; 16], |_, bytes: &Bytes| {
            nodes.push(bytes.clone());
        });
        for (name, value) in entries {
            builder.push(name, value)?;
        }
        let map = builder.finish()?;
        for node in nodes {
            self.block::<MapNode>(&node)?;
        }
        Ok(inode(0o755, Content::Directory { map, opaque: false }))
    }

    /// Signs `root` as the next version and gives back its head.
    ///
    /// # Errors
    /// None for honest arguments.
    pub fn publish(&mut self, root: &Inode, start: u64, duration: u64) -> Result<Bytes, Reject> {
        let totals = self.totals(root);
        let root = self.block::<InodeBlock>(&root.encode())?;
        self.publish_handle(root, start, duration, |record| record.totals = totals)
    }

    /// The totals of a tree, as far as it was made here.
    pub fn totals(&self, root: &Inode) -> Totals {
        let mut held = Held::default();
        held.add(&self.held, root);
        for (_, bytes) in held.linked {
            held.totals.bytes = held.totals.bytes.saturating_add(bytes);
        }
        held.totals
    }

    /// Signs any record: `spoil` may change it before it is signed.
    ///
    /// # Errors
    /// None for honest arguments.
    pub fn publish_handle(
        &mut self,
        root: Handle<InodeBlock>,
        start: u64,
        duration: u64,
        spoil: impl FnOnce(&mut RootRecord),
    ) -> Result<Bytes, Reject> {
        let (log, frontier) = match &self.last {
            None => first_log(&self.policies[0])?,
            Some(head) => head.next_log(self.id())?,
        };
        let policies = match &self.last {
            None => self.policies[..1].to_vec(),
            Some(head) => head.policies.clone(),
        };
        let (number, newest) = self.newest_policy();
        let policy_hash = newest.hash();
        self.version += 1;
        let mut record = RootRecord {
            version: self.version,
            start,
            duration,
            root,
            totals: Totals::default(),
            policy_number: number,
            policy_hash,
            log,
            mirrors: Vec::new(),
        };
        spoil(&mut record);
        let head = Head {
            policies,
            record: record.statement(self.id()).sign(&[&self.key]),
            timestamp: None,
            checkpoint: None,
            frontier,
            later_log: None,
        };
        let bytes = head.encode()?;
        self.leaves.truncate(head.frontier.size() as usize);
        self.leaves.push(head.record.statement().bytes().clone());
        self.last = Some(head);
        Ok(bytes.into())
    }

    /// Gives the last version a name, in the place of the record without one. Returns its head.
    ///
    /// # Errors
    /// [`Reject::NotPinned`] before the first version; none for honest arguments.
    pub fn name_last(&mut self, name: &VersionName) -> Result<Bytes, Reject> {
        let id = self.id();
        let last = self.last.as_mut();
        let last = last.ok_or(Reject::NotPinned("nothing is published"))?;
        let record: RootRecord = last.record.statement().read(id)?;
        last.record = record.named_statement(id, Some(name)).sign(&[&self.key]);
        self.leaves.pop();
        self.leaves.push(last.record.statement().bytes().clone());
        Ok(last.encode()?.into())
    }

    fn newest_policy(&self) -> (u64, &Signed) {
        match &self.last {
            Some(head) => (
                head.newest_policy(),
                &self.policies[head.newest_policy() as usize],
            ),
            None => (0, &self.policies[0]),
        }
    }

    /// The next policy, with the same key for all roles; `spoil` may change it before it is signed. Returns the head
    /// of the last version under it.
    ///
    /// # Errors
    /// [`Reject::NotPinned`] before the first version; none for honest arguments.
    pub fn rotate(&mut self, spoil: impl FnOnce(&mut Successor)) -> Result<Bytes, Reject> {
        let (number, newest) = self.newest_policy();
        let previous = newest.hash();
        let none = Reject::NotPinned("nothing is published");
        let last = self.last.as_ref().ok_or(none)?;
        let mut successor = Successor {
            number: number + 1,
            previous,
            ..self.successor_with(last)?
        };
        spoil(&mut successor);
        let signed = successor.statement(self.id()).sign(&[&self.key]);
        let head = last.rotated(signed.clone())?;
        let bytes = head.encode()?;
        self.leaves.push(signed.statement().bytes().clone());
        self.policies.truncate(number as usize + 1);
        self.policies.push(signed);
        self.last = Some(head);
        Ok(bytes.into())
    }

    /// The first successor of the genesis, with the same key for all roles and the record of `last` as last.
    fn successor_with(&self, last: &Head) -> Result<Successor, Reject> {
        let record: RootRecord = last.record.statement().read(self.id())?;
        Ok(Successor {
            number: 1,
            previous: self.policies[0].hash(),
            not_after: u64::MAX,
            log_epoch: 0,
            roles: Roles::single(self.key.public()),
            last: Some(Last {
                version: record.version,
                record_hash: last.record.hash(),
                log: last.next_log(self.id())?.0,
            }),
            lower: false,
            revoked: None,
            refused: Vec::new(),
        })
    }

    /// The head that owners make after a publisher's key was stolen: a policy with the same keys that goes
    /// back to the record of `last`, or ends the volume. It comes with the record of `shown`.
    ///
    /// # Errors
    /// None for heads of this volume.
    pub fn succeed(&self, last: &Bytes, shown: &Bytes, revokes: bool) -> Result<Bytes, Reject> {
        let last = Head::decode(last)?;
        let successor = Successor {
            lower: true,
            revoked: revokes.then_some(Revocation { successor: None }),
            ..self.successor_with(&last)?
        };
        let mut head = Head::decode(shown)?;
        let successor = successor.statement(self.id()).sign(&[&self.key]);
        head.policies.push(successor);
        Ok(head.encode()?.into())
    }

    /// The tiles of the log, as a replica that saw every version keeps them.
    ///
    /// # Errors
    /// None in practice.
    pub fn tiles(&self) -> Result<Vec<(TileName, Vec<u8>)>, Reject> {
        let (mut edge, mut tiles) = (Edge::new(), Vec::new());
        for leaf in &self.leaves {
            edge.push(leaf_hash(leaf), &mut tiles)?;
            tiles.extend(edge.tiles());
        }
        Ok(tiles)
    }

    /// Forgets the last version, so that the next one contradicts it.
    pub fn fork(&mut self, before: Option<&Bytes>) -> Result<(), Reject> {
        self.last = before.map(|bytes| Head::decode(bytes)).transpose()?;
        self.version = self.version.saturating_sub(1);
        Ok(())
    }
}

/// Totals below a directory. Files with several names are separate, because they count once in a volume.
#[derive(Default, Clone)]
struct Held {
    totals: Totals,
    linked: BTreeSet<([u8; 16], u64)>,
}

impl Held {
    fn add(&mut self, known: &HashMap<Handle<MapNode>, Held>, inode: &Inode) {
        let mut entry = Totals::of(inode);
        if let Some(group) = inode.link_group {
            self.linked.insert((group, entry.bytes));
            entry.bytes = 0;
        }
        self.totals.add(entry);
        if let Content::Directory { map: Some(map), .. } = &inode.content
            && let Some(below) = known.get(&map.handle)
        {
            self.totals.add(below.totals);
            self.linked.extend(&below.linked);
        }
    }
}

/// An inode with nothing optional.
pub fn inode(mode: u16, content: Content) -> Inode {
    Inode::new(
        mode,
        Time {
            seconds: 1_000_000_000,
            nanos: 7,
        },
        content,
    )
}

/// The kinds of the records, for tests that look for one.
pub fn of_kind(records: &[Record], kind: Kind) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |r| r.frame.kind() == kind)
}
