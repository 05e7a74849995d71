//! One history of the explorer: sessions, temporary log, segments, collections as lists, with the real rules, ops and
//! trees. What users write is in [`super::authors`].

use std::collections::{BTreeMap, BTreeSet};

use share_server::collect::ages::{Ages, Known, Touched};
use share_server::collect::marking::{Marking, Seen, Source};
use share_server::collect::needed::{Folds, Positions, Spans};
use sim::random::Random;
use store::names::FileId;
use trust::reach::{Found, Wanted};
use trust::{Handle, Reject};
use trust_shared::ops::Body;

use super::authors::Author;
use super::spec::{Entry, RELIES, Spec, WINDOW};
use super::tree::{self, Made};

const SESSIONS: usize = 2;
/// Ticks of the window.
const TICKS: u32 = (WINDOW / 2) as u32;

/// A rule of a caller that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// A removed block is told to be there while it goes.
    Condemning,
    /// A look from before a step of a sweep counts after it.
    LookingAgain,
    /// What a move finds in the segments stays as old as it was.
    Renewal,
    /// Marks are used however old they are.
    Staleness,
    /// Marks go to the temporary log first.
    SegmentsFirst,
    /// After a kill, touches since the last tick are not known.
    Journal,
    /// After a power cut, what is unknown counts as old.
    Forgetting,
    Pins,
    /// A collection runs although it does not know where the window begins.
    KnownWindow,
    /// Only the newest position is needed.
    Window,
}

/// Blocks that lie together.
#[derive(Debug, Clone)]
struct Segment {
    id: FileId,
    blocks: BTreeSet<Handle>,
}

/// A collection under way.
#[derive(Clone)]
struct Collection {
    tick: u32,
    /// Segments that there were when it began.
    known: BTreeSet<FileId>,
    positions: Positions,
    marked: Option<BTreeSet<Handle>>,
    swept: BTreeSet<FileId>,
    condemned: Option<(FileId, BTreeSet<Handle>)>,
}

#[derive(Clone, Default)]
struct Session {
    /// Blocks that it may rely on, and since when.
    holds: BTreeMap<Handle, u64>,
    /// A CSTORE or RETRIEVE that has looked and not yet touched.
    looked: Option<(Handle, u64, bool)>,
}

pub struct World {
    without: Without,
    pub(super) made: Made,
    pub(super) spec: Spec,
    /// Authors and bodies of the entries.
    pub(super) bodies: Vec<(usize, Body)>,
    pub(super) authors: Vec<Author>,
    pub(super) versions: u64,
    ages: Ages,
    /// When the time of the ages began, half ticks.
    began: u64,
    /// What was known at the last tick.
    at_tick: Known,
    sessions: Vec<Session>,
    /// Blocks of the temporary log, and their only holder.
    temporary: BTreeMap<Handle, Option<usize>>,
    segments: Vec<Segment>,
    names: u8,
    collection: Option<Collection>,
    pub(super) random: Random,
    /// Why a collection could not mark.
    unmarked: Option<String>,
}

impl World {
    /// Blocks in the segments.
    pub fn blocks(&self) -> usize {
        self.segments.iter().map(|it| it.blocks.len()).sum()
    }

    pub fn new(seed: u64, without: Without) -> World {
        let mut spec = Spec::default();
        let nothing = Body::new(Vec::new()).unwrap();
        // Until all are members.
        let bodies = vec![(0, nothing); tree::BEGIN as usize];
        bodies.iter().for_each(|_| spec.append(Entry::Other));
        let mut world = World {
            without,
            made: Made::new(),
            spec,
            bodies,
            authors: vec![Author::default(); tree::USERS.len()],
            versions: 0,
            ages: Ages::new(0, TICKS),
            began: 0,
            at_tick: Known::default(),
            sessions: vec![Session::default(); SESSIONS],
            temporary: BTreeMap::new(),
            segments: Vec::new(),
            names: 0,
            collection: None,
            random: Random::new(seed),
            unmarked: None,
        };
        // Until it is known where the window begins.
        while !world.ages.knows_the_window() {
            world.time();
        }
        world
    }

    fn is_condemned(&self, block: &Handle) -> bool {
        let condemned = self
            .collection
            .as_ref()
            .and_then(|it| it.condemned.as_ref());
        condemned.is_some_and(|(_, dead)| dead.contains(block))
    }

