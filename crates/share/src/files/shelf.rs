//! Bodies of entries and blocks of trees that a device has fetched, in bounded memory.
//!
//! Bodies and blocks have a limit each, and of each kind what was used least recently goes first. A question that misses
//! something is asked again when it has come. Such questions take turns, the oldest first: all that the one whose turn
//! it is has used or missed stays, so that it gets further each time, and is answered in the end, however little room
//! there is. The others have the whole room beside it: a long question keeps no short one from its answer. A turn ends
//! with the answer, or when nothing of what is missing comes for as long as another question has waited.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trust::error::Reject;
use trust::handle::Handle;
use trust::kind::Kind;
use trust::reach::{Found, Wanted};
use trust_shared::effect::{Blocks, Bodies, Missing};
use trust_shared::ops::Body;

/// Memory for what no question needs whose turn it is, bytes, roughly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShelfBytes {
    /// For bodies of entries. Most of them are read once.
    pub bodies: usize,
    /// For blocks of trees. Calls that are under way together read the same nodes again and again: if these have no room
    /// at the same time, each is fetched anew for each call.
    pub blocks: usize,
}

impl ShelfBytes {
    /// The same for each of the two.
    pub const fn each(bytes: usize) -> ShelfBytes {
        ShelfBytes {
            bodies: bytes,
            blocks: bytes,
        }
    }
}

impl Default for ShelfBytes {
    fn default() -> Self {
        ShelfBytes {
            bodies: 5 << 20,
            blocks: 32 << 20,
        }
    }
}

/// Bodies that came unasked and that nobody has read, at most.
const MAX_UNREAD: usize = 1 << 12;

/// Supplies after which a question that nobody asks again is forgotten, because its program is gone, and after which
/// the turn of a question ends for which nothing came: it waits for the server. Also, how often a question that costs
/// much is put off while nothing comes for it.
const PATIENCE: u64 = 32;

/// Names a question among those that wait.
pub(crate) type Question = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Body(u64),
    Block(Kind, Handle),
}

impl Key {
    fn of(wanted: &Wanted) -> Key {
        Key::Block(wanted.kind(), wanted.handle())
    }
}

#[derive(Clone, Debug)]
enum Thing {
    Body(Result<Arc<Body>, Reject>),
    Block(Result<Found, Reject>),
}

#[derive(Debug)]
struct Place {
    thing: Thing,
    weight: usize,
    /// When it was used last. None: it stays, because the question needs it whose turn it is.
    used: Option<u64>,
}

/// A question that misses something.
#[derive(Debug)]
struct Open {
    question: Question,
    /// After how many supplies it was asked first, or had its last turn.
    since: u64,
    /// After how many supplies it was asked last.
    round: u64,
    /// All that it has used and missed when it was asked last.
    keys: HashSet<Key>,
    /// The bodies and blocks that were missing then.
    missing: Missing,
    /// Those of them that have not come since.
    awaited: HashSet<Key>,
    /// How often somebody asked for it since, in vain.
    in_vain: u64,
}

/// What may go of one kind.
#[derive(Debug, Default)]
struct Lru {
    /// By when it was used last.
    order: BTreeMap<u64, Key>,
    /// Its weight, bytes.
    weight: usize,
}

/// What may go.
#[derive(Debug, Default)]
struct Loose {
    /// Its weight is also that of the bodies that nobody has read.
    bodies: Lru,
    blocks: Lru,
}

impl Loose {
    fn of(&mut self, key: Key) -> &mut Lru {
        match key {
            Key::Body(_) => &mut self.bodies,
            Key::Block(..) => &mut self.blocks,
        }
    }
}

impl Lru {
    fn add(&mut self, used: u64, key: Key, weight: usize) {
        self.order.insert(used, key);
        self.weight += weight;
    }

    fn remove(&mut self, used: u64, weight: usize) {
        self.order.remove(&used);
        self.weight -= weight;
    }

    fn evict(&mut self, limit_bytes: usize, places: &mut HashMap<Key, Box<Place>>) {
        while self.weight > limit_bytes {
            let Some((_, key)) = self.order.pop_first() else {
                return;
            };
            let gone = places.remove(&key);
            self.weight -= gone.map_or(0, |place| place.weight);
        }
    }
}

