//! Readahead for sequential readers: what to request before they ask, and which blocks to drop
//! behind them. Pure: it is told of reads and of requests that end, and answers with requests;
//! [`super`] carries them out.
//!
//! A reader that has read a stretch without a gap and had to wait for it is going to want what
//! follows. Requests for that begin while its last blocks are hashed and copied, so that network,
//! processor and reader work at the same time. Over a long link, a window of several requests hides
//! the round trip. The window grows when the reader arrives before its blocks. It does not grow, and
//! shrinks, when requests take long, because small reads of others share the link. A reader that
//! jumps triggers nothing.
//!
//! Blocks that a long sequential reader has passed leave the cache: it does not want them again, or
//! the kernel's page cache holds them. So a large file does not evict tree nodes, and its blocks
//! reuse the same memory.
//!
//! Requests in progress are bounded, for all readers together, by an eighth of the cache's budget.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use trust::Handle;
use trust::array::ArrayRoot;

/// Readers that are remembered.
const MAX_STREAMS: usize = 32;
/// Read without a gap before anything is requested ahead, bytes.
const PROVEN_BYTES: u64 = 256 << 10;
/// Read without a gap before passed blocks are dropped, bytes. Smaller files stay in the cache.
const LONG_BYTES: u64 = 4 << 20;
/// Kept behind the reader, bytes: requests of the kernel overtake one another.
const BEHIND_BYTES: u64 = 2 << 20;
/// How far requests may overtake one another, bytes.
const DISORDER_BYTES: u64 = 2 << 20;
/// The first window, bytes.
const FIRST_WINDOW_BYTES: u64 = 2 << 20;
/// The largest window of one reader, bytes, if the cache has room for it.
const MOST_WINDOW_BYTES: u64 = 8 << 20;
/// Most bytes in progress for all readers, if the cache has room for them.
const MOST_IN_PROGRESS_BYTES: u64 = 16 << 20;
/// The window does not grow after a request that takes longer than this.
const QUICK: Duration = Duration::from_millis(200);
/// The window shrinks to the first one after a request that takes longer than this.
const SLOW: Duration = Duration::from_millis(500);
/// Bytes of one request.
const REQUEST_BYTES: u64 = 1 << 20;

/// One reader of one content.
#[derive(Debug)]
struct Stream {
    /// The content: the top of its tree.
    top: [u8; 32],
    /// End of the part that was read without a gap.
    frontier: u64,
    /// Length of that part, bytes.
    run_bytes: u64,
    /// Whether the reader had to wait since the run began.
    waited: bool,
    /// End of the requested part.
    requested: u64,
    window_bytes: u64,
    /// Whether the last request was quick.
    quick: bool,
    /// Blocks behind the reader that are still in memory, oldest first, with their lengths in bytes.
    passed: VecDeque<(Handle, u64)>,
    passed_bytes: u64,
}

/// Decides what to request ahead of sequential readers.
#[derive(Debug)]
pub(super) struct Readahead {
    /// Newest first.
    streams: VecDeque<Stream>,
    in_progress_bytes: u64,
    most_bytes: u64,
}

impl Stream {
    fn new(top: [u8; 32], offset: u64, until: u64, window_bytes: u64) -> Self {
        Stream {
            top,
            frontier: until,
            run_bytes: until - offset,
            waited: false,
            requested: 0,
            window_bytes,
            quick: true,
            passed: VecDeque::new(),
            passed_bytes: 0,
        }
    }

    /// A read of `[offset, until)`.
    fn read(&mut self, offset: u64, until: u64) {
        let proven = self.run_bytes >= PROVEN_BYTES;
        let slack = if proven { DISORDER_BYTES } else { 0 };
        let latest = self.frontier.saturating_add(slack);
        if (self.frontier..=latest).contains(&offset) {
            self.advance(until);
        } else if offset < self.frontier
            && self.frontier - offset <= DISORDER_BYTES.min(self.run_bytes)
        {
            // The same stretch again, or a request that was overtaken.
            self.advance(until);
        } else {
            self.frontier = until;
            self.run_bytes = until - offset;
            self.waited = false;
            self.requested = 0;
            // After a jump the passed blocks may be wanted again: they stay like any block.
            self.passed.clear();
            self.passed_bytes = 0;
        }
    }

