//! A collection: what the log needs is marked, and what is neither marked nor young is swept out of the segments. And
//! when it runs. Clients go on beside it: it holds no lock for long, and rests more than it works.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use store::collect::{Mark, Marks};
use store::names::FileId;
use store::writer::MostSwept;
use trust::reach::{Found, Wanted};
use trust::{Handle, Reject};
use trust_shared::effect::Volume;
use trust_shared::members::Members;
use trust_shared::ops::Body;
use trust_shared::outcome::Written;

use super::Core;
use super::collected::{Collected, Uncollected};
use super::options::Collections;
use super::pace::{Pace, Stopped, Watch};
use super::record::StoredLeaf;
use crate::blocks;
use crate::blocks::storage::lock;
use crate::collect::marking::{Marking, Seen, Source, Unmarked};
use crate::collect::needed::{Folds, Positions, Spans};
use ordering::roster::Roster;
use ordering::scheme::Leaf;

/// Leaves that are read at once.
const AT_ONCE: u64 = 256;
/// How often a rest looks whether the server stops.
const SLICE: Duration = Duration::from_millis(20);
/// How often time is counted at least.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// The first collection after a start, in parts of a quarter of a day, and how many quarters lie between two.
const FIRST: u32 = 36;
const BETWEEN: u32 = 4;
/// Without an entry for so long, in parts of a quarter of a day, the moment is quiet.
const QUIET: u32 = 360;
/// Space is short if less than this part of the file system is free.
const FREE_PART: u64 = 10;
/// The least that a step of a sweep takes. It takes more where the index is long, because it writes the index again.
const LEAST: MostSwept = MostSwept {
    blocks: 1 << 16,
    bytes: 32 << 20,
    time: Duration::from_secs(1),
};
/// A step takes this part of all blocks at most.
const STEP_PART: u64 = 16;
/// Bytes of the index for each block.
const INDEX_BYTES: u64 = 45;

/// The thread that collects.
pub(super) fn run(core: &Arc<Core>) {
    let options = core.options.collection;
    let quarter = options.quarter;
    let mut due = match options.runs {
        Collections::Now => Instant::now(),
        _ => Instant::now() + quarter / FIRST,
    };
    let mut quiet = Quiet::default();
    // Files of segments that were removed before this start may be there.
    let mut clear_at = Some(Instant::now() + options.grace);
    let pause = pause(quarter);
    loop {
        core.count_time();
        if clear_at.is_some_and(|at| at <= Instant::now()) {
            clear_at = None;
            if let Err(error) = core.blocks.storage().clear() {
                tracing::warn!(%error, "files of removed segments stay");
            }
        }
        let now = Instant::now();
        let runs = options.runs != Collections::Never && core.is_due(now, due, &mut quiet);
        if runs {
            if core.collect().removed_bytes > 0 {
                clear_at = Some(Instant::now() + options.grace);
            }
            due = Instant::now() + quarter * BETWEEN;
        }
        if !core.rest(pause) {
            return;
        }
    }
}

/// Since when the log has not grown.
#[derive(Default)]
struct Quiet(Option<(u64, Instant)>);

impl Core {
    /// Time goes on for the ages of blocks.
    pub(super) fn count_time(&self) {
        let (size, keep) = {
            let state = lock(&self.state);
            let (size, ledger) = (state.orderer.published(), state.orderer.ledger());
            // What is decided and not durable yet counts for nothing.
            let is_durable = ledger.size() == size;
            let members = ledger.volume().members();
            (
                size,
                is_durable.then(|| self.options.collection.kept_for(members)),
            )
        };
        if let Some(keep) = keep {
            // Before time goes on: this forgets what is older than the window.
            self.book.with(|ages| ages.set_window(keep));
        }
        let segments = self.blocks.storage().repository().segments();
        if let Err(error) = self.book.go_on(size, &segments) {
            tracing::warn!(%error, "when blocks were used last is not written");
        }
    }

