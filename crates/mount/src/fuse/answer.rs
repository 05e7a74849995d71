//! The two ways in which a file system answers a request: at once, or later by a future with a
//! deadline. Relies on [`super::error`] for what an answer says at its deadline.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use super::error::{Error, Refusal};

/// The answer to one request.
#[must_use]
pub enum Answer<T, E> {
    /// Known now. The thread that read the request sends it: no task, no allocation.
    Now(Result<T, E>),
    /// Known later. A task of the runtime waits for it and no thread of the mount does.
    Later(Later<T, E>),
}

/// An answer that comes later.
pub struct Later<T, E> {
    pub(super) work: Pin<Box<dyn Future<Output = Result<T, E>> + Send>>,
    pub(super) deadline: Instant,
    /// The error to answer if the deadline passes or the mount is unmounted first.
    pub(super) at_deadline: E,
    /// Whether the wait ends early when the caller has a signal pending or the mount is unmounted.
    pub(super) interruptible: bool,
}

impl<T, E: Refusal> Answer<T, E> {
    /// The answer of `work`, or [`Error::TimedOut`] shortly after `deadline`. `work` is expected to
    /// keep the deadline itself and to say what was missing; the plumbing only enforces it.
    pub fn later<Work>(deadline: Instant, work: Work) -> Self
    where
        Work: Future<Output = Result<T, E>> + Send + 'static,
    {
        Answer::Later(Later {
            work: Box::pin(work),
            deadline,
            at_deadline: Error::TimedOut.into(),
            interruptible: false,
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
            interruptible: true,
        })
    }

    /// The answer if it is known now.
    pub fn now(self) -> Option<Result<T, E>> {
        match self {
            Answer::Now(result) => Some(result),
            Answer::Later(_) => None,
        }
    }
}

impl<T, E> From<Result<T, E>> for Answer<T, E> {
    fn from(result: Result<T, E>) -> Self {
        Answer::Now(result)
    }
}

impl<T, E: Refusal> From<Error> for Answer<T, E> {
    fn from(error: Error) -> Self {
        Answer::Now(Err(error.into()))
    }
}
