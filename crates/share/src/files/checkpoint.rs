//! The files of a volume as rows of a checkpoint, and files that begin with one (decision 0058).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use trust_shared::checkpoint::{Parts, Row};
use trust_shared::effect::replay::{Page, Sources};
use trust_shared::effect::{Missing, Replay, Volume as Terms};
use trust_shared::genesis::Policies;

use super::sight::Halt;
use super::tidy::Unfolded;
use super::turn::Claimed;
use super::{Files, Known, Refused, Shelf, question};
use ordering::roster::Roster;

/// Why rows cannot be given yet, or at all.
#[derive(Debug)]
pub enum NoRows {
    /// Fetch this, put it on the shelf, and ask again.
    Missing(Missing),
    /// This device cannot tell.
    Refused(Refused),
}

impl Files {
    /// The files of a volume after the checkpoint of a log of `size` leaves. What is fetched is put on this shelf.
    pub(crate) fn begin(policies: &Policies, shelf: Arc<Shelf>, size: u64, parts: Parts) -> Files {
        let volume = policies.chain().volume();
        let terms = Terms::new(volume, policies.chain().hasher());
        let roster = Roster::resume(parts.members);
        let attests = parts.authors.iter().filter_map(|(device, author)| {
            // Authors have been members.
            Some((roster.number(*device)?, author.attested))
        });
        let attests = attests.collect();
        let unfolded = Unfolded::of(&parts.base);
        let replay = Replay::resume(terms.clone(), size, parts.base);
        Files {
            terms: Arc::new(terms),
            roster,
            known: Arc::new(Known(std::sync::Mutex::new(replay))),
            shelf,
            attests,
            attested: AtomicU64::new(size),
            unfolded,
            own: None,
            claimed: Claimed::default(),
            deciding: Vec::new(),
            mute: None,
        }
    }

    /// The rows about files at the end of the log: those after a row, from at most `most` keys.
    ///
    /// # Errors
    /// [`NoRows`].
    pub fn rows(&self, after: Option<&Row>, most: usize) -> Result<Page, NoRows> {
        if let Some(why) = &self.mute {
            return Err(NoRows::Refused(why.clone()));
        }
        let rows = self.ask(question(&(4u8, after)), |replay| {
            let from = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            Ok(replay.rows(replay.size(), after, most, from)?)
        });
        rows.map_err(|halt| match halt {
            Halt::Missing(missing) => NoRows::Missing(missing),
            Halt::Refused(why) => NoRows::Refused(why),
            Halt::Locked(..) => NoRows::Refused(Refused::Locked),
        })
    }
}
