//! Heads that are kept: of the version in use, by a reader beside its floor and by a replica in its repository; and
//! as evidence.
//!
//! [`Kept::gives_way_to`] is the one rule by which another head takes its place. Heads come here reduced
//! ([`trust::judge::Offer::reduced`]), so each has the policies by which it was judged. Relies on the judgement of
//! `trust`; nothing here is trusted, because a kept head is judged again before it is used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use state::LockedState;
use trust::evidence::{Evidence, EvidenceClass};
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, Terms};
use trust::signatures::Signatures;

use crate::error::VolumeError;

/// What counts of a head that is kept, or that may replace it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The hash of its record.
    pub record_hash: [u8; 32],
    /// Number of the newest policy that it shows.
    pub policies: u64,
    /// Until when it may be believed, unix seconds; 0 if it may not.
    pub valid_until: u64,
}

impl Kept {
    /// Of a head that is valid until then.
    pub fn new(head: &Head, valid_until: u64) -> Kept {
        Kept {
            record_hash: head.record.hash(),
            policies: head.newest_policy(),
            valid_until,
        }
    }

    /// Whether `other` may take its place. A head about another record may, because the floor decides between
    /// versions. One about the same record must have at least as many policies and as long a validity: a mirror that
    /// lags or cuts its head takes nothing away.
    pub fn gives_way_to(&self, other: &Kept) -> bool {
        self.record_hash != other.record_hash
            || (other.policies >= self.policies && other.valid_until >= self.valid_until)
    }
}

/// Keeps a head beside the floor, unless a better one about the same record is kept.
///
/// # Errors
/// [`VolumeError::State`]; then the previous head is still in place.
pub(crate) fn keep(
    locked: &LockedState,
    floor: &Floor,
    bytes: &Bytes,
    terms: &Terms,
    signatures: &Arc<Mutex<Signatures>>,
) -> Result<(), VolumeError> {
    let statement = |why| VolumeError::Statement {
        place: "the head to be kept".to_owned(),
        why,
    };
    let head = Head::decode(bytes).map_err(statement)?;
    // A pinned record is valid without end, so its timestamp would not count.
    let freshness = match terms.freshness {
        Freshness::Pinned { .. } => Freshness::Strict,
        freshness => freshness,
    };
    let terms = Terms {
        freshness,
        ..terms.clone()
    };
    let mut signatures = lock(signatures);
    let mut standing = |head: &Head| {
        let offer = floor.judge(head, &terms, &mut signatures);
        offer.map_or(0, |offer| offer.valid_until)
    };
    // A kept head that cannot be read counts as none: nothing depends on it.
    let kept = locked.adopted_head().ok().flatten();
    if let Some(kept) = kept.and_then(|bytes| Head::decode(&bytes).ok()) {
        let valid_until = standing(&kept);
        let is_better =
            !Kept::new(&kept, valid_until).gives_way_to(&Kept::new(&head, standing(&head)));
        if valid_until > 0 && is_better {
            return Ok(());
        }
    }
    Ok(locked.keep_adopted_head(bytes)?)
}

/// Keeps what a refused head proves, and the head that was adopted: both are signed, so together they prove the
/// contradiction to people who have neither. A stray policy is kept with the known policy in its place only.
///
/// # Errors
/// [`VolumeError::State`].
pub(crate) fn keep_evidence(
    locked: &LockedState,
    floor: &Floor,
    evidence: &[Evidence],
    signatures: &mut Signatures,
) -> Result<(), VolumeError> {
    for piece in evidence {
        locked.keep_evidence(piece)?;
    }
    let Some(class) = evidence.first().map(|piece| piece.class) else {
        return Ok(());
    };
    let kept = locked.adopted_head().ok().flatten();
    let kept = kept.and_then(|bytes| Head::decode(&bytes).ok());
    if let Some(head) = kept
        && class != EvidenceClass::StrayPolicy
        && let Some(adopted) = floor.head_as_evidence(class, &head, signatures)
    {
        locked.keep_evidence(&adopted)?;
    }
    Ok(())
}

pub(crate) fn lock(signatures: &Mutex<Signatures>) -> MutexGuard<'_, Signatures> {
    signatures.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_that_takes_something_away_does_not_replace_the_kept_one() {
        let kept = Kept {
            record_hash: [1; 32],
            policies: 2,
            valid_until: 100,
        };
        for (record, policies, valid_until, may_replace) in [
            (1, 2, 100, true),
            (1, 3, 101, true),
            (1, 3, 99, false),
            (1, 1, 200, false),
            (2, 1, 1, true),
        ] {
            let other = Kept {
                record_hash: [record; 32],
                policies,
                valid_until,
            };
            assert_eq!(kept.gives_way_to(&other), may_replace, "{other:?}");
        }
    }
}
