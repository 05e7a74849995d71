//! The promise about entries: the server orders an entry only if all blocks that its device stored or asked for before it
//! are there. So a device can send blocks and the entry that names them in one flight.
//!
//! The server does not know which blocks an entry names. Therefore the promise ranges over everything before the entry in
//! its session: the requests STORE, PSTORE and CSTORE, and earlier entries, are *steps* with ascending numbers. An entry has
//! its turn when each step before it is done. A block is *missing* when a step was refused for it, or answered that it is
//! not there, and no step has stored or found it since. While a block of an earlier step is missing, the entry is not
//! ordered, and the device is told. Then these blocks are missing no more, because the device knows: it stores them again,
//! or gives them up. Without that, a block that the device has given up would stop it for ever.
//!
//! Without input or output. Memory: each step under way has the names of its blocks, and at most [`MAX_MISSING`] missing
//! blocks are kept by name. Of more only the number of the last step is kept; nothing can heal those but the refusal.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use trust::Handle;

use crate::blocks::storage::lock;

/// Missing blocks of a session that are kept by name.
const MAX_MISSING: usize = 4096;

/// The steps of one session. Cheap to clone.
#[derive(Clone, Default)]
pub struct Promise(Arc<Mutex<Steps>>);

#[derive(Default)]
struct Steps {
    /// Number of the last step.
    last: u64,
    /// Steps that are not done.
    open: BTreeSet<u64>,
    /// Missing blocks, each with the steps that missed it.
    missing: HashMap<Handle, Missed>,
    /// The last step with missing blocks that are not kept by name; 0: none.
    unnamed: u64,
    /// Entries that wait for their turn, and who is told.
    waiting: Vec<(u64, Box<dyn FnOnce() + Send>)>,
}

/// The first and the last step that missed a block, since it was stored or found, or the device was told. An entry between
/// the two is not ordered, although the block is missing for what comes after it, too.
#[derive(Debug, Clone, Copy)]
struct Missed {
    first: u64,
    last: u64,
}

impl Promise {
    /// The next step: a request for these blocks.
    pub fn ask(&self, handles: Vec<Handle>) -> Asked {
        Asked {
            promise: self.clone(),
            number: self.begin(),
            handles,
        }
    }

    /// The next step: an entry.
    pub fn entry(&self) -> Turn {
        Turn {
            promise: self.clone(),
            number: self.begin(),
        }
    }

    fn begin(&self) -> u64 {
        let mut steps = lock(&self.0);
        steps.last += 1;
        let number = steps.last;
        steps.open.insert(number);
        number
    }

    /// A step is done. `found`: whether the server has each of these blocks.
    fn done(&self, number: u64, found: impl Iterator<Item = (Handle, bool)>) {
        let mut steps = lock(&self.0);
        for (handle, is_there) in found {
            if is_there {
                steps.missing.remove(&handle);
            } else if steps.missing.len() < MAX_MISSING || steps.missing.contains_key(&handle) {
                let (first, last) = (number, number);
                let missed = steps.missing.entry(handle);
                let missed = missed.or_insert(Missed { first, last });
                // Steps are done in any order.
                missed.first = number.min(missed.first);
                missed.last = number.max(missed.last);
            } else {
                steps.unnamed = number.max(steps.unnamed);
            }
        }
        steps.open.remove(&number);
        let first = steps.open.first().copied().unwrap_or(u64::MAX);
        let ready = steps.waiting.extract_if(.., |(entry, _)| *entry <= first);
        let ready: Vec<_> = ready.collect();
        drop(steps);
        ready.into_iter().for_each(|(_, wake)| wake());
    }
}

/// A request for blocks that is under way. If it is dropped without an answer, its blocks are missing.
pub struct Asked {
    promise: Promise,
    number: u64,
    handles: Vec<Handle>,
}

impl Asked {
    /// The answer: for each block, in the order of the request, whether it is there, durably.
    pub fn answered(mut self, found: impl IntoIterator<Item = bool>) {
        let handles = std::mem::take(&mut self.handles);
        let found = found.into_iter().chain(std::iter::repeat(false));
        self.promise
            .done(self.number, handles.into_iter().zip(found));
    }

    /// All its blocks are there.
    pub fn stored(self) {
        self.answered(std::iter::repeat(true));
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let missing = std::mem::take(&mut self.handles);
        let missing = missing.into_iter().map(|handle| (handle, false));
        self.promise.done(self.number, missing);
    }
}

/// The place of an entry in its session. Later entries have no turn before this is dropped.
pub struct Turn {
    promise: Promise,
    number: u64,
}

impl Turn {
    /// Whether all that came before in the session is done.
    pub fn is_ready(&self) -> bool {
        let steps = lock(&self.promise.0);
        steps.open.first().is_none_or(|first| *first >= self.number)
    }

    /// Calls `wake` when it is ready: now, or on the thread that does the last step before it.
    pub fn when_ready(&self, wake: Box<dyn FnOnce() + Send>) {
        let mut steps = lock(&self.promise.0);
        if steps.open.first().is_some_and(|first| *first < self.number) {
            steps.waiting.push((self.number, wake));
            return;
        }
        drop(steps);
        wake();
    }

