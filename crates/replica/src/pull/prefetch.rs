//! Segments that are fetched ahead of the walk. The segments of a source that were not seen before hold
//! what its last publications added, and little else. Whole segments come in a few requests that depend
//! only on the head; a walk needs one round trip for each level of the tree.
//!
//! All of it is a hint, because a source's index may be wrong. Records stay in memory, within a bound,
//! until the walk asks for them by handle and proves them. The others are dropped and never reach the disk.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream;
use store::head::{Head, RunName};
use store::index::tail;
use store::names::FileId;
use store::notes::{MAX_NOTE_BYTES, Note};
use store::object::ObjectName;
use store::{MAX_RANGE_BYTES, Objects, Repository, StoreError, Writer, segment};
use trust::{Handle, Record, Reject};

use super::sources::Sources;

/// Most that is fetched ahead, and most that it takes in memory, bytes.
pub(crate) const MAX_PREFETCH_BYTES: u64 = 64 << 20;
/// Memory of a record besides its own bytes: its entry in the map, and the references to its bytes.
const RECORD_OVERHEAD_BYTES: u64 = 256;
/// Most segments that are fetched ahead; if more are new, the walk is better.
const MAX_SEGMENTS: usize = 64;
/// Most segments that are remembered.
const MAX_REMEMBERED: usize = 1 << 17;
/// Requests under way at a time.
const REQUESTS: usize = 16;
/// Size of one request, bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Requests for a segment in the first wave, before its length is known.
const FIRST_PIECES: u64 = 4;
/// Time after which no further request is made: over a slow network round trips do not matter, and
/// prefetched records are lost when the pull is interrupted.
const MOST_TIME: Duration = Duration::from_secs(3);

/// How the note `followed` begins: its name, format 0, no incompatible flags.
const HEADER: &[u8; 24] = b"bulla followed\0\n\0\0\0\0\0\0\0\0";

/// Records fetched ahead, and what the source has.
#[derive(Default)]
pub(crate) struct SegmentPrefetch {
    records: HashMap<Handle, Record>,
    /// Index runs and segments of the source, to be remembered after this pull.
    pub followed: Followed,
    /// Requests that followed on one another.
    pub waves: u32,
}

impl SegmentPrefetch {
    /// Removes and returns a record. It is not proved.
    pub(crate) fn take(&mut self, handle: &Handle) -> Option<Record> {
        self.records.remove(handle)
    }

    /// How many records have not been taken.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}

/// Index runs and segments of sources that were seen before.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    runs: HashSet<FileId>,
    segments: HashSet<FileId>,
}

impl Followed {
    /// What this replica remembers; a file that cannot be read counts as missing.
    pub(crate) fn load(repository: &Repository) -> Followed {
        let note = repository.note(Note::Followed).ok().flatten();
        note.and_then(Followed::decode).unwrap_or_default()
    }

    /// Stores it.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn store(&self, writer: &mut Writer) -> Result<(), StoreError> {
        writer.put_note(Note::Followed, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let most = MAX_REMEMBERED.min((MAX_NOTE_BYTES - 64) / 16 / 2);
        let mut out = HEADER.to_vec();
        for ids in [&self.runs, &self.segments] {
            let mut ids: Vec<&FileId> = ids.iter().collect();
            ids.sort_unstable();
            ids.truncate(most);
            out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
            ids.iter().for_each(|id| out.extend_from_slice(&id.0));
        }
        out
    }

    fn decode(mut note: Bytes) -> Option<Followed> {
        if note.split_to_checked(HEADER.len())? != HEADER[..] {
            return None;
        }
        let mut ids = || {
            let count = note.split_to_checked(4)?.get_u32_le() as usize;
            let ids = note.split_to_checked(count.checked_mul(16)?)?;
            let ids = ids.chunks_exact(16).filter_map(|id| id.first_chunk::<16>());
            let ids: Vec<FileId> = ids.map(|id| FileId(*id)).collect();
            let ascend = ids.is_sorted_by(|a, b| a < b);
            ascend.then(|| ids.into_iter().collect::<HashSet<_>>())
        };
        let (runs, segments) = (ids()?, ids()?);
        note.is_empty().then_some(Followed { runs, segments })
    }
}

trait SplitChecked {
    fn split_to_checked(&mut self, len: usize) -> Option<Bytes>;
}

impl SplitChecked for Bytes {
    fn split_to_checked(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.len()).then(|| self.split_to(len))
    }
}

