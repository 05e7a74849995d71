//! When a running device moves its anchor.
//!
//! What is durable on the log becomes an acknowledgement only after [`Anchoring::record`]. With [`AnchorMode::Sync`] it
//! returns when the anchor holds the mark: then nothing that was acknowledged can be taken back unseen. With
//! [`AnchorMode::Lag`] it returns at once, and the anchor follows within that time: this much may be taken back unseen.
//! When the anchor cannot follow, `record` fails, because the promise would be broken.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wal::Mark;

use super::{Anchor, AnchorError, follows};

/// How far an anchor may be behind what is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnchorMode {
    /// Not at all: each flush waits for it.
    Sync,
    /// By this time.
    Lag(Duration),
}

/// Moves an anchor for a running device. Dropping it moves the anchor to the newest mark, if that is possible.
pub struct Anchoring {
    shared: Arc<Shared>,
    mode: AnchorMode,
    follower: Option<JoinHandle<()>>,
}

struct Shared {
    anchor: Box<dyn Anchor>,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the anchor is written, so that one write serves all who wait.
    writing: Mutex<()>,
}

struct State {
    /// The newest mark that is durable on the log.
    newest: Mark,
    /// What the anchor holds.
    recorded: Mark,
    /// Since when something is not recorded.
    behind_since: Option<Instant>,
    stopping: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Anchoring {
    /// Starts to move `anchor`.
    ///
    /// # Errors
    /// The anchor cannot be read.
    pub fn start(anchor: Box<dyn Anchor>, mode: AnchorMode) -> Result<Anchoring, AnchorError> {
        let recorded = anchor.mark()?;
        let shared = Arc::new(Shared {
            anchor,
            state: Mutex::new(State {
                newest: recorded,
                recorded,
                behind_since: None,
                stopping: false,
            }),
            changed: Condvar::new(),
            writing: Mutex::new(()),
        });
        let follower = match mode {
            AnchorMode::Sync => None,
            AnchorMode::Lag(lag) => {
                let shared = shared.clone();
                let follower = std::thread::Builder::new().name("anchor".to_owned());
                // Without the thread every record is written by its caller as soon as it is late.
                follower.spawn(move || shared.follow(lag)).ok()
            }
        };
        Ok(Anchoring {
            shared,
            mode,
            follower,
        })
    }

    /// The mode.
    pub fn mode(&self) -> AnchorMode {
        self.mode
    }

    /// Tells that the log is durable up to `mark`. What the log holds may be acknowledged when this returns.
    ///
    /// # Errors
    /// The anchor cannot be moved there, or not in time.
    pub fn record(&self, mark: Mark) -> Result<(), AnchorError> {
        let is_late = {
            let mut state = lock(&self.shared.state);
            if follows(&state.newest, &mark) {
                state.newest = mark;
            } else if !follows(&mark, &state.newest) {
                let held = state.newest;
                let offered = mark;
                return Err(AnchorError::Backwards { held, offered });
            }
            if state.newest == state.recorded {
                return Ok(());
            }
            let since = *state.behind_since.get_or_insert_with(Instant::now);
            self.shared.changed.notify_all();
            match self.mode {
                AnchorMode::Sync => true,
                AnchorMode::Lag(lag) => since.elapsed() >= lag,
            }
        };
        match is_late {
            true => self.shared.write(&mark),
            false => Ok(()),
        }
    }

    /// Moves the anchor to the newest mark now.
    ///
    /// # Errors
    /// The anchor cannot be moved.
    pub fn flush(&self) -> Result<(), AnchorError> {
        let newest = lock(&self.shared.state).newest;
        self.shared.write(&newest)
    }

    /// What the anchor holds. The log must keep everything from there on.
    pub fn recorded(&self) -> Mark {
        lock(&self.shared.state).recorded
    }

    /// How long something has not been recorded; `None` when all is.
    pub fn behind(&self) -> Option<Duration> {
        let since = lock(&self.shared.state).behind_since;
        since.map(|since| since.elapsed())
    }
}

impl fmt::Debug for Anchoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anchoring")
            .field("mode", &self.mode)
            .field("recorded", &self.recorded())
            .finish_non_exhaustive()
    }
}

impl Drop for Anchoring {
    fn drop(&mut self) {
        lock(&self.shared.state).stopping = true;
        self.shared.changed.notify_all();
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
        if let Err(error) = self.flush() {
            tracing::error!(%error, "the anchor stays behind");
        }
    }
}

impl Shared {
    /// Writes the newest mark, unless the anchor holds `wanted` or a later one already.
    fn write(&self, wanted: &Mark) -> Result<(), AnchorError> {
        let _writing = lock(&self.writing);
        let (target, since) = {
            let mut state = lock(&self.state);
            if follows(wanted, &state.recorded) {
                return Ok(());
            }
            // A mark that is recorded during this write waits from then on.
            (state.newest, state.behind_since.take())
        };
        let moved = self.anchor.advance(target);
        let mut state = lock(&self.state);
        match moved {
            Ok(()) => {
                state.recorded = target;
                Ok(())
            }
            Err(error) => {
                state.behind_since = since.or(state.behind_since);
                Err(error)
            }
        }
    }