    /// Whether a collection is due, and the moment is good.
    fn is_due(&self, now: Instant, due: Instant, quiet: &mut Quiet) -> bool {
        let size = lock(&self.state).orderer.published();
        let quarter = self.options.collection.quarter;
        let since = match quiet.0 {
            Some((before, since)) if before == size => since,
            _ => now,
        };
        quiet.0 = Some((size, since));
        // The first one at a start waits for nothing.
        let is_first = lock(&self.collected).is_none();
        let is_quiet = is_first || now.saturating_duration_since(since) >= quarter / QUIET;
        let late = now.saturating_duration_since(due);
        if now >= due && (is_quiet || late >= quarter) {
            return true;
        }
        // Soon after one there is nothing to gain.
        let rested = due.saturating_duration_since(now) <= quarter * (BETWEEN - 1);
        rested && self.is_space_short()
    }

    fn is_space_short(&self) -> bool {
        let space = self.blocks.storage().repository().disk_shared().space();
        space.is_ok_and(|space| space.free_bytes < space.total_bytes / FREE_PART)
    }

    /// Rests. False: the server stops.
    fn rest(&self, how_long: Duration) -> bool {
        let until = Instant::now() + how_long;
        loop {
            if self.signals.is_stopped() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Collects, and says what it did.
    pub(super) fn collect(&self) -> Collected {
        self.collect_by(self)
    }

    /// The same, with work and rest by this watch.
    pub(super) fn collect_by(&self, watch: &dyn Watch) -> Collected {
        let began = Instant::now();
        let options = &self.options.collection;
        let pace = Pace::new(watch, options.rest, pause(options.quarter));
        let mut run = Run::new(self, &pace);
        let hindered = run.whole().err().map(Arc::new);
        let mut collected = run.told;
        collected.took = began.elapsed();
        collected.at = SystemTime::now();
        collected.hindered = hindered;
        match &collected.hindered {
            None => tracing::info!(
                removed_blocks = collected.removed_blocks,
                removed_bytes = collected.removed_bytes,
                marked_blocks = collected.marked_blocks,
                damaged_segments = collected.damaged_segments,
                "a collection has ended"
            ),
            Some(why) if matches!(**why, Uncollected::Stopped) => {}
            Some(why) => tracing::warn!(%why, "blocks are not collected"),
        }
        if collected.lost_blocks > 0 {
            let lost_blocks = collected.lost_blocks;
            tracing::warn!(lost_blocks, "blocks that are needed are not here");
        }
        *lock(&self.collected) = Some(collected.clone());
        collected
    }
}

impl Watch for Core {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn rest(&self, how_long: Duration) -> bool {
        self.rest(how_long)
    }

    fn count_time(&self) {
        self.count_time();
    }
}

/// How often time is counted, and how long a rest is before it is counted.
fn pause(quarter: Duration) -> Duration {
    LOOK_EVERY.min(quarter / 8).max(Duration::from_millis(1))
}

/// One collection.
struct Run<'a> {
    core: &'a Core,
    told: Collected,
    pace: &'a Pace<'a>,
}

/// What a collection goes by.
struct Ground {
    members: Arc<Members>,
    roster: Roster,
    positions: Positions,
    checkpoints: Vec<trust_shared::checkpoint::Checkpoint>,
    /// The tick at which marking began.
    tick: u32,
}

impl<'a> Run<'a> {
    fn new(core: &'a Core, pace: &'a Pace<'a>) -> Run<'a> {
        Run {
            core,
            told: Collected {
                at: SystemTime::UNIX_EPOCH,
                took: Duration::ZERO,
                window: (0, 0),
                pins: 0,
                marked_blocks: 0,
                lost_blocks: 0,
                removed_blocks: 0,
                removed_bytes: 0,
                damaged_segments: 0,
                hindered: None,
            },
            pace,
        }
    }

    fn whole(&mut self) -> Result<(), Uncollected> {
        self.core.count_time();
        // Of segments that come from now on, nothing is swept.
        let marks = self.core.blocks.storage().marks();
        let ground = self.ground()?;
        if !self.core.book.with(|ages| ages.knows_the_window()) {
            // After a power cut everything is young. To walk from the log's beginning would find what was removed before.
            return Ok(());
        }
        let positions = &ground.positions;
        self.told.window = (positions.begin, positions.end);
        self.told.pins = positions.pins.len() as u64;
        let folds = self.folds(&ground)?;
        let spans = Spans::new(&folds, &ground.positions);
        let marks = self.mark(&ground, (&folds, &spans), marks)?;
        self.told.marked_blocks = marks.len() as u64;
        self.sweep(&ground, &marks)
    }

    /// What is needed, by what the log says now. What decides it is durable: after a crash the log may lack what was not.
    fn ground(&self) -> Result<Ground, Uncollected> {
        // Entries that come after this may rest on blocks that were used before.
        let tick = self.core.book.with(|ages| ages.now());
        let (roster, end) = {
            let state = lock(&self.core.state);
            let ledger = state.orderer.ledger();
            (ledger.volume().clone(), ledger.size())
        };
        while lock(&self.core.state).orderer.published() < end {
            if !self.core.rest(SLICE) {
                return Err(Uncollected::Stopped);
            }
        }
        if let Some(at) = roster.lost() {
            return Err(Uncollected::Unsure {
                what: format!("the entry at {at}"),
                why: "it changes members, and its body is not here".to_owned(),
            });
        }
        let members = Arc::clone(roster.members());
        let keep = self.core.options.collection.kept_for(&members);
        let begin = self.core.book.with(|ages| {
            ages.set_window(keep);
            ages.begin().min(end)
        });
        let checkpoints: Vec<_> = lock(&self.core.board).checkpoints().collect();
        let marked = checkpoints.iter().map(|checkpoint| checkpoint.log.size);
        let pins: BTreeSet<u64> = members
            .pinned()
            .chain(marked)
            .map(|at| at.min(end))
            .collect();
        Ok(Ground {
            members,
            roster,
            positions: Positions { begin, end, pins },
            checkpoints,
            tick,
        })
    }

    /// Gives each entry with a body from a position on.
    fn entries(
        &mut self,
        ground: &Ground,
        from: u64,
        mut each: impl FnMut(&mut Self, &Written, &Body) -> Result<(), Uncollected>,
    ) -> Result<(), Uncollected> {
        let mut next = from;
        while next < ground.positions.end {
            let until = ground.positions.end.min(next.saturating_add(AT_ONCE));
            let leaves = self.core.read(next..until)?;
            for (at, stored) in (next..).zip(leaves) {
                if let Some((written, body)) = self.written(ground, at, &stored)? {
                    each(self, &written, &body)?;
                }
            }
            next = until;
            self.pace.breathe()?;
        }
        Ok(())
    }

    /// The entry of a leaf, if it has a body.
    fn written(
        &self,
        ground: &Ground,
        at: u64,
        stored: &StoredLeaf,
    ) -> Result<Option<(Written, Body)>, Uncollected> {
        let unsure = |why: Reject| Uncollected::Unsure {
            what: format!("the entry at {at}"),
            why: why.to_string(),
        };
        let Leaf::Entry(entry) = stored.decode().map_err(unsure)? else {
            return Ok(None);
        };
        if entry.signed().entry().is_resume() {
            return Ok(None);
        }
        let lacks = |what: &str| Uncollected::Unsure {
            what: format!("the entry at {at}"),
            why: format!("{what} is not here"),
        };
        let body = stored.body.as_ref().ok_or_else(|| lacks("its body"))?;
        let written = ground.roster.written(at, &entry);
        let written = written.ok_or_else(|| lacks("its author"))?;
        let body = Body::decode(body).map_err(unsure)?;
        Ok(Some((written, body)))
    }

    fn folds(&mut self, ground: &Ground) -> Result<Folds, Uncollected> {
        let volume = Volume::new(
            self.core.volume,
            self.core.blocks.storage().hasher().clone(),
        );
        let mut folds = Folds::new(volume);
        self.entries(ground, 0, |_, written, body| {
            Ok(folds.entry(written, body, &ground.members)?)
        })?;
        Ok(folds)
    }

    fn mark(
        &mut self,
        ground: &Ground,
        (folds, spans): (&Folds, &Spans),
        marks: Marks,
    ) -> Result<Marks, Uncollected> {
        let storage = self.core.blocks.storage();
        let source = Everywhere {
            storage,
            marks,
            temporary: HashSet::new(),
            pace: self.pace,
        };
        let mut marking = Marking::new(source);
        for checkpoint in &ground.checkpoints {
            let what = || format!("the checkpoint of {} leaves", checkpoint.log.size);
            let marked = marking.rows(&checkpoint.state);
            marked.map_err(|why| unmarked(why, what))?;
        }
        for (at, root) in spans.roots() {
            let marked = marking.table(root);
            marked.map_err(|why| unmarked(why, || format!("the fold at {at}")))?;
        }
        self.entries(ground, spans.reads_from(), |_, written, body| {
            let what = || format!("the entry at {}", written.position);
            for inode in spans.inodes(written, body, &ground.members) {
                let marked = marking.inode(inode);
                marked.map_err(|why| unmarked(why, what))?;
            }
            Ok(())
        })?;
        // Last: most of it is in the others.
        for (at, root) in folds.roots() {
            let marked = marking.names(&root);
            marked.map_err(|why| unmarked(why, || format!("the fold at {at}")))?;
        }
        self.told.lost_blocks = marking.lost().0;
        Ok(marking.into_source().marks)
    }

    fn sweep(&mut self, ground: &Ground, marks: &Marks) -> Result<(), Uncollected> {
        let storage = self.core.blocks.storage();
        let mut segments: VecDeque<FileId> = storage.repository().segments().into();
        let entries = storage.repository().index_entries();
        let most = MostSwept {
            blocks: LEAST
                .blocks
                .max(usize::try_from(entries / STEP_PART).unwrap_or(LEAST.blocks)),
            bytes: LEAST.bytes.max(entries * INDEX_BYTES),
            ..LEAST
        };
        while !segments.is_empty() {
            self.core.count_time();
            if self.core.book.with(|ages| ages.are_late(ground.tick)) {
                return Err(Uncollected::Late);
            }
            let grace = self.core.options.collection.grace;
            let swept = storage.sweep((marks, ground.tick), &mut segments, most, grace)?;
            self.told.removed_blocks += swept.blocks;
            self.told.removed_bytes += swept.freed_bytes;
            self.told.damaged_segments += swept.damaged;
            self.pace.breathe()?;
        }
        Ok(())
    }
}

impl From<Stopped> for Uncollected {
    fn from(Stopped: Stopped) -> Self {
        Uncollected::Stopped
    }
}

/// Why the walk below something that is needed ended.
fn unmarked(why: Unmarked<Uncollected>, what: impl Fn() -> String) -> Uncollected {
    match why {
        Unmarked::Source(Uncollected::Unsure { why, .. }) => {
            let what = what();
            Uncollected::Unsure { what, why }
        }
        Unmarked::Source(other) => other,
        why => Uncollected::Unsure {
            what: what(),
            why: why.to_string(),
        },
    }
}

/// The blocks of the segments, and those that are still in the temporary log.
struct Everywhere<'a> {
    storage: &'a blocks::Storage,
    marks: Marks,
    /// Blocks that were in the temporary log only when they were seen.
    temporary: HashSet<Handle>,
    pace: &'a Pace<'a>,
}

impl Source for Everywhere<'_> {
    type Error = Uncollected;

