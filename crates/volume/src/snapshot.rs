//! One version of a volume: a verified tree, and the statement that names its root.

use std::ops::Deref;
use std::sync::Arc;

use reader::{Fetch, Prefetcher, ReadError, Tree};
use trust::judge::Offer;
use trust::root::RootRecord;
use trust::statement::Signed;
use trust::version_name::VersionName;

/// The end of a version that does not expire, because the reader stays at it.
const NO_END: u64 = u64::MAX;

/// One verified version of a volume. Dereferences to its [`Tree`], through which names, attributes and
/// content are read.
#[derive(Debug, Clone)]
pub struct Snapshot {
    tree: Tree,
    record: RootRecord,
    record_hash: [u8; 32],
    /// The record with its signatures.
    signed: Signed,
    valid_until: u64,
    fresh_until: u64,
    /// The newest policy under which its validity was judged.
    policy: u64,
    /// The end of that policy, unix seconds.
    policy_end: u64,
}

impl Deref for Snapshot {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl Snapshot {
    /// Reads the root directory's inode of a record that has been judged.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub(crate) async fn open(
        prefetcher: Arc<Prefetcher>,
        offer: &Offer,
        how: Fetch,
    ) -> Result<Snapshot, ReadError> {
        Ok(Snapshot {
            tree: Tree::open(prefetcher, &offer.record.root, how).await?,
            record: offer.record.clone(),
            record_hash: offer.record_hash,
            signed: offer.signed.clone(),
            valid_until: offer.valid_until,
            fresh_until: offer.fresh_until,
            policy: offer.chain.newest().number(),
            policy_end: offer.chain.newest().not_after(),
        })
    }

    /// The same version under a statement that is valid for longer, or that a newer policy shortens. A
    /// statement with a shorter validity under the same policy changes nothing: one replica cannot take
    /// back what another has proved. `None` if nothing changes.
    pub(crate) fn renewed(&self, offer: &Offer) -> Option<Self> {
        let policy = offer.chain.newest().number();
        let counts = offer.valid_until > self.valid_until || policy > self.policy;
        counts.then(|| Snapshot {
            valid_until: offer.valid_until,
            fresh_until: offer.fresh_until,
            policy,
            policy_end: offer.chain.newest().not_after(),
            ..self.clone()
        })
    }

    /// The same version, valid until `end` (unix seconds) at most.
    pub(crate) fn ended(&self, end: u64) -> Self {
        Snapshot {
            valid_until: self.valid_until.min(end),
            fresh_until: self.fresh_until.min(end),
            ..self.clone()
        }
    }

    /// The same version as history: it does not expire.
    pub(crate) fn pinned(&self) -> Self {
        Snapshot {
            valid_until: NO_END,
            fresh_until: NO_END,
            ..self.clone()
        }
    }

    /// The verified tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The root record.
    pub fn record(&self) -> &RootRecord {
        &self.record
    }

    /// The root record's hash.
    pub fn record_hash(&self) -> &[u8; 32] {
        &self.record_hash
    }

    /// The name that the publisher gave to this version.
    pub fn name(&self) -> Option<VersionName> {
        self.signed.statement().version_name()
    }

    /// The root record with its signatures.
    pub(crate) fn signed(&self) -> &Signed {
        &self.signed
    }

    /// Until when the snapshot may be used, unix seconds.
    pub fn valid_until(&self) -> u64 {
        self.valid_until
    }

    /// Until when the snapshot may be used, unix seconds; `None` if it does not expire, because the reader stays at
    /// this version.
    pub fn end(&self) -> Option<u64> {
        Some(self.valid_until).filter(|end| *end != NO_END)
    }

    /// Until when the statement itself holds, unix seconds. The time between this and
    /// [`Snapshot::valid_until`] is grace.
    pub fn fresh_until(&self) -> u64 {
        self.fresh_until
    }

    /// The end of the newest policy under which it was judged, unix seconds. Whatever is renewed, nothing of the volume
    /// is believed after it, unless its owners sign another policy. `None` if it has no end.
    pub fn policy_end(&self) -> Option<u64> {
        (self.policy_end != trust::policy::NO_END).then_some(self.policy_end)
    }

    /// The number of the newest policy under which it was judged.
    pub fn policy(&self) -> u64 {
        self.policy
    }
}
