//! The ways in which a file system answers a request: at once, later by a future with a deadline, or from a thread
//! of its own. Relies on [`super::error`] for what an answer says when there is no other.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use super::error::{Error, Refusal};

/// The answer to one request.
#[must_use]
pub enum Answer<T, E: Refusal> {
    /// Known now. The thread that read the request sends it: no task, no allocation.
    Now(Result<T, E>),
    /// Known later. A task of the runtime waits for it and no thread of the mount does.
    Later(Later<T, E>),
    /// A thread of the file system sends it; see [`Answer::elsewhere`].
    Elsewhere(Start<T, E>),
}

/// Takes a request to the thread that answers it.
pub type Start<T, E> = Box<dyn FnOnce(Reply<T, E>) + Send>;

/// Sends an answer to the kernel.
type Finish<T, E> = Box<dyn FnOnce(Result<T, E>) + Send>;

/// The right to answer one request, on any thread. A reply that is dropped without [`Reply::send`] answers EIO.
#[must_use]
pub struct Reply<T, E: Refusal> {
    finish: Option<Finish<T, E>>,
}

impl<T, E: Refusal> Reply<T, E> {
    pub(super) fn new(finish: impl FnOnce(Result<T, E>) + Send + 'static) -> Reply<T, E> {
        Reply {
            finish: Some(Box::new(finish)),
        }
    }

    /// Answers, on this thread.
    pub fn send(mut self, result: Result<T, E>) {
        if let Some(finish) = self.finish.take() {
            finish(result);
        }
    }
}

impl<T, E: Refusal> Drop for Reply<T, E> {
    fn drop(&mut self) {
        if let Some(finish) = self.finish.take() {
            finish(Err(Error::Io("the request was dropped".to_owned()).into()));
        }
    }
}

impl<T, E: Refusal> fmt::Debug for Reply<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// An answer that comes later.
pub struct Later<T, E> {
    pub(super) work: Pin<Box<dyn Future<Output = Result<T, E>> + Send>>,
    pub(super) deadline: Instant,
    /// The error to answer if the deadline passes or the mount is unmounted first.
    pub(super) at_deadline: E,
    /// Which signals of the caller end the wait early. It also ends when the mount is unmounted.
    pub(super) ends_by: Signals,
}

/// Signals that a caller has pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signals {
    /// Those that end the program. A program does not expect that another signal ends its read of a file.
    Deadly,
    /// All that it neither blocks nor ignores.
    Any,
}

impl<T, E: Refusal> Answer<T, E> {
    /// The answer of `work`, or [`Error::TimedOut`] shortly after `deadline`. `work` is expected to
    /// keep the deadline itself and to say what was missing; the plumbing only enforces it. A caller that is being
    /// killed does not wait, and nobody waits when the mount is unmounted: `work` is dropped and must leave nothing
    /// behind.
    pub fn later<Work>(deadline: Instant, work: Work) -> Self
    where
        Work: Future<Output = Result<T, E>> + Send + 'static,
    {
        Answer::Later(Later {
            work: Box::pin(work),
            deadline,
            at_deadline: Error::TimedOut.into(),
            ends_by: Signals::Deadly,
        })
    }

    /// The answer of a wait that may be long because it depends on other programs, such as for a
    /// lock. Ends with [`Error::Interrupted`] when the caller has a signal pending, with `at_deadline`
    /// at `deadline` and when the mount is unmounted. `work` must take effect only in the poll in which
    /// it completes: a wait that is interrupted is dropped and must leave nothing behind.
    pub fn wait<Work>(deadline: Instant, at_deadline: Error, work: Work) -> Self
    where
        Work: Future<Output = Result<T, E>> + Send + 'static,
    {
        Answer::Later(Later {
            work: Box::pin(work),
            deadline,
            at_deadline: at_deadline.into(),
            ends_by: Signals::Any,
        })
    }

    /// The answer of a thread of the file system: `start` takes the request there and must not block. There is no
    /// deadline, so this is for what waits as block devices do. Costs no task of the runtime.
    pub fn elsewhere(start: impl FnOnce(Reply<T, E>) + Send + 'static) -> Self {
        Answer::Elsewhere(Box::new(start))
    }

    /// The answer if it is known now.
    pub fn now(self) -> Option<Result<T, E>> {
        match self {
            Answer::Now(result) => Some(result),
            Answer::Later(_) | Answer::Elsewhere(_) => None,
        }
    }
}

impl<T, E: Refusal> From<Result<T, E>> for Answer<T, E> {
    fn from(result: Result<T, E>) -> Self {
        Answer::Now(result)
    }
}

impl<T, E: Refusal> From<Error> for Answer<T, E> {
    fn from(error: Error) -> Self {
        Answer::Now(Err(error.into()))
    }
}
