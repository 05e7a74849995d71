//! Where the newest version of a block is.

use bytes::Bytes;
use wal::{Digest, Lsn};

use super::{Core, Seq, contains};

/// The place of the newest version.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In memory.
    Page(Bytes),
    /// In the log.
    Log(Lsn, Digest),
    /// Zeros.
    Zero,
    /// Settled: the map says what the data device must have.
    Settled,
}

impl Core {
    /// Where the newest version of `block` is.
    pub fn source(&self, block: u64) -> Source {
        let mut newest: (Seq, Source) = (0, Source::Settled);
        let mut offer = |seq: Seq, source: &dyn Fn() -> Source| {
            if seq > newest.0 {
                newest = (seq, source());
            }
        };
        if let Some(staged) = self.staged.get(&block) {
            offer(staged.seq, &|| Source::Page(staged.piece.page.clone()));
        }
        for trim in self
            .staged_trims
            .iter()
            .filter(|trim| contains(&trim.range, block))
        {
            offer(trim.seq, &|| Source::Zero);
        }
        if let Some(batch) = &self.committing {
            if let Some(staged) = batch.pages.get(&block) {
                offer(staged.seq, &|| Source::Page(staged.piece.page.clone()));
            }
            for trim in batch
                .trims
                .iter()
                .filter(|trim| contains(&trim.range, block))
            {
                offer(trim.seq, &|| Source::Zero);
            }
        }
        if let Some(redo) = self.redos.get(&block) {
            offer(redo.seq, &|| match &redo.page {
                Some(page) => Source::Page(page.clone()),
                None => Source::Log(redo.payload, redo.digest),
            });
        }
        if let Some(hash) = self.hashes.get(&block) {
            offer(hash.seq, &|| Source::Page(hash.piece.page.clone()));
        }
        for trim in self
            .trims
            .iter()
            .filter(|trim| contains(&trim.range, block))
        {
            offer(trim.seq, &|| Source::Zero);
        }
        newest.1
    }
}