#[derive(Debug, Default)]
struct Things {
    places: HashMap<Key, Box<Place>>,
    loose: Loose,
    /// Weight of what stays.
    kept: usize,
    clock: u64,
    /// How often something was supplied before a question.
    round: u64,
    /// Something was supplied since the last question.
    supplied: bool,
    /// The first one has its turn.
    open: VecDeque<Open>,
    /// Whose turn it was when a question was asked last.
    turn: Option<Question>,
    /// After how many supplies that turn began, or something came last that its question needs.
    fed: u64,
    /// Bodies that came unasked and that nobody has read yet, by position, ascending. Most are never read.
    unread: VecDeque<(u64, Bytes)>,
    /// What the question that is being asked has used.
    asking: Option<HashSet<Key>>,
}

/// Bodies and blocks that were fetched. Their names were verified before they are put here.
#[derive(Debug)]
pub struct Shelf {
    room: ShelfBytes,
    things: Mutex<Things>,
}

impl Default for Shelf {
    fn default() -> Self {
        Shelf::new(ShelfBytes::default())
    }
}

impl Shelf {
    /// An empty shelf.
    pub fn new(room: ShelfBytes) -> Shelf {
        Shelf {
            room,
            things: Mutex::default(),
        }
    }

    fn things(&self) -> MutexGuard<'_, Things> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the body of the entry at a position here, or why it cannot be read. Its hash is that of the entry.
    pub fn put_body(&self, position: u64, body: Result<Arc<Body>, Reject>) {
        self.things().supplied = true;
        self.keep_body(position, body);
    }

    fn keep_body(&self, position: u64, body: Result<Arc<Body>, Reject>) {
        let weight = weight_of(&body);
        self.put(Key::Body(position), Thing::Body(body), weight);
    }

    /// A body that came without being asked for. Its hash is that of the entry.
    pub(crate) fn keep_unread(&self, position: u64, body: Bytes) {
        let mut things = self.things();
        things.keep_unread(position, body);
        things.evict(self.room);
    }

    /// Puts a block here that has the wanted handle, or the rule that it breaks.
    pub fn put_block(&self, wanted: &Wanted, found: Result<Found, Reject>) {
        let weight = match &found {
            Ok(Found::Data { .. }) | Err(_) => size_of::<Found>(),
            Ok(Found::Array(node)) => node.weight_bytes(),
            Ok(Found::Map(node)) => node.weight_bytes(),
            Ok(Found::Inode(inode)) => inode.weight_bytes(),
        };
        let key = Key::of(wanted);
        self.things().supplied = true;
        self.put(key, Thing::Block(found), weight);
    }

    /// Memory that it takes, bytes, roughly.
    pub fn weight_bytes(&self) -> usize {
        let things = self.things();
        things.loose.bodies.weight + things.loose.blocks.weight + things.kept
    }

    fn put(&self, key: Key, thing: Thing, weight: usize) {
        let weight = weight + PLACE_BYTES;
        let mut things = self.things();
        things.insert(key, thing, weight);
        things.evict(self.room);
    }

    /// A question is being asked: what it reads is noted until [`Shelf::answered`].
    pub(crate) fn ask(&self) {
        let mut things = self.things();
        things.begin_round();
        things.asking = Some(HashSet::new());
    }

    /// What a question has missed when it was asked last, and what has not come since. None: it has all come, or nothing
    /// comes, so the question should be asked again: perhaps it needs something else by now. For questions that cost
    /// much: to ask one again for each thing that comes, its own and those of others, would cost more than to answer it.
    pub(crate) fn awaited(&self, question: Question) -> Option<Missing> {
        let mut things = self.things();
        things.begin_round();
        let round = things.round;
        let mut open = things.open.iter_mut();
        let open = open.find(|open| open.question == question)?;
        open.round = round;
        open.in_vain += 1;
        if open.in_vain >= PATIENCE {
            return None;
        }
        let awaits = |key: Key| open.awaited.contains(&key);
        let (bodies, blocks) = (open.missing.bodies.iter(), open.missing.blocks.iter());
        let missing = Missing {
            bodies: bodies
                .copied()
                .filter(|at| awaits(Key::Body(*at)))
                .collect(),
            blocks: blocks
                .filter(|wanted| awaits(Key::of(wanted)))
                .cloned()
                .collect(),
        };
        things.forget();
        (!missing.bodies.is_empty() || !missing.blocks.is_empty()).then_some(missing)
    }

