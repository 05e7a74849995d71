//! Group commit: whoever waits first writes and syncs everything that is pending, the others wait for it. Futures
//! are driven by one thread, which starts with the first of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::LogError;
use crate::layout::Layout;
use crate::machine::Pending;
use crate::position::{Lsn, Mark};
use crate::shared::{Shared, lock};

/// A commit that can be waited for, by a thread or as a future. Dropping it changes nothing.
pub struct Durable {
    shared: Arc<Shared>,
    lsn: Lsn,
}

impl Durable {
    pub(crate) fn new(shared: Arc<Shared>, lsn: Lsn) -> Durable {
        Durable { shared, lsn }
    }

    /// Waits until the log is durable up to the position. Does the I/O on this thread unless another thread is at it.
    ///
    /// # Errors
    /// [`LogError::Failed`] or [`LogError::Foreign`]: what was not durable before may be lost.
    /// [`LogError::Released`]: nothing was appended there.
    pub fn wait(self) -> Result<Mark, LogError> {
        self.shared.commit(self.lsn)
    }
}

impl Future for Durable {
    type Output = Result<Mark, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (shared, lsn) = (&self.shared, self.lsn);
        let mut state = shared.state();
        let settled = state.machine.durable().lsn >= lsn
            || state.machine.failure().is_some()
            || lsn > state.machine.end();
        if settled || state.stopped {
            drop(state);
            return Poll::Ready(shared.commit(lsn));
        }
        let waker = context.waker();
        let known = |(at, by): &(Lsn, Waker)| *at == lsn && by.will_wake(waker);
        if !state.wakers.iter().any(known) {
            state.wakers.push((lsn, waker.clone()));
        }
        state.wanted = state.wanted.max(lsn);
        drop(state);
        if let Err(error) = start_committer(shared) {
            return Poll::Ready(Err(error));
        }
        shared.work.notify_one();
        Poll::Pending
    }
}

fn start_committer(shared: &Arc<Shared>) -> Result<(), LogError> {
    let mut committer = lock(&shared.committer);
    if committer.is_none() {
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("log commit".to_owned())
            .spawn(move || own.commit_for_futures())
            .map_err(|e| LogError::io("start a thread", 0, e))?;
        *committer = Some(thread);
    }
    Ok(())
}

impl Shared {
    fn commit_for_futures(&self) {
        let mut state = self.state();
        while !state.stopped && state.machine.failure().is_none() {
            if state.wanted <= state.machine.durable().lsn {
                let woken = self.work.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let wanted = state.wanted;
            drop(state);
            let _ = self.commit(wanted); // a failure wakes the futures, which report it
            state = self.state();
        }
    }

    /// Makes the log durable up to `lsn`.
    pub fn commit(&self, lsn: Lsn) -> Result<Mark, LogError> {
        let mut state = self.state();
        loop {
            if state.machine.durable().lsn >= lsn {
                return Ok(state.machine.durable());
            }
            if let Some(failure) = state.machine.failure() {
                return Err(failure);
            }
            if lsn > state.machine.end() {
                return Err(LogError::Released { lsn });
            }
            if state.committing {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.committing = true;
            let batch = state.machine.batch();
            drop(state);
            Leader { shared: self }.store(&batch);
            state = self.state();
        }
    }

    /// Writes the frames, in as few writes as possible, and syncs.
    fn store(&self, batch: &[Arc<Pending>]) -> Result<(), LogError> {
        let mut buffer = lock(&self.write_buffer);
        let mut gather = Gather {
            device: &*self.device,
            layout: &self.layout,
            buffer: &mut buffer,
            start: Lsn(0),
            filled: 0,
        };
        for pending in batch {
            let mut at = pending.frame.start;
            gather.put(at, &pending.frame.header)?;
            at.0 += pending.frame.header.len() as u64;
            for page in &pending.pages {
                gather.put(at, page)?;
                at.0 += page.len() as u64;
            }
        }
        gather.write()?;
        self.sync()
    }
}

/// The thread that commits for all. If it panics in the device's code, the log has failed and nobody waits for ever.
struct Leader<'a> {
    shared: &'a Shared,
}

impl Leader<'_> {
    fn store(self, batch: &[Arc<Pending>]) {
        let stored = self.shared.store(batch);
        if let Err(error) = &stored {
            self.shared.fail(error);
        }
        let mut state = self.shared.state();
        if let (Ok(()), Some(last), None) = (stored, batch.last(), state.machine.failure()) {
            state.machine.stored(last.frame.mark);
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(&LogError::Failed {
                cause: "the committing thread has panicked".into(),
            });
        }
        let mut state = self.shared.state();
        state.committing = false;
        self.shared.announce(&mut state);
    }
}

/// Collects pieces that follow each other into one buffer, and writes it when the next piece does not fit.
struct Gather<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    buffer: &'a mut Buffer,
    start: Lsn,
    filled: usize,
}

impl Gather<'_> {
    fn put(&mut self, at: Lsn, piece: &[u8]) -> Result<(), LogError> {
        let follows = self.start.0 + self.filled as u64 == at.0
            && self.layout.rest_of_lap(at) != self.layout.ring_bytes;
        if !follows || self.filled + piece.len() > self.buffer.len() {
            self.write()?;
            self.start = at;
        }
        self.buffer[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        Ok(())
    }

    fn write(&mut self) -> Result<(), LogError> {
        let filled = std::mem::take(&mut self.filled);
        if filled == 0 {
            return Ok(());
        }
        let offset = self.layout.offset(self.start);
        self.device
            .write(offset, &self.buffer[..filled])
            .map_err(|e| LogError::io("write", offset, e))
    }
}
