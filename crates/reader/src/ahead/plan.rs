//! Which blocks to fetch before a depth-first reader comes to them. Pure: it is told which blocks exist and how far
//! the reader is, and answers with requests; [`super`] carries them out.
//!
//! Blocks are kept in the order in which the reader wants them: directories in order of their names, each before what
//! is below it, and the content of a file at the file's place. The nearest ones are requested first, many at a time. So a
//! broad tree is fetched in as many round trips as it is deep, and a tree of any size in bounded memory: blocks that were
//! requested and that the reader has not passed have a budget, and so does the list of those that wait. When that list
//! is full, the blocks that the reader wants last are forgotten; the reader meets them again.

mod requested;
mod waiting;

use std::collections::HashMap;
use std::time::Duration;

use trust::array::{Child, Extent};
use trust::map::ChildRef;
use trust::{Data, Handle, InodeBlock};

use requested::Requested;
use waiting::{Group, Waiting};

/// Blocks of which it is remembered that they were requested, and memory for their places, at most.
const MAX_SEEN: usize = 1 << 18;
const MAX_SEEN_BYTES: usize = 16 << 20;
/// Bytes that are fetched before it is known whether the reader uses them.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
/// Blocks of one request, at most.
const REQUEST_BLOCKS: usize = 256;
/// Bytes of one request, at most, unless it is a single block.
const REQUEST_BYTES: u64 = 512 << 10;
/// Nodes of a directory that are marked as used when it is listed, at most.
const LOOKED_THROUGH: usize = 1024;
/// What a node counts for before it has come, bytes. Most are shorter.
const NODE_BYTES: u64 = 4 << 10;
/// Where content is read, what makes others known has one part in so many of the budget.
const LEADING_SHARE: u64 = 8;
/// Requests under way, at most.
const MAX_REQUESTS: usize = 64;
/// Of those, kept for what makes others known.
const LEADING_REQUESTS: usize = 8;
/// While fewer requests for blocks of a kind are under way, one may be of any size.
const FEW_REQUESTS: usize = 4;
/// While fewer requests are under way, one need not be full, but is not small: it has so many blocks or bytes.
const SOME_REQUESTS: usize = 16;
const WORTH_BLOCKS: usize = 64;
const WORTH_BYTES: u64 = 128 << 10;
/// Bytes under way at first.
const FIRST_FLIGHT_BYTES: u64 = 1 << 20;
/// Bytes under way, at least and at most.
const FLIGHT_BYTES: std::ops::RangeInclusive<u64> = (256 << 10)..=(32 << 20);
/// A request that takes longer than this waited for others in a queue.
const SLOW: Duration = Duration::from_secs(2);

/// Where the reader wants a block: names from the top, each with a zero behind it (so that the order is that of a
/// depth-first walk), then the first name of a node or the offset in a file. A parent comes before its children.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    names: Vec<u8>,
    rank: u8,
}

impl Place {
    /// The place of what is at a path (names with `/` between them).
    pub(super) fn of_path(path: &[u8]) -> Place {
        let mut names: Vec<u8> = path
            .iter()
            .map(|byte| if *byte == b'/' { 0 } else { *byte })
            .collect();
        if !names.is_empty() {
            names.push(0);
        }
        Place { names, rank: 0 }
    }

    /// The place of an entry of the directory at this place.
    pub(super) fn entry(&self, name: &[u8]) -> Place {
        let mut names = Vec::with_capacity(self.names.len() + name.len() + 1);
        names.extend_from_slice(&self.names);
        names.extend_from_slice(name);
        names.push(0);
        Place { names, rank: 0 }
    }

    /// The path, names with `/` between them.
    pub(super) fn path(&self) -> Vec<u8> {
        let names = self.names.strip_suffix(&[0]).unwrap_or(&self.names);
        let slash = |byte: &u8| if *byte == 0 { b'/' } else { *byte };
        names.iter().map(slash).collect()
    }

    /// The names of the path, each with a zero behind it.
    pub(super) fn names(&self) -> &[u8] {
        &self.names
    }

    /// As [`Place::names`].
    pub(super) fn into_names(self) -> Vec<u8> {
        self.names
    }

    /// The place of a node of the directory at this place.
    fn node(&self, child: &ChildRef) -> Place {
        let mut names = self.names.clone();
        names.extend_from_slice(child.interval.lower.as_deref().unwrap_or_default());
        let rank = u8::MAX - child.level;
        Place { names, rank }
    }

