//! The head and the index of a repository behind a web server: the table of each run, fetched once,
//! and single pages as they are needed (docs/formats/repository.md).
//!
//! A run never changes, so runs of the old head are kept for a new one. None of this is trusted: all of it is
//! checked by the rules of `store::index::table`. One server can fill no more memory than
//! [`MAX_TABLE_BYTES`] of tables, [`MAX_WHOLE_BYTES`] of whole runs, and the page cache.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::try_join_all;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use reqwest::header::HeaderMap;
use store::head::{Head, RunName};
use store::index::table::{Broken, Table, behind_pages};
use store::index::{Location, PAGE_BYTES};
use store::names::FileId;
use tokio::sync::OnceCell;
use trust::Handle;

use super::web::{Fault, Got, Web};
use super::{HttpAddress, bad_index};

/// Most bytes of the tables of one head's runs: about 190 million blocks.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Most bytes of the pages of whole runs.
pub const MAX_WHOLE_BYTES: u64 = 16 << 20;
/// Longest run that is fetched whole in one request.
const SMALL_RUN_BYTES: u64 = 64 << 10;
/// If the pages of a run are together at most this long, all are fetched once several were wanted, bytes.
const MEDIUM_PAGES_BYTES: u64 = 2 << 20;
/// Number of wanted pages after which all pages of such a run are fetched.
const SEVERAL_PAGES: usize = 8;
/// Wanted pages are fetched in one request when at most this many others lie between them.
const NEAR_PAGES: usize = 4;
/// Most pages of one request.
const MAX_PAGES: usize = 64;

/// Pages that were fetched one by one.
pub(super) type Pages = Cache<(FileId, usize), Bytes, PageWeight>;

#[derive(Debug, Clone)]
pub(super) struct PageWeight;

impl Weighter<(FileId, usize), Bytes> for PageWeight {
    fn weight(&self, _: &(FileId, usize), page: &Bytes) -> u64 {
        page.len() as u64 + 128
    }
}

/// One version of the head, and its runs as far as they are known.
pub(super) struct View {
    pub(super) head: Head,
    /// The address of the repository.
    pub(super) base: HttpAddress,
    /// Request headers that make the server send the head only if it has changed.
    pub(super) conditions: HeaderMap,
    runs: Vec<Arc<Run>>,
}

/// An index run.
struct Run {
    name: RunName,
    /// Where its pages end, bytes.
    behind: u64,
    may_be_whole: bool,
    table: OnceCell<Table>,
    /// All pages, checked.
    whole: OnceCell<Bytes>,
    /// How many pages were fetched one by one.
    wanted: AtomicUsize,
}

impl View {
    /// The view that a head describes; takes over the runs that `old` has.
    pub(super) fn new(
        head: Head,
        base: HttpAddress,
        conditions: HeaderMap,
        old: Option<&View>,
    ) -> Result<View, Fault> {
        let mut runs = Vec::with_capacity(head.runs.len());
        let (mut table_bytes, mut whole_bytes) = (0u64, 0u64);
        for name in &head.runs {
            let behind = behind_pages(name).map_err(broken)?;
            table_bytes = table_bytes.saturating_add(name.len_bytes - behind);
            let may_be_whole = behind <= MEDIUM_PAGES_BYTES
                && whole_bytes.saturating_add(behind) <= MAX_WHOLE_BYTES;
            if may_be_whole {
                whole_bytes += behind;
            }
            let known = old.and_then(|old| {
                let same = |run: &&Arc<Run>| run.name == *name && run.may_be_whole == may_be_whole;
                old.runs.iter().find(same)
            });
            runs.push(match known {
                Some(run) => Arc::clone(run),
                None => Arc::new(Run {
                    name: *name,
                    behind,
                    may_be_whole,
                    table: OnceCell::new(),
                    whole: OnceCell::new(),
                    wanted: AtomicUsize::new(0),
                }),
            });
        }
        if table_bytes > MAX_TABLE_BYTES {
            return Err(Fault::Down(format!(
                "its index is too large to be read over the web ({} MiB of tables)",
                table_bytes >> 20
            )));
        }
        Ok(View {
            head,
            base,
            conditions,
            runs,
        })
    }