/// Fetches the new segments of a source whose head file is `files`. Each answer may take
/// `patience`. If anything fails, the walk fetches the blocks itself.
pub(crate) async fn prefetch(
    sources: &Sources,
    objects: &dyn Objects,
    files: &[u8],
    repository: &Repository,
    patience: Duration,
) -> SegmentPrefetch {
    let mut prefetched = SegmentPrefetch::default();
    let Ok(head) = Head::decode(files) else {
        return prefetched;
    };
    let known = Followed::load(repository);
    let unknown: Vec<RunName> = head
        .runs
        .iter()
        .filter(|run| !known.runs.contains(&run.id))
        .copied()
        .collect();
    if unknown.is_empty() {
        prefetched.followed = known;
        return prefetched;
    }
    let tails = stream::iter(
        unknown
            .into_iter()
            .map(|run| tokio::time::timeout(patience, segments_of(sources, objects, run))),
    );
    let tails: Vec<Option<Vec<FileId>>> = tails
        .buffered(REQUESTS)
        .map(|tail| tail.ok().flatten())
        .collect()
        .await;
    prefetched.waves = 1;
    // Newest first: the newest run names the segments of its own commit before older ones.
    let mut fresh = Vec::new();
    let mut named = HashSet::new();
    for id in tails.into_iter().flatten().flatten() {
        if named.insert(id) && !known.segments.contains(&id) {
            fresh.push(id);
        }
    }
    prefetched.followed = remember(&head, named, known);
    if fresh.is_empty() || fresh.len() > MAX_SEGMENTS {
        return prefetched;
    }
    let (records, waves) = fetch(sources, objects, &fresh, patience).await;
    prefetched.waves += waves;
    for record in records {
        // The walk does not ask for blocks in the repository. Of two with one name, the first stays.
        if !repository.contains(&record.handle).unwrap_or(true) {
            prefetched.records.entry(record.handle).or_insert(record);
        }
    }
    prefetched
}

fn remember(head: &Head, named: HashSet<FileId>, known: Followed) -> Followed {
    let mut followed = Followed {
        runs: head.runs.iter().map(|run| run.id).collect(),
        segments: named,
    };
    if followed.segments.len() + known.segments.len() <= MAX_REMEMBERED {
        followed.segments.extend(known.segments);
    }
    followed
}

/// The segments that a run names.
async fn segments_of(
    sources: &Sources,
    objects: &dyn Objects,
    run: RunName,
) -> Option<Vec<FileId>> {
    let (start, len_bytes) = tail::behind_pages(&run)?;
    let len_bytes = usize::try_from(len_bytes).ok()?;
    if len_bytes > MAX_RANGE_BYTES {
        return None;
    }
    sources.limit.wait().await;
    let range = objects.range(ObjectName::Index(run.id.0), start, len_bytes);
    let behind = range.await.ok()??;
    sources.received(behind.len() as u64);
    tail::segments(&run, &behind)
}

/// A segment that is being fetched.
struct Piecewise {
    bytes: BytesMut,
    taken: u64,
    ended: bool,
}

/// Fetches all segments concurrently, in pieces, within the bounds.
async fn fetch(
    sources: &Sources,
    objects: &dyn Objects,
    fresh: &[FileId],
    patience: Duration,
) -> (Vec<Record>, u32) {
    let began = Instant::now();
    let piece_bytes = sources.limit.request_bytes(PIECE_BYTES) as usize;
    let mut segments: Vec<Piecewise> = fresh
        .iter()
        .map(|_| Piecewise {
            bytes: BytesMut::new(),
            taken: 0,
            ended: false,
        })
        .collect();
    let mut records = Records::default();
    let (mut total, mut waves) = (0, 0);
    // Each wave fetches twice as many pieces of each segment, whose length is not known in advance.
    let mut pieces = FIRST_PIECES;
    while total < MAX_PREFETCH_BYTES
        && !records.is_full()
        && began.elapsed() < MOST_TIME
        && segments.iter().any(|s| !s.ended)
    {
        waves += 1;
        let mut asked: Vec<(usize, u64)> = Vec::new();
        for (i, segment) in segments.iter().enumerate().filter(|(_, s)| !s.ended) {
            for piece in 0..pieces {
                let start = segment.taken + segment.bytes.len() as u64;
                asked.push((i, start + piece * piece_bytes as u64));
            }
        }
        let room = (MAX_PREFETCH_BYTES - total).div_ceil(piece_bytes as u64) as usize;
        asked.truncate(room.max(1));
        let requests = asked.into_iter().map(|(i, offset)| {
            let id = fresh.get(i).copied().unwrap_or(FileId([0; 16]));
            async move {
                sources.limit.wait().await;
                if began.elapsed() >= MOST_TIME {
                    return (i, Bytes::new());
                }
                let name = ObjectName::Segment(id.0);
                let range = objects.range(name, offset, piece_bytes);
                let range = tokio::time::timeout(patience, range).await;
                let bytes = range.ok().and_then(|range| range.ok().flatten());
                let bytes = bytes.unwrap_or_default();
                sources.received(bytes.len() as u64);
                (i, bytes)
            }
        });
        let mut answers = stream::iter(requests).buffered(sources.limit.requests(REQUESTS));
        while let Some((i, bytes)) = answers.next().await {
            total += bytes.len() as u64;
            if let Some(segment) = segments.get_mut(i) {
                segment.take(&bytes, piece_bytes);
            }
        }
        for segment in &mut segments {
            segment.cut(&mut records);
        }
        pieces *= 2;
    }
    (records.records, waves)
}