    /// The place of a part of the file at this place.
    fn part(&self, offset: u64, level: u8) -> Place {
        let mut names = self.names.clone();
        names.extend_from_slice(&offset.to_be_bytes());
        let rank = u8::MAX - level;
        Place { names, rank }
    }
}

/// A block, and what is known of it.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// A node of the directory at a place.
    Directory(Place, ChildRef),
    /// The inode of the entry at a place.
    Inode(Place, Handle<InodeBlock>),
    /// A node or a data block of the file at a place, from an offset on.
    Content(Place, u64, Child),
}

impl Wanted {
    fn place(&self) -> Place {
        match self {
            Wanted::Directory(place, child) => place.node(child),
            Wanted::Inode(place, _) => place.clone(),
            Wanted::Content(place, offset, Child::Node { level, .. }) => {
                place.part(*offset, *level)
            }
            Wanted::Content(place, offset, Child::Extent(_)) => place.part(*offset, 0),
        }
    }

    /// The place of the directory or file that it is a part of.
    fn at(&self) -> &Place {
        match self {
            Wanted::Directory(place, _) | Wanted::Inode(place, _) | Wanted::Content(place, ..) => {
                place
            }
        }
    }

    /// The block's handle; a hole has none.
    fn handle(&self) -> Option<[u8; 32]> {
        match self {
            Wanted::Directory(_, child) => Some(*child.handle.as_bytes()),
            Wanted::Inode(_, handle) => Some(*handle.as_bytes()),
            Wanted::Content(_, _, Child::Node { handle, .. }) => Some(*handle.as_bytes()),
            Wanted::Content(_, _, Child::Extent(Extent::Data { handle, .. })) => {
                Some(*handle.as_bytes())
            }
            Wanted::Content(_, _, Child::Extent(Extent::Hole { .. })) => None,
        }
    }

    fn group(&self) -> Group {
        match self {
            Wanted::Directory(..) => Group::Directories,
            Wanted::Inode(..) => Group::Inodes,
            Wanted::Content(_, _, Child::Node { .. }) => Group::Nodes,
            Wanted::Content(_, _, Child::Extent(_)) => Group::Data,
        }
    }

    /// The bytes that it takes from the budget until its length is known.
    fn len_bytes(&self) -> u64 {
        match self {
            Wanted::Content(_, _, Child::Extent(extent)) => extent.len(),
            _ => NODE_BYTES,
        }
    }
}

/// A request that could be made: the first so many blocks of a kind.
#[derive(Debug)]
struct Draft<'a> {
    group: Group,
    first: &'a Place,
    blocks: usize,
    len_bytes: u64,
    /// One more block would be too much for one request.
    is_full: bool,
}

/// Blocks of one kind that are requested together. Must be given back by [`Plan::finished`].
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wanted: Vec<Wanted>,
    len_bytes: u64,
}

impl Request {
    /// The data blocks and their lengths, if it is a request for such.
    pub(super) fn data(&self) -> (Vec<Handle<Data>>, Vec<u32>) {
        let data = |wanted: &Wanted| match wanted {
            Wanted::Content(_, _, Child::Extent(Extent::Data { handle, len })) => {
                Some((*handle, *len))
            }
            _ => None,
        };
        self.wanted.iter().filter_map(data).unzip()
    }
}

/// Whether the reader is going to read everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// It is, in order of the names.
    Whole,
    /// It is not known: the budget grows with what it reads.
    Unknown,
}

/// Decides what to fetch before a depth-first reader comes to it.
#[derive(Debug)]
pub(super) struct Plan {
    reader: Reader,
    waiting: Waiting,
    ahead: Requested,
    /// Budget for `ahead`.
    window_bytes: u64,
    most_window_bytes: u64,
    /// The blocks that were added, and for which place.
    seen: HashMap<[u8; 32], Place>,
    seen_bytes: usize,
    /// The reader is here.
    at: Place,
    /// Requests under way, of each kind.
    under_way: [usize; Group::ALL.len()],
    flight_bytes: u64,
    most_flight_bytes: u64,
}

