//! Sequential readers: what is fetched before they ask, and what is let go behind them.
//!
//! A reader who has read a stretch without a gap and had to wait for it will want what follows. Its
//! blocks are asked for while the last ones are hashed and copied, so that the network, the
//! processor and the reader work at the same time; on a long link a window of several requests
//! hides the round trip. How far ahead is decided by need (the window grows when a reader comes
//! before its blocks) and by courtesy (it does not grow, and falls back, when requests take long:
//! small reads of others share the link). A reader who jumps triggers nothing.
//!
//! What such a reader has passed leaves the memory of verified blocks: whoever reads a large file
//! through once does not want it again, or has it in the kernel's page cache. So a large file
//! neither drives tree nodes out nor makes every block a fresh extent of memory.
//!
//! Bytes under way for this are bounded, all readers together, by an eighth of the cache's budget.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trust::Handle;
use trust::array::ArrayRoot;

/// Readers that are remembered.
const MAX_STREAMS: usize = 32;
/// Read without a gap before anything is fetched ahead, bytes.
const PROVEN_BYTES: u64 = 256 << 10;
/// Read without a gap before passed blocks are let go, bytes: smaller files stay.
const LONG_BYTES: u64 = 4 << 20;
/// Kept behind the reader, bytes: the kernel's requests overtake one another.
const BEHIND_BYTES: u64 = 2 << 20;
/// How far requests may overtake one another, bytes.
const DISORDER_BYTES: u64 = 2 << 20;
/// The first window, bytes.
const FIRST_WINDOW_BYTES: u64 = 2 << 20;
/// The largest window of one reader, bytes, where the cache has room for it.
const MOST_WINDOW_BYTES: u64 = 8 << 20;
/// Most bytes under way for all readers, where the cache has room for them.
const MOST_UNDER_WAY_BYTES: u64 = 16 << 20;
/// A request that takes longer than this is no reason for a larger window.
const QUICK: Duration = Duration::from_millis(200);
/// One that takes longer than this is a reason for the smallest.
const SLOW: Duration = Duration::from_millis(500);
/// Bytes of one request.
pub(crate) const REQUEST_BYTES: u64 = 1 << 20;

/// One reader of one content.
#[derive(Debug)]
struct Stream {
    /// The content: the top of its tree.
    top: [u8; 32],
    /// End of what was read without a gap.
    frontier: u64,
    /// How much that was, bytes.
    run_bytes: u64,
    /// It had to wait since the run began.
    waited: bool,
    /// Up to where blocks were asked for.
    asked: u64,
    window_bytes: u64,
    /// The last request was quick.
    quick: bool,
    /// Blocks behind the reader that are still in memory, oldest first.
    passed: VecDeque<(Handle, u64)>,
    passed_bytes: u64,
}

/// The sequential readers of a volume.
#[derive(Debug)]
pub(crate) struct Readahead {
    /// Newest first.
    streams: Mutex<VecDeque<Stream>>,
    under_way_bytes: AtomicU64,
    most_bytes: u64,
}

impl Stream {
    fn new(top: [u8; 32], offset: u64, until: u64, window_bytes: u64) -> Self {
        Stream {
            top,
            frontier: until,
            run_bytes: until - offset,
            waited: false,
            asked: 0,
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
        if (self.frontier..=self.frontier + slack).contains(&offset) {
            self.run_bytes = self.run_bytes.saturating_add(until - self.frontier);
            self.frontier = until;
        } else if offset < self.frontier
            && self.frontier - offset <= DISORDER_BYTES.min(self.run_bytes)
        {
            // The same again, or one that was overtaken.
            if until > self.frontier {
                self.run_bytes = self.run_bytes.saturating_add(until - self.frontier);
                self.frontier = until;
            }
        } else {
            self.frontier = until;
            self.run_bytes = until - offset;
            self.waited = false;
            self.asked = 0;
            // Where a jump leads, what was passed may be wanted again: it stays like any block.
            self.passed.clear();
            self.passed_bytes = 0;
        }
    }
}

impl Readahead {
    /// With an eighth of this budget, at most.
    pub(crate) fn new(cache_bytes: u64) -> Self {
        Readahead {
            streams: Mutex::default(),
            under_way_bytes: AtomicU64::new(0),
            most_bytes: (cache_bytes / 8).min(MOST_UNDER_WAY_BYTES),
        }
    }

