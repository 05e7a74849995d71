//! What the log says about blocks that may not be settled: the pure half of recovery (PFS 5.3; design `protect.md`,
//! *recover*). The last record of a block wins; a Hash that is not settled is judged by the content of the data
//! device.

use std::collections::BTreeMap;

use wal::{Digest, Lsn};

use crate::map::Value;
use crate::ranges::Ranges;
use crate::records::{Adoption, Choice, Entry};

/// The last record of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// Its content is in the log.
    Redo(Redo),
    /// Its digest is in the log.
    Hash {
        /// The frame.
        lsn: Lsn,
        /// The digest.
        digest: Digest,
        /// What the block was before.
        prior: Prior,
    },
    /// A recovery found that the data device has this durably.
    Adopted(Digest),
    /// A recovery found nothing that fits.
    Bad,
}

/// A Redo record of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redo {
    /// The frame.
    pub lsn: Lsn,
    /// The page.
    pub payload: Lsn,
    /// The page's digest.
    pub digest: Digest,
}

/// The version before a Hash, in the order of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prior {
    /// Its content is in the log.
    Redo(Redo),
    /// A settled content.
    Settled(Digest),
    /// Zeros that the data device may not have.
    Trimmed,
    /// What the map says.
    Map,
    /// Nothing that can be read.
    Bad,
}

/// The log contradicts itself, although it is authentic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {block} at {lsn}: {why}")]
pub struct Contradiction {
    /// The block.
    pub block: u64,
    /// The frame.
    pub lsn: Lsn,
    /// The rule that is broken.
    pub why: &'static str,
}

/// What the records from the oldest needed frame on say.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// Blocks, but for those that were trimmed last.
    pub blocks: BTreeMap<u64, Last>,
    /// Blocks that were trimmed last.
    pub trims: Ranges,
    settled: Lsn,
}

impl Replay {
    /// The next record: it lies in the frame at `lsn`, its pages from `payload` on, with these digests.
    ///
    /// # Errors
    /// [`Contradiction`]
    pub fn apply(
        &mut self,
        entry: &Entry,
        lsn: Lsn,
        payload: Lsn,
        digests: &[Digest],
    ) -> Result<(), Contradiction> {
        match entry {
            Entry::Redo(range) => {
                self.trims.remove(range);
                let pages = (payload.0..).step_by(wal::PAGE_BYTES).map(Lsn);
                for ((block, payload), digest) in
                    range.clone().zip(pages).zip(digests.iter().copied())
                {
                    let redo = Redo {
                        lsn,
                        payload,
                        digest,
                    };
                    self.blocks.insert(block, Last::Redo(redo));
                }
            }
            Entry::Hash(start, digests) => {
                for (block, digest) in (*start..).zip(digests.iter().copied()) {
                    let prior = self.prior(block, lsn)?;
                    let hash = Last::Hash { lsn, digest, prior };
                    self.blocks.insert(block, hash);
                }
            }
            Entry::Trim(range) => {
                self.forget(range);
                self.trims.insert(range.clone(), lsn);
            }
            Entry::Settled(through) => self.settled = self.settled.max(*through),
            Entry::Adopted(adoptions) => {
                for adoption in adoptions {
                    self.adopt(adoption, lsn)?;
                }
            }
            Entry::Recovered(_) | Entry::Detached => {}
        }
        Ok(())
    }

    fn forget(&mut self, range: &std::ops::Range<u64>) {
        let mut rest = self.blocks.split_off(&range.start);
        self.blocks.append(&mut rest.split_off(&range.end));
    }

    fn prior(&mut self, block: u64, lsn: Lsn) -> Result<Prior, Contradiction> {
        let prior = match self.blocks.get(&block) {
            Some(Last::Redo(redo)) => Prior::Redo(*redo),
            Some(Last::Adopted(digest)) => Prior::Settled(*digest),
            Some(Last::Bad) => Prior::Bad,
            Some(Last::Hash { lsn, digest, .. }) if *lsn < self.settled => Prior::Settled(*digest),
            Some(Last::Hash { .. }) => {
                let why = "two Hash records that are not settled";
                return Err(Contradiction { block, lsn, why });
            }
            None if self.trims.contains(block) => Prior::Trimmed,
            None => Prior::Map,
        };
        self.trims.remove(&(block..block + 1));
        Ok(prior)
    }

