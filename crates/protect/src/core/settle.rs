//! What a sync of the data device made durable leaves the log.

use std::collections::HashMap;
use std::ops::Range;

use wal::{Digest, Lsn};

use super::{Core, Phase, Seq};

/// What was written to the data device when a sync began.
#[derive(Debug, Default)]
pub(crate) struct Written {
    blocks: Vec<WrittenBlock>,
    trims: Vec<Seq>,
}

#[derive(Clone, Copy, Debug)]
struct WrittenBlock {
    block: u64,
    seq: Seq,
    lost: bool,
}

/// What the sync settled.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Blocks, in order.
    pub versions: Vec<SettledVersion>,
    /// Trimmed blocks.
    pub trims: Vec<(Seq, Range<u64>)>,
    /// Every Hash record before it is settled or superseded. Must be durable in the log before `settle_end`.
    /// `None` if no Hash is settled.
    pub through: Option<Lsn>,
}

/// A version that the data device has durably, or that nobody has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledVersion {
    /// The block.
    pub block: u64,
    /// Digest of its content. `None`: it is lost.
    pub digest: Option<Digest>,
    seq: Seq,
}

impl Written {
    /// Whether there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.trims.is_empty()
    }
}

impl Core {
    /// Whether something was written to the data device and not synced.
    pub fn has_written(&self) -> bool {
        self.homes.values().any(|home| home.written)
            || self.trims.iter().any(|trim| trim.home == Phase::Written)
    }

    /// What has been written. The caller syncs the data device next.
    pub fn settle_begin(&self) -> Written {
        let written = self.homes.iter().filter(|(_, home)| home.written);
        let trims = self.trims.iter().filter(|trim| trim.home == Phase::Written);
        Written {
            blocks: written.map(written_block).collect(),
            trims: trims.map(|trim| trim.seq).collect(),
        }
    }

    /// What the sync settled: of what was written, the versions that are still the newest durable ones. Of Hash
    /// records only those before the oldest unsettled one, because the log says it with one position.
    pub fn settled(&self, written: &Written) -> Settled {
        let mut synced: HashMap<Lsn, usize> = HashMap::new();
        for WrittenBlock { block, seq, .. } in &written.blocks {
            if let Some(hash) = self.hashes.get(block).filter(|hash| hash.seq == *seq) {
                *synced.entry(hash.lsn).or_default() += 1;
            }
        }
        let through = self
            .live_hashes
            .first_beyond(&synced)
            .unwrap_or(self.committed_end);
        let mut settled = Settled::default();
        for WrittenBlock { block, seq, lost } in written.blocks.iter().copied() {
            let hash = self.hashes.get(&block);
            let digest = match (hash, self.redos.get(&block)) {
                (Some(hash), _) if hash.seq == seq && hash.lsn < through => {
                    settled.through = Some(through);
                    hash.piece.digest
                }
                (None, Some(redo)) if redo.seq == seq => redo.digest,
                _ => continue,
            };
            let digest = (!lost).then_some(digest);
            settled.versions.push(SettledVersion { block, digest, seq });
        }
        settled
            .versions
            .sort_unstable_by_key(|version| version.block);
        let trims = self
            .trims
            .iter()
            .filter(|trim| written.trims.contains(&trim.seq));
        settled.trims = trims.map(|trim| (trim.seq, trim.range.clone())).collect();
        settled
    }

    /// Where the log may still have the content of a settled block.
    pub fn retired(&self, block: u64) -> Option<Lsn> {
        self.retired.get(block)
    }

    /// The map has the settled values, and the log the position.
    pub fn settle_end(&mut self, settled: &Settled) {
        for version in &settled.versions {
            let block = version.block;
            let is_it = |seq: Option<Seq>| seq == Some(version.seq);
            if is_it(self.homes.get(&block).map(|home| home.seq)) {
                self.homes.remove(&block);
            }
            if is_it(self.hashes.get(&block).map(|hash| hash.seq)) {
                self.drop_hash(block);
                self.drop_redo(block);
            } else if is_it(self.redos.get(&block).map(|redo| redo.seq)) {
                let payload = self.redos.get(&block).map(|redo| redo.payload);
                if let (Some(payload), Some(_)) = (payload, version.digest) {
                    self.retired.add(block, payload);
                }
                self.drop_redo(block);
            }
        }
        let live = &mut self.live;
        self.trims.retain(|trim| {
            let is_settled = settled.trims.iter().any(|(seq, _)| *seq == trim.seq);
            if is_settled {
                live.remove(trim.lsn);
            }
            !is_settled
        });
    }
}

fn written_block((block, home): (&u64, &super::Home)) -> WrittenBlock {
    WrittenBlock {
        block: *block,
        seq: home.seq,
        lost: home.lost,
    }
}