    fn mark(&mut self, block: &Handle) -> Result<Seen, Uncollected> {
        self.pace.breathe()?;
        // The segments first: what is in the temporary log may be dropped there, and then the other copy is needed.
        if let Some(seen) = self.permanent(block)? {
            return Ok(seen);
        }
        if self.storage.has_temporary(block) {
            return Ok(match self.temporary.insert(*block) {
                true => Seen::New,
                false => Seen::Known,
            });
        }
        // It may have moved since.
        self.marks.follow(self.storage.repository());
        Ok(self.permanent(block)?.unwrap_or(Seen::Absent))
    }

    fn read(&mut self, wanted: &Wanted) -> Result<Result<Found, Reject>, Uncollected> {
        let handle = wanted.handle();
        let unsure = |why: String| Uncollected::Unsure {
            what: String::new(),
            why: format!("block {handle}: {why}"),
        };
        let record = match self.storage.peek(&handle) {
            Ok(Some(record)) => record,
            Ok(None) => return Err(unsure("it is not here".to_owned())),
            Err(blocks::Error::Log(why)) => return Err(blocks::Error::Log(why).into()),
            Err(why) => return Err(unsure(why.to_string())),
        };
        match wanted.unpack(self.storage.hasher(), &record.frame) {
            Err(why) if !self.storage.is_right(&record) => Err(unsure(why.to_string())),
            found => Ok(found),
        }
    }
}

impl Everywhere<'_> {
    fn permanent(&mut self, block: &Handle) -> Result<Option<Seen>, Uncollected> {
        Ok(match self.marks.mark(block)? {
            Mark::New => Some(Seen::New),
            Mark::Known => Some(Seen::Known),
            Mark::Absent => None,
        })
    }
}
