//! `bulla verify`: fetches and proves every block of a tree, or of the part below one path.
//!
//! Relies on `snapshot` and [`reader::Blocks`], which check as they read. This file visits
//! everything once and compares the totals with the signed ones. Equal subtrees and equal blocks are
//! visited once, however often they occur: the work is bounded by the blocks that exist, even if a
//! publisher nests a tree in itself. Memory: at most 64 bytes a block, besides the cache.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::task::JoinSet;
use trust::array::{ArrayRoot, Child, Extent};
use trust::chain::MAX_POLICIES;
use trust::inode::{Content, FileContent, Inode, Xattrs};
use trust::root::Totals;
use trust::{ArrayNode, Data, Handle, MapNode, Reject};

use reader::{Expect, Fetch, ReadError, Reads};

use crate::error::VolumeError;
use crate::snapshot::Snapshot;
use crate::volume::Volume;
use crate::walk::{Step, Unlisted, Walk};

/// Most content of one task, bytes.
const BATCH_BYTES: u64 = 4 << 20;
/// Most blocks of one task.
const BATCH_BLOCKS: usize = 256;
/// Tasks at a time.
const TASKS: usize = 16;
/// Greatest depth of directories that is followed; only a tree made as an attack is deeper.
pub const MAX_DEPTH: usize = 2048;
/// Most damaged paths that are listed; more are only counted.
pub const MAX_DAMAGES_TOLD: usize = 1000;

/// How far a walk has come; read for a progress bar.
#[derive(Debug, Default)]
pub struct Tally {
    /// Files and other entries that are not directories.
    pub leaves: AtomicU64,
    /// Content, bytes.
    pub bytes: AtomicU64,
    /// All content that will be counted, bytes; 0 while it is not known.
    pub total_bytes: AtomicU64,
}

impl Tally {
    /// Counts files and bytes that are done.
    pub fn add(&self, leaves: u64, bytes: u64) {
        self.leaves.fetch_add(leaves, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What could not be proved.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The path that it belongs to (one of them).
    pub path: Bytes,
    /// Why not.
    pub why: ReadError,
}

/// What a verification found.
#[derive(Debug, Default)]
pub struct Report {
    /// What was counted. For a whole volume it is compared with the signed totals.
    pub totals: Totals,
    /// Distinct data blocks that were proved.
    pub data_blocks: u64,
    /// Their plaintext, bytes.
    pub data_bytes: u64,
    /// The first [`MAX_DAMAGES_TOLD`] damages.
    pub damages: Vec<Damage>,
    /// Number of all damages.
    pub damage_count: u64,
}

impl Report {
    /// The gravest damage: evidence of an attack beats an outage.
    pub fn gravest(&self) -> Option<&Damage> {
        self.damages.iter().max_by_key(|damage| damage.why.class())
    }

    fn damaged(&mut self, path: Bytes, why: ReadError) {
        self.damage_count = self.damage_count.saturating_add(1);
        // A graver damage is kept even if the list is full of outages.
        let graver = self
            .gravest()
            .is_none_or(|worst| why.class() > worst.why.class());
        if self.damages.len() < MAX_DAMAGES_TOLD {
            self.damages.push(Damage { path, why });
        } else if graver && let Some(last) = self.damages.last_mut() {
            *last = Damage { path, why };
        }
    }
}

/// Verifies the policies that each replica keeps beside its head, as a newcomer would.
async fn policies(volume: &Volume, report: &mut Report) {
    let Ok(histories) = volume.histories().await else {
        return;
    };
    for history in histories {
        let verified = history.verify_policies(volume.deadline()).await;
        if let Err(VolumeError::Read(why)) = verified {
            report.damaged(Bytes::new(), why);
        }
    }
}

/// Proves everything below `path` (which is `top`) in `snapshot`. For the whole volume (no path), also
/// proves that the totals are the signed ones.
///
/// # Errors
/// [`VolumeError::Expired`] when the statement ends meanwhile. What cannot be proved is not an error but
/// part of the report.
pub async fn verify(
    volume: &Arc<Volume>,
    snapshot: &Arc<Snapshot>,
    path: &[u8],
    top: &Inode,
    tally: &Arc<Tally>,
) -> Result<Report, VolumeError> {
    let mut walk = Visit {
        volume,
        snapshot,
        tally,
        report: Report::default(),
        known: HashMap::new(),
        linked: HashSet::new(),
        linked_bytes: 0,
        seen: HashSet::new(),
        batch: Batch::default(),
        tasks: JoinSet::new(),
    };
    walk.tree(Bytes::copy_from_slice(path), top).await;
    walk.send().await;
    while walk.settle_one().await {}
    let mut report = walk.report;
    report.totals.bytes = report.totals.bytes.saturating_add(walk.linked_bytes);
    if path.is_empty() && snapshot.policy() >= MAX_POLICIES as u64 {
        policies(volume, &mut report).await;
    }
    // Damaged parts are not walked, so with damage the totals differ anyway.
    let whole = path.is_empty() && report.damage_count == 0;
    if whole && report.totals != snapshot.record().totals {
        let why = Reject::BadTree {
            what: "volume",
            why: "it does not hold as much as its publisher signed",
        };
        report.damaged(Bytes::new(), ReadError::of_signed(why));
    }
    Ok(report)
}

/// Data blocks that are fetched together.
#[derive(Debug, Default)]
struct Batch {
    wanted: Vec<Wanted>,
    bytes: u64,
}

/// A data block, as long as its extent says, of the file at `path`.
#[derive(Debug)]
struct Wanted {
    handle: Handle<Data>,
    len: u32,
    path: Bytes,
}

/// The result of a task for its batch.
struct Proved {
    blocks: u64,
    bytes: u64,
    damages: Vec<Damage>,
}

struct Visit<'a> {
    volume: &'a Arc<Volume>,
    snapshot: &'a Arc<Snapshot>,
    tally: &'a Arc<Tally>,
    report: Report,
    /// Directories that are done, with their totals without the content of files with several names.
    known: HashMap<Handle<MapNode>, Totals>,
    /// Files with several names that were met: identity and size. If a publisher makes the names differ,
    /// one identity has several sizes.
    linked: HashSet<([u8; 16], u64)>,
    /// Their content.
    linked_bytes: u64,
    /// Data blocks and array nodes that were requested.
    seen: HashSet<[u8; 32]>,
    batch: Batch,
    tasks: JoinSet<Proved>,
}

impl Visit<'_> {
    fn how(&self) -> Fetch {
        Fetch::Until(self.volume.deadline())
    }