    /// The location of each handle, in order; `None` for those that the repository does not have.
    pub(super) async fn locate(
        &self,
        web: &Web,
        pages: &Pages,
        handles: &[Handle],
    ) -> Result<Vec<Option<Location>>, Fault> {
        let new: Vec<_> = self
            .runs
            .iter()
            .filter(|r| !r.table.initialized())
            .collect();
        if !new.is_empty() {
            web.begin_wave();
            try_join_all(new.iter().map(|run| run.table(web, &self.base))).await?;
        }
        let mut held: HashMap<(usize, usize), Bytes> = HashMap::new();
        let mut found = Vec::with_capacity(handles.len());
        let mut missing: BTreeSet<(usize, usize)> = BTreeSet::new();
        for handle in handles {
            match self.resolve(pages, &held, handle)? {
                Resolved::Known(at) => found.push(at),
                Resolved::Unknown(wanted) => {
                    missing.extend(wanted);
                    found.push(None);
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        web.begin_wave();
        let fetched = self.fetch(web, pages, &missing).await?;
        held.extend(fetched);
        found.clear();
        for handle in handles {
            match self.resolve(pages, &held, handle)? {
                Resolved::Known(at) => found.push(at),
                Resolved::Unknown(_) => return Err(broken("no such page")),
            }
        }
        Ok(found)
    }

    /// Looks in the runs in their order, as far as their pages are in memory.
    fn resolve(
        &self,
        pages: &Pages,
        held: &HashMap<(usize, usize), Bytes>,
        handle: &Handle,
    ) -> Result<Resolved, Fault> {
        let mut wanted = Vec::new();
        for (order, run) in self.runs.iter().enumerate() {
            let Some(table) = run.table.get() else {
                return Err(broken("no table"));
            };
            let Some(number) = table.page_of(handle) else {
                continue;
            };
            let page = match held.get(&(order, number)) {
                Some(page) => Some(page.clone()),
                None => run.page(number, pages),
            };
            match page {
                None => wanted.push((order, number)),
                // The first run that has the handle decides, so a missing page ends the search.
                Some(_) if !wanted.is_empty() => {}
                Some(page) => {
                    if let Some(at) = table.find(number, &page, handle).map_err(broken)? {
                        return Ok(Resolved::Known(Some(at)));
                    }
                }
            }
        }
        if wanted.is_empty() {
            Ok(Resolved::Known(None))
        } else {
            Ok(Resolved::Unknown(wanted))
        }
    }

    /// Fetches pages (number of the run, number of the page). Near pages share a request, and all requests
    /// are concurrent.
    async fn fetch(
        &self,
        web: &Web,
        pages: &Pages,
        missing: &BTreeSet<(usize, usize)>,
    ) -> Result<HashMap<(usize, usize), Bytes>, Fault> {
        let fetches = self.runs.iter().enumerate().map(|(order, run)| async move {
            let numbers: Vec<usize> = missing
                .range((order, 0)..=(order, usize::MAX))
                .map(|(_, number)| *number)
                .collect();
            if numbers.is_empty() {
                return Ok(Vec::new());
            }
            let before = run.wanted.fetch_add(numbers.len(), Ordering::Relaxed);
            if run.may_be_whole && before.saturating_add(numbers.len()) > SEVERAL_PAGES {
                run.fetch_whole(web, &self.base).await?;
                return Ok(Vec::new());
            }
            let spans = spans(&numbers);
            let fetched = spans
                .into_iter()
                .map(|span| run.fetch(web, &self.base, span));
            let fetched = try_join_all(fetched).await?;
            Ok::<_, Fault>(
                fetched
                    .into_iter()
                    .flatten()
                    .map(|(number, page)| {
                        pages.insert((run.name.id, number), page.clone());
                        ((order, number), page)
                    })
                    .collect(),
            )
        });
        let fetched = try_join_all(fetches).await?;
        Ok(fetched.into_iter().flatten().collect())
    }
}

enum Resolved {
    /// The location, or that the repository has no such block.
    Known(Option<Location>),
    /// The pages that are needed to decide.
    Unknown(Vec<(usize, usize)>),
}

impl Run {
    async fn table(&self, web: &Web, base: &HttpAddress) -> Result<&Table, Fault> {
        let load = || async {
            let small = self.name.len_bytes <= SMALL_RUN_BYTES;
            let from = if small { 0 } else { self.behind };
            let bytes = self.read(web, base, from, self.name.len_bytes).await?;
            let split = (self.behind - from) as usize;
            let table = bytes.get(split..).unwrap_or_default();
            let table = Table::parse(&self.name, table).map_err(broken)?;
            if small {
                let pages = bytes.slice(..split.min(bytes.len()));
                check_pages(&table, 0, &pages)?;
                let _ = self.whole.set(pages);
            }
            Ok(table)
        };
        self.table.get_or_try_init(load).await
    }

    /// A page that is in memory.
    fn page(&self, number: usize, pages: &Pages) -> Option<Bytes> {
        if let Some(whole) = self.whole.get() {
            let at = number.checked_mul(PAGE_BYTES)?;
            return (at + PAGE_BYTES <= whole.len()).then(|| whole.slice(at..at + PAGE_BYTES));
        }
        pages.get(&(self.name.id, number))
    }

    /// Fetches all pages, once for all callers that wait.
    async fn fetch_whole(&self, web: &Web, base: &HttpAddress) -> Result<(), Fault> {
        let load = || async {
            let bytes = self.read(web, base, 0, self.behind).await?;
            let table = self.table.get().ok_or_else(|| broken("no table"))?;
            check_pages(table, 0, &bytes)?;
            Ok(bytes)
        };
        self.whole.get_or_try_init(load).await.map(drop)
    }

    /// Fetches some pages in one request: their numbers, in order and near.
    async fn fetch(
        &self,
        web: &Web,
        base: &HttpAddress,
        span: Vec<usize>,
    ) -> Result<Vec<(usize, Bytes)>, Fault> {
        let (Some(first), Some(last)) = (span.first(), span.last()) else {
            return Ok(Vec::new());
        };
        let at = |number: usize| number as u64 * PAGE_BYTES as u64;
        let bytes = self.read(web, base, at(*first), at(last + 1)).await?;
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

    async fn read(
        &self,
        web: &Web,
        base: &HttpAddress,
        from: u64,
        to: u64,
    ) -> Result<Bytes, Fault> {
        let file = self.name.id.index();
        let url = base.join(&file).ok_or_else(|| broken("no such name"))?;
        match web.range(&url, from, to.saturating_sub(from)).await? {
            Got::Body(bytes, _) if bytes.len() as u64 == to - from => Ok(bytes),
            Got::Body(..) | Got::PastEnd => Err(Fault::Gone(format!("{file} is cut short"))),
            Got::Missing | Got::NotModified => Err(Fault::Gone(format!("{file} is not there"))),
        }
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
            let short = |first: &usize| number - first < MAX_PAGES;
            span.last().is_some_and(near) && span.first().is_some_and(short)
        });
        match joined {
            Some(span) => span.push(*number),
            None => spans.push(vec![*number]),
        }
    }
    spans
}

fn broken(why: Broken) -> Fault {
    Fault::Bad(bad_index(why))
}

#[cfg(test)]
mod tests {
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
        assert!(spans.iter().all(|s| s.len() <= MAX_PAGES));
        assert_eq!(spans.concat(), all);
    }

    fn head(runs: &[(u64, u64)]) -> Head {
        let run = |(i, (entries, len_bytes)): (usize, &(u64, u64))| RunName {
            id: FileId([i as u8; 16]),
            entries: *entries,
            len_bytes: *len_bytes,
        };
        Head {
            runs: runs.iter().enumerate().map(run).collect(),
            ..Head::default()
        }
    }

    #[test]
    fn the_tables_of_a_head_are_bounded_in_memory() {
        let base: HttpAddress = "http://a.example".parse().unwrap();
        let view =
            |runs: &[(u64, u64)]| View::new(head(runs), base.clone(), HeaderMap::new(), None);
        // Full-sized runs with correct tables, and runs with false ones.
        let table = |pages: u64| (pages * 93, pages * 4096 + pages * 32 + 16 + 56);
        assert!(view(&[table(1), table(1 << 20)]).is_ok());
        let many = [table(1 << 20); 3];
        assert!(matches!(view(&many), Err(Fault::Down(why)) if why.contains("too large")));
        assert!(matches!(view(&[(1, u64::MAX)]), Err(Fault::Down(_))));
        for lie in [(0, 4096), (u64::MAX, u64::MAX), (1, 4096), (1, 0)] {
            assert!(matches!(view(&[lie]), Err(Fault::Bad(_))), "{lie:?}");
        }
        let medium = view(&[table(512); 64]).unwrap();
        let whole: u64 = medium
            .runs
            .iter()
            .filter(|r| r.may_be_whole)
            .map(|r| r.behind)
            .sum();
        assert_eq!(whole, MAX_WHOLE_BYTES);
    }

    #[test]
    fn a_known_run_is_kept_for_the_next_head() {
        let base: HttpAddress = "http://a.example".parse().unwrap();
        let old = View::new(head(&[(10, 4300)]), base.clone(), HeaderMap::new(), None).unwrap();
        let new = head(&[(10, 4300), (20, 4300)]);
        let new = View::new(new, base, HeaderMap::new(), Some(&old)).unwrap();
        assert!(Arc::ptr_eq(&old.runs[0], &new.runs[0]));
        assert_eq!(new.runs.len(), 2);
    }
}