    fn adopt(&mut self, adoption: &Adoption, lsn: Lsn) -> Result<(), Contradiction> {
        let block = adoption.block;
        let prior = match self.blocks.get(&block) {
            Some(Last::Hash { prior, .. }) => prior,
            // The tail is behind the Hash: the map that was written then has the choice, or a newer value.
            None if !self.trims.contains(block) => return Ok(()),
            _ => {
                let why = "a choice for a block without a Hash";
                return Err(Contradiction { block, lsn, why });
            }
        };
        match (adoption.choice, prior) {
            (Choice::Settled(digest), _) => {
                self.blocks.insert(block, Last::Adopted(digest));
            }
            (Choice::Redo(payload), Prior::Redo(redo)) if redo.payload == payload => {
                let redo = Last::Redo(*redo);
                self.blocks.insert(block, redo);
            }
            (Choice::Redo(_), _) => {
                let why = "a choice of a Redo that the log does not have";
                return Err(Contradiction { block, lsn, why });
            }
            (Choice::Zero, _) => {
                self.blocks.remove(&block);
                self.trims.insert(block..block + 1, lsn);
            }
            (Choice::Bad, _) => {
                self.blocks.insert(block, Last::Bad);
            }
        }
        Ok(())
    }

    /// The log has lost these pages, which are sorted. Where one had the newest version of a block, or the one before an
    /// unsettled Hash, the data device may have it too; `found` is the digest of what it has.
    pub fn lose(&mut self, pages: &[Lsn], found: impl Fn(u64) -> Option<Digest>) {
        let is_lost = |redo: &Redo| pages.binary_search(&redo.payload).is_ok();
        for (block, last) in &mut self.blocks {
            match last {
                Last::Redo(redo) if is_lost(redo) => {
                    let digest = redo.digest;
                    let is_there = found(*block) == Some(digest);
                    *last = match is_there {
                        true => Last::Adopted(digest),
                        false => Last::Bad,
                    };
                }
                Last::Hash { prior, .. } => {
                    if let Prior::Redo(redo) = *prior
                        && is_lost(&redo)
                    {
                        *prior = Prior::Settled(redo.digest);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a record says something about `block`.
    pub fn concerns(&self, block: u64) -> bool {
        self.blocks.contains_key(&block) || self.trims.contains(block)
    }

    /// Blocks whose version only the data device can tell: those with a Hash that is not settled.
    pub fn unsettled(&self) -> impl Iterator<Item = (u64, Digest, Prior)> {
        self.blocks.iter().filter_map(|(block, last)| match last {
            Last::Hash { lsn, digest, prior } if *lsn >= self.settled => {
                Some((*block, *digest, *prior))
            }
            _ => None,
        })
    }
}

/// Which version a block with an unsettled Hash has: the new one if the data device has it, else the one before.
/// `found` is the digest of what the data device has, `None` if it cannot be read; `mapped` what the map says.
pub(crate) fn choose(digest: Digest, prior: Prior, mapped: Value, found: Option<Digest>) -> Choice {
    if found == Some(digest) {
        return Choice::Settled(digest);
    }
    let before = match (prior, mapped) {
        (Prior::Redo(redo), _) => return Choice::Redo(redo.payload),
        (Prior::Settled(digest), _) | (Prior::Map, Value::Digest(digest)) => digest,
        (Prior::Trimmed, _) | (Prior::Map, Value::Zero) => return Choice::Zero,
        (Prior::Bad, _) | (Prior::Map, Value::Bad | Value::Unseen) => return Choice::Bad,
    };
    if found == Some(before) {
        Choice::Settled(before)
    } else {
        Choice::Bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Digest = Digest([1; 16]);
    const NEW: Digest = Digest([2; 16]);

    /// A block with a Redo whose page is lost, and then a Hash that is not settled.
    #[test]
    fn hash_after_a_lost_page_has_the_new_content_the_old_one_or_none() {
        let mut replay = Replay::default();
        let page = Lsn(8192);
        replay
            .apply(&Entry::Redo(7..8), Lsn(4096), page, &[OLD])
            .unwrap();
        let hash = Entry::Hash(7, vec![NEW]);
        replay.apply(&hash, Lsn(12288), Lsn(16384), &[]).unwrap();
        replay.lose(&[page], |_| panic!("the last version is not lost"));
        let unsettled: Vec<_> = replay.unsettled().collect();
        let [(7, NEW, prior)] = unsettled[..] else {
            panic!("{unsettled:?}");
        };
        for (found, expected) in [
            (Some(NEW), Choice::Settled(NEW)),
            (Some(OLD), Choice::Settled(OLD)),
            (Some(Digest([3; 16])), Choice::Bad),
            (None, Choice::Bad),
        ] {
            let choice = choose(NEW, prior, Value::Zero, found);
            assert_eq!(choice, expected);
            let adopted = Entry::Adopted(vec![Adoption { block: 7, choice }]);
            let mut later = Replay::default();
            later
                .apply(&Entry::Redo(7..8), Lsn(4096), page, &[OLD])
                .unwrap();
            later.apply(&hash, Lsn(12288), Lsn(16384), &[]).unwrap();
            later.apply(&adopted, Lsn(20480), Lsn(24576), &[]).unwrap();
            assert_eq!(later.unsettled().count(), 0, "the choice stays");
        }
    }
}
