//! Superblock flips: taking the log for a session, checkpoints, and noticing that somebody else took it.

use std::sync::Arc;

use crate::device::Device;
use crate::error::LogError;
use crate::layout::Layout;
use crate::log::Log;
use crate::machine::Machine;
use crate::position::Lsn;
use crate::record::Client;
use crate::shared::{Keys, Shared, lock};
use crate::superblock::{self, MAX_COOKIE_BYTES, Superblock};

impl Log {
    /// Takes the log: `found` is its superblock, `taken` the same with this session and epoch. The machine holds the
    /// first frame, which ends at `first`, if there is one.
    pub(crate) fn begin(
        device: Arc<dyn Device>,
        layout: Layout,
        keys: Keys,
        machine: Machine,
        found: Superblock,
        taken: Superblock,
        first: Option<Lsn>,
    ) -> Result<Log, LogError> {
        let shared = Shared::new(device, layout, keys, machine, found);
        let log = Log {
            shared: Arc::new(shared),
        };
        let shared = &*log.shared;
        let mut superblock = lock(&shared.superblock);
        shared.flip(&mut superblock, taken)?;
        // If two took the log at once, one of them sees it now, before it writes a frame.
        shared.check_session(&superblock)?;
        if let Some(first) = first {
            let mut marked = superblock.clone();
            marked.mark = shared.commit(first)?;
            shared.flip(&mut superblock, marked)?;
        }
        drop(superblock);
        Ok(log)
    }

    /// States that `client` needs no record before `oldest`, the start of a frame or the log's end, and keeps
    /// `cookie` for its next recovery. Everything that was written to the device before, such as pages in the
    /// client's area, is durable before the superblock names it; space is reused only after that.
    ///
    /// The tail moves to a boundary at or before the smallest oldest position of all clients. Where a mark is kept as
    /// an anchor, `oldest` must not be beyond it.
    ///
    /// # Errors
    /// [`LogError::Invalid`], [`LogError::Foreign`], [`LogError::Failed`].
    pub fn checkpoint(&self, client: Client, oldest: Lsn, cookie: &[u8]) -> Result<(), LogError> {
        let shared = &*self.shared;
        let mut superblock = lock(&shared.superblock);
        if cookie.len() > MAX_COOKIE_BYTES {
            let why = "a cookie has more than 512 bytes";
            return Err(LogError::Invalid { why });
        }
        let (mark, tail) = {
            let state = shared.state();
            let before = state.machine.oldest(client);
            let mark = state.machine.durable();
            if before.is_none_or(|before| oldest < before) || oldest > mark.lsn {
                let why = "a client's oldest position moves forward, to what is durable";
                return Err(LogError::Invalid { why });
            }
            (mark, state.machine.tail_with(client, oldest))
        };
        shared.sync()?;
        let mut next = superblock.clone();
        (next.mark, next.tail) = (mark, tail);
        next.gaps.retain(|gap| gap.at.lsn >= tail.lsn);
        for state in &mut next.clients {
            if state.client == client {
                state.oldest = oldest;
                state.cookie = cookie.to_vec();
            }
        }
        shared.flip(&mut superblock, next)?;
        let mut state = shared.state();
        state.machine.released(client, oldest, tail);
        shared.announce(&mut state);
        Ok(())
    }

    /// Reads the superblock again.
    ///
    /// # Errors
    /// [`LogError::Foreign`] if another process or host has opened the log: this one has failed then.
    /// [`LogError::Io`] if that cannot be found out now.
    pub fn check_session(&self) -> Result<(), LogError> {
        let superblock = lock(&self.shared.superblock);
        self.shared.check_session(&superblock)
    }
}

impl Shared {
    pub(crate) fn check_session(&self, ours: &Superblock) -> Result<(), LogError> {
        let keys = &self.keys.superblock;
        let found = superblock::load_with(&*self.device, |_| keys.clone());
        let found = match found {
            Err(error @ LogError::Io { .. }) => return Err(error),
            Err(_) => return Err(self.fail(&LogError::Foreign)),
            Ok(found) => found,
        };
        if let Some(error) = found.unreadable {
            return Err(error);
        }
        let newest = &found.newest;
        if newest.session != ours.session || newest.generation > ours.generation {
            return Err(self.fail(&LogError::Foreign));
        }
        if newest.generation < ours.generation {
            return Err(self.fail(&LogError::Superblock {
                why: "the newest one has disappeared",
            }));
        }
        Ok(())
    }

    /// Writes `next` as the newest superblock. Whatever it names must be durable.
    pub(crate) fn flip(
        &self,
        superblock: &mut Superblock,
        mut next: Superblock,
    ) -> Result<(), LogError> {
        self.check_session(superblock)?;
        next.generation = superblock.generation + 1;
        superblock::store(&*self.device, &self.keys.superblock, &next)
            .map_err(|error| self.fail(&error))?;
        self.sync()?;
        *superblock = next;
        Ok(())
    }
}
