//! The runtime of prefetch.

use std::future::Future;

use tokio::runtime::Handle;

/// The runtime on which prefetch runs. The code that opens a tree chooses it, so that prefetch never
/// depends on the thread that happens to read.
#[derive(Debug, Clone)]
pub struct Spawner {
    runtime: Option<Handle>,
}

impl Spawner {
    /// Runs prefetch on `runtime`.
    pub fn on(runtime: Handle) -> Spawner {
        Spawner {
            runtime: Some(runtime),
        }
    }

    /// Turns prefetch off: a read fetches what it needs and nothing else.
    pub fn none() -> Spawner {
        Spawner { runtime: None }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.runtime.is_none()
    }

    /// Starts a task, or drops the future when there is no runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }
}
