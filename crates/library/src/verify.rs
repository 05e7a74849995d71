//! `bulla verify`: fetches and proves every block of a tree, or of the part below one path.
//!
//! Relies on [`Tree`] and [`reader::Blocks`], which check as they read. This file visits everything once; of a published
//! volume it compares the totals with the signed ones. Equal subtrees and equal blocks are visited once, however often
//! they occur: the work is bounded by the blocks that exist, even if a publisher nests a tree in itself. Memory: at most
//! 64 bytes a block, besides the cache.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use trust::array::{ArrayRoot, Child, Extent};
use trust::chain::MAX_POLICIES;
use trust::inode::{Content, FileContent, Inode, Xattrs};
use trust::root::Totals;
use trust::{ArrayNode, Data, Handle, MapNode, Reject};

use reader::{Blocks, Expect, Fetch, ReadError, Reads, Tally};

use volume::{Snapshot, Volume, VolumeError};

use crate::error::Error;
use crate::tree::{Entry, Link, Of, Tree};
use crate::walk::{MAX_DEPTH, Step, Unlisted};

/// Most content of one task, bytes.
const BATCH_BYTES: u64 = 4 << 20;
/// Most blocks of one task.
const BATCH_BLOCKS: usize = 256;
/// Tasks at a time.
const TASKS: usize = 16;
/// Most damaged paths that are listed; more are only counted.
pub const MAX_DAMAGES_TOLD: usize = 1000;

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
    /// Names of a shared volume that were left out, because this user may not read their files, or because they are gone or
    /// damaged.
    pub hidden: u64,
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

/// Proves everything below `top`. For a whole published volume, also proves that the totals are the signed ones.
///
/// # Errors
/// [`Error`] when a shared volume does not answer, or a directory of it is damaged. What cannot be proved of blocks is not
/// an error but part of the report.
pub async fn verify(tree: &Tree<'_>, top: &Entry, tally: &Arc<Tally>) -> Result<Report, Error> {
    let mut visit = Visit {
        tree,
        tally,
        report: Report::default(),
        known: HashMap::new(),
        linked: HashSet::new(),
        linked_bytes: 0,
        seen: HashSet::new(),
        batch: Batch::default(),
        tasks: JoinSet::new(),
    };
    visit.tree(top).await?;
    visit.send().await;
    while visit.settle_one().await {}
    let mut report = visit.report;
    report.totals.bytes = report.totals.bytes.saturating_add(visit.linked_bytes);
    if let Of::Published { volume, snapshot } = &tree.of
        && top.path.is_empty()
    {
        signed(volume, snapshot, &mut report).await;
    }
    Ok(report)
}

/// Compares the report of a whole version with what is signed.
async fn signed(volume: &Volume, snapshot: &Snapshot, report: &mut Report) {
    if snapshot.policy() >= MAX_POLICIES as u64 {
        policies(volume, report).await;
    }
    // Damaged parts are not walked, so with damage the totals differ anyway.
    if report.damage_count == 0 && report.totals != snapshot.record().totals {
        let why = Reject::BadTree {
            what: "volume",
            why: "it does not hold as much as its publisher signed",
        };
        report.damaged(Bytes::new(), ReadError::of_signed(why));
    }
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
    tree: &'a Tree<'a>,
    tally: &'a Arc<Tally>,
    report: Report,
    /// Directories that are done, with their totals without the content of files with several names.
    known: HashMap<Handle<MapNode>, Totals>,
    /// Files with several names that were met: identity and size. If a publisher makes the names differ,
    /// one identity has several sizes.
    linked: HashSet<(Link, u64)>,
    /// Their content.
    linked_bytes: u64,
    /// Data blocks and array nodes that were requested.
    seen: HashSet<[u8; 32]>,
    batch: Batch,
    tasks: JoinSet<Proved>,
}