/// Complete records.
#[derive(Default)]
struct Records {
    records: Vec<Record>,
    /// Bytes that they take in memory: many small ones take more than their content.
    held_bytes: u64,
}

impl Records {
    fn is_full(&self) -> bool {
        self.held_bytes >= MAX_PREFETCH_BYTES
    }

    fn push(&mut self, record: Record) {
        self.held_bytes += record.len() as u64 + RECORD_OVERHEAD_BYTES;
        self.records.push(record);
    }
}

impl Piecewise {
    /// Adds the next piece; a short one is the last.
    fn take(&mut self, piece: &Bytes, asked_bytes: usize) {
        if self.ended {
            return;
        }
        self.bytes.extend_from_slice(piece);
        self.ended = piece.len() < asked_bytes;
    }

    /// Cuts off the complete records, as far as there is room. The footer is not a record and ends them.
    fn cut(&mut self, records: &mut Records) {
        let mut rest = std::mem::take(&mut self.bytes).freeze();
        if self.taken == 0 {
            if rest.len() < segment::HEADER_BYTES {
                self.ended = true;
                return;
            }
            rest.advance(segment::HEADER_BYTES);
            self.taken = segment::HEADER_BYTES as u64;
        }
        while !records.is_full() {
            let before = rest.len();
            match Record::take(&mut rest) {
                Ok(Some(record)) => {
                    self.taken += record.len() as u64;
                    records.push(record);
                }
                Ok(None) => break,
                Err(Reject::UnknownFrame(_)) => {
                    self.taken += (before - rest.len()) as u64;
                }
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
        // Once the room is used up, the remaining bytes are dropped too.
        if !records.is_full() {
            self.bytes = BytesMut::from(rest.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn followed_files_are_read_back_and_damaged_notes_ignored() {
        let followed = Followed {
            runs: [FileId([1; 16])].into(),
            segments: [FileId([2; 16]), FileId([3; 16])].into(),
        };
        let good = followed.encode();
        assert_eq!(Followed::decode(good.clone().into()), Some(followed));
        for cut in 0..good.len() {
            assert_eq!(Followed::decode(good[..cut].to_vec().into()), None, "{cut}");
        }
        let longer = [&good[..], &[0]].concat();
        assert_eq!(Followed::decode(longer.into()), None);
        // A later format, unknown flags, ids out of order.
        for at in [16, 20, good.len() - 16] {
            let mut other = good.clone();
            other[at] = 1;
            assert_eq!(Followed::decode(other.into()), None, "{at}");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join("docs/formats/repository.md")).unwrap();
        let shown = text
            .split("```")
            .find(|t| t.starts_with("\n62756c6c6120666f6c6c"));
        let shown: String = shown.unwrap().split_whitespace().collect();
        let good: String = good.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(shown, good);
    }

    /// A segment without end, of the smallest records.
    struct Crumbs(BytesMut);

    impl Crumbs {
        fn new() -> Crumbs {
            let frame = trust::frame::Packer::new().pack(trust::Kind::Data, b"tiny");
            let record = Record {
                handle: Handle::from_bytes([9; 32]),
                frame: frame.unwrap(),
            };
            let mut bytes = BytesMut::new();
            record.put(&mut bytes);
            Crumbs(bytes)
        }
    }

    impl Objects for Crumbs {
        fn range(
            &self,
            _: ObjectName,
            offset: u64,
            len_bytes: usize,
        ) -> store::BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
            let header = segment::HEADER_BYTES;
            let byte = |at: usize| match at.checked_sub(header) {
                Some(at) => self.0[at % self.0.len()],
                None => 0,
            };
            let offset = offset as usize;
            let bytes: Vec<u8> = (offset..offset + len_bytes).map(byte).collect();
            Box::pin(std::future::ready(Ok(Some(bytes.into()))))
        }
    }

    #[tokio::test]
    async fn many_small_records_count_with_their_overhead() {
        let hasher = trust::Hasher::new(&[0; 32]);
        let limit = super::super::limit::Limit::new(None);
        let patience = Duration::from_secs(1);
        let sources = Sources::new(hasher, &[], patience, limit, Default::default());
        let crumbs = Crumbs::new();
        for segments in [1, 16] {
            let fresh: Vec<FileId> = (0..segments).map(|i| FileId([i; 16])).collect();
            let (records, _) = fetch(&sources, &crumbs, &fresh, patience).await;
            assert!(records.len() > 1000, "{segments}: {}", records.len());
            let most = MAX_PREFETCH_BYTES / (256 + crumbs.0.len() as u64) + 1;
            let held = records.len() as u64;
            assert!(held <= most, "{segments}: {held} of {most}");
        }
    }
}
