//! Pushed records: records that the server sent with a head, kept until a caller asks for them.
//!
//! They are as untrusted as any answer. Each is given only once, so that a caller that finds it wrong asks
//! the network next. The request for the head bounds how many bytes may come.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trust::{Frame, Handle, Record};

/// The records that came with the last head and have not been taken yet.
#[derive(Default)]
pub(super) struct PushedRecords {
    frames: Mutex<HashMap<Handle, Frame>>,
}

impl PushedRecords {
    fn frames(&self) -> MutexGuard<'_, HashMap<Handle, Frame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all records. Of two records for one handle, one is wrong; the first one is kept.
    pub(super) fn replace(&self, records: Vec<Record>) {
        let mut fresh = HashMap::with_capacity(records.len());
        for record in records {
            fresh.entry(record.handle).or_insert(record.frame);
        }
        *self.frames() = fresh;
    }

    /// Removes and returns one record.
    pub(super) fn take(&self, handle: &Handle) -> Option<Frame> {
        let mut frames = self.frames();
        let frame = frames.remove(handle)?;
        if frames.is_empty() {
            *frames = HashMap::new();
        }
        Some(frame)
    }

    /// Removes and returns the records of `want` that are here; also the handles that are not.
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