    fn in_segments(&self, block: &Handle) -> bool {
        self.segments.iter().any(|it| it.blocks.contains(block))
    }

    fn is_there(&self, block: &Handle) -> bool {
        self.temporary.contains_key(block) || self.in_segments(block) && !self.is_condemned(block)
    }

    /// One action. Says which.
    pub fn step(&mut self) -> &'static str {
        let session = self.random.below(SESSIONS as u64) as usize;
        match self.random.below(40) {
            0..=6 => self.write(session),
            7..=10 => self.fold(session),
            11..=15 => self.time(),
            16..=17 => self.move_temporary(),
            18..=20 => self.look(session),
            21..=23 => self.touch(session),
            24 => self.give_up(session),
            25 => self.pin(),
            26 if self.random.below(4) == 0 => self.crash(),
            27 if self.random.below(6) == 0 => self.power_cut(),
            28 if self.random.below(2) == 0 => {
                self.sessions[session] = Session::default();
                "a session ends"
            }
            _ => self.collect(),
        }
    }

    /// The session stores these blocks, or asks for them, but for those that it relies on.
    pub(super) fn provide(&mut self, session: usize, blocks: &[Handle], base: &[Handle]) {
        for block in blocks {
            let since = self.sessions[session].holds.get(block).copied();
            let is_held = since.is_some_and(|at| at + RELIES >= self.spec.now);
            if is_held || base.contains(block) {
                continue;
            }
            let asks = self.random.below(2) == 0;
            if !(asks && self.cstore(session, block)) {
                self.store(session, block);
            }
        }
    }

    /// An entry is ordered. Its author does not give up what it names.
    pub(super) fn order(&mut self, user: usize, body: Body, entry: Entry, blocks: &[Handle]) {
        self.bodies.push((user, body));
        for block in blocks {
            if let Some(holder) = self.temporary.get_mut(block) {
                *holder = None;
            }
        }
        self.spec.append(entry);
    }

    fn store(&mut self, session: usize, block: &Handle) {
        let holder = self.temporary.entry(*block).or_insert(Some(session));
        if *holder != Some(session) {
            *holder = None;
        }
        self.uses(session, block);
    }

    fn uses(&mut self, session: usize, block: &Handle) {
        self.spec.used(*block);
        let now = self.spec.now;
        self.sessions[session].holds.insert(*block, now);
    }

    /// CSTORE or RETRIEVE at once.
    fn cstore(&mut self, session: usize, block: &Handle) -> bool {
        if let Some(holder) = self.temporary.get_mut(block) {
            if *holder != Some(session) {
                *holder = None;
            }
            self.uses(session, block);
            return true;
        }
        let (steps, found) = (self.ages.steps(), self.in_segments(block));
        self.touched(session, block, steps, found)
    }

    fn touched(&mut self, session: usize, block: &Handle, steps: u64, found: bool) -> bool {
        if !found {
            return false;
        }
        let steps = match self.without {
            Without::LookingAgain => self.ages.steps(),
            _ => steps,
        };
        let touched = match self.without {
            // As if nobody had condemned it.
            Without::Condemning if self.is_condemned(block) => Touched::Known,
            _ => self.ages.touch(block, steps),
        };
        match touched {
            Touched::Known | Touched::New(_) => {
                self.uses(session, block);
                true
            }
            Touched::Gone => false,
            Touched::Again => self.cstore(session, block),
        }
    }

    /// The first half of a CSTORE of a block that was made once.
    fn look(&mut self, session: usize) -> &'static str {
        let Some(block) = self.some_block() else {
            return "";
        };
        if self.temporary.contains_key(&block) {
            self.cstore(session, &block);
            return "a block of the temporary log is asked for";
        }
        let looked = (block, self.ages.steps(), self.in_segments(&block));
        self.sessions[session].looked = Some(looked);
        "a block is looked up"
    }

    fn touch(&mut self, session: usize) -> &'static str {
        if let Some((block, steps, found)) = self.sessions[session].looked.take() {
            self.touched(session, &block, steps, found);
            return "a block that was looked up is touched";
        }
        ""
    }

    fn some_block(&mut self) -> Option<Handle> {
        if self.versions == 0 {
            return None;
        }
        let version = self.random.below(self.versions);
        let (_, blocks) = tree::version(&tree::hasher(), version, &mut self.made);
        let which = self.random.below(blocks.len() as u64);
        blocks.get(which as usize).copied()
    }

    /// DECREF of what the session alone stored and named in no entry. The segments may have another copy, which an older
    /// entry needs.
    fn give_up(&mut self, session: usize) -> &'static str {
        let own = |(_, holder): &(&Handle, &Option<usize>)| **holder == Some(session);
        let blocks: Vec<Handle> = self.temporary.iter().filter(own).map(|(b, _)| *b).collect();
        for block in blocks {
            self.temporary.remove(&block);
            self.sessions[session].holds.remove(&block);
            self.spec.given_up(&block);
        }
        "blocks are given up"
    }

    fn tick(&self) -> u32 {
        ((self.spec.now - self.began) / 2) as u32
    }

    fn time(&mut self) -> &'static str {
        self.spec.now += 1;
        self.count_time();
        "time passes"
    }

    fn count_time(&mut self) {
        let before = self.ages.now();
        let size = self.spec.log.len() as u64;
        self.ages.advance(self.tick(), size);
        let ids: Vec<FileId> = self.segments.iter().map(|it| it.id).collect();
        self.ages.segments(&ids);
        if self.ages.now() != before {
            self.at_tick = self.ages.known();
        }
    }

    fn new_segment(&mut self, blocks: BTreeSet<Handle>) {
        self.names += 1;
        let id = FileId([self.names; 16]);
        self.segments.push(Segment { id, blocks });
    }

    /// Everything moves out of the temporary log, unless a sweep has the writer.
    fn move_temporary(&mut self) -> &'static str {
        if self
            .collection
            .as_ref()
            .is_some_and(|it| it.condemned.is_some())
        {
            return "";
        }
        let mut new = BTreeSet::new();
        for block in std::mem::take(&mut self.temporary).into_keys() {
            if !self.in_segments(&block) {
                new.insert(block);
            } else if self.without != Without::Renewal {
                let steps = self.ages.steps();
                self.ages.touch(&block, steps);
            }
        }
        if !new.is_empty() {
            self.new_segment(new);
        }
        "blocks move"
    }

    fn pin(&mut self) -> &'static str {
        let end = self.spec.log.len() as u64;
        match self.random.below(3) {
            0 => self.spec.pins.clear(),
            _ => drop(self.spec.pins.insert(end)),
        }
        "a pin"
    }

    fn ended(&mut self) {
        self.sessions = vec![Session::default(); SESSIONS];
        self.collection = None;
        self.temporary
            .values_mut()
            .for_each(|holder| *holder = None);
    }

    fn crash(&mut self) -> &'static str {
        self.ended();
        let known = match self.without {
            Without::Journal => self.at_tick.clone(),
            _ => self.ages.known(),
        };
        self.ages = Ages::resume(self.tick(), TICKS, known);
        self.count_time();
        "the server is killed"
    }

    fn power_cut(&mut self) -> &'static str {
        self.ended();
        match self.without {
            Without::Forgetting => {
                let mut known = self.ages.known();
                known.touched.clear();
                self.ages = Ages::resume(self.tick(), TICKS, known);
            }
            _ => {
                self.began = self.spec.now;
                self.ages = Ages::new(0, TICKS);
            }
        }
        self.count_time();
        "the power is cut"
    }

    /// The next stage of a collection.
    fn collect(&mut self) -> &'static str {
        let Some(mut collection) = self.collection.take() else {
            let knows = self.ages.knows_the_window() || self.without == Without::KnownWindow;
            self.collection = knows.then(|| self.begin());
            return "a collection begins";
        };
        if collection.marked.is_none() {
            match self.marks(&collection) {
                Ok(marked) => collection.marked = Some(marked),
                Err(why) => {
                    self.unmarked.get_or_insert(why);
                }
            }
            self.collection = Some(collection);
            return "blocks are marked";
        }
        if let Some((id, dead)) = collection.condemned.take() {
            self.commit(id, &dead);
            self.ages.step_ended();
            self.collection = Some(collection);
            return "condemned blocks go";
        }
        self.count_time();
        let is_late = self.ages.now() - collection.tick > TICKS / 2;
        if is_late && self.without != Without::Staleness {
            return "a collection is given up";
        }
        let next = self
            .segments
            .iter()
            .find(|it| collection.known.contains(&it.id) && !collection.swept.contains(&it.id));
        let Some(segment) = next.cloned() else {
            return "a collection ends";
        };
        collection.swept.insert(segment.id);
        let marked = collection.marked.as_ref().expect("marks");
        let unmarked = segment
            .blocks
            .iter()
            .filter(|block| !marked.contains(*block));
        let mut dead = BTreeSet::new();
        for block in unmarked {
            if self.ages.condemn(segment.id, block) {
                dead.insert(*block);
            }
        }
        collection.condemned = Some((segment.id, dead));
        self.collection = Some(collection);
        "blocks are condemned"
    }

    fn begin(&mut self) -> Collection {
        self.count_time();
        let end = self.spec.log.len() as u64;
        let begin = match self.without {
            Without::Window => end,
            _ => self.ages.begin(),
        };
        let pins = match self.without {
            Without::Pins => BTreeSet::new(),
            _ => self.spec.pins.clone(),
        };
        Collection {
            tick: self.ages.now(),
            known: self.segments.iter().map(|it| it.id).collect(),
            positions: Positions { begin, end, pins },
            marked: None,
            swept: BTreeSet::new(),
            condemned: None,
        }
    }

    fn marks(&self, collection: &Collection) -> Result<BTreeSet<Handle>, String> {
        let positions = &collection.positions;
        let members = tree::members();
        let mut folds = Folds::new(tree::volume());
        let entries = || {
            let all = self.bodies.iter().take(positions.end as usize);
            let all = (0..).zip(all);
            all.map(|(at, (user, body))| (tree::written_by(*user, at), body))
        };
        for (written, body) in entries() {
            folds.entry(&written, body, members).unwrap();
        }
        let spans = Spans::new(&folds, positions);
        let mut marking = Marking::new(Lists {
            world: self,
            marked: BTreeSet::new(),
            temporary: BTreeSet::new(),
        });
        for (_, root) in spans.roots() {
            marking.table(root).map_err(|why| why.to_string())?;
        }
        for (written, body) in entries() {
            if written.position < spans.reads_from() {
                continue;
            }
            for inode in spans.inodes(&written, body, members) {
                marking.inode(inode).map_err(|why| why.to_string())?;
            }
        }
        for (_, root) in folds.roots() {
            marking.names(&root).map_err(|why| why.to_string())?;
        }
        Ok(marking.into_source().marked)
    }

    /// The segment is written again without the dead blocks.
    fn commit(&mut self, id: FileId, dead: &BTreeSet<Handle>) {
        let place = self.segments.iter().position(|it| it.id == id);
        let Some(place) = place.filter(|_| !dead.is_empty()) else {
            return;
        };
        let old = self.segments.remove(place);
        let live: BTreeSet<Handle> = old.blocks.difference(dead).copied().collect();
        if !live.is_empty() {
            self.new_segment(live);
        }
    }

    /// Whether everything that is needed is there.
    pub fn check(&self) -> Result<(), String> {
        if let Some(why) = &self.unmarked {
            return Err(why.clone());
        }
        for block in self.spec.needed() {
            if !self.is_there(&block) {
                let kind = self.made.get(&block).map(|(kind, _)| *kind);
                return Err(format!("block {block} ({kind:?}) is gone"));
            }
        }
        Ok(())
    }
}

/// The lists, as a walk sees them.
struct Lists<'a> {
    world: &'a World,
    /// Marks of blocks in the segments.
    marked: BTreeSet<Handle>,
    temporary: BTreeSet<Handle>,
}

impl Source for Lists<'_> {
    type Error = String;

    fn mark(&mut self, block: &Handle) -> Result<Seen, String> {
        let new = |is_new| match is_new {
            true => Ok(Seen::New),
            false => Ok(Seen::Known),
        };
        let temporary = self.world.temporary.contains_key(block);
        let is_first = self.world.without == Without::SegmentsFirst;
        if temporary && is_first {
            return new(self.temporary.insert(*block));
        }
        if self.world.in_segments(block) {
            return new(self.marked.insert(*block));
        }
        match temporary {
            true => new(self.temporary.insert(*block)),
            false => Ok(Seen::Absent),
        }
    }

    fn read(&mut self, wanted: &Wanted) -> Result<Result<Found, Reject>, String> {
        let (_, bytes) = self.world.made.get(&wanted.handle()).ok_or("never made")?;
        Ok(wanted.prove(&tree::hasher(), bytes.clone()))
    }
}