    fn advance(&mut self, until: u64) {
        if until > self.frontier {
            self.run_bytes = self.run_bytes.saturating_add(until - self.frontier);
            self.frontier = until;
        }
    }
}

impl Readahead {
    /// A policy that has at most an eighth of `cache_bytes` in progress.
    pub(super) fn new(cache_bytes: u64) -> Self {
        Readahead {
            streams: VecDeque::new(),
            in_progress_bytes: 0,
            most_bytes: (cache_bytes / 8).min(MOST_IN_PROGRESS_BYTES),
        }
    }

    /// Bytes of the requests that were given out and not given back.
    #[cfg(test)]
    pub(super) fn in_progress_bytes(&self) -> u64 {
        self.in_progress_bytes
    }

    /// A reader reads `[offset, until)` of a content.
    pub(super) fn read(&mut self, root: &ArrayRoot, offset: u64, until: u64) {
        if offset >= until {
            return;
        }
        let at = self.streams.iter().position(|s| s.top == root.top);
        match at.and_then(|at| self.streams.remove(at)) {
            Some(mut stream) => {
                stream.read(offset, until);
                self.streams.push_front(stream);
            }
            None => {
                self.streams.truncate(MAX_STREAMS - 1);
                let window = FIRST_WINDOW_BYTES.min(self.most_bytes / 2);
                let stream = Stream::new(root.top, offset, until, window);
                self.streams.push_front(stream);
            }
        }
    }

    /// What to request now, as ranges of the content; `late` when the reader has to wait. Each range
    /// must be given back by [`Readahead::finished`].
    pub(super) fn requests(&mut self, root: &ArrayRoot, late: bool) -> Vec<Range<u64>> {
        let Some(stream) = self.streams.iter_mut().find(|s| s.top == root.top) else {
            return Vec::new();
        };
        stream.waited |= late;
        if !stream.waited || stream.run_bytes < PROVEN_BYTES {
            return Vec::new();
        }
        if late && stream.quick && stream.requested > stream.frontier {
            let most = MOST_WINDOW_BYTES.min(self.most_bytes / 2);
            stream.window_bytes = (stream.window_bytes * 2).min(most);
        }
        let until = stream.frontier.saturating_add(stream.window_bytes);
        let until = until.min(root.len);
        let mut requests = Vec::new();
        let mut from = stream.requested.max(stream.frontier);
        // Whole requests only, except at the end of the file.
        while from < until && (until - from >= REQUEST_BYTES || until == root.len) {
            let to = until.min(from.saturating_add(REQUEST_BYTES));
            let in_progress_bytes = self.in_progress_bytes.saturating_add(to - from);
            if in_progress_bytes > self.most_bytes {
                break;
            }
            self.in_progress_bytes = in_progress_bytes;
            requests.push(from..to);
            from = to;
        }
        stream.requested = stream.requested.max(from);
        requests
    }

    /// A request has ended, whether or not it succeeded, after the time `took`.
    pub(super) fn finished(&mut self, root: &ArrayRoot, request: &Range<u64>, took: Duration) {
        let bytes = request.end.saturating_sub(request.start);
        self.in_progress_bytes = self.in_progress_bytes.saturating_sub(bytes);
        let first_window = FIRST_WINDOW_BYTES.min(self.most_bytes / 2);
        if let Some(stream) = self.streams.iter_mut().find(|s| s.top == root.top) {
            stream.quick = took < QUICK;
            if took > SLOW {
                stream.window_bytes = first_window;
            }
        }
    }

