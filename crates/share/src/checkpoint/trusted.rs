//! Which of the checkpoints that a server gives a device may start from.

use trust::Reject;
use trust::history::LogPoint;
use trust::key::PublicKey;
use trust::signatures::Signatures;
use trust_shared::checkpoint::{Posted, VerifiedCheckpoint};
use trust_shared::genesis::Policies;

/// A checkpoint that a device may start from.
#[derive(Debug, Clone)]
pub struct Trusted {
    /// As the server gave it.
    pub posted: Posted,
    /// The checkpoint in it.
    pub checkpoint: VerifiedCheckpoint,
}

impl Trusted {
    /// Verifies a checkpoint for a device that trusts the policy's checkpointers, and a key of its own user. `begins`: the
    /// prefix with which the log must begin, if the device knows one; what is beyond the checkpoint is seen to later.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn verify(
        posted: Posted,
        policies: &Policies,
        own: Option<&PublicKey>,
    ) -> Result<Trusted, Reject> {
        posted.read(policies)?;
        let checkpoint = VerifiedCheckpoint::verify(
            &posted.signed,
            policies.chain().volume(),
            &policies.roles().checkpointers,
            own,
            &mut Signatures::default(),
        )?;
        Ok(Trusted { posted, checkpoint })
    }

    /// The log.
    pub fn log(&self) -> LogPoint {
        self.checkpoint.checkpoint().log
    }

    /// Of what a server gives, those that may be started from, the longest log first.
    pub fn choose(
        posted: impl IntoIterator<Item = Posted>,
        policies: &Policies,
        own: Option<&PublicKey>,
    ) -> Vec<Trusted> {
        let verified = posted.into_iter();
        let verified = verified.filter_map(|posted| {
            let verified = Trusted::verify(posted, policies, own);
            verified
                .inspect_err(|why| tracing::debug!(%why, "a checkpoint is not used"))
                .ok()
        });
        let mut all: Vec<Trusted> = verified.collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.log().size));
        all
    }
}
