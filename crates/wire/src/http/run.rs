//! One index run behind a web server: its table, and its pages as far as they were fetched.
//!
//! A reader of some files wants few pages, and gets these and no others. A walk wants pages at random places, because
//! pages are sorted by handle: hundreds at a time, and in the end all of them. So a call that wants many pages
//! fetches whole pieces of the run, each once for all callers, and keeps them. A caller that gives up loses one piece and
//! not the run. Every page is checked against the table, as in `store::index::table`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, try_join, try_join_all};
use futures_util::stream::{self, StreamExt};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use store::head::RunName;
use store::index::PAGE_BYTES;
use store::index::table::{Broken, Table};
use store::names::FileId;
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;
use trust::Reject;

use super::web::{Fault, Got, Web};
use super::{HttpAddress, bad_index};

/// Pages that were fetched one by one.
pub(super) type Pages = Cache<(FileId, usize), Bytes, PageWeight>;

#[derive(Debug, Clone)]
pub(super) struct PageWeight;

impl Weighter<(FileId, usize), Bytes> for PageWeight {
    fn weight(&self, _: &(FileId, usize), page: &Bytes) -> u64 {
        page.len() as u64 + 128
    }
}

/// Longest run that is fetched whole in one request.
const SMALL_RUN_BYTES: u64 = 64 << 10;
/// If the pages of a run are together at most this long, all are fetched once several were wanted, bytes.
const MEDIUM_PAGES_BYTES: u64 = 2 << 20;
/// Number of wanted pages after which all pages of such a run are fetched.
const SEVERAL_PAGES: usize = 8;
/// Wanted pages are fetched in one request when at most this many others lie between them.
const NEAR_PAGES: usize = 4;
/// Pages of a piece, and most pages of one request. An answer of this length comes in time over 1 Mbit/s, even if four
/// others share the line.
pub(super) const PIECE_PAGES: usize = 64;
/// Parts of the index of at least this length are counted as pieces, bytes.
const LONG_BYTES: u64 = 64 << 10;
/// Pieces that a call for all of them has under way. They are the first that a reader asks for, and connections begin slowly,
/// so there are many; but two requests are left for its first blocks.
const AHEAD_PIECES: usize = 14;
/// How long such a piece may take. On a line of less than some 7 Mbit/s that all of them share, one takes longer.
const QUICK: Duration = Duration::from_secs(4);
/// A call that wants at least this many blocks is part of a walk.
pub(super) const WALK_BLOCKS: usize = 64;
/// A walk fetches a piece whole when it wants one of so many of its pages at a time,
const DENSE_PAGES: usize = 8;
/// or when it has fetched one of so many of them before.
const FETCHED_PAGES: usize = 4;

/// An index run.
pub(super) struct Run {
    pub(super) name: RunName,
    /// Where its pages end, bytes.
    pub(super) behind: u64,
    table: OnceCell<Table>,
    /// All pages in order; empty if there is no memory for all of them.
    pieces: Vec<Piece>,
    /// How many pages were fetched one by one.
    wanted: AtomicUsize,
    /// How many calls fetch all pieces now, and get them quickly.
    fetch_all_calls: watch::Sender<usize>,
}

/// Consecutive pages that are fetched together.
#[derive(Default)]
struct Piece {
    /// The pages, checked.
    pages: OnceCell<Bytes>,
    /// How many of them a walk has fetched one by one.
    fetched: AtomicUsize,
}

impl Run {
    /// A run whose pages end at `behind`. `keeps_all`: there is memory for all of them.
    pub(super) fn new(name: RunName, behind: u64, keeps_all: bool) -> Run {
        let pieces = match keeps_all {
            true => behind.div_ceil((PIECE_PAGES * PAGE_BYTES) as u64),
            false => 0,
        };
        Run {
            name,
            behind,
            table: OnceCell::new(),
            pieces: (0..pieces).map(|_| Piece::default()).collect(),
            wanted: AtomicUsize::new(0),
            fetch_all_calls: watch::Sender::new(0),
        }
    }

    /// Whether it is fetched whole in one request.
    fn is_small(&self) -> bool {
        self.name.len_bytes <= SMALL_RUN_BYTES
    }