    /// Writes what has waited for half of `lag`, so that a write that takes the other half is in time.
    fn follow(&self, lag: Duration) {
        let mut state = lock(&self.state);
        while !state.stopping {
            let Some(since) = state.behind_since else {
                state = (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = (lag / 2).saturating_sub(since.elapsed());
            if !left.is_zero() {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let newest = state.newest;
            drop(state);
            let written = self.write(&newest);
            state = lock(&self.state);
            if let Err(error) = written {
                tracing::error!(%error, "the anchor cannot be moved");
                let waited = self.changed.wait_timeout(state, RETRY);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Pause after an anchor could not be written.
const RETRY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use wal::Lsn;

    use super::*;

    /// An anchor in memory that counts its movements and can fail.
    #[derive(Clone)]
    struct Counted {
        held: Arc<Mutex<Mark>>,
        moves: Arc<AtomicUsize>,
        fails: Arc<AtomicBool>,
        /// The first movement ends when so many callers have arrived.
        wanted: usize,
        arrived: Arc<AtomicUsize>,
    }

    impl Counted {
        fn new() -> Counted {
            Counted {
                held: Arc::new(Mutex::new(mark(0))),
                moves: Arc::default(),
                fails: Arc::default(),
                wanted: 0,
                arrived: Arc::default(),
            }
        }

        fn lsn(&self) -> u64 {
            self.held.lock().unwrap().lsn.0
        }
    }

    impl Anchor for Counted {
        fn mark(&self) -> Result<Mark, AnchorError> {
            Ok(*self.held.lock().unwrap())
        }

        fn advance(&self, mark: Mark) -> Result<(), AnchorError> {
            if self.moves.fetch_add(1, Ordering::SeqCst) == 0 {
                while self.arrived.load(Ordering::SeqCst) < self.wanted {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            if self.fails.load(Ordering::SeqCst) {
                return Err(AnchorError::Locked { path: "x".into() });
            }
            let mut held = self.held.lock().unwrap();
            assert!(follows(&held, &mark), "{held:?} {mark:?}");
            *held = mark;
            Ok(())
        }
    }

    fn mark(lsn: u64) -> Mark {
        Mark {
            epoch: 1,
            lsn: Lsn(lsn),
            tag: [lsn as u8; 32],
        }
    }

    #[test]
    fn sync_anchor_holds_the_mark_when_record_returns() {
        let anchor = Counted::new();
        let keeping = Anchoring::start(Box::new(anchor.clone()), AnchorMode::Sync).unwrap();
        for lsn in 1..5 {
            keeping.record(mark(lsn)).unwrap();
            assert_eq!((anchor.lsn(), keeping.recorded()), (lsn, mark(lsn)));
        }
        // An older mark is covered, the same place with another tag is not.
        keeping.record(mark(2)).unwrap();
        let mut odd = mark(4);
        odd.tag = [0xff; 32];
        assert!(matches!(
            keeping.record(odd),
            Err(AnchorError::Backwards { .. })
        ));
        assert_eq!(anchor.moves.load(Ordering::SeqCst), 4);
        assert_eq!(keeping.behind(), None);
        anchor.fails.store(true, Ordering::SeqCst);
        assert!(keeping.record(mark(9)).is_err());
        assert_eq!(keeping.recorded(), mark(4));
        assert!(keeping.behind().is_some());
        anchor.fails.store(false, Ordering::SeqCst);
        keeping.record(mark(9)).unwrap();
        assert_eq!(anchor.lsn(), 9);
    }

    #[test]
    fn one_movement_serves_all_who_wait() {
        let mut anchor = Counted::new();
        anchor.wanted = 8;
        let keeping = Anchoring::start(Box::new(anchor.clone()), AnchorMode::Sync).unwrap();
        let (keeping, anchor) = (&keeping, &anchor);
        std::thread::scope(|scope| {
            for lsn in 1..=8 {
                scope.spawn(move || {
                    // The first one that comes waits until the others have told their marks.
                    let mut state = lock(&keeping.shared.state);
                    if state.newest.lsn < Lsn(lsn) {
                        state.newest = mark(lsn);
                    }
                    drop(state);
                    anchor.arrived.fetch_add(1, Ordering::SeqCst);
                    keeping.record(mark(lsn)).unwrap();
                    assert!(anchor.lsn() >= lsn);
                });
            }
        });
        assert_eq!(anchor.lsn(), 8);
        let moves = anchor.moves.load(Ordering::SeqCst);
        assert!(moves <= 2, "{moves} movements for 8 marks");
    }

    #[test]
    fn lagging_anchor_follows_in_time_and_at_the_end() {
        let anchor = Counted::new();
        let mode = AnchorMode::Lag(Duration::from_millis(400));
        let keeping = Anchoring::start(Box::new(anchor.clone()), mode).unwrap();
        keeping.record(mark(1)).unwrap();
        assert_eq!(anchor.lsn(), 0, "record does not wait");
        assert!(keeping.behind().is_some());
        let until = Instant::now() + Duration::from_secs(20);
        while anchor.lsn() != 1 {
            assert!(Instant::now() < until, "the anchor does not follow");
            std::thread::sleep(Duration::from_millis(5));
        }
        keeping.record(mark(2)).unwrap();
        drop(keeping);
        assert_eq!(anchor.lsn(), 2);
    }

    #[test]
    fn lagging_anchor_that_fails_stops_acknowledgements() {
        let anchor = Counted::new();
        let mode = AnchorMode::Lag(Duration::from_millis(30));
        let keeping = Anchoring::start(Box::new(anchor.clone()), mode).unwrap();
        anchor.fails.store(true, Ordering::SeqCst);
        keeping.record(mark(1)).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        assert!(keeping.record(mark(2)).is_err());
        anchor.fails.store(false, Ordering::SeqCst);
        keeping.record(mark(2)).unwrap();
        assert_eq!(anchor.lsn(), 2);
    }
}