impl Plan {
    /// A plan for a reader who is going to read everything, in order of the names. It has at most `window_bytes` of
    /// blocks before the reader.
    pub(super) fn new(window_bytes: u64) -> Plan {
        Plan {
            reader: Reader::Whole,
            waiting: Waiting::default(),
            ahead: Requested::default(),
            window_bytes,
            most_window_bytes: window_bytes,
            seen: HashMap::new(),
            seen_bytes: 0,
            at: Place::of_path(b""),
            under_way: Default::default(),
            flight_bytes: 0,
            most_flight_bytes: FIRST_FLIGHT_BYTES,
        }
    }

    /// A plan for a reader of whom nobody knows what it is going to read. Blocks that it has not used are at most
    /// [`FIRST_WINDOW_BYTES`] more than twice those that it has, and at most `most_bytes`. It requests nothing before
    /// [`Plan::open`].
    pub(super) fn unknown(most_bytes: u64) -> Plan {
        Plan {
            reader: Reader::Unknown,
            most_window_bytes: most_bytes,
            ..Plan::new(0)
        }
    }

    /// The reader seems to read everything.
    pub(super) fn open(&mut self) {
        let first = FIRST_WINDOW_BYTES.min(self.most_window_bytes);
        self.window_bytes = self.window_bytes.max(first);
    }

    /// The reader has read entries of the directory with this first node: the directory's nodes are used. Gives its place
    /// if it is known.
    pub(super) fn used(&mut self, node: &[u8; 32]) -> Option<Place> {
        let place = self.seen.get(node)?.clone();
        let below = self.ahead.from(&place).take(LOOKED_THROUGH);
        let inside = below.map_while(|at| Some((at, at.names.strip_prefix(&*place.names)?)));
        // What belongs to an entry of the directory has a zero behind the entry's name.
        let nodes = inside.filter(|(_, rest)| !rest.contains(&0));
        let used: Vec<Place> = nodes.map(|(at, _)| at.clone()).collect();
        for at in used {
            let bytes = self.ahead.remove(&at);
            let window = self.window_bytes.saturating_add(bytes.saturating_mul(2));
            self.window_bytes = window.min(self.most_window_bytes);
        }
        self.at = place.clone();
        Some(place)
    }

    /// A block exists. Nothing happens if it was known, or if the reader has passed it.
    pub(super) fn add(&mut self, wanted: Wanted) {
        let (place, Some(handle)) = (wanted.place(), wanted.handle()) else {
            return;
        };
        let is_passed = self.reader == Reader::Whole && place < self.at;
        let waits = self.waiting.contains(wanted.group(), &place);
        if is_passed || waits || self.seen.contains_key(&handle) {
            return;
        }
        if self.seen.len() >= MAX_SEEN || self.seen_bytes >= MAX_SEEN_BYTES {
            self.seen.clear();
            self.seen_bytes = 0;
        }
        let kept = match self.reader {
            Reader::Whole => Place::of_path(b""),
            Reader::Unknown => wanted.at().clone(),
        };
        self.seen_bytes += kept.names.len();
        self.seen.insert(handle, kept);
        self.waiting.insert(place, wanted);
        while let Some(last) = self.waiting.pop_excess() {
            self.forget(&last);
        }
    }

    /// The block may be added again.
    fn forget(&mut self, wanted: &Wanted) {
        if let Some(handle) = wanted.handle() {
            self.seen.remove(&handle);
        }
    }

    /// The next request, if there is room for one: blocks of one kind, the nearest first. While several requests are under
    /// way a small one waits until more blocks are known, because every answer makes some known. What makes others known
    /// comes before content, of which there is always enough: otherwise the reader would come to directories first.
    pub(super) fn next(&mut self) -> Option<Request> {
        let drafts = Group::ALL.into_iter().filter_map(|group| self.draft(group));
        let worth = drafts.filter(|draft| self.is_worth(draft));
        let next = worth.min_by_key(|draft| {
            let is_passed = draft.first < &self.at;
            (!draft.group.leads_on(), is_passed, draft.first)
        })?;
        let (group, blocks) = (next.group, next.blocks);
        let places = self.waiting.nearest(group, &self.at).take(blocks);
        let places: Vec<Place> = places.map(|(place, _)| place.clone()).collect();
        let mut request = Request {
            wanted: Vec::new(),
            len_bytes: 0,
        };
        for place in places {
            let Some(wanted) = self.waiting.remove(group, &place) else {
                continue;
            };
            request.len_bytes = request.len_bytes.saturating_add(wanted.len_bytes());
            self.ahead.insert(place, group, wanted.len_bytes());
            request.wanted.push(wanted);
        }
        self.flight_bytes = self.flight_bytes.saturating_add(request.len_bytes);
        self.under_way[group as usize] += 1;
        Some(request)
    }

