//! Drives the walk. A block that [`Closure`] names is looked for in the repository, then among the
//! prefetched records, then at the sources, in several batches at a time. What arrives is written, and
//! supplied to the closure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::ReadError;
use store::{Repository, StoreError, Writer};
use tokio::task::JoinSet;
use trust::inode::{Content, Entry, Inode};
use trust::map::{self, ChildRef, Find};
use trust::{Handle, InodeBlock, Record, Reject};

use super::closure::Closure;
use super::prefetch::{Followed, SegmentPrefetch};
use super::sources::{Claim, Got, Proved, Sources, Want, prove};
use super::{PullError, PullOptions};
use volume::error::gravest;

/// Blocks asked for in one request.
const BATCH_BLOCKS: usize = 256;
/// Their weight, bytes.
const BATCH_BYTES: u64 = 1 << 20;
/// Requests under way: at first, and as long as all goes well.
const FIRST_WINDOW: usize = 4;
const MAX_WINDOW: usize = 16;
/// What arrived is made durable after so many bytes or so long.
const CHECKPOINT_BYTES: u64 = 256 << 20;
const CHECKPOINT_AFTER: Duration = Duration::from_secs(60);

/// A walk that fetches.
pub(crate) struct Walk<'a> {
    sources: Arc<Sources>,
    writer: &'a mut Writer,
    repository: Repository,
    closure: Closure,
    prefetched: SegmentPrefetch,
    options: &'a PullOptions,
    root: Handle<InodeBlock>,
    /// Written last.
    root_record: Option<Record>,
    /// Blocks that are here, and not as they should be.
    damaged: HashSet<Handle>,
    under_way: JoinSet<Got>,
    window: usize,
    checkpointed: Instant,
    done: Done,
}

/// What a walk did.
#[derive(Default)]
pub(crate) struct Done {
    pub blocks: u64,
    pub block_bytes: u64,
    pub healed: u64,
    pub waves: u32,
    pub written_bytes: u64,
    pub followed: Followed,
}

/// A block that was looked for.
struct Found {
    proved: Proved,
    wave: u32,
    /// What is to be written; none where it is here.
    record: Option<Record>,
}

