//! The head and the index of a repository behind a web server: the table of each run, fetched once,
//! and pages as they are needed ([`super::run`], docs/formats/repository.md).
//!
//! A run never changes, so runs of the old head are kept for a new one. None of this is trusted: all of it is
//! checked by the rules of `store::index::table`. One server can fill no more memory than
//! [`MAX_TABLE_BYTES`] of tables, [`MAX_WHOLE_BYTES`] of whole runs, and the page cache.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{try_join, try_join_all};
use reqwest::header::HeaderMap;
use store::head::Head;
use store::index::Location;
use store::index::table::behind_pages;
use trust::Handle;

use super::run::{Pages, Run, WALK_BLOCKS, broken};
use super::web::{Fault, Web};
use super::{HttpAddress, join};

/// Most bytes of the tables of one head's runs: about 190 million blocks.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Most bytes of the pages of runs that a walk may fetch whole: about 1.5 million blocks.
pub const MAX_WHOLE_BYTES: u64 = 64 << 20;
/// One version of the head, and its runs as far as they are known.
pub(super) struct View {
    pub(super) head: Head,
    /// The address of the repository.
    pub(super) base: HttpAddress,
    /// Request headers that make the server send the head only if it has changed.
    pub(super) conditions: HeaderMap,
    runs: Vec<Arc<Run>>,
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
            let keeps_all = whole_bytes.saturating_add(behind) <= MAX_WHOLE_BYTES;
            if keeps_all {
                whole_bytes += behind;
            }
            let known = old.and_then(|old| {
                let same = |run: &&Arc<Run>| run.name == *name && run.keeps_all() == keeps_all;
                old.runs.iter().find(same)
            });
            runs.push(match known {
                Some(run) => Arc::clone(run),
                None => Arc::new(Run::new(*name, behind, keeps_all)),
            });
        }
        if table_bytes > MAX_TABLE_BYTES {
            return Err(Fault::Unusable(format!(
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

    /// Fetches the tables that are not known.
    async fn tables(&self, web: &Web) -> Result<(), Fault> {
        let unknown = |run: &&Arc<Run>| run.known_table().is_none();
        let new: Vec<_> = self.runs.iter().filter(unknown).collect();
        if !new.is_empty() {
            web.begin_wave();
            try_join_all(new.iter().map(|run| run.table(web, &self.base))).await?;
        }
        Ok(())
    }

    /// Fetches the pages of all runs that are kept, if they are together at most `most_bytes` and come quickly. Asks beside it
    /// whether the server sends several parts in one answer.
    pub(super) async fn prepare(&self, web: &Web, most_bytes: u64) -> Result<(), Fault> {
        let kept = self.runs.iter().filter(|run| run.keeps_all());
        if kept.clone().map(|run| run.behind).sum::<u64>() > most_bytes {
            return Ok(());
        }
        let asks = async {
            if let Some(run) = self.runs.first() {
                let url = join(&self.base, &run.name.id.index())?;
                web.sends_parts(&url).await;
            }
            Ok(())
        };
        let fetches = async {
            for run in kept {
                if !run.fetch_all(web, &self.base).await? {
                    break;
                }
            }
            Ok(())
        };
        try_join(fetches, asks).await.map(drop)
    }

    /// The location of each handle, in order; `None` for those that the repository does not have.
    pub(super) async fn locate(
        &self,
        web: &Web,
        pages: &Pages,
        handles: &[Handle],
    ) -> Result<Vec<Option<Location>>, Fault> {
        self.tables(web).await?;
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
        let is_walk = handles.len() >= WALK_BLOCKS;
        let fetched = self.fetch(web, pages, &missing, is_walk).await?;
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
            let Some(table) = run.known_table() else {
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

    /// Fetches pages (number of the run, number of the page), all concurrently. Gives those that did not come with their
    /// neighbours.
    async fn fetch(
        &self,
        web: &Web,
        pages: &Pages,
        missing: &BTreeSet<(usize, usize)>,
        is_walk: bool,
    ) -> Result<HashMap<(usize, usize), Bytes>, Fault> {
        let fetches = self.runs.iter().enumerate().map(|(order, run)| async move {
            let numbers: Vec<usize> = missing
                .range((order, 0)..=(order, usize::MAX))
                .map(|(_, number)| *number)
                .collect();
            if numbers.is_empty() {
                return Ok(Vec::new());
            }
            let fetched = run.fetch(web, &self.base, numbers, is_walk).await?;
            Ok::<_, Fault>(
                fetched
                    .into_iter()
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

#[cfg(test)]
mod tests {
    use store::head::RunName;
    use store::names::FileId;

    use super::*;

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
        assert!(matches!(view(&many), Err(Fault::Unusable(why)) if why.contains("too large")));
        assert!(matches!(view(&[(1, u64::MAX)]), Err(Fault::Unusable(_))));
        for lie in [(0, 4096), (u64::MAX, u64::MAX), (1, 4096), (1, 0)] {
            assert!(matches!(view(&[lie]), Err(Fault::Bad(_))), "{lie:?}");
        }
        let medium = view(&[table(512); 64]).unwrap();
        let whole: u64 = medium
            .runs
            .iter()
            .filter(|r| r.keeps_all())
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
