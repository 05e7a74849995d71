//! Opening a volume while no replica answers: with the head that was adopted last, which is kept beside
//! the floor. Only readers with a disk cache use it. Without one, it is kept only as half of the evidence
//! if a replica contradicts it.
//!
//! The kept head is not trusted. The floor and the clock judge it like a head from a replica, so one that
//! is damaged, foreign, older than the floor or expired is refused. It is used only when no replica has a
//! version that can be fetched, and never when a replica sent evidence of a rollback or a fork. Its
//! blocks come from the cache, or from a replica that answers later.

use std::time::Instant;

use bytes::Bytes;
use trust::error::{Class, Reject};
use trust::head::Head;
use trust::judge::Offer;

use crate::error::VolumeError;
use crate::heads::HeadRound;
use crate::search::{Candidate, Search};

impl Search<'_> {
    /// The version to open with, and whether it is the kept one.
    ///
    /// # Errors
    /// The error of the replicas, if the kept head cannot be used either.
    pub(crate) async fn begin(&self, deadline: Instant) -> Result<(Candidate, bool), VolumeError> {
        if self.kept(deadline).await?.is_none() {
            let candidate = self.newest(deadline).await?;
            return Ok((candidate, false));
        }
        // The replicas get half of the time. The rest is for the blocks of the kept version, some of
        // which may have to be fetched. With that version at hand, nobody waits for the end of an outage.
        let now = Instant::now();
        let half = now + deadline.saturating_duration_since(now) / 2;
        let at_once = Search {
            round: HeadRound {
                through_outages: false,
                ..self.round
            },
            options: self.options,
        };
        let error = match at_once.newest(half).await {
            Ok(candidate) => return Ok((candidate, false)),
            Err(error) => error,
        };
        let evidence = matches!(error.class(), Some(Class::Fork | Class::Rollback));
        if evidence || matches!(error, VolumeError::State(_)) {
            return Err(error);
        }
        // Judged again: a replica may have sent a newer policy that forbids it.
        let Some((head, offer)) = self.kept(deadline).await? else {
            return Err(error);
        };
        match self.open_offer(&offer, None, deadline).await {
            Ok(snapshot) => {
                let version = offer.record.version;
                tracing::warn!(version, %error, "no replica has a usable version: opens with the kept one");
                let head = Some(head);
                Ok((
                    Candidate {
                        snapshot,
                        offer,
                        head,
                    },
                    true,
                ))
            }
            Err(cause) => {
                tracing::warn!(error = %cause, "the kept version cannot be fetched either");
                Err(error)
            }
        }
    }

    /// The kept head, if it passes the floor now.
    async fn kept(&self, deadline: Instant) -> Result<Option<(Bytes, Offer)>, VolumeError> {
        if self.options.disk_cache.is_none() {
            return Ok(None);
        }
        let read = self.round.update(deadline, |locked| {
            // A kept head that cannot be read counts as none: nothing depends on it.
            Ok((locked.load()?, locked.adopted_head().ok().flatten()))
        });
        let (floor, Some(bytes)) = read.await? else {
            return Ok(None);
        };
        let judge = |bytes: &[u8]| -> Result<Offer, Reject> {
            let head = Head::decode(bytes)?;
            floor.judge(&head, &self.round.terms(), &mut self.round.signatures())
        };
        match judge(&bytes) {
            Ok(offer) => Ok(Some((Bytes::from(bytes), offer))),
            Err(why) => {
                tracing::info!(%why, "the kept head is refused");
                Ok(None)
            }
        }
    }
}
