//! What a device does unasked: it folds what has changed, and forgets what is folded (decision 0051).
//!
//! Devices would all fold at once if each counted alike. So each waits for a number of changes that it draws at its
//! start. Two folds at once do no harm: the second one has no effect.

use std::time::{Duration, Instant};

use trust_shared::principal::Principal;

use super::{Core, Input, MAX_ROUNDS, Out, Ticket};
use crate::client::error::Stopped;
use crate::files::{Call, MAX_UNFORGOTTEN_OPS};
use ordering::scheme::DeviceScheme;

/// The ticket of calls that no program made.
pub(super) const UNASKED: Ticket = Ticket::MAX;

/// Time until the next fold when the server has refused the blocks of one.
const UNSTORED_PAUSE: Duration = Duration::from_secs(300);

/// When a device folds unasked.
#[derive(Debug, Clone, Copy)]
pub struct Folding {
    /// Changes of one principal after which a device folds them, at least. It draws up to twice as many.
    pub changes: u64,
    /// Time between two folds by one device.
    pub pause: Duration,
}

impl Default for Folding {
    fn default() -> Self {
        Folding {
            changes: 4096,
            pause: Duration::from_secs(5),
        }
    }
}

/// When a device folds and forgets.
#[derive(Debug)]
pub(super) struct Tidy {
    /// Changes after which it folds.
    fold_after: u64,
    pause: Duration,
    /// It forgets so many ops at a time, at least.
    worth: u64,
    /// A fold is under way.
    folding: bool,
    /// The principal that it folded last. A long log takes several folds.
    last: Option<Principal>,
    /// No fold begins before this.
    fold_at: Option<Instant>,
    /// Folds in the log when it found nothing to forget.
    folds: u64,
    /// Position of the last of them, if it was not attested then.
    unattested: Option<u64>,
    /// Not before.
    forget_at: Option<Instant>,
    /// Something must be fetched before it can forget.
    forgetting: bool,
}

impl Tidy {
    pub(super) fn new(folding: Folding) -> Tidy {
        let mut drawn = [0; 8];
        // Without randomness it folds as soon as it may.
        let _ = getrandom::fill(&mut drawn);
        let least = folding.changes.max(1);
        let more = u64::from_le_bytes(drawn) % least;
        Tidy {
            fold_after: least.saturating_add(more),
            pause: folding.pause,
            worth: least,
            folding: false,
            last: None,
            fold_at: None,
            folds: 0,
            unattested: None,
            forget_at: None,
            forgetting: false,
        }
    }

    /// The fold that was under way is done, whatever came of it.
    pub(super) fn folded(&mut self) {
        self.folding = false;
    }

    /// The server takes no blocks of folds. Each try costs a Resume, and a fold is never urgent.
    pub(super) fn unstored(&mut self) {
        self.folding = false;
        self.fold_at = Instant::now().checked_add(UNSTORED_PAUSE);
    }
}

impl Core {
    /// Folds and forgets, if it is time.
    pub(super) fn tidy(&mut self, input: &Kind, outs: &mut Vec<Out>) -> Result<(), Stopped> {
        if self.stopped || !self.engine.is_running() {
            return Ok(());
        }
        self.forget(matches!(input, Kind::Supplied), outs)?;
        self.fold(outs)
    }

    fn fold(&mut self, outs: &mut Vec<Out>) -> Result<(), Stopped> {
        let now = Instant::now();
        if self.tidy.folding || self.tidy.fold_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        let (me, after) = (self.engine.scheme().me(), self.tidy.fold_after);
        let files = self.engine.ledger().volume();
        let last = self.tidy.last.take();
        let again = last.filter(|principal| files.ops_since_fold(*principal) >= after);
        let Some(principal) = again.or_else(|| files.due(me, after)) else {
            return Ok(());
        };
        self.tidy.folding = true;
        self.tidy.last = Some(principal);
        self.tidy.fold_at = now.checked_add(self.tidy.pause);
        let effects = self.engine.issue([(UNASKED, Call::Fold(principal).into())]);
        self.perform(effects, None, outs)
    }

    /// There may be more to forget than when it found nothing.
    fn newly_folded(&self) -> bool {
        let is_attested = |at| self.engine.foldable() > at;
        self.engine.ledger().volume().folds() != self.tidy.folds
            || self.tidy.unattested.is_some_and(is_attested)
    }

    fn forget(&mut self, supplied: bool, outs: &mut Vec<Out>) -> Result<(), Stopped> {
        let (now, files) = (Instant::now(), self.engine.ledger().volume());
        let ops = files.ops_since_forgetting();
        let (folds, last_fold) = (files.folds(), files.last_fold());
        let new = self.newly_folded() && ops >= self.tidy.worth.saturating_mul(2);
        let due = match self.tidy.forgetting {
            true => supplied,
            false => {
                (new || ops > MAX_UNFORGOTTEN_OPS) && self.tidy.forget_at.is_none_or(|at| at <= now)
            }
        };
        // What a call asks about must not be forgotten.
        if !due || self.engine.asks_about_the_past() {
            return Ok(());
        }
        self.tidy.forgetting = false;
        let (me, attested) = (self.engine.scheme().me(), self.engine.foldable());
        let worth = self.tidy.worth;
        let mut rounds = 0;
        let forgotten = loop {
            match self.engine.ledger().volume().forget(me, attested, worth) {
                Ok(forgotten) => break forgotten,
                Err(missing) => {
                    rounds += 1;
                    let found = self.look(&missing, outs)?;
                    if found && rounds < MAX_ROUNDS {
                        continue;
                    }
                    if found {
                        outs.push(Out::Again);
                    }
                    self.tidy.forgetting = true;
                    return Ok(());
                }
            }
        };
        if !forgotten {
            // Perhaps after the next fold, or when the last one is attested.
            self.tidy.folds = folds;
            self.tidy.unattested = Some(last_fold).filter(|at| *at >= attested);
        }
        self.tidy.forget_at = now.checked_add(self.tidy.pause);
        Ok(())
    }
}

/// What a step was about.
pub(super) enum Kind {
    /// Something that was missing is here.
    Supplied,
    /// Anything else.
    Other,
}

impl Kind {
    pub(super) fn of(input: &Input) -> Kind {
        match input {
            Input::Supplied => Kind::Supplied,
            _ => Kind::Other,
        }
    }
}
