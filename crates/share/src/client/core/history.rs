//! Pages of the log, for people: from the leaves of the floor, newest first. Roots of its prefixes.

use trust_shared::effect::Missing;
use trust_shared::principal::Device;

use super::{Core, MAX_ROUNDS, Out};
use crate::client::evidence::Proofs;
use crate::disk::DiskError;
use crate::files::{Answer, Files, History, Logged, MAX_LOGGED};
use ordering::engine::Engine;
use ordering::roster::Product;
use ordering::scheme::{Leaf, Log, Scheme};
use ordering::signed::Entry;

/// Leaves that are read from disk at a time.
pub(super) const CHUNK: u64 = 256;
/// Most leaves that one page looks at. A page of a log that has marks only is short.
pub(in crate::client) const MOST_LEAVES: u64 = 16 * CHUNK;

impl Core {
    /// A page of the log. It is shorter if not all that it needs is here at once. None: something must be fetched first,
    /// or the floor cannot be read.
    pub(super) fn history(
        &mut self,
        before: Option<u64>,
        most: u32,
        outs: &mut Vec<Out>,
    ) -> Option<Answer> {
        // There may never be room for all that a page needs, but for what an entry of it needs, there is.
        let mut longest = History::default();
        let some = |page: History| (!page.entries.is_empty()).then_some(Answer::History(page));
        for _ in 0..MAX_ROUNDS {
            let mut missing = Missing::default();
            let page = match self.page(before, most.clamp(1, MAX_LOGGED), &mut missing) {
                Ok(page) if missing == Missing::default() => return Some(Answer::History(page)),
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(%error, "the log cannot be read");
                    return None;
                }
            };
            if page.entries.len() > longest.entries.len() {
                longest = page;
            }
            if !self.look(&missing, outs).unwrap_or(false) {
                return some(longest);
            }
        }
        if longest.entries.is_empty() {
            outs.push(Out::Again);
        }
        some(longest)
    }

    /// The root of a prefix of the log.
    pub(super) fn root_of(&self, size: u64) -> Option<[u8; 32]> {
        let log = self.engine.ledger().log();
        if size > Log::<Product>::size(log) {
            return None;
        }
        Log::<Product>::root_at(log, size).or_else(|| {
            let hashes = self.court.hashes(&self.disk).ok()?;
            Proofs::new(hashes).root_at(size)
        })
    }

    /// The entries before the first one that misses something.
    fn page(
        &self,
        before: Option<u64>,
        most: u32,
        missing: &mut Missing,
    ) -> Result<History, DiskError> {
        let size = self.disk.len().min(self.engine.ledger().size());
        let mut at = before.unwrap_or(size).min(size);
        let end = at.saturating_sub(MOST_LEAVES);
        let mut page = History::default();
        let mut left = most;
        while at > end && left > 0 {
            let leaves = self.disk.range(at.saturating_sub(CHUNK).max(end), at)?;
            if leaves.is_empty() {
                // A device that began with a checkpoint does not have what lies before.
                return Ok(page);
            }
            for (position, leaf) in leaves.into_iter().rev() {
                if left == 0 {
                    break;
                }
                at = position;
                let Leaf::Entry(entry) = leaf else { continue };
                if entry.signed().entry().is_resume() {
                    continue;
                }
                left = left.saturating_sub(1);
                match logged(&self.engine, position, &entry) {
                    Ok(logged) if page.next.is_none() => page.entries.push(logged),
                    Ok(_) => {}
                    Err(more) => {
                        page.next.get_or_insert(position.saturating_add(1));
                        missing.add(more);
                    }
                }
            }
        }
        page.next = page.next.or(Some(at).filter(|at| *at > 0));
        Ok(page)
    }
}

/// An entry, once its signature is verified.
fn logged(
    engine: &Engine<Product, Files, super::Ticket>,
    at: u64,
    entry: &Entry,
) -> Result<Logged, Missing> {
    let files = engine.ledger().volume();
    let author = Product::author(entry);
    if !engine.scheme().entry_is_signed(entry) {
        return Ok(Logged {
            at,
            device: files.roster().number(author).unwrap_or(Device(u32::MAX)),
            attested: false,
            ops: Vec::new(),
            damaged: Some("the device that it names did not sign it".to_owned()),
        });
    }
    let mut logged = files.logged(at, entry)?;
    logged.attested = engine.is_supported(author, at);
    Ok(logged)
}