impl Found {
    fn here(proved: Proved, want: &Want) -> Found {
        Found {
            proved,
            wave: want.wave,
            record: None,
        }
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        sources: Arc<Sources>,
        writer: &'a mut Writer,
        prefetched: SegmentPrefetch,
        root: Handle<InodeBlock>,
        options: &'a PullOptions,
    ) -> Walk<'a> {
        Walk {
            repository: writer.repository().clone(),
            window: sources.limit.requests(FIRST_WINDOW),
            sources,
            writer,
            closure: Closure::default(),
            prefetched,
            options,
            root,
            root_record: None,
            damaged: HashSet::new(),
            under_way: JoinSet::new(),
            checkpointed: Instant::now(),
            done: Done::default(),
        }
    }

    /// Brings everything here that the new root reaches and `base`, which is whole, does not.
    pub(crate) async fn walk(&mut self, base: Option<Handle<InodeBlock>>) -> Result<(), PullError> {
        let old = base
            .filter(|_| !self.options.paranoid)
            .and_then(|root| self.inode_here(&root));
        let wave = 1 + self.prefetched.waves;
        if self.options.scope.is_everything() {
            self.closure.inode(self.root, old.map(Box::new), wave);
        } else {
            self.paths(old, wave).await?;
        }
        self.run().await
    }

    /// Ends the walk: the root goes in, now that all below it is here.
    pub(crate) fn finish(mut self) -> Result<Done, StoreError> {
        if let Some(record) = self.root_record.take() {
            self.write(&record)?;
        }
        if self.prefetched.len() > 0 {
            tracing::debug!(
                records = self.prefetched.len(),
                "came along and were not wanted"
            );
        }
        self.done.followed = std::mem::take(&mut self.prefetched.followed);
        Ok(self.done)
    }

    async fn run(&mut self) -> Result<(), PullError> {
        loop {
            while self.under_way.len() < self.window {
                let batch = self.next_batch()?;
                if batch.is_empty() {
                    break;
                }
                self.under_way.spawn(self.sources.clone().fetch(batch));
            }
            if self.under_way.is_empty() {
                if self.closure.is_done() {
                    return Ok(());
                }
                let why = "the walk waits for nothing and is not done";
                return Err(ReadError::Malformed(Reject::BadTree { what: "tree", why }).into());
            }
            match self.under_way.join_next().await {
                Some(Ok(got)) => self.take(got)?,
                Some(Err(died)) => {
                    let what = "a block".to_owned();
                    let cause = died.to_string();
                    return Err(ReadError::Unavailable { what, cause }.into());
                }
                None => {}
            }
            self.checkpoint_if_due()?;
        }
    }

    /// The next blocks to ask for; those that are here or prefetched are supplied on the way.
    fn next_batch(&mut self) -> Result<Vec<Want>, PullError> {
        let most_bytes = self.sources.limit.request_bytes(BATCH_BYTES);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_BLOCKS && bytes < most_bytes {
            let Some(want) = self.closure.next() else {
                break;
            };
            match self.at_hand(&want)? {
                Some(found) => self.use_found(want, found)?,
                None => {
                    bytes += want.weight_bytes();
                    batch.push(want);
                }
            }
        }
        Ok(batch)
    }

    /// A block that is here, or prefetched (then it is written).
    fn at_hand(&mut self, want: &Want) -> Result<Option<Found>, PullError> {
        if let Claim::Data { len } = want.claim
            && !self.options.paranoid
        {
            if self.writer.contains(&want.handle)? {
                let len = len as usize;
                return Ok(Some(Found::here(Proved::Data { len }, want)));
            }
        } else if self.repository.contains(&want.handle)? {
            match self.read(want) {
                Some(proved) => return Ok(Some(Found::here(proved, want))),
                None => {
                    tracing::warn!(block = %want.handle, "is damaged here and fetched anew");
                    self.damaged.insert(want.handle);
                }
            }
        }
        let Some((record, wave)) = self.prefetched.take(&want.handle) else {
            return Ok(None);
        };
        // Proved like any answer: an index that lies costs this much.
        match prove(&self.sources.hasher, want, &record.frame) {
            Ok(proved) => Ok(Some(Found {
                proved,
                wave: wave.max(want.wave),
                record: Some(record),
            })),
            Err(why) => {
                tracing::warn!(block = %want.handle, %why, "a segment holds a wrong block");
                Ok(None)
            }
        }
    }

    /// A committed block, read and proved; `None` when it cannot be.
    fn read(&self, want: &Want) -> Option<Proved> {
        let mut bytes = Bytes::new();
        let read = self
            .repository
            .read_blocking(&[want.handle], 0, &mut |region| {
                bytes = region.bytes;
                std::ops::ControlFlow::Break(())
            });
        read.ok()?;
        let record = Record::take(&mut bytes).ok()??;
        prove(&self.sources.hasher, want, &record.frame).ok()
    }

    fn inode_here(&self, handle: &Handle<InodeBlock>) -> Option<Inode> {
        let want = Want {
            handle: handle.any(),
            claim: Claim::Inode { old: None },
            wave: 0,
        };
        match self.read(&want)? {
            Proved::Inode(block) => Inode::from_block(&block).ok(),
            _ => None,
        }
    }

    fn take(&mut self, got: Got) -> Result<(), PullError> {
        if !got.blocks.is_empty() {
            let most = self.sources.limit.requests(MAX_WINDOW);
            self.window = (self.window + 1).min(most);
        }
        for (want, record, proved) in got.blocks {
            let found = Found {
                proved,
                wave: want.wave + 1,
                record: Some(record),
            };
            self.use_found(want, found)?;
        }
        if got.missing.is_empty() {
            return Ok(());
        }
        Err(gravest(got.faults).into())
    }

    /// Goes on from a block, and writes it. In this order: a block that breaks a rule stays out, so
    /// that it is refused the next time too.
    fn use_found(&mut self, want: Want, found: Found) -> Result<(), PullError> {
        let Found {
            proved,
            wave,
            record,
        } = found;
        self.done.waves = self.done.waves.max(wave);
        let supplied = self.closure.supply(want, proved, wave);
        supplied.map_err(ReadError::Malformed)?;
        match record {
            Some(record) => Ok(self.keep(record)?),
            None => Ok(()),
        }
    }

    /// Writes a proved block; the root waits.
    fn keep(&mut self, record: Record) -> Result<(), StoreError> {
        if record.handle == self.root.any() {
            self.root_record = Some(record);
            return Ok(());
        }
        self.write(&record)
    }

    fn write(&mut self, record: &Record) -> Result<(), StoreError> {
        let heals = self.damaged.remove(&record.handle);
        let written = if heals {
            self.writer.append_anew(record)?
        } else {
            self.writer.append(record)?
        };
        if written {
            self.done.healed += u64::from(heals);
            self.done.blocks += 1;
            self.done.block_bytes += record.len() as u64;
            self.sources.tally.add(1, 0);
        }
        Ok(())
    }

    fn checkpoint_if_due(&mut self) -> Result<(), StoreError> {
        let pending_bytes = self.writer.pending_bytes();
        let late = pending_bytes > 0 && self.checkpointed.elapsed() >= CHECKPOINT_AFTER;
        if late || pending_bytes >= CHECKPOINT_BYTES {
            let committed = self.writer.checkpoint()?;
            self.done.written_bytes += committed.segment_bytes + committed.index_bytes;
            self.checkpointed = Instant::now();
        }
        Ok(())
    }

    /// Follows each path of the scope down, taking the nodes on the way, which prove that it leads
    /// where it leads; what lies there is to be walked.
    async fn paths(&mut self, old: Option<Inode>, wave: u32) -> Result<(), PullError> {
        let want = Want {
            handle: self.root.any(),
            claim: Claim::Inode { old: None },
            wave,
        };
        let (Proved::Inode(block), wave) = self.need(want).await? else {
            return Err(ReadError::Malformed(Reject::WrongBlock).into());
        };
        let top = Inode::from_block(&block).map_err(ReadError::Malformed)?;
        for path in self.options.scope.paths.clone() {
            let (mut inode, mut before, mut wave) = (top.clone(), old.clone(), wave);
            for name in path.split(|b| *b == b'/') {
                let Some(next) = self.step(&inode, name, &mut wave).await? else {
                    let path = path.escape_ascii().to_string();
                    return Err(ReadError::NotFound { path }.into());
                };
                before = before.and_then(|old| self.step_here(&old, name));
                inode = next;
            }
            self.closure.visit(&inode, before.as_ref(), wave);
        }
        Ok(())
    }

    async fn step(
        &mut self,
        directory: &Inode,
        name: &[u8],
        wave: &mut u32,
    ) -> Result<Option<Inode>, PullError> {
        let Some(mut child) = first_node(directory) else {
            return Ok(None);
        };
        loop {
            let want = node_want(&child, *wave);
            let (Proved::Map(block), now) = self.need(want).await? else {
                return Err(ReadError::Malformed(Reject::WrongBlock).into());
            };
            *wave = now;
            let node = map::Node::decode(&block).map_err(ReadError::Malformed)?;
            node.check(&child).map_err(ReadError::Malformed)?;
            match node.find(name, &child.interval) {
                Find::Absent => return Ok(None),
                Find::Child(next) => child = next,
                Find::Value(value) => {
                    return match Entry::decode(&value).map_err(ReadError::Malformed)? {
                        Entry::Inode(inode) => Ok(Some(inode)),
                        Entry::Block(handle) => {
                            let want = Want {
                                handle: handle.any(),
                                claim: Claim::Inode { old: None },
                                wave: *wave,
                            };
                            let (Proved::Inode(block), now) = self.need(want).await? else {
                                return Err(ReadError::Malformed(Reject::WrongBlock).into());
                            };
                            *wave = now;
                            let inode = Inode::from_block(&block);
                            Ok(Some(inode.map_err(ReadError::Malformed)?))
                        }
                    };
                }
            }
        }
    }

    /// The same in what is here, for comparison only.
    fn step_here(&self, directory: &Inode, name: &[u8]) -> Option<Inode> {
        let mut child = first_node(directory)?;
        loop {
            let Proved::Map(block) = self.read(&node_want(&child, 0))? else {
                return None;
            };
            let node = map::Node::decode(&block).ok()?;
            node.check(&child).ok()?;
            match node.find(name, &child.interval) {
                Find::Absent => return None,
                Find::Child(next) => child = next,
                Find::Value(value) => {
                    return match Entry::decode(&value).ok()? {
                        Entry::Inode(inode) => Some(inode),
                        Entry::Block(handle) => self.inode_here(&handle),
                    };
                }
            }
        }
    }

    /// One block, from wherever it can be had.
    async fn need(&mut self, want: Want) -> Result<(Proved, u32), PullError> {
        if let Some(found) = self.at_hand(&want)? {
            if let Some(record) = found.record {
                self.keep(record)?;
            }
            return Ok((found.proved, found.wave));
        }
        let got = self.sources.clone().fetch(vec![want]).await;
        let Some((want, record, proved)) = got.blocks.into_iter().next() else {
            return Err(gravest(got.faults).into());
        };
        self.done.waves = self.done.waves.max(want.wave + 1);
        self.keep(record)?;
        Ok((proved, want.wave + 1))
    }
}

fn first_node(directory: &Inode) -> Option<ChildRef> {
    match &directory.content {
        Content::Directory { map, .. } => map.as_ref().map(|root| root.child_ref()),
        _ => None,
    }
}

fn node_want(child: &ChildRef, wave: u32) -> Want {
    Want {
        handle: child.handle.any(),
        claim: Claim::Map,
        wave,
    }
}