    /// A read has come to the end of these blocks (handle and length in bytes). Gives the blocks
    /// that the cache should drop.
    pub(super) fn passed(
        &mut self,
        root: &ArrayRoot,
        blocks: impl Iterator<Item = (Handle, u64)>,
    ) -> Vec<Handle> {
        let Some(stream) = self.streams.iter_mut().find(|s| s.top == root.top) else {
            return Vec::new();
        };
        if stream.run_bytes < LONG_BYTES {
            return Vec::new();
        }
        for (handle, len) in blocks {
            stream.passed.push_back((handle, len));
            stream.passed_bytes += len;
        }
        let mut dropped = Vec::new();
        while stream.passed_bytes > BEHIND_BYTES {
            let Some((handle, len)) = stream.passed.pop_front() else {
                break;
            };
            stream.passed_bytes -= len;
            dropped.push(handle);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(len: u64) -> ArrayRoot {
        ArrayRoot {
            len,
            height: 2,
            top: [7; 32],
        }
    }

    fn total_bytes(requests: &[Range<u64>]) -> u64 {
        requests.iter().map(|r| r.end - r.start).sum()
    }

    #[test]
    fn requests_stay_within_the_window_and_the_bound() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        readahead.read(&file, 0, MIB);
        assert_eq!(readahead.requests(&file, false), [], "it has not waited");
        assert_eq!(
            readahead.requests(&file, true),
            [MIB..2 * MIB, 2 * MIB..3 * MIB]
        );
        assert_eq!(readahead.requests(&file, false), []);
        // The reader is late each time: the window and the requests grow to their bounds.
        for step in 1..40 {
            readahead.read(&file, step * MIB, (step + 1) * MIB);
            let requests = readahead.requests(&file, true);
            let most = (step + 1) * MIB + MOST_WINDOW_BYTES;
            assert!(requests.iter().all(|r| r.end <= most), "{requests:?}");
            assert!(readahead.in_progress_bytes <= MOST_IN_PROGRESS_BYTES);
        }
        // Nothing was ever given back, so nothing more is asked for.
        assert_eq!(readahead.requests(&file, true), []);
    }

    #[test]
    fn small_cache_bounds_requests_in_progress() {
        let (mut readahead, file) = (Readahead::new(8 * MIB), file(100 * MIB));
        for step in 0..20 {
            readahead.read(&file, step * MIB, (step + 1) * MIB);
            readahead.requests(&file, true);
            assert!(readahead.in_progress_bytes <= MIB);
        }
    }

    #[test]
    fn window_ends_with_the_file() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(MIB + 5));
        readahead.read(&file, 0, MIB);
        let requests = readahead.requests(&file, true);
        assert_eq!((requests.len(), total_bytes(&requests)), (1, 5));
        assert_eq!(readahead.requests(&file, true), []);
    }

    #[test]
    fn random_reads_trigger_no_request() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let mut block = 1u64;
        for _ in 0..10_000 {
            block = (block * 4099 + 7) % 12_800;
            readahead.read(&file, block * 8192, (block + 1) * 8192);
            assert_eq!(readahead.requests(&file, true), []);
        }
    }

    #[test]
    fn reads_that_overtake_one_another_count_as_sequential() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let mut asked = 0;
        for pair in 0..10 {
            for step in [2 * pair + 1, 2 * pair] {
                // The first megabyte shows the order.
                let step = if pair == 0 { 1 - step } else { step };
                readahead.read(&file, step * MIB, (step + 1) * MIB);
                for request in readahead.requests(&file, true) {
                    asked += total_bytes(std::slice::from_ref(&request));
                    readahead.finished(&file, &request, Duration::ZERO);
                }
            }
        }
        assert!(asked >= 19 * MIB, "{asked}");
    }

    #[test]
    fn slow_link_keeps_the_window_small() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        for step in 0..40 {
            readahead.read(&file, step * MIB, (step + 1) * MIB);
            for request in readahead.requests(&file, true) {
                assert!(request.end <= (step + 1) * MIB + FIRST_WINDOW_BYTES);
                readahead.finished(&file, &request, SLOW * 2);
            }
        }
    }

    #[test]
    fn only_blocks_behind_a_long_reader_are_dropped() {
        let (mut readahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let block = |n: u64| (Handle::from_bytes([n as u8; 32]), MIB);
        let mut gone = Vec::new();
        for step in 0..8 {
            readahead.read(&file, step * MIB, (step + 1) * MIB);
            gone.extend(readahead.passed(&file, [block(step)].into_iter()));
        }
        // The first three came before the run was long; the last two are kept behind it.
        let expected: Vec<Handle> = (3..6).map(|n| block(n).0).collect();
        assert_eq!(gone, expected);
        readahead.read(&file, 50 * MIB, 51 * MIB);
        assert_eq!(readahead.passed(&file, [block(50)].into_iter()), []);
    }
}