    /// A fold is in the log: values lie in other blocks now, and no question waits for those of before.
    pub(crate) fn folded(&self) {
        for open in &mut self.things().open {
            open.awaited.clear();
        }
    }

    /// The question has its answer, or misses something.
    pub(crate) fn answered(&self, question: Question, missing: Option<&Missing>) {
        let mut things = self.things();
        let used = things.asking.take().unwrap_or_default();
        let had_turn = things.is_first(question);
        if had_turn {
            things.loosen();
        }
        match missing {
            None => things.open.retain(|open| open.question != question),
            Some(missing) => things.reopen(question, used, missing),
        }
        if had_turn || things.is_first(question) {
            things.keep();
        }
        things.forget();
        things.evict(self.room);
    }
}

fn weight_of(body: &Result<Arc<Body>, Reject>) -> usize {
    match body {
        Ok(body) => body.ops().len() * OP_BYTES + size_of::<Body>(),
        Err(_) => 0,
    }
}

/// Roughly the memory of an op with its guards and changes.
const OP_BYTES: usize = 1536;
/// Roughly the memory of an entry of the tables.
const PLACE_BYTES: usize = 450;
/// Roughly what a body takes that nobody has read, beside its bytes.
const UNREAD_BYTES: usize = 100;

impl Things {
    fn begin_round(&mut self) {
        if std::mem::take(&mut self.supplied) {
            self.round += 1;
        }
    }

    /// Keeps a body that nobody has read. Drops the oldest one if there are too many: it can be fetched again.
    fn keep_unread(&mut self, position: u64, body: Bytes) {
        if self
            .unread
            .back()
            .is_some_and(|(last, _)| *last >= position)
        {
            return;
        }
        self.loose.bodies.weight += body.len() + UNREAD_BYTES;
        self.unread.push_back((position, body));
        if self.unread.len() > MAX_UNREAD {
            self.drop_unread();
        }
    }

    /// Drops the oldest body that nobody has read. False: there is none.
    fn drop_unread(&mut self) -> bool {
        let oldest = self.unread.pop_front();
        if let Some((_, body)) = &oldest {
            self.loose.bodies.weight -= body.len() + UNREAD_BYTES;
        }
        oldest.is_some()
    }

    /// Takes a body that nobody has read.
    fn take_unread(&mut self, position: u64) -> Option<Bytes> {
        let found = self.unread.binary_search_by_key(&position, |(at, _)| *at);
        let (_, body) = self.unread.remove(found.ok()?)?;
        self.loose.bodies.weight -= body.len() + UNREAD_BYTES;
        Some(body)
    }

    fn insert(&mut self, key: Key, thing: Thing, weight: usize) {
        self.take_out(key);
        for open in &mut self.open {
            if open.awaited.remove(&key) {
                open.in_vain = 0;
            }
        }
        self.clock += 1;
        let first = self.open.front();
        let used = match first.is_some_and(|first| first.keys.contains(&key)) {
            true => {
                self.fed = self.round;
                self.kept += weight;
                None
            }
            false => {
                let used = self.clock;
                self.loose.of(key).add(used, key, weight);
                Some(used)
            }
        };
        let place = Place {
            thing,
            weight,
            used,
        };
        self.places.insert(key, Box::new(place));
    }

    fn take_out(&mut self, key: Key) {
        let Some(place) = self.places.remove(&key) else {
            return;
        };
        match place.used {
            Some(used) => self.loose.of(key).remove(used, place.weight),
            None => self.kept -= place.weight,
        }
    }