    /// Whether there is memory for all pages.
    pub(super) fn keeps_all(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The table, if it was fetched.
    pub(super) fn known_table(&self) -> Option<&Table> {
        self.table.get()
    }

    /// Fetches the table; a small run is fetched whole.
    pub(super) async fn table(&self, web: &Web, base: &HttpAddress) -> Result<&Table, Fault> {
        let load = || async {
            let from = if self.is_small() { 0 } else { self.behind };
            let bytes = self.read(web, base, from..self.name.len_bytes).await?;
            let split = (self.behind - from) as usize;
            let table = bytes.get(split..).unwrap_or_default();
            let table = Table::parse(&self.name, table).map_err(broken)?;
            if self.is_small() {
                let pages = bytes.slice(..split.min(bytes.len()));
                check_pages(&table, 0, &pages)?;
                if let [piece] = &*self.pieces {
                    let _ = piece.pages.set(pages);
                }
            }
            Ok(table)
        };
        self.table.get_or_try_init(load).await
    }

    /// A page that is in memory.
    pub(super) fn page(&self, number: usize, pages: &Pages) -> Option<Bytes> {
        let piece = self.pieces.get(number / PIECE_PAGES);
        if let Some(whole) = piece.and_then(|piece| piece.pages.get()) {
            let at = (number % PIECE_PAGES) * PAGE_BYTES;
            return (at + PAGE_BYTES <= whole.len()).then(|| whole.slice(at..at + PAGE_BYTES));
        }
        pages.get(&(self.name.id, number))
    }

    /// Fetches pages with these numbers, which are in order, for a walk or for another reader. Pages that came in pieces are
    /// in memory now; gives the others.
    pub(super) async fn fetch(
        &self,
        web: &Web,
        base: &HttpAddress,
        mut numbers: Vec<usize>,
        is_walk: bool,
    ) -> Result<Vec<(usize, Bytes)>, Fault> {
        if is_walk || numbers.len() > SEVERAL_PAGES {
            self.wait_for_fetch_all().await;
            let has_come = |at: usize| self.pieces.get(at).is_some_and(|p| p.pages.initialized());
            numbers.retain(|number| !has_come(number / PIECE_PAGES));
        }
        let (pieces, single) = self.choose(&numbers, is_walk);
        let pieces = pieces
            .into_iter()
            .map(|piece| self.fetch_piece(web, base, piece, false));
        let spans = spans(&single)
            .into_iter()
            .map(|span| self.fetch_span(web, base, span));
        let (pieces, spans) = join(try_join_all(pieces), try_join_all(spans)).await;
        pieces?;
        Ok(spans?.into_iter().flatten().collect())
    }

    /// The pieces to fetch, and the pages to fetch one by one.
    fn choose(&self, numbers: &[usize], is_walk: bool) -> (Vec<usize>, Vec<usize>) {
        let before = self.wanted.fetch_add(numbers.len(), Ordering::Relaxed);
        let several = before.saturating_add(numbers.len()) > SEVERAL_PAGES;
        if self.keeps_all() && self.behind <= MEDIUM_PAGES_BYTES && several {
            return ((0..self.pieces.len()).collect(), Vec::new());
        }
        if !is_walk {
            return (Vec::new(), numbers.to_vec());
        }
        let mut wanted: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for number in numbers {
            let pages = wanted.entry(number / PIECE_PAGES).or_default();
            pages.push(*number);
        }
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        for (at, pages) in wanted {
            match self.pieces.get(at) {
                Some(piece) if piece.is_worth(pages.len(), self.pages_of(at)) => whole.push(at),
                _ => single.extend(pages),
            }
        }
        (whole, single)
    }

    /// Number of pages of a piece; the last one may be shorter.
    fn pages_of(&self, piece: usize) -> usize {
        let pages = self.behind / PAGE_BYTES as u64;
        let left = pages.saturating_sub((piece * PIECE_PAGES) as u64);
        left.min(PIECE_PAGES as u64) as usize
    }

    /// Fetches the table and all pages before anybody asks for them, some pieces at a time. False: a piece took longer than
    /// [`QUICK`], and the rest was not fetched. On such a line the blocks of a walk are to come first.
    pub(super) async fn fetch_all(&self, web: &Web, base: &HttpAddress) -> Result<bool, Fault> {
        if self.is_small() {
            return self.table(web, base).await.map(|_| true);
        }
        let _call = FetchAllCall::begin(&self.fetch_all_calls);
        let fetch = |at| timeout(QUICK, self.fetch_piece(web, base, at, true));
        let pieces = async {
            let pieces = stream::iter(0..self.pieces.len()).map(fetch);
            let mut pieces = pieces.buffer_unordered(AHEAD_PIECES);
            while let Some(piece) = pieces.next().await {
                let Ok(came) = piece else {
                    return Ok(false);
                };
                came?;
            }
            Ok(true)
        };
        // The table first: other calls wait for it.
        let (_, are_quick) = try_join(self.table(web, base), pieces).await?;
        Ok(are_quick)
    }

    /// Waits until no [`fetch_all`](Run::fetch_all) is under way, at most [`QUICK`]: the pages that a call wants are among those
    /// that come, and requests of its own would delay others.
    async fn wait_for_fetch_all(&self) {
        let mut calls = self.fetch_all_calls.subscribe();
        let ended = calls.wait_for(|calls| *calls == 0);
        let _ = timeout(QUICK, ended).await;
    }

    /// Fetches a piece and the table, once for all callers. A piece that nobody has asked for (`is_ahead`) is not limited to
    /// the few long requests under way.
    async fn fetch_piece(
        &self,
        web: &Web,
        base: &HttpAddress,
        at: usize,
        is_ahead: bool,
    ) -> Result<(), Fault> {
        let Some(piece) = self.pieces.get(at) else {
            return Ok(());
        };
        let load = || async {
            let first = at * PIECE_PAGES;
            let from = (first * PAGE_BYTES) as u64;
            let to = (from + (PIECE_PAGES * PAGE_BYTES) as u64).min(self.behind);
            let read = async {
                match is_ahead {
                    true => self.read(web, base, from..to).await,
                    false => self.read_in_turn(web, base, from..to).await,
                }
            };
            let (bytes, table) = try_join(read, self.table(web, base)).await?;
            check_pages(table, first, &bytes)?;
            Ok(bytes)
        };
        piece.pages.get_or_try_init(load).await.map(drop)
    }

    /// Fetches some pages in one request: their numbers, in order and near.
    async fn fetch_span(
        &self,
        web: &Web,
        base: &HttpAddress,
        span: Vec<usize>,
    ) -> Result<Vec<(usize, Bytes)>, Fault> {
        let (Some(first), Some(last)) = (span.first(), span.last()) else {
            return Ok(Vec::new());
        };
        let at = |number: usize| number as u64 * PAGE_BYTES as u64;
        let (from, to) = (at(*first), at(last + 1));
        let bytes = self.read_in_turn(web, base, from..to).await?;
        let table = self.table.get().ok_or_else(|| broken("no table"))?;
        check_pages(table, *first, &bytes)?;
        let pages = span.iter().filter_map(|number| {
            let from = (number - first) * PAGE_BYTES;
            // A copy, because a slice would keep the memory of all pages.
            let page = bytes.get(from..from + PAGE_BYTES)?;
            Some((*number, Bytes::copy_from_slice(page)))
        });
        Ok(pages.collect())
    }

    /// Reads a part of the file. Few long ones are under way at a time.
    async fn read_in_turn(
        &self,
        web: &Web,
        base: &HttpAddress,
        part: Range<u64>,
    ) -> Result<Bytes, Fault> {
        let is_long = part.end.saturating_sub(part.start) >= LONG_BYTES;
        let read = self.read(web, base, part);
        match is_long {
            true => web.in_turn(read).await,
            false => read.await,
        }
    }

    async fn read(&self, web: &Web, base: &HttpAddress, part: Range<u64>) -> Result<Bytes, Fault> {
        let len_bytes = part.end.saturating_sub(part.start);
        let file = self.name.id.index();
        let url = base.join(&file).ok_or_else(|| broken("no such name"))?;
        match web.range(&url, part.start, len_bytes).await? {
            Got::Body(bytes, _) if bytes.len() as u64 == len_bytes => Ok(bytes),
            Got::Body(..) | Got::PastEnd | Got::NoParts => {
                Err(Fault::Gone(format!("{file} is cut short")))
            }
            Got::Missing | Got::NotModified => Err(Fault::Gone(format!("{file} is not there"))),
        }
    }
}

/// A call of [`Run::fetch_all`]. Others wait for it until it ends, or is dropped.
struct FetchAllCall<'a> {
    calls: &'a watch::Sender<usize>,
}

