//! A head on its way into a repository: it gets its cosignatures, then its timestamp. A timestamp key that has confirmed a
//! version confirms no older one any more, so it comes last, also while witnesses take their time.

use std::path::Path;

use store::writer::Writer;
use trust::floor::Floor;
use trust::policy::Policy;
use trust::signer::Signer;

use crate::confirming::{self, Confirming, Stamped};
use crate::cosigning::{Gathered, Gathering};
use crate::options::PublishOptions;
use crate::publish_error::PublishError;
use crate::signing_memory::{Memory, NextHead};

/// A signed head that a repository, which is locked, does not show yet.
pub(crate) struct Showing<'a> {
    pub repository: &'a Path,
    pub writer: Writer,
    /// A reader who knows the policies that the repository has.
    pub known: Floor,
    pub next: NextHead,
    /// The newest policy of the head, and its hash.
    pub policy: (Policy, [u8; 32]),
}

/// How a head is confirmed: by the keys that are here, beside a timestamp from elsewhere.
pub(crate) fn confirming<'a>(
    keys: &'a [&'a dyn Signer],
    stamped: Option<&'a Stamped>,
    options: &PublishOptions,
) -> Confirming<'a> {
    Confirming {
        keys,
        now: options.clock.now(),
        valid: options.valid,
        gathered: stamped.map(|stamped| &stamped.timestamp),
    }
}

impl Showing<'_> {
    /// Refuses a timestamp that could not be made, before a witness hears of the version.
    ///
    /// # Errors
    /// Those of [`confirming::prepared`].
    pub(crate) fn check_timestamp(&self, confirming: &Confirming<'_>) -> Result<(), PublishError> {
        let (policy, hash) = &self.policy;
        let head = &self.next.head;
        confirming::prepared(head, head.volume()?, (policy, *hash), confirming).map(|_| ())
    }

    /// Gives the head its cosignatures. `memory` keeps it before a witness hears of it.
    ///
    /// # Errors
    /// Those of [`Gathering::gather`].
    pub(crate) fn gather(
        &mut self,
        memory: &Memory,
        keys: &[&dyn Signer],
        stamped: Option<&Stamped>,
        options: &PublishOptions,
    ) -> Result<Gathered, PublishError> {
        let gathering = Gathering {
            keys,
            cosigning: &options.cosigning,
            memory,
            stamped,
            repository: self.repository,
        };
        gathering.gather(&mut self.writer, &mut self.next)
    }

    /// Gives the head its timestamp.
    ///
    /// # Errors
    /// Those of [`confirming::confirm`].
    pub(crate) fn confirm(&mut self, confirming: &Confirming<'_>) -> Result<(), PublishError> {
        let (policy, hash) = &self.policy;
        let head = &mut self.next.head;
        let volume = head.volume()?;
        confirming::confirm(head, volume, (policy, *hash), confirming).map(|_| ())
    }
}