    fn streams(&self) -> MutexGuard<'_, VecDeque<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `[offset, until)` of a content is being read.
    pub(crate) fn read(&self, root: &ArrayRoot, offset: u64, until: u64) {
        if offset >= until {
            return;
        }
        let mut streams = self.streams();
        let at = streams.iter().position(|s| s.top == root.top);
        match at.and_then(|at| streams.remove(at)) {
            Some(mut stream) => {
                stream.read(offset, until);
                streams.push_front(stream);
            }
            None => {
                streams.truncate(MAX_STREAMS - 1);
                let window = FIRST_WINDOW_BYTES.min(self.most_bytes / 2);
                streams.push_front(Stream::new(root.top, offset, until, window));
            }
        }
    }

    /// What to ask for now, cut into requests; `late` when the reader has come before its blocks.
    /// Whoever takes requests must give each back by [`Readahead::done`].
    pub(crate) fn requests(&self, root: &ArrayRoot, late: bool) -> Vec<Range<u64>> {
        let mut streams = self.streams();
        let Some(stream) = streams.iter_mut().find(|s| s.top == root.top) else {
            return Vec::new();
        };
        stream.waited |= late;
        if !stream.waited || stream.run_bytes < PROVEN_BYTES {
            return Vec::new();
        }
        if late && stream.quick && stream.asked > stream.frontier {
            let most = MOST_WINDOW_BYTES.min(self.most_bytes / 2);
            stream.window_bytes = (stream.window_bytes * 2).min(most);
        }
        let until = (stream.frontier + stream.window_bytes).min(root.len);
        let mut requests = Vec::new();
        let mut from = stream.asked.max(stream.frontier);
        // Whole requests only, but for the end of the file.
        while from < until && (until - from >= REQUEST_BYTES || until == root.len) {
            let to = until.min(from + REQUEST_BYTES);
            if self.under_way_bytes.load(Ordering::Relaxed) + (to - from) > self.most_bytes {
                break;
            }
            self.under_way_bytes.fetch_add(to - from, Ordering::Relaxed);
            requests.push(from..to);
            from = to;
        }
        stream.asked = stream.asked.max(from);
        requests
    }

    /// A request has ended, however it ended.
    pub(crate) fn done(&self, root: &ArrayRoot, request: &Range<u64>, took: Duration) {
        let bytes = request.end - request.start;
        self.under_way_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut streams = self.streams();
        if let Some(stream) = streams.iter_mut().find(|s| s.top == root.top) {
            stream.quick = took < QUICK;
            if took > SLOW {
                stream.window_bytes = FIRST_WINDOW_BYTES.min(self.most_bytes / 2);
            }
        }
    }

