//! A start without any place: the head that was adopted last, kept beside the floor. Only readers with a
//! cache on disk begin with it; for the others it is one half of the evidence, should a place contradict it.
//!
//! It is judged by the floor and the clock like a mirror's, so it is believed in nothing: a damaged or
//! foreign one is refused, an older one than the floor too, one whose time has passed too. It is looked
//! at only when no place brought a version that can be had, and never where a place brought evidence of
//! a rollback or a fork. Its blocks come from the cache, or from whoever answers later.

use std::time::Instant;

use bytes::Bytes;
use trust::error::{Class, Reject};
use trust::head::Head;
use trust::judge::{Offer, Terms};

use crate::asker::Asker;
use crate::error::VolumeError;
use crate::volume::Candidate;

impl Asker<'_> {
    /// The version that a reader begins with, and whether no place was needed for it.
    ///
    /// # Errors
    /// What the places did wrong, when the kept head is of no use either.
    pub(crate) async fn begin(&self, deadline: Instant) -> Result<(Candidate, bool), VolumeError> {
        if self.kept()?.is_none() {
            let candidate = self.newest(deadline).await?;
            return Ok((candidate, false));
        }
        // Half of the time for the places: what is left is for the blocks of the kept version, some
        // of which may have to be fetched.
        let now = Instant::now();
        let half = now + deadline.saturating_duration_since(now) / 2;
        let error = match self.newest(half).await {
            Ok(candidate) => return Ok((candidate, false)),
            Err(error) => error,
        };
        let evidence = matches!(error.class(), Some(Class::Fork | Class::Rollback));
        if evidence || matches!(error, VolumeError::State(_)) {
            return Err(error);
        }
        // Judged once more: the places may have told a policy that changes what it is worth.
        let Some((head, offer)) = self.kept()? else {
            return Err(error);
        };
        match self.open_offer(&offer, None, deadline).await {
            Ok(snapshot) => {
                let version = offer.record.version;
                tracing::warn!(version, %error, "no place brings a version: begins with the one kept");
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
                tracing::warn!(error = %cause, "the kept version cannot be had either");
                Err(error)
            }
        }
    }

    /// The kept head, if it may be believed now.
    fn kept(&self) -> Result<Option<(Bytes, Offer)>, VolumeError> {
        if self.options.disk_cache.is_none() {
            return Ok(None);
        }
        let locked = self.state.lock()?;
        let floor = locked.load()?;
        // What cannot be read is not there: it is of use, and nothing depends on it.
        let Ok(Some(bytes)) = locked.kept() else {
            return Ok(None);
        };
        let terms = Terms {
            freshness: self.options.freshness,
            ..Terms::strict(self.now)
        };
        let judge = |bytes: &[u8]| -> Result<Offer, Reject> {
            let head = Head::decode(bytes)?;
            floor.judge(&head, &terms, &mut self.signatures())
        };
        match judge(&bytes) {
            Ok(offer) => Ok(Some((Bytes::from(bytes), offer))),
            Err(why) => {
                tracing::info!(%why, "the kept head is of no use");
                Ok(None)
            }
        }
    }

    /// Keeps the head of the version in use, if it is still the floor's: another process may have
    /// gone on.
    pub(crate) fn keep(&self, head: &Bytes, offer: &Offer) -> Result<(), VolumeError> {
        let locked = self.state.lock()?;
        let floor = locked.load()?;
        let in_use = |hash: &[u8; 32]| *hash == offer.record_hash;
        if floor.adopted().is_some_and(|it| in_use(&it.record_hash)) {
            locked.keep(head)?;
        }
        Ok(())
    }
}
