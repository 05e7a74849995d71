//! Fetches the blocks of a version. [`Reach`] names them; each is looked for in the repository, among the
//! prefetched records, and then at the sources, in batches of which several are under way. Blocks that come
//! are supplied to the walk and written.
//!
//! Each block is fetched once, however often it occurs, so a publisher who nests a tree in itself costs
//! no more than the blocks that exist.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reader::ReadError;
use store::{Repository, StoreError, Writer};
use tokio::task::JoinSet;
use trust::inode::Inode;
use trust::reach::{Found, Lookup, Need, Outcome, Path, Reach, Refused, Wanted};
use trust::{Handle, InodeBlock, Record, Reject};

use super::prefetch::{Followed, SegmentPrefetch};
use super::sources::{Fetched, Got, Sources, weight_bytes};
use super::{PullError, PullOptions};
use volume::error::gravest;

/// Most blocks of one request.
const BATCH_BLOCKS: usize = 256;
/// Most bytes of the blocks of one request, by their estimated sizes.
const BATCH_BYTES: u64 = 1 << 20;
/// Requests under way at first.
const FIRST_WINDOW: usize = 4;
/// Most requests under way, reached while there are no errors.
const MAX_WINDOW: usize = 16;
/// Blocks are made durable after this many bytes.
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// Blocks are made durable after this time.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(60);

/// A walk that fetches.
pub(crate) struct Walk<'a> {
    sources: Arc<Sources>,
    writer: &'a mut Writer,
    repository: Repository,
    reach: Reach,
    /// The nodes that the walk has entered, by [`Need::key`].
    seen: HashSet<[u8; 32]>,
    /// Blocks that were requested, and the needs that wait for each.
    asked: HashMap<Handle, Vec<Need>>,
    prefetched: SegmentPrefetch,
    options: &'a PullOptions,
    root: Handle<InodeBlock>,
    /// Written last.
    root_record: Option<Record>,
    /// Blocks in the repository that are damaged.
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

/// A block that need not be fetched, and the record to write: none if it is in the repository.
struct AtHand {
    found: Found,
    record: Option<Record>,
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
            reach: Reach::default(),
            seen: HashSet::new(),
            asked: HashMap::new(),
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

    /// Fetches everything that the new root reaches and `base`, which is complete, does not.
    pub(crate) async fn walk(&mut self, base: Option<Handle<InodeBlock>>) -> Result<(), PullError> {
        let old = base
            .filter(|_| !self.options.paranoid)
            .and_then(|root| {
                self.repository
                    .read_verified(&root, &self.sources.hasher)
                    .ok()
            })
            .and_then(|block| Inode::from_block(&block).ok());
        if self.options.scope.is_everything() {
            self.reach.root(self.root, old.as_ref());
        } else {
            self.paths(old).await?;
        }
        self.run().await
    }

    /// Ends the walk: writes the root, now that everything below it is in the repository.
    pub(crate) fn finish(mut self) -> Result<Done, StoreError> {
        if let Some(record) = self.root_record.take() {
            self.write(&record)?;
        }
        if self.prefetched.len() > 0 {
            tracing::debug!(
                records = self.prefetched.len(),
                "prefetched records were not needed"
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
                if self.reach.is_proved() {
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
                    return Err(volume::VolumeError::unavailable(what, cause).into());
                }
                None => {}
            }
            self.checkpoint_if_due()?;
        }
    }

    /// The next blocks to ask for. Blocks in the repository and prefetched ones are supplied on the way.
    fn next_batch(&mut self) -> Result<Vec<Wanted>, PullError> {
        let most_bytes = self.sources.limit.request_bytes(BATCH_BYTES);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_BLOCKS && bytes < most_bytes {
            let Some(need) = self.reach.needs(1).map_err(malformed)?.pop() else {
                break;
            };
            if need.key().is_some_and(|key| !self.seen.insert(key)) {
                self.count_content(&need);
                self.reach.skip(need);
                continue;
            }
            let wanted = *need.wanted();
            if let Some(waiting) = self.asked.get_mut(&wanted.handle()) {
                waiting.push(need);
            } else if let Some(AtHand { found, record }) = self.at_hand(&wanted)? {
                self.supply(need, found)?;
                self.keep(record)?;
            } else {
                bytes += weight_bytes(&wanted);
                self.asked.insert(wanted.handle(), vec![need]);
                batch.push(wanted);
            }
        }
        Ok(batch)
    }

