//! What a new volume's first policy says: who may sign what, and until when. Kept apart from the tree, because a person
//! decides it once.

use std::time::Duration;

use trust::key::PublicKey;
use trust::policy::{NO_END, Roles};

/// The genesis policy of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// Who may sign what.
    pub roles: Roles,
    /// End of the policy, unix seconds ([`trust::policy::NO_END`]: none).
    pub not_after: u64,
    /// Whether one key has all roles, and everything else is a default. Such a description fits any later publication by
    /// that key.
    pub is_plain: bool,
}

impl NewVolume {
    /// A volume in which `key` has all roles, without an end. Its records are valid for a year at most, or for
    /// `valid` if that is more.
    pub fn single(key: PublicKey, valid: Duration) -> NewVolume {
        let mut roles = Roles::single(key);
        roles.record_max = roles.record_max.max(valid.as_secs());
        NewVolume {
            roles,
            not_after: NO_END,
            is_plain: true,
        }
    }
}