impl<'a> FetchAllCall<'a> {
    fn begin(calls: &'a watch::Sender<usize>) -> FetchAllCall<'a> {
        calls.send_modify(|calls| *calls += 1);
        FetchAllCall { calls }
    }
}

impl Drop for FetchAllCall<'_> {
    fn drop(&mut self) {
        self.calls.send_modify(|calls| *calls -= 1);
    }
}

impl Piece {
    /// Whether a walk that wants some of its pages now should fetch all of them.
    fn is_worth(&self, wanted: usize, pages: usize) -> bool {
        let before = self.fetched.fetch_add(wanted, Ordering::Relaxed);
        wanted * DENSE_PAGES >= pages || before * FETCHED_PAGES >= pages
    }
}

fn check_pages(table: &Table, first: usize, bytes: &[u8]) -> Result<(), Fault> {
    let mut pages = bytes.chunks(PAGE_BYTES).enumerate();
    pages.try_for_each(|(i, page)| table.check_page(first + i, page).map_err(broken))
}

/// Page numbers in order, as sets that are fetched together.
fn spans(numbers: &[usize]) -> Vec<Vec<usize>> {
    let mut spans: Vec<Vec<usize>> = Vec::new();
    for number in numbers {
        let joined = spans.last_mut().filter(|span| {
            let near = |last: &usize| number - last <= NEAR_PAGES + 1;
            let short = |first: &usize| number - first < PIECE_PAGES;
            span.last().is_some_and(near) && span.first().is_some_and(short)
        });
        match joined {
            Some(span) => span.push(*number),
            None => spans.push(vec![*number]),
        }
    }
    spans
}