    /// A block that is in the repository, or was prefetched (then it is to be written).
    fn at_hand(&mut self, wanted: &Wanted) -> Result<Option<AtHand>, PullError> {
        let handle = wanted.handle();
        if let Wanted::Data { len, .. } = wanted
            && !self.options.paranoid
        {
            if self.writer.contains(&handle)? {
                let found = Found::Data {
                    len: u64::from(*len),
                };
                return Ok(Some(AtHand {
                    found,
                    record: None,
                }));
            }
        } else if self.repository.contains(&handle)? {
            match self.read(wanted) {
                Ok(found) => {
                    let record = None;
                    return Ok(Some(AtHand { found, record }));
                }
                Err(StoreError::WrongBlock { why, .. }) if why.is_publishers_fault() => {
                    return Err(ReadError::of_signed(why).into());
                }
                Err(error @ StoreError::Unsupported { .. }) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "fetched again");
                    self.damaged.insert(handle);
                }
            }
        }
        let Some(record) = self.prefetched.take(&handle) else {
            return Ok(None);
        };
        // Proved like any answer. A wrong index costs only this work.
        match wanted.unpack(&self.sources.hasher, &record.frame) {
            Ok(found) => Ok(Some(AtHand {
                found,
                record: Some(record),
            })),
            Err(why) if why.is_publishers_fault() => Err(ReadError::of_signed(why).into()),
            Err(why) => {
                tracing::warn!(block = %handle, %why, "a segment holds a wrong block");
                Ok(None)
            }
        }
    }

    /// Reads and proves a committed block.
    fn read(&self, wanted: &Wanted) -> Result<Found, StoreError> {
        self.repository.read_wanted(wanted, &self.sources.hasher)
    }

    fn take(&mut self, got: Got) -> Result<(), PullError> {
        if !got.blocks.is_empty() {
            let most = self.sources.limit.requests(MAX_WINDOW);
            self.window = (self.window + 1).min(most);
        }
        for fetched in got.blocks {
            self.take_block(fetched)?;
        }
        if got.missing.is_empty() {
            return Ok(());
        }
        Err(gravest(got.faults).into())
    }

    /// Supplies a block to every need that waits for it, then writes it. In this order, a block that
    /// breaks a rule is not written, so that the next pull refuses it too.
    fn take_block(&mut self, fetched: Fetched) -> Result<(), PullError> {
        let Fetched {
            wanted,
            record,
            found,
        } = fetched;
        let found = found.map_err(ReadError::of_signed)?;
        for mut need in self.asked.remove(&wanted.handle()).unwrap_or_default() {
            need.round = need.round.saturating_add(1);
            self.supply(need, found.clone())?;
        }
        Ok(self.keep(Some(record))?)
    }

    fn supply(&mut self, need: Need, found: Found) -> Result<(), PullError> {
        self.count_wave(need.round);
        if matches!(need.wanted(), Wanted::Data { .. }) {
            self.count_content(&need);
        }
        Ok(self.reach.supply(need, found).map_err(malformed)?)
    }

    /// Counts content that is here now, if its sum is known.
    fn count_content(&self, need: &Need) {
        let tally = &self.sources.tally;
        let len = match need.wanted() {
            Wanted::Data { len, .. } => u64::from(*len),
            Wanted::Array { len, .. } => *len,
            Wanted::Map(_) | Wanted::Inode(_) => 0,
        };
        if tally.total_bytes.load(Ordering::Relaxed) > 0 {
            tally.add(0, len);
        }
    }

    /// Counts the requests that led to a block of the walk, after those for heads and segments.
    fn count_wave(&mut self, round: u32) {
        let wave = round.saturating_add(1 + self.prefetched.waves);
        self.done.waves = self.done.waves.max(wave);
    }

    /// Writes a proved block that is not here; the root waits.
    fn keep(&mut self, record: Option<Record>) -> Result<(), StoreError> {
        let Some(record) = record else {
            return Ok(());
        };
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

    /// Follows each path of the scope. The nodes on the way are kept too, because they prove the path. The
    /// walk continues with the entry at the path.
    async fn paths(&mut self, old: Option<Inode>) -> Result<(), PullError> {
        let mut round = 0;
        let top = match self.need(&Wanted::Inode(self.root), &mut round).await? {
            Found::Inode(inode) => inode,
            _ => return Err(ReadError::Malformed(Reject::WrongBlock).into()),
        };
        for path in self.options.scope.paths.clone() {
            let mut round = round;
            let outcome = self.follow(top.clone(), &path, &mut round).await?;
            let Some(Outcome::Present(inode)) = outcome else {
                let path = path.escape_ascii().to_string();
                return Err(ReadError::NotFound { path }.into());
            };
            let before = old.clone().and_then(|old| self.follow_here(old, &path));
            let names = path.split(|byte| *byte == b'/');
            let at = names.fold(Path::default(), |at, name| at.join(name));
            let added = self.reach.below(at, *inode, before.as_ref(), round);
            added.map_err(malformed)?;
        }
        Ok(())
    }

    /// The inode at a path; `None` if no tree can hold such a path.
    async fn follow(
        &mut self,
        top: Inode,
        path: &[u8],
        round: &mut u32,
    ) -> Result<Option<Outcome>, PullError> {
        let Ok(mut lookup) = Lookup::below(top, path) else {
            return Ok(None);
        };
        while let Some(wanted) = lookup.wants() {
            let found = self.need(&wanted, round).await?;
            lookup.supply(found).map_err(ReadError::of_signed)?;
        }
        Ok(lookup.outcome().cloned())
    }

    /// The same in the version in the repository, for comparison only.
    fn follow_here(&self, top: Inode, path: &[u8]) -> Option<Inode> {
        let mut lookup = Lookup::below(top, path).ok()?;
        while let Some(wanted) = lookup.wants() {
            lookup.supply(self.read(&wanted).ok()?).ok()?;
        }
        match lookup.outcome()? {
            Outcome::Present(inode) => Some(inode.as_ref().clone()),
            Outcome::Absent(_) => None,
        }
    }

    /// One block, from the repository, the prefetched records or a source.
    async fn need(&mut self, wanted: &Wanted, round: &mut u32) -> Result<Found, PullError> {
        if let Some(AtHand { found, record }) = self.at_hand(wanted)? {
            self.keep(record)?;
            return Ok(found);
        }
        let got = self.sources.clone().fetch(vec![*wanted]).await;
        let Some(fetched) = got.blocks.into_iter().next() else {
            return Err(gravest(got.faults).into());
        };
        *round = round.saturating_add(1);
        self.count_wave(*round);
        let found = fetched.found.map_err(ReadError::of_signed)?;
        self.keep(Some(fetched.record))?;
        Ok(found)
    }
}

fn malformed(refused: Refused) -> ReadError {
    ReadError::of_signed(refused.why)
}
