//! Whether two readers of a volume were shown one log (docs/formats/sighting.md). One says what it has seen, as a text;
//! another compares it with what it has seen itself, and keeps evidence if the publishers have signed two logs.
//!
//! Relies on `trust::sighting` and `trust::split_view` for the judgement. Tiles come from the replicas and are checked
//! against what the two readers bring, so no replica can make the two agree or differ.

use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use trust::Reject;
use trust::evidence::Evidence;
use trust::head::Head;
use trust::prefix::Prefix;
use trust::sighting::{Seen, Sighting};
use trust::split_view::{Relation, SplitView, Verdict, conclude, ordered, relation};

use crate::consistency::{self, share};
use crate::error::{VolumeError, gravest};
use crate::volume::Volume;

/// How what two readers have seen stands to each other.
#[derive(Debug)]
pub enum Compared {
    /// One log: that of the one is the beginning of that of the other, or they are the same.
    Same,
    /// The other reader has seen more, and no replica gives what shows how the two stand.
    Behind,
    /// The owners have begun the log again between the two.
    Epochs,
    /// Two logs or policies.
    Split {
        /// What was signed.
        verdict: Box<Verdict>,
        /// The file of evidence.
        file: PathBuf,
        /// Whether the file is there: not if this reader has all the evidence that it keeps.
        kept: bool,
    },
}

impl Volume {
    /// What this reader has seen.
    ///
    /// # Errors
    /// As [`Volume::prove`].
    pub async fn sighting(&self) -> Result<Sighting, VolumeError> {
        let deadline = self.deadline();
        let head = self.head_of(&self.snapshot(), deadline).await?;
        let make = |older: &[_]| Sighting::new(&head, older, self.id());
        self.with_older(&head, deadline, make).await
    }

    /// Compares what this reader and another have seen. `theirs` is what `other` says.
    ///
    /// # Errors
    /// As [`Volume::sighting`]; [`VolumeError::Read`] when no replica gives the tiles; [`VolumeError::State`] when the
    /// evidence cannot be kept.
    pub async fn compare(&self, other: &Sighting, theirs: &Seen) -> Result<Compared, VolumeError> {
        let deadline = self.deadline();
        let sighting = self.sighting().await?;
        let ours = sighting.verify(self.id()).map_err(of_this_reader)?;
        let they_are_first = ordered(theirs, &ours);
        let (first, second) = match they_are_first {
            true => (theirs, &ours),
            false => (&ours, theirs),
        };
        let (split, tiles) = match relation(first, second).map_err(of_this_reader)? {
            Relation::Same => return Ok(Compared::Same),
            Relation::Epochs => return Ok(Compared::Epochs),
            Relation::Split(split) => (split, Vec::new()),
            Relation::Wanted(prefix) => {
                let supplied = match self.supplied(&prefix, deadline).await {
                    Ok(supplied) => supplied,
                    Err(_) if !they_are_first => return Ok(Compared::Behind),
                    Err(error) => return Err(error),
                };
                let (prefix, tiles) = supplied;
                match conclude(prefix, second).map_err(of_this_reader)? {
                    None => return Ok(Compared::Same),
                    Some(split) => (split, tiles),
                }
            }
        };
        let (first, second) = match they_are_first {
            true => (other.clone(), sighting),
            false => (sighting, other.clone()),
        };
        let evidence = SplitView {
            first,
            second,
            tiles,
        };
        tracing::error!(volume = %self.id(), ?split, "two readers were shown two histories");
        self.keep(evidence, theirs, deadline).await
    }

    /// A proof with its tiles, from the first replica that has the right ones.
    async fn supplied(
        &self,
        wanted: &Prefix,
        deadline: Instant,
    ) -> Result<(Prefix, Vec<Bytes>), VolumeError> {
        let replicas: Vec<_> = self.mirrors().replicas().cloned().enumerate().collect();
        // Tiles of another log are no lie of the replica: the other reader's log may be the wrong one.
        let supplied =
            consistency::supplied(&replicas, wanted, (deadline, true), |_, _, _| {}).await;
        let what = "the proof that one log continues the other";
        let supplied = supplied.map_err(|causes| VolumeError::unavailable(what, causes))?;
        Ok((supplied.prefix, supplied.tiles))
    }

    /// Keeps evidence beside the floor, after it was judged as a stranger would judge it.
    async fn keep(
        &self,
        evidence: SplitView,
        theirs: &Seen,
        deadline: Instant,
    ) -> Result<Compared, VolumeError> {
        let verdict = evidence.verify().map_err(of_this_reader)?;
        let bytes = evidence.encode().map_err(of_this_reader)?;
        let piece = Evidence::part(&theirs.record_hash, "split", bytes);
        let file = self.evidence_directory().join(&piece.name);
        let round = self.round();
        let kept = round.update(deadline, move |locked| Ok(locked.keep_evidence(&piece)?));
        let kept = kept.await?;
        let verdict = Box::new(verdict);
        Ok(Compared::Split {
            verdict,
            file,
            kept,
        })
    }

    /// Makes something of a head and the policies that it leaves out, which are fetched.
    pub(crate) async fn with_older<T>(
        &self,
        head: &Head,
        deadline: Instant,
        make: impl Fn(&[trust::statement::Signed]) -> Result<T, Reject>,
    ) -> Result<T, VolumeError> {
        let begins = head.begins();
        if begins <= 1 {
            return make(&[]).map_err(of_this_reader);
        }
        let histories = self.histories().await?;
        let mut errors = Vec::new();
        for (at, history) in histories.iter().enumerate() {
            let until = share(deadline, at + 1 == histories.len());
            let fetched = tokio::time::timeout_at(until.into(), history.policies_before(begins));
            let older = fetched.await.unwrap_or_else(|_| Err(history.too_slow()));
            let made = older.and_then(|older| {
                make(&older).map_err(|why| VolumeError::Statement {
                    place: history.place().to_owned(),
                    why,
                })
            });
            match made {
                Ok(made) => return Ok(made),
                Err(error) => errors.push(error),
            }
        }
        Err(gravest(errors))
    }
}

fn of_this_reader(why: Reject) -> VolumeError {
    let place = "the version in use".to_owned();
    VolumeError::Statement { place, why }
}