    async fn tree(&mut self, path: Bytes, top: &Inode) {
        if !matches!(top.content, Content::Directory { .. }) {
            self.report.totals = self.entry(&path, top).await;
            return;
        }
        self.attributes(&path, top).await;
        let snapshot = Arc::clone(self.snapshot);
        let mut walk = Walk::new(&snapshot, path, top.clone(), Reads::Everything);
        // Of the directories that are being visited.
        let mut open = vec![Totals::of(top)];
        loop {
            let step = match walk.next(|| self.how()).await {
                Ok(Some(step)) => step,
                Ok(None) => break,
                Err(Unlisted { path, why }) => {
                    self.report.damaged(path, why);
                    continue;
                }
            };
            let totals = match step {
                Step::Left { inode, .. } => {
                    let totals = open.pop().unwrap_or_default();
                    if let Some(handle) = directory_handle(&inode) {
                        self.known.insert(handle, totals);
                    }
                    totals
                }
                Step::Entry { path, inode, .. } => match inode.content {
                    Content::Directory { .. } => match self.directory(&path, &inode).await {
                        Some(totals) => totals,
                        None if walk.depth() >= MAX_DEPTH => {
                            self.too_deep(path);
                            continue;
                        }
                        None => {
                            open.push(Totals::of(&inode));
                            walk.enter(path, inode);
                            continue;
                        }
                    },
                    _ => self.entry(&path, &inode).await,
                },
            };
            match open.last_mut() {
                Some(parent) => parent.add(totals),
                None => self.report.totals = totals,
            }
        }
    }

    /// Visits a directory, but not what is below it. Gives its totals if an equal one has been walked.
    async fn directory(&mut self, path: &Bytes, inode: &Inode) -> Option<Totals> {
        self.attributes(path, inode).await;
        let totals = *self.known.get(&directory_handle(inode)?)?;
        self.tally.add(totals.leaves(), totals.bytes);
        Some(totals)
    }

    fn too_deep(&mut self, path: Bytes) {
        let why = Reject::BadTree {
            what: "directory",
            why: "nested too deeply",
        };
        self.report.damaged(path, ReadError::of_signed(why));
    }

    /// Visits an entry that is not a directory.
    async fn entry(&mut self, path: &Bytes, inode: &Inode) -> Totals {
        self.attributes(path, inode).await;
        let mut totals = Totals::of(inode);
        let mut fresh = true;
        if let Some(group) = inode.link_group {
            fresh = self.linked.insert((group, totals.bytes));
            if fresh {
                self.linked_bytes = self.linked_bytes.saturating_add(totals.bytes);
            }
            totals.bytes = 0;
        }
        self.tally.add(1, 0);
        match &inode.content {
            Content::Regular(FileContent::Array(root)) => {
                let silent = Tally::default();
                let tally = if fresh { self.tally } else { &silent };
                if let Err(why) = self.array(path, root, tally).await {
                    self.report.damaged(path.clone(), why);
                }
            }
            Content::Regular(_) => self.tally.add(0, totals.bytes),
            _ => {}
        }
        totals
    }

    async fn attributes(&mut self, path: &Bytes, inode: &Inode) {
        if matches!(inode.xattrs, Xattrs::Stored(_))
            && let Err(why) = self.snapshot.xattrs(inode, self.how()).await
        {
            self.report.damaged(path.clone(), why);
        }
    }

