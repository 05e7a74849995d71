//! A device goes over to another epoch of the log (decision 0052).
//!
//! Each epoch has a memory of its own: that of epoch 0 is the home itself, that of a later epoch N is `epoch-N`. A device
//! that goes over begins with an empty one: the server of the new epoch shows it the log from the first leaf on, and the
//! owners have signed with which prefix it begins.
//!
//! The memory is made first, durably. Then the policies are replaced: that is the moment at which the device is in the
//! new epoch, and from then on it signs nothing in the old one, because an engine takes its epoch from them. Nobody has
//! the old memory open meanwhile. A crash before that moment leaves the old epoch, and a memory that is made anew.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use state::private;
use trust::statement::Signed;

use super::policies::{encode, verify};
use super::{Home, HomeError, Idle, POLICIES, damaged, remove_unfinished};
use crate::disk::{self, DiskError, Remembered};

/// In a memory of which nothing is to be given back any more.
pub(crate) const GIVEN_BACK: &str = "given-back";
/// How often a process that waits for another one looks what that one has taken.
const LOOK: Duration = Duration::from_millis(100);

/// What newer policies changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// The device knows them already.
    Known,
    /// The rules of the volume; the log goes on.
    Rules,
    /// The log: the device is in this epoch now.
    Epoch(u64),
}

/// Where the memory of an epoch lies.
pub(super) fn memory(home: &Path, epoch: u64) -> PathBuf {
    match epoch {
        0 => home.to_owned(),
        _ => home.join(format!("epoch-{epoch}")),
    }
}

/// Whether both have the same policies as far as both go.
fn begin_alike(one: &[Signed], other: &[Signed]) -> bool {
    let mut both = one.iter().zip(other);
    both.all(|(one, other)| one.hash() == other.hash())
}

impl Home {
    /// Where this device's memory of an epoch lies.
    pub fn memory(&self, epoch: u64) -> PathBuf {
        memory(&self.directory, epoch)
    }

    /// The log of an epoch that this device remembers, if it has one. No engine can use it while it is open. Waits for a
    /// process that has it open, until the deadline.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn remembered(
        &self,
        epoch: u64,
        deadline: Instant,
    ) -> Result<Option<Remembered>, DiskError> {
        let memory = self.memory(epoch);
        if !memory.join(disk::JOURNAL).exists() {
            return Ok(None);
        }
        Remembered::open(&memory, deadline).map(Some)
    }

    /// Memories of epochs before this one, of which something may have to be given back.
    pub(crate) fn earlier_memories(&self, epoch: u64) -> Vec<PathBuf> {
        let memories = (0..epoch).map(|epoch| self.memory(epoch));
        let is_open = |memory: &PathBuf| {
            memory.join(disk::JOURNAL).exists() && !memory.join(GIVEN_BACK).exists()
        };
        memories.filter(is_open).collect()
    }

    /// Whether this device has gone over to another log after a fork, and has not given back what it alone has.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn owes(&self) -> Result<bool, HomeError> {
        let epoch = self.policies()?.newest_epoch().number;
        Ok(!self.earlier_memories(epoch).is_empty())
    }

    /// Gives up what this device alone has of earlier epochs, and what has not come back, durably. Its entries stay in
    /// the memories of these epochs.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn give_up(&self) -> Result<(), HomeError> {
        let epoch = self.policies()?.newest_epoch().number;
        for memory in self.earlier_memories(epoch) {
            private::replace(&memory.join(GIVEN_BACK), b"")?;
        }
        Ok(())
    }

    /// Takes policies from the genesis on, durably. They must continue those of the home. If they begin another epoch of
    /// the log, the device goes over to it. Waits for a process that uses the home, until the deadline or until that process
    /// has taken them: it may go on with them, and keep the home.
    ///
    /// # Errors
    /// [`HomeError`]; then the home is as before.
    pub fn follow(&self, policies: &[Signed], deadline: Instant) -> Result<Followed, HomeError> {
        verify(self.volume, policies)?;
        let began = Instant::now();
        loop {
            let known = self.signed_policies()?;
            if policies.len() <= known.len() && begin_alike(&known, policies) {
                return Ok(Followed::Known);
            }
            let look = deadline.min(Instant::now() + LOOK);
            match self.clone().idle(look) {
                Ok(idle) => return idle.follow(policies),
                Err(error) if error.is_locked() && Instant::now() < deadline => {}
                Err(error) => return Err(error.waiting_since(began)),
            }
        }
    }

    /// Makes the memory of an epoch that this device has not entered.
    fn begin_memory(&self, epoch: u64) -> Result<(), HomeError> {
        let memory = self.memory(epoch);
        let unfinished = memory.with_extension("new");
        remove_unfinished(&unfinished)?;
        match fs::remove_dir_all(&memory) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(damaged(&memory, e)),
            _ => {}
        }
        private::create_directory(&unfinished)?;
        disk::create(&unfinished)?;
        fs::rename(&unfinished, &memory).map_err(|e| damaged(&memory, e))?;
        Ok(private::sync_parent(&memory)?)
    }
}

impl Idle {
    /// As [`Home::follow`]. Nobody works in the old epoch until this one has ended.
    ///
    /// # Errors
    /// [`HomeError`]; then the home is as before.
    pub fn follow(self, policies: &[Signed]) -> Result<Followed, HomeError> {
        let home = self.home();
        let new = verify(home.volume, policies)?;
        let known = home.signed_policies()?;
        if !begin_alike(&known, policies) {
            return Err(HomeError::OtherPolicies);
        }
        if policies.len() <= known.len() {
            return Ok(Followed::Known);
        }
        let (epoch, size) = (new.newest_epoch(), self.size());
        let followed = match epoch.number > home.policies()?.newest_epoch().number {
            false => Followed::Rules,
            true if !epoch.takes_over(size) => {
                let start = epoch.start.size;
                return Err(HomeError::GivesUp { size, start });
            }
            true => {
                home.begin_memory(epoch.number)?;
                Followed::Epoch(epoch.number)
            }
        };
        private::replace(&home.directory.join(POLICIES), &encode(policies))?;
        Ok(followed)
    }
}