impl Visit<'_> {
    fn how(&self) -> Fetch {
        self.tree.how()
    }

    async fn tree(&mut self, top: &Entry) -> Result<(), Error> {
        if !top.is_directory() {
            self.report.totals = self.entry(top).await;
            return Ok(());
        }
        self.attributes(top).await;
        let tree = self.tree;
        let mut walk = tree.walk(top, Reads::Everything);
        // Of the directories that are being visited.
        let mut open = vec![Totals::of(&top.inode)];
        loop {
            let step = match walk.next().await {
                Ok(Some(step)) => step,
                Ok(None) => break,
                Err(Unlisted {
                    path,
                    why: Error::Read(why),
                }) => {
                    self.report.damaged(path, why);
                    continue;
                }
                Err(unlisted) if unlisted.is_hidden() => {
                    self.report.hidden = self.report.hidden.saturating_add(1);
                    continue;
                }
                Err(Unlisted { why, .. }) => return Err(why),
            };
            let totals = match step {
                Step::Left(directory) => {
                    let totals = open.pop().unwrap_or_default();
                    if let Some(handle) = directory_handle(&directory.inode) {
                        self.known.insert(handle, totals);
                    }
                    totals
                }
                Step::Entry(entry) if entry.is_directory() => match self.directory(&entry).await {
                    Some(totals) => totals,
                    None if walk.depth() >= MAX_DEPTH => {
                        self.too_deep(entry.path);
                        continue;
                    }
                    None => {
                        open.push(Totals::of(&entry.inode));
                        walk.enter(entry);
                        continue;
                    }
                },
                Step::Entry(entry) => self.entry(&entry).await,
            };
            match open.last_mut() {
                Some(parent) => parent.add(totals),
                None => self.report.totals = totals,
            }
        }
        self.report.hidden = self.report.hidden.saturating_add(walk.hidden());
        Ok(())
    }

    /// Visits a directory, but not what is below it. Gives its totals if an equal one has been walked.
    async fn directory(&mut self, entry: &Entry) -> Option<Totals> {
        self.attributes(entry).await;
        let totals = *self.known.get(&directory_handle(&entry.inode)?)?;
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
    async fn entry(&mut self, entry: &Entry) -> Totals {
        self.attributes(entry).await;
        let (path, inode) = (&entry.path, &entry.inode);
        let mut totals = Totals::of(inode);
        let mut fresh = true;
        if let Some(link) = entry.link() {
            fresh = self.linked.insert((link, totals.bytes));
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

    async fn attributes(&mut self, entry: &Entry) {
        if matches!(entry.inode.xattrs, Xattrs::Stored(_))
            && let Err(why) = self.tree.contents().xattrs(&entry.inode, self.how()).await
        {
            self.report.damaged(entry.path.clone(), why);
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
                    let blocks = self.tree.contents().blocks();
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
            let blocks = Arc::clone(self.tree.contents().blocks());
            let deadline = self.tree.deadline();
            self.tasks
                .spawn(async move { prove(&blocks, deadline, batch).await });
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
async fn prove(blocks: &Blocks, deadline: Duration, batch: Batch) -> Proved {
    let mut proved = Proved {
        blocks: 0,
        bytes: 0,
        damages: Vec::new(),
    };
    let handles: Vec<Handle<Data>> = batch.wanted.iter().map(|wanted| wanted.handle).collect();
    let how = Fetch::Until(Instant::now() + deadline);
    let lens: Vec<u32> = batch.wanted.iter().map(|wanted| wanted.len).collect();
    let whole = blocks.get_sized(&handles, &lens, how).await;
    for (i, Wanted { handle, len, path }) in batch.wanted.iter().enumerate() {
        let block = match &whole {
            Ok(all) => all.get(i).cloned().ok_or(ReadError::NotCached),
            Err(_) => {
                let how = Fetch::Until(Instant::now() + deadline);
                blocks.get(handle, Expect::Nothing, how).await
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
        blocks.let_go(&handle.any());
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