    /// Visits an array tree: its nodes here, its data blocks in tasks.
    async fn array(
        &mut self,
        path: &Bytes,
        root: &ArrayRoot,
        tally: &Tally,
    ) -> Result<(), ReadError> {
        let mut stack = vec![root.top()];
        while let Some(child) = stack.pop() {
            match child {
                Child::Extent(Extent::Hole { len }) => tally.add(0, len),
                Child::Extent(Extent::Data { handle, len }) => {
                    // The length is part of the key: the same block with two lengths is malformed.
                    if self.seen.insert(mix(handle.as_bytes(), u64::from(len), 0)) {
                        self.want(path, handle, len).await;
                    }
                    tally.add(0, u64::from(len));
                }
                Child::Node { handle, len, level } => {
                    if !self.seen.insert(mix(handle.as_bytes(), len, level)) {
                        tally.add(0, len);
                        continue;
                    }
                    let blocks = self.snapshot.blocks();
                    let node = blocks
                        .get::<ArrayNode>(&handle, Expect::Nothing, self.how())
                        .await?;
                    node.check(level, len).map_err(ReadError::of_signed)?;
                    stack.extend(node.children());
                }
            }
        }
        Ok(())
    }

    async fn want(&mut self, path: &Bytes, handle: Handle<Data>, len: u32) {
        self.batch.bytes += u64::from(len);
        self.batch.wanted.push(Wanted {
            handle,
            len,
            path: path.clone(),
        });
        if self.batch.bytes >= BATCH_BYTES || self.batch.wanted.len() >= BATCH_BLOCKS {
            self.send().await;
        }
    }

    /// Hands the batch to a task, once there is room for one.
    async fn send(&mut self) {
        while self.tasks.len() >= TASKS {
            self.settle_one().await;
        }
        let batch = std::mem::take(&mut self.batch);
        if !batch.wanted.is_empty() {
            let (volume, snapshot) = (Arc::clone(self.volume), Arc::clone(self.snapshot));
            self.tasks
                .spawn(async move { prove(&volume, &snapshot, batch).await });
        }
    }

    /// Waits for one task; false when there is none.
    async fn settle_one(&mut self) -> bool {
        match self.tasks.join_next().await {
            None => return false,
            Some(Ok(proved)) => {
                self.report.data_blocks += proved.blocks;
                self.report.data_bytes += proved.bytes;
                for damage in proved.damages {
                    self.report.damaged(damage.path, damage.why);
                }
            }
            Some(Err(died)) => {
                let what = "a block".to_owned();
                let why = ReadError::Unavailable {
                    what,
                    cause: died.to_string(),
                    denied: Vec::new(),
                };
                self.report.damaged(Bytes::new(), why);
            }
        }
        true
    }
}

/// Fetches a batch. If one block fails, each is requested by itself, so that the others are counted.
async fn prove(volume: &Volume, snapshot: &Snapshot, batch: Batch) -> Proved {
    let mut proved = Proved {
        blocks: 0,
        bytes: 0,
        damages: Vec::new(),
    };
    let handles: Vec<Handle<Data>> = batch.wanted.iter().map(|wanted| wanted.handle).collect();
    let how = Fetch::Until(volume.deadline());
    let lens: Vec<u32> = batch.wanted.iter().map(|wanted| wanted.len).collect();
    let whole = snapshot.blocks().get_sized(&handles, &lens, how).await;
    for (i, Wanted { handle, len, path }) in batch.wanted.iter().enumerate() {
        let block = match &whole {
            Ok(blocks) => blocks.get(i).cloned().ok_or(ReadError::NotCached),
            Err(_) => {
                let how = Fetch::Until(volume.deadline());
                snapshot.blocks().get(handle, Expect::Nothing, how).await
            }
        };
        let checked = block.and_then(|block| {
            if block.bytes().len() as u64 == u64::from(*len) {
                return Ok(());
            }
            let why = "a data block has another length than its extent";
            Err(ReadError::Malformed(Reject::BadTree { what: "file", why }))
        });
        // Each block is visited once. The cache would keep it, because it was used, and drop what was fetched ahead.
        snapshot.blocks().let_go(&handle.any());
        match checked {
            Ok(()) => {
                proved.blocks += 1;
                proved.bytes += u64::from(*len);
            }
            Err(why) => proved.damages.push(Damage {
                path: path.clone(),
                why,
            }),
        }
    }
    proved
}

fn directory_handle(inode: &Inode) -> Option<Handle<MapNode>> {
    match &inode.content {
        Content::Directory {
            map: Some(root), ..
        } => Some(root.handle),
        _ => None,
    }
}

/// A handle together with what the tree claims of it. Handles are uniformly distributed, so XOR suffices.
/// The key only decides what is visited once.
fn mix(handle: &[u8; 32], len: u64, level: u8) -> [u8; 32] {
    let mut key = *handle;
    let claim = len.to_le_bytes().into_iter().chain([level]);
    for (byte, claimed) in key.iter_mut().zip(claim) {
        *byte ^= claimed;
    }
    key
}
