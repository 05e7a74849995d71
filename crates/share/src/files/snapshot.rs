//! The files of a volume as a device keeps them for a restart (`crate::snapshot`).
//!
//! ```text
//! files   = folds varint | position of the last one varint | principals varint |
//!           (principal [32] | first varint | changes varint) * principals | claimed varint | lock * claimed | replay
//! lock    = key of a row bytes                        of a file that this device has claimed
//! ```
//!
//! Members are not in it, but the entries that they follow from.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trust::device::DeviceKey;
use trust::error::Reject;
use trust_shared::effect::Replay;
use trust_shared::effect::replay::{Sink, Source};
use trust_shared::entry::Author;

use super::tidy::Unfolded;
use super::turn::Claimed;
use super::{Files, Known};
use ordering::roster::outline_of;
use ordering::rows::Rows;
use ordering::signed::Entry;

impl Files {
    /// Whether it cannot say what the volume has.
    pub(crate) fn is_mute(&self) -> bool {
        self.mute.is_some()
    }

    /// Positions of the entries that the members follow from.
    pub(crate) fn deciding(&self) -> &[u64] {
        &self.deciding
    }

    /// Gives all but the members and what authors attest.
    pub(crate) fn store(&self, to: &mut impl Sink) {
        self.unfolded.store(to);
        self.claimed.store(to);
        self.known.get().store(to);
    }

    /// Reads what [`Files::store`] gave after a log of `size` leaves that begins with these files.
    pub(crate) fn restore(
        &self,
        authors: &Rows<DeviceKey, Author>,
        deciding: &[(u64, Entry)],
        size: u64,
        from: &mut impl Source,
    ) -> Result<Files, Reject> {
        let bad = |why| Reject::Malformed {
            what: "snapshot of a shared volume",
            why,
        };
        let mut roster = self.roster.clone();
        for (at, entry) in deciding {
            let written = roster.written(*at, entry);
            let written = written.ok_or_else(|| bad("a decision of nobody"))?;
            let outline = outline_of(entry)?;
            roster.take(&written, entry, &outline);
        }
        let attests = authors.iter().map(|(device, author)| {
            let number = roster.number(device);
            Ok((
                number.ok_or_else(|| bad("an author that is no member"))?,
                author.attested,
            ))
        });
        let attests: Result<_, Reject> = attests.collect();
        let unfolded = Unfolded::restore(from)?;
        let claimed = Claimed::restore(from)?;
        let replay = Replay::restore((*self.terms).clone(), from)?;
        if replay.size() > size || roster.lost().is_some() {
            return Err(bad("files that are not those of its log"));
        }
        Ok(Files {
            terms: Arc::clone(&self.terms),
            roster,
            known: Arc::new(Known(Mutex::new(replay))),
            shelf: Arc::clone(&self.shelf),
            attests: attests?,
            attested: AtomicU64::new(self.attested.load(Ordering::Relaxed)),
            unfolded,
            own: self.own,
            claimed,
            deciding: deciding.iter().map(|(at, _)| *at).collect(),
            mute: None,
        })
    }
}
