//! The log lines of one thread, for tests of what is logged and how grave it is said to be.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Collects log lines while it is the thread's subscriber: `tracing::subscriber::set_default(log.clone())`.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// The lines of this level and of graver ones.
    pub fn lines(&self, level: Level) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().filter(|(of, _)| *of <= level);
        lines.map(|(_, line)| line.clone()).collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push((*event.metadata().level(), format!("{event:?}")));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