    fn get(&mut self, key: Key) -> Option<Thing> {
        if let Some(asking) = &mut self.asking {
            asking.insert(key);
        }
        let place = self.places.get_mut(&key)?;
        if let Some(used) = &mut place.used {
            self.clock += 1;
            let loose = self.loose.of(key);
            loose.remove(*used, place.weight);
            loose.add(self.clock, key, place.weight);
            *used = self.clock;
        }
        Some(place.thing.clone())
    }

    /// What the question needs whose turn it is may go: its turn ends, or it needs other things.
    fn loosen(&mut self) {
        let Some(first) = self.open.front() else {
            return;
        };
        for key in &first.keys {
            if let Some(place) = self.places.get_mut(key)
                && place.used.is_none()
            {
                self.clock += 1;
                place.used = Some(self.clock);
                self.kept -= place.weight;
                self.loose.of(*key).add(self.clock, *key, place.weight);
            }
        }
    }

    /// What the question needs whose turn it is stays.
    fn keep(&mut self) {
        let Some(first) = self.open.front() else {
            return;
        };
        for key in &first.keys {
            if let Some(place) = self.places.get_mut(key)
                && let Some(used) = place.used.take()
            {
                self.loose.of(*key).remove(used, place.weight);
                self.kept += place.weight;
            }
        }
    }

    fn reopen(&mut self, question: Question, mut keys: HashSet<Key>, missing: &Missing) {
        let bodies = missing.bodies.iter().map(|position| Key::Body(*position));
        let awaited: HashSet<Key> = bodies.chain(missing.blocks.iter().map(Key::of)).collect();
        keys.extend(&awaited);
        let missing = missing.clone();
        let known = self.open.iter_mut().find(|open| open.question == question);
        match known {
            Some(open) => {
                open.round = self.round;
                open.keys = keys;
                open.missing = missing;
                open.awaited = awaited;
                open.in_vain = 0;
            }
            None => self.open.push_back(Open {
                question,
                since: self.round,
                round: self.round,
                keys,
                missing,
                awaited,
                in_vain: 0,
            }),
        }
    }

    /// Forgets questions that nobody asks any more, and ends the turn of one that only waits while another one does.
    fn forget(&mut self) {
        let round = self.round;
        let is_over = |since: u64| since.saturating_add(PATIENCE) <= round;
        let is_needed = self.open.iter().skip(1).any(|open| is_over(open.since));
        let only_waits = is_over(self.fed) && is_needed;
        let Some(first) = self.open.front() else {
            return;
        };
        let passes = self.turn == Some(first.question) && only_waits;
        let ends = passes || is_over(first.round);
        if ends {
            self.loosen();
        }
        if passes && let Some(mut first) = self.open.pop_front() {
            first.since = round;
            self.open.push_back(first);
        }
        self.open.retain(|open| !is_over(open.round));
        if ends {
            self.keep();
        }
        let first = self.open.front().map(|first| first.question);
        if passes || self.turn != first {
            self.turn = first;
            self.fed = round;
        }
    }

    fn is_first(&self, question: Question) -> bool {
        let first = self.open.front();
        first.is_some_and(|first| first.question == question)
    }

    /// Drops what was used least recently, but nothing that the question needs whose turn it is.
    fn evict(&mut self, room: ShelfBytes) {
        while self.loose.bodies.weight > room.bodies && self.drop_unread() {}
        let places = &mut self.places;
        self.loose.bodies.evict(room.bodies, places);
        self.loose.blocks.evict(room.blocks, places);
    }
}

impl Bodies for Shelf {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        let mut things = self.things();
        let key = Key::Body(position);
        if let Some(Thing::Body(body)) = things.get(key) {
            return body.map(Some);
        }
        let Some(bytes) = things.take_unread(position) else {
            return Ok(None);
        };
        let body = Body::decode(&bytes).map(Arc::new);
        let weight = weight_of(&body) + PLACE_BYTES;
        things.insert(key, Thing::Body(body.clone()), weight);
        body.map(Some)
    }
}

impl Blocks for Shelf {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        match self.things().get(Key::of(wanted)) {
            Some(Thing::Block(found)) => found.map(Some),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