/// An index breaks a rule.
pub(super) fn broken(why: impl Into<Broken>) -> Fault {
    Fault::Bad(match why.into() {
        Broken::Rule(why) => bad_index(why),
        Broken::Newer(why) => Reject::Unsupported {
            what: "index run",
            why,
        },
    })
}

#[cfg(test)]
mod tests {
    use store::names::FileId;

    use super::*;

    #[test]
    fn near_pages_share_a_request_and_far_ones_do_not() {
        assert_eq!(spans(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(spans(&[3]), [[3]]);
        assert_eq!(spans(&[3, 4, 8, 9]), [[3, 4, 8, 9]]);
        assert_eq!(spans(&[3, 9]), [[3], [9]]);
        let all: Vec<usize> = (0..200).collect();
        let spans = spans(&all);
        assert_eq!(spans.len(), 4);
        assert!(spans.iter().all(|s| s.len() <= PIECE_PAGES));
        assert_eq!(spans.concat(), all);
    }

    /// A run of so many pages.
    fn run(pages: usize, keeps_all: bool) -> Run {
        let name = RunName {
            id: FileId([7; 16]),
            entries: pages as u64 * 93,
            len_bytes: 0,
        };
        Run::new(name, (pages * PAGE_BYTES) as u64, keeps_all)
    }

    fn every(nth: usize, pages: usize) -> Vec<usize> {
        (0..pages).step_by(nth).collect()
    }

    #[test]
    fn a_call_that_wants_few_pages_fetches_no_others() {
        let run = run(1000, true);
        for at in 0..100 {
            let few: Vec<usize> = (0..31).map(|n| n * 31 + at % 30).collect();
            assert_eq!(run.choose(&few, false), (Vec::new(), few.clone()));
        }
    }

    #[test]
    fn a_walk_fetches_pieces() {
        let run = run(1000, true);
        let all: Vec<usize> = (0..1000usize.div_ceil(PIECE_PAGES)).collect();
        assert_eq!(run.choose(&every(4, 1000), true), (all, Vec::new()));
        // The last piece has two pages.
        let run = self::run(2 * PIECE_PAGES + 2, true);
        let (whole, single) = run.choose(&every(3, 2 * PIECE_PAGES + 2), true);
        assert_eq!((whole, single), (vec![0, 1, 2], Vec::new()));
    }

    #[test]
    fn a_walk_fetches_a_quarter_of_a_piece_by_single_pages_at_most() {
        let (run, pages) = (run(16_000, true), 16_000);
        let sparse = every(63, pages);
        let mut single = 0;
        for _ in 0..100 {
            single += run.choose(&sparse, true).1.len();
        }
        let pieces = pages / PIECE_PAGES;
        let bound = pieces * (PIECE_PAGES / FETCHED_PAGES + PIECE_PAGES / DENSE_PAGES);
        assert!(single <= bound, "{single} of {pages}");
        assert_eq!(run.choose(&sparse, true).1, [0; 0]);
    }

    #[test]
    fn without_memory_for_all_pages_a_walk_fetches_what_it_wants() {
        let run = run(1000, false);
        let wanted = every(4, 1000);
        for _ in 0..10 {
            assert_eq!(run.choose(&wanted, true), (Vec::new(), wanted.clone()));
        }
    }

    #[test]
    fn a_medium_run_is_fetched_once_several_pages_were_wanted() {
        let run = run(512, true);
        for at in 0..SEVERAL_PAGES {
            assert_eq!(run.choose(&[at], false), (Vec::new(), vec![at]));
        }
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(run.choose(&[9], false), (all, Vec::new()));
    }
}
