//! Evidence of forks, rollbacks and stray policies, kept beside the floor for people to look at.
//!
//! The name of a piece says what it proves (`trust::evidence`), so each is kept once. Each class has a quota of its
//! own, so that old heads and the policies of removed owners leave room for forks. The first pieces matter most:
//! later ones are dropped. Files with other names, of earlier builds, stay and count nowhere.

use std::fs;

use trust::evidence::{Evidence, EvidenceClass};

use crate::error::{StateError, failed};
use crate::private;
use crate::volume_state::{EVIDENCE, LockedState};

/// The most that is kept of a class.
struct Quota {
    files: usize,
    bytes: u64,
}

fn quota(class: EvidenceClass) -> Quota {
    let (files, bytes) = match class {
        EvidenceClass::Fork => (64, 16 << 20),
        EvidenceClass::Rollback => (32, 8 << 20),
        EvidenceClass::StrayPolicy => (16, 2 << 20),
    };
    Quota { files, bytes }
}

impl LockedState {
    /// Keeps a piece of evidence, unless it is kept already. Gives false, and keeps nothing, if the quota of its class is
    /// used up.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep_evidence(&self, evidence: &Evidence) -> Result<bool, StateError> {
        let directory = self.directory.join(EVIDENCE);
        private::create_directory(&directory)?;
        if directory.join(&evidence.name).exists() {
            return Ok(true);
        }
        let quota = quota(evidence.class);
        let (mut files, mut bytes) = (1, evidence.bytes.len() as u64);
        for entry in fs::read_dir(&directory).map_err(|e| failed(&directory, e))? {
            let entry = entry.map_err(|e| failed(&directory, e))?;
            let name = entry.file_name();
            if name
                .as_encoded_bytes()
                .starts_with(evidence.class.prefix().as_bytes())
            {
                files += 1;
                bytes += entry.metadata().map_err(|e| failed(&directory, e))?.len();
            }
        }
        if files > quota.files || bytes > quota.bytes {
            return Ok(false);
        }
        self.replace(&format!("{EVIDENCE}/{}", evidence.name), &evidence.bytes)?;
        Ok(true)
    }
}
