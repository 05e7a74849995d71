//! Which memories of earlier epochs have work that is not back, and how much ([`super::lost`]).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::driver::Command;
use super::lost::Lost;
use super::returned::Returned;
use super::{Client, ClientError};
use crate::home::GIVEN_BACK;

/// Work of earlier epochs that is not back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owed {
    /// Files and symbolic links.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// Memories of earlier epochs of which this process is to give something back. They change when a process takes the
/// engine over from another one, which may be in a later epoch then.
#[derive(Debug, Clone, Default)]
pub(super) struct Before(Arc<Mutex<Memories>>);

#[derive(Debug, Default)]
pub(super) struct Memories {
    open: Vec<PathBuf>,
    /// This process has tried, and has told what is lacking.
    pub(super) tried: bool,
    /// What is owed, as far as it was counted since the last try.
    pub(super) owed: Option<Owed>,
}

impl Before {
    pub(super) fn set(&self, memories: &[PathBuf]) {
        *self.memories() = Memories {
            open: memories.to_vec(),
            ..Memories::default()
        };
    }

    pub(super) fn memories(&self) -> MutexGuard<'_, Memories> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of which something is owed.
    pub(super) fn owing(&self) -> Vec<PathBuf> {
        let memories = self.memories();
        let open = memories.open.iter();
        let owes = |memory: &&PathBuf| !memory.join(GIVEN_BACK).exists();
        open.filter(owes).cloned().collect()
    }
}

impl Client {
    /// Whether this process runs the engine, and the device has work of an earlier epoch that this process has not tried to
    /// give back.
    pub fn owes(&self) -> bool {
        let tried = self.0.before.memories().tried;
        !tried && !self.0.before.owing().is_empty()
    }

    /// How much work of earlier epochs is not back. Only the process that runs the engine can tell; for others it is
    /// nothing.
    ///
    /// # Errors
    /// [`ClientError::Disk`] when the memory of an earlier epoch cannot be read; [`ClientError::Deadline`].
    pub async fn owed(&self, deadline: Instant) -> Result<Owed, ClientError> {
        let memories = self.0.before.owing();
        if memories.is_empty() {
            return Ok(Owed::default());
        }
        let counted = self.0.before.memories().owed;
        if let Some(owed) = counted {
            return Ok(owed);
        }
        let entries = self.ask(deadline, Command::Lost).await??;
        let returned = Returned::read(&memories);
        let lost = Lost::of(&entries).files.into_iter();
        let mut owed = Owed::default();
        for lost in lost.filter(|lost| !returned.has(lost.file)) {
            owed.files = owed.files.saturating_add(1);
            owed.bytes = owed.bytes.saturating_add(lost.inode.content.size());
        }
        self.0.before.memories().owed = Some(owed);
        Ok(owed)
    }
}
