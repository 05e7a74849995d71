//! The one place where work that may wait for a disk leaves an asynchronous caller.
//!
//! Futures of this crate do such work only through [`Blocking::run`]. Where it runs is the caller's
//! explicit choice, not a guess: a store is made for a runtime ([`Blocking::Pool`], the default) or
//! for a caller without one ([`Blocking::Inline`]: tests of repositories). Work that cannot wait (an answer from the page
//! cache, `try_cached`) does not come here and never touches the runtime.
//!
//! Functions that block say so in their documentation; all functions of [`crate::Repository`] and
//! [`crate::Writer`] that are not `async` and return no future do, except `try_cached` and
//! `read_if_cached`.

use crate::error::StoreError;

/// Where work that may wait for a disk runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Blocking {
    /// On the blocking threads of the tokio runtime that polls the future. Polled outside a runtime,
    /// the future fails.
    #[default]
    Pool,
    /// On the thread that polls the future, which waits until the work is done. For synchronous
    /// programs; inside a runtime it would stall a worker.
    Inline,
}

impl Blocking {
    /// Runs `work` and gives its result. `place` is the store's name, for errors.
    ///
    /// Work that has begun on the pool runs to its end also when the future is dropped.
    ///
    /// # Errors
    /// Those of `work`; [`StoreError::Unavailable`] when [`Blocking::Pool`] finds no runtime, or the
    /// runtime ends before the work does, or the work panics on the pool.
    pub async fn run<T: Send + 'static>(
        self,
        place: &str,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let unavailable = |cause: String| StoreError::Unavailable {
            place: place.to_owned(),
            cause,
        };
        match self {
            Blocking::Inline => work(),
            Blocking::Pool => {
                let runtime = tokio::runtime::Handle::try_current()
                    .map_err(|_| unavailable("it was asked outside a runtime".to_owned()))?;
                let ended = runtime.spawn_blocking(work).await;
                ended.unwrap_or_else(|e| Err(unavailable(e.to_string())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn thread() -> Result<std::thread::ThreadId, StoreError> {
        Ok(std::thread::current().id())
    }

    #[tokio::test]
    async fn pool_runs_on_another_thread_and_inline_on_this_one() {
        let here = std::thread::current().id();
        let pool = Blocking::Pool.run("here", thread).await.unwrap();
        assert_ne!(pool, here);
        let inline = Blocking::Inline.run("here", thread).await.unwrap();
        assert_eq!(inline, here);
    }

    #[test]
    fn pool_outside_a_runtime_is_an_error_and_does_no_work() {
        let work = || -> Result<(), StoreError> { panic!("it ran") };
        let error = Blocking::Pool.run("here", work).now_or_never().unwrap();
        assert!(matches!(error, Err(StoreError::Unavailable { .. })));
        let here = Blocking::Inline.run("here", thread).now_or_never().unwrap();
        assert_eq!(here.unwrap(), std::thread::current().id());
    }

    #[tokio::test]
    async fn panic_on_the_pool_is_an_error_of_the_store() {
        let work = || -> Result<(), StoreError> { panic!("for the test") };
        let error = Blocking::Pool.run("here", work).await.unwrap_err();
        assert!(
            error.to_string().starts_with("here does not answer"),
            "{error}"
        );
    }
}
