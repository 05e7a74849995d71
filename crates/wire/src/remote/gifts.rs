//! Records that came with a head, until somebody asks for them.
//!
//! They are as untrusted as any answer; each is given out once, so that one that proves wrong is
//! asked of the network next. What may come is bounded by the request for the head.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trust::{Frame, Handle, Record};

/// What came with the last head and was not asked for yet.
#[derive(Default)]
pub(super) struct Gifts {
    frames: Mutex<HashMap<Handle, Frame>>,
}

impl Gifts {
    fn frames(&self) -> MutexGuard<'_, HashMap<Handle, Frame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what came before. Of two records under one name, one is a lie: the first stays.
    pub(super) fn replace(&self, records: Vec<Record>) {
        let mut fresh = HashMap::with_capacity(records.len());
        for record in records {
            fresh.entry(record.handle).or_insert(record.frame);
        }
        *self.frames() = fresh;
    }

    /// Takes one out.
    pub(super) fn take(&self, handle: &Handle) -> Option<Frame> {
        let mut frames = self.frames();
        let frame = frames.remove(handle)?;
        if frames.is_empty() {
            *frames = HashMap::new();
        }
        Some(frame)
    }

    /// Takes out those of `want` that are here; also what is not.
    pub(super) fn take_many(&self, want: &[Handle]) -> (Vec<Record>, Vec<Handle>) {
        let mut frames = self.frames();
        let (mut given, mut left) = (Vec::new(), Vec::new());
        if frames.is_empty() {
            return (given, left);
        }
        for handle in want {
            match frames.remove(handle) {
                Some(frame) => given.push(Record {
                    handle: *handle,
                    frame,
                }),
                None => left.push(*handle),
            }
        }
        (given, left)
    }
}