    /// Whether a block of an earlier step is missing.
    pub fn lacks(&self) -> bool {
        let steps = lock(&self.promise.0);
        let mut missing = steps.missing.values();
        steps.unnamed > 0 || missing.any(|missed| missed.first < self.number)
    }

    /// The device is told that blocks before this entry are missing.
    pub fn told(&self) {
        let mut steps = lock(&self.promise.0);
        steps.missing.retain(|_, missed| {
            // What comes later is not forgiven.
            missed.first = missed.first.max(self.number.saturating_add(1));
            missed.last > self.number
        });
        if steps.unnamed < self.number {
            steps.unnamed = 0;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.promise.done(self.number, std::iter::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn block(number: u8) -> Handle {
        Handle::from_bytes([number; 32])
    }

    #[test]
    fn entry_waits_for_every_request_before_it_and_for_none_after_it() {
        let promise = Promise::default();
        let (one, two) = (promise.ask(vec![block(1)]), promise.ask(vec![block(2)]));
        let turn = promise.entry();
        let _later = promise.ask(vec![block(3)]);
        let woken = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::clone(&woken);
        turn.when_ready(Box::new(move || {
            wakes.fetch_add(1, Ordering::SeqCst);
        }));
        assert!(!turn.is_ready());
        two.stored();
        assert!(!turn.is_ready());
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        one.answered([true]);
        assert!(turn.is_ready() && !turn.lacks());
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        turn.when_ready(Box::new(|| ()));
    }

    #[test]
    fn later_entry_waits_for_the_earlier_one() {
        let promise = Promise::default();
        let asked = promise.ask(vec![block(1)]);
        let (first, second) = (promise.entry(), promise.entry());
        drop(asked);
        assert!(first.is_ready() && !second.is_ready());
        assert!(first.lacks());
        first.told();
        drop(first);
        assert!(second.is_ready() && !second.lacks());
    }

    #[test]
    fn missing_block_is_there_when_a_later_request_has_stored_or_found_it() {
        let promise = Promise::default();
        let blocks = || vec![block(1), block(2)];
        promise.ask(blocks()).answered([true, false]);
        assert!(promise.entry().lacks());
        assert!(promise.entry().lacks(), "nobody was told");
        promise.ask(vec![block(2)]).stored();
        assert!(!promise.entry().lacks());
        // Too short an answer finds nothing.
        promise.ask(blocks()).answered([true]);
        assert!(promise.entry().lacks());
        promise.ask(vec![block(2)]).answered([true]);
        assert!(!promise.entry().lacks());
        drop(promise.ask(blocks()));
        promise.ask(vec![block(1)]).stored();
        assert!(promise.entry().lacks());
    }

    #[test]
    fn what_came_after_an_entry_is_not_forgiven_with_it() {
        let promise = Promise::default();
        let asked = promise.ask(vec![block(1)]);
        let first = promise.entry();
        drop(promise.ask(vec![block(2)]));
        asked.stored();
        assert!(!first.lacks(), "the block that is missing came later");
        first.told();
        drop(first);
        let second = promise.entry();
        assert!(second.lacks());
        second.told();
        assert!(!second.lacks());
    }

    /// A block that is asked for again, in vain, while the entry waits is missing for the entry all the same.
    #[test]
    fn later_request_in_vain_hides_no_earlier_one() {
        let promise = Promise::default();
        drop(promise.ask(vec![block(1)]));
        let slow = promise.ask(vec![block(2)]);
        let first = promise.entry();
        promise.ask(vec![block(1)]).answered([false]);
        slow.stored();
        assert!(first.is_ready() && first.lacks());
        first.told();
        drop(first);
        // The later request is not forgiven with it.
        let second = promise.entry();
        assert!(second.lacks());
        second.told();
        assert!(!second.lacks());
        // Nor does it matter which of two is answered first.
        let (early, late) = (promise.ask(vec![block(3)]), promise.ask(vec![block(3)]));
        drop(late);
        let third = promise.entry();
        drop(early);
        third.told();
        assert!(!third.lacks());
    }

    #[test]
    fn blocks_without_number_are_bounded_and_cost_one_refusal() {
        let promise = Promise::default();
        let name = |n: u32| trust::Hasher::new(&[0; 32]).name(trust::Kind::Data, &n.to_le_bytes());
        for n in 0..2 * MAX_MISSING as u32 {
            drop(promise.ask(vec![name(n)]));
        }
        assert_eq!(lock(&promise.0).missing.len(), MAX_MISSING);
        let first = promise.entry();
        drop(promise.ask(vec![name(u32::MAX)]));
        assert!(first.lacks());
        first.told();
        drop(first);
        // The last one came after the entry.
        let second = promise.entry();
        assert!(second.lacks());
        second.told();
        assert!(!second.lacks());
        assert!(lock(&promise.0).missing.is_empty());
    }
}
