//! The leaves that only the temporary log has. If frames of it are destroyed, the frames around them show whether leaves are
//! missing: records of leaves follow each other. Where that cannot be shown, what the server has signed may be lost, and nothing
//! is mended.

use std::collections::BTreeMap;

use trust_shared::genesis::Epoch;
use wal::Lsn;

use super::super::HostError;
use super::super::moving::Released;
use super::super::record::{LEAVES, StoredLeaf, read_record};
use super::unmended;
use crate::blocks::peek::Peeked;

/// What the temporary log has.
pub(super) struct Tail {
    pub leaves: BTreeMap<u64, StoredLeaf>,
    /// Position after the last one.
    pub end: u64,
    /// What the files of leaves have.
    pub released: Option<Released>,
}

/// Reads the leaves of the newest epoch.
pub(super) fn read(peeked: &Peeked, epoch: &Epoch) -> Result<Tail, HostError> {
    let released = Released::decode(&peeked.cookie);
    let of = released.map_or(0, |released| released.epoch);
    if of > epoch.number {
        let why = "the temporary log is of a later epoch: policies are missing";
        return Err(unmended(why.to_owned()));
    }
    if of < epoch.number {
        // Its records are of the epoch before: what stands of that is in files.
        return Ok(Tail {
            leaves: BTreeMap::new(),
            end: 0,
            released: Some(Released {
                size: epoch.start.size,
                root: epoch.start.root,
                epoch: epoch.number,
            }),
        });
    }
    if peeked.lacks_its_end {
        return Err(lost("its end is destroyed"));
    }
    let written = released.map_or(0, |released| released.size);
    let mut leaves = BTreeMap::new();
    let mut next = written;
    // Where the last record of leaves begins.
    let mut last = Lsn(0);
    for entry in &peeked.entries {
        let bad = |why: &dyn std::fmt::Display| unmended(format!("a record of leaves: {why}"));
        if entry.kind != LEAVES {
            return Err(bad(&format!("its kind {} is unknown", entry.kind)));
        }
        let (first, stored) = read_record(&entry.body).map_err(|why| bad(&why))?;
        if peeked.broken.is_some() && leaves.contains_key(&first) {
            return Err(bad(&format!("leaf {first} is there twice")));
        }
        for (at, stored) in (first..).zip(stored) {
            next = next.max(at.saturating_add(1));
            leaves.insert(at, stored);
        }
        last = entry.frame;
    }
    // Leaves before the first hole and after the last one: a position that is missing is sought elsewhere.
    if peeked.holes.last().is_some_and(|hole| last < hole.end) {
        return Err(lost(
            "no entry after the destroyed frame shows that it had none",
        ));
    }
    Ok(Tail {
        leaves,
        end: next,
        released,
    })
}

fn lost(why: &str) -> HostError {
    unmended(format!(
        "a frame of the temporary log is destroyed, and {why}. Entries that devices have seen may be lost; a server without \
         them would sign a fork"
    ))
}