    /// What could be requested of a kind now.
    fn draft(&self, group: Group) -> Option<Draft<'_>> {
        let most_requests = match group.leads_on() {
            true => MAX_REQUESTS,
            false => MAX_REQUESTS - LEADING_REQUESTS,
        };
        if self.requests() >= most_requests {
            return None;
        }
        let mut nearest = self.waiting.nearest(group, &self.at).peekable();
        let (first, _) = nearest.peek()?;
        let mut draft = Draft {
            group,
            first,
            blocks: 0,
            len_bytes: 0,
            is_full: false,
        };
        let room = self.room(group);
        // A single block that is larger than the budget must not stop everything.
        let may_exceed =
            self.reader == Reader::Whole && self.ahead.is_empty() && self.requests() == 0;
        for (_, wanted) in nearest {
            let sum = draft.len_bytes.saturating_add(wanted.len_bytes());
            draft.is_full = sum > REQUEST_BYTES || draft.blocks >= REQUEST_BLOCKS;
            let fits = sum <= room || (may_exceed && draft.blocks == 0);
            if draft.is_full && draft.blocks > 0 || !fits {
                break;
            }
            draft.blocks += 1;
            draft.len_bytes = sum;
        }
        (draft.blocks > 0).then_some(draft)
    }

    /// Room for one more request, bytes. What makes others known and content have each their share.
    fn room(&self, group: Group) -> u64 {
        let (leading, content) = (self.ahead.leading_bytes(), self.ahead.content_bytes());
        let share = self.window_bytes / LEADING_SHARE;
        let has_content = content > 0 || !self.waiting.is_empty(Group::Data);
        let rest = match group.leads_on() {
            true if has_content => share.saturating_sub(leading),
            true => u64::MAX,
            false => (self.window_bytes - share).saturating_sub(content),
        };
        rest.min(self.window_bytes.saturating_sub(self.ahead.bytes()))
            .min(self.most_flight_bytes.saturating_sub(self.flight_bytes))
    }

    /// Requests under way.
    fn requests(&self) -> usize {
        self.under_way.iter().sum()
    }

    /// Whether a request should be made now, and not wait for more blocks.
    fn is_worth(&self, draft: &Draft<'_>) -> bool {
        let is_large = draft.blocks >= WORTH_BLOCKS || draft.len_bytes >= WORTH_BYTES;
        self.under_way[draft.group as usize] < FEW_REQUESTS
            || draft.is_full
            || (is_large && self.requests() < SOME_REQUESTS)
    }

    /// A request has ended after the time `took`; `failed` when its blocks have not all come.
    pub(super) fn finished(&mut self, request: &Request, took: Duration, failed: bool) {
        if let Some(wanted) = request.wanted.first() {
            let requests = &mut self.under_way[wanted.group() as usize];
            *requests = requests.saturating_sub(1);
        }
        self.flight_bytes = self.flight_bytes.saturating_sub(request.len_bytes);
        let most = match took > SLOW {
            true => self.most_flight_bytes / 2,
            false => self.most_flight_bytes.saturating_add(request.len_bytes),
        };
        self.most_flight_bytes = most.clamp(*FLIGHT_BYTES.start(), *FLIGHT_BYTES.end());
        if failed {
            for wanted in &request.wanted {
                self.forget(wanted);
                self.ahead.remove(&wanted.place());
            }
        }
    }

    /// A block has come, and takes so much memory.
    pub(super) fn weighed(&mut self, wanted: &Wanted, bytes: u64) {
        let place = wanted.place();
        if let Some(counted) = self.ahead.get(&place) {
            // Where nobody knows what is used, a short node counts like another: it costs a request too.
            let bytes = match self.reader {
                Reader::Whole => bytes,
                Reader::Unknown => bytes.max(counted),
            };
            self.ahead.insert(place, wanted.group(), bytes);
        }
    }

    /// The reader is at this place: what lies before it takes no room any more.
    pub(super) fn reached(&mut self, place: &Place) {
        if self.reader == Reader::Unknown || *place <= self.at {
            return;
        }
        self.at = place.clone();
        self.ahead.remove_before(place);
        while let Some(wanted) = self.waiting.pop_before(place) {
            self.forget(&wanted);
        }
    }
}

#[cfg(test)]
mod tests;