    /// Notes blocks that a read has come to the end of; gives those to let go.
    pub(crate) fn passed(
        &self,
        root: &ArrayRoot,
        blocks: impl Iterator<Item = (Handle, u64)>,
    ) -> Vec<Handle> {
        let mut streams = self.streams();
        let Some(stream) = streams.iter_mut().find(|s| s.top == root.top) else {
            return Vec::new();
        };
        if stream.run_bytes < LONG_BYTES {
            return Vec::new();
        }
        for (handle, len) in blocks {
            stream.passed.push_back((handle, len));
            stream.passed_bytes += len;
        }
        let mut gone = Vec::new();
        while stream.passed_bytes > BEHIND_BYTES {
            let Some((handle, len)) = stream.passed.pop_front() else {
                break;
            };
            stream.passed_bytes -= len;
            gone.push(handle);
        }
        gone
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

    fn taken(requests: &[Range<u64>]) -> u64 {
        requests.iter().map(|r| r.end - r.start).sum()
    }

    #[test]
    fn a_reader_in_order_is_preceded_by_its_window_and_no_more() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        ahead.read(&file, 0, MIB);
        assert_eq!(ahead.requests(&file, false), [], "it has not waited");
        assert_eq!(
            ahead.requests(&file, true),
            [MIB..2 * MIB, 2 * MIB..3 * MIB]
        );
        assert_eq!(ahead.requests(&file, false), []);
        // Late again and again: the window grows to its bound, and what is under way to its own.
        for step in 1..40 {
            ahead.read(&file, step * MIB, (step + 1) * MIB);
            let requests = ahead.requests(&file, true);
            let most = (step + 1) * MIB + MOST_WINDOW_BYTES;
            assert!(requests.iter().all(|r| r.end <= most), "{requests:?}");
            assert!(ahead.under_way_bytes.load(Ordering::Relaxed) <= MOST_UNDER_WAY_BYTES);
        }
        // Nothing was ever given back, so nothing more is asked for.
        assert_eq!(ahead.requests(&file, true), []);
    }

    #[test]
    fn a_small_cache_bounds_what_is_under_way() {
        let (ahead, file) = (Readahead::new(8 * MIB), file(100 * MIB));
        for step in 0..20 {
            ahead.read(&file, step * MIB, (step + 1) * MIB);
            ahead.requests(&file, true);
            assert!(ahead.under_way_bytes.load(Ordering::Relaxed) <= MIB);
        }
    }

    #[test]
    fn the_end_of_the_file_is_the_end_of_the_window() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(MIB + 5));
        ahead.read(&file, 0, MIB);
        let requests = ahead.requests(&file, true);
        assert_eq!((requests.len(), taken(&requests)), (1, 5));
        assert_eq!(ahead.requests(&file, true), []);
    }

    #[test]
    fn a_reader_who_jumps_triggers_nothing() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let mut block = 1u64;
        for _ in 0..10_000 {
            block = (block * 4099 + 7) % 12_800;
            ahead.read(&file, block * 8192, (block + 1) * 8192);
            assert_eq!(ahead.requests(&file, true), []);
        }
    }

    #[test]
    fn requests_that_overtake_one_another_are_still_in_order() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let mut asked = 0;
        for pair in 0..10 {
            for step in [2 * pair + 1, 2 * pair] {
                // The first megabyte shows the order.
                let step = if pair == 0 { 1 - step } else { step };
                ahead.read(&file, step * MIB, (step + 1) * MIB);
                for request in ahead.requests(&file, true) {
                    asked += taken(std::slice::from_ref(&request));
                    ahead.done(&file, &request, Duration::ZERO);
                }
            }
        }
        assert!(asked >= 19 * MIB, "{asked}");
    }

    #[test]
    fn a_slow_link_keeps_the_window_small() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        for step in 0..40 {
            ahead.read(&file, step * MIB, (step + 1) * MIB);
            for request in ahead.requests(&file, true) {
                assert!(request.end <= (step + 1) * MIB + FIRST_WINDOW_BYTES);
                ahead.done(&file, &request, SLOW * 2);
            }
        }
    }

    #[test]
    fn blocks_leave_behind_a_long_reader_only() {
        let (ahead, file) = (Readahead::new(256 * MIB), file(100 * MIB));
        let block = |n: u64| (Handle::from_bytes([n as u8; 32]), MIB);
        let mut gone = Vec::new();
        for step in 0..8 {
            ahead.read(&file, step * MIB, (step + 1) * MIB);
            gone.extend(ahead.passed(&file, [block(step)].into_iter()));
        }
        // The first three came before the run was long; the last two are kept behind it.
        let expected: Vec<Handle> = (3..6).map(|n| block(n).0).collect();
        assert_eq!(gone, expected);
        ahead.read(&file, 50 * MIB, 51 * MIB);
        assert_eq!(ahead.passed(&file, [block(50)].into_iter()), []);
    }
}
