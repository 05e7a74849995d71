//! The threads of a protected device.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Shared, add, chain, lock};
use crate::core::Redos;
use crate::engine::{EngineError, Homed};

/// After a failed write to the data device the next try waits so long.
const RETRY: Duration = Duration::from_millis(500);
/// So many failures in a row end in a device that is read-only: its log would fill up.
const TRIES: u32 = 10;

/// A thread that writes home rests at most so long.
const MOST_REST: Duration = Duration::from_millis(50);

impl Shared {
    /// Commits what no flush waits for.
    pub(super) fn commit_thread(&self) {
        loop {
            let signals = lock(&self.signals);
            if signals.stop {
                return;
            }
            let wait = self.to_commit.wait_timeout(signals, self.pace.commit);
            let (signals, _) = wait.unwrap_or_else(PoisonError::into_inner);
            if signals.stop {
                return;
            }
            drop(signals);
            self.commit(None);
            while (self.engine.must_settle_first() || self.must_home_first())
                && self.engine.failure().is_none()
            {
                if lock(&self.signals).stop {
                    return;
                }
                self.wait_for_room_in_memory(self.engine.must_settle_first());
                self.commit(None);
            }
        }
    }

    /// Writes home. The later threads help only when the log gets fuller: until then the devices are for whoever flushes.
    pub(super) fn home_thread(&self, number: usize) {
        let mut failures = 0;
        loop {
            if lock(&self.signals).stop {
                return;
            }
            match self.home_once(number) {
                None => {
                    let signals = lock(&self.signals);
                    let wait = self.to_home.wait_timeout(signals, self.pace.commit);
                    drop(wait.unwrap_or_else(PoisonError::into_inner));
                }
                Some(Ok(homed)) => {
                    failures = 0;
                    if !homed.is_whole() {
                        self.pause(RETRY);
                    }
                }
                Some(Err(error)) => {
                    failures += 1;
                    self.home_failed(&error, failures);
                }
            }
        }
    }

    pub(super) fn home_once(&self, number: usize) -> Option<Result<Homed, EngineError>> {
        if self.engine.failure().is_some() {
            return None;
        }
        let begun = Instant::now();
        let can_wait = !self.engine.has_home_work(Redos::None);
        let redos = self.redos_to_home(number);
        let homing = self.engine.home_begin(redos)?;
        let result = self.engine.home_run(&homing);
        self.engine.home_end(&homing, result.as_ref().ok());
        if result.is_ok() {
            let bytes = homing.bytes();
            add(&self.traffic.homed_bytes, bytes);
            let unsynced = self.unsynced.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if unsynced >= self.settle_bytes() || self.engine.is_home_idle(redos) {
                self.to_settle.notify_one();
            }
        }
        if redos == Redos::Cached {
            self.announce();
        }
        if can_wait && result.is_ok() && !self.is_urgent() {
            std::thread::sleep(begun.elapsed().min(MOST_REST));
        }
        Some(result)
    }

    fn home_failed(&self, error: &EngineError, failures: u32) {
        let is_full = matches!(error, EngineError::Data { source, .. }
            if source.kind() == std::io::ErrorKind::StorageFull);
        if let EngineError::Data { source, .. } = error {
            self.engine.tell_device_failed(source);
        }
        if is_full || failures >= TRIES {
            self.engine.fail(&chain(error));
            self.wake_all();
            return;
        }
        self.pause(RETRY);
    }

    /// Waits before the next try to write home.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut signals = lock(&self.signals);
        while !signals.stop && Instant::now() < until {
            let wait = self.to_home.wait_timeout(signals, until - Instant::now());
            signals = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the thread of this number writes home of what the log has.
    pub(super) fn redos_to_home(&self, number: usize) -> Redos {
        let threads = self.pace.home_threads.max(1) as u64;
        let full = self.pace.full_percent;
        let from_percent = full + (100 - full) * number as u64 / threads;
        if self.is_drained() || self.used_percent() >= from_percent {
            return Redos::All;
        }
        match self.streams() {
            true => Redos::Cached,
            false => Redos::None,
        }
    }

    /// Whether more is written in long runs than the log should hold, until no frame was full for a while. All of it must go
    /// home, and while memory has it, that costs no read of the log. Less is left in the log: a block that is written again
    /// then goes home once, and the devices are free for whoever flushes.
    pub(super) fn streams(&self) -> bool {
        let full = lock(&self.signals).last_full_frame;
        let is_over = full.is_none_or(|full| full.elapsed() >= self.pace.idle);
        let begins = 2 * self.used_percent() >= self.pace.full_percent;
        if is_over || begins {
            self.streams.store(!is_over, Ordering::Relaxed);
        }
        self.streams.load(Ordering::Relaxed)
    }

    /// Whether another frame that nobody waits for would only go home by way of the log.
    pub(super) fn must_home_first(&self) -> bool {
        self.used_percent() >= self.pace.full_percent
            && self.streams()
            && self.engine.is_cache_full()
    }

    /// Whether everything goes home: nobody writes, or somebody waits for it.
    fn is_drained(&self) -> bool {
        let signals = lock(&self.signals);
        signals.drain || signals.detached || signals.last_write.elapsed() >= self.pace.idle
    }

    /// Whether the log must get emptier as fast as possible. Else the devices are free half of the time for whoever reads
    /// and flushes.
    fn is_urgent(&self) -> bool {
        self.is_drained()
            || self.used_percent() >= (self.pace.full_percent + 100) / 2
            || self.must_home_first()
    }

    /// Whether the log can be emptied at little cost, which makes the next attachment fast.
    fn is_idle(&self) -> bool {
        let idle = lock(&self.signals).last_write.elapsed() >= self.pace.idle;
        idle && self.engine.is_settled()
    }

    /// How full the log is for whoever writes to the device.
    pub(super) fn used_percent(&self) -> u64 {
        let pressure = self.engine.log().pressure();
        pressure.used * 100 / (pressure.used + pressure.free).max(1)
    }

    /// Settles and checkpoints.
    pub(super) fn settle_thread(&self) {
        let mut settled = Instant::now();
        let mut looked = Instant::now();
        loop {
            if !self.must_settle() {
                let signals = lock(&self.signals);
                if signals.stop {
                    return;
                }
                let wait = self.to_settle.wait_timeout(signals, self.pace.commit);
                drop(wait.unwrap_or_else(PoisonError::into_inner));
            }
            if lock(&self.signals).stop {
                return;
            }
            if looked.elapsed() >= self.pace.session {
                looked = Instant::now();
                self.look_for_others();
            }
            if self.must_settle() || settled.elapsed() >= self.pace.settle {
                settled = Instant::now();
                self.settle();
            }
            if self.must_checkpoint() {
                self.checkpoint();
            }
        }
    }

    /// Whether the data device must be synced now: much was written to it, or everything that somebody waits for.
    fn must_settle(&self) -> bool {
        let unsynced = self.unsynced.load(Ordering::Relaxed);
        let (drain, settle_now) = {
            let signals = lock(&self.signals);
            (signals.drain, signals.settle_now)
        };
        let waits = drain || settle_now;
        unsynced >= self.settle_bytes()
            || waits && self.engine.is_home_idle(all_if(drain)) && self.engine.has_written()
    }

    /// The data device is synced after so many bytes; in a short ring more often, so that there is room in time.
    pub(super) fn settle_bytes(&self) -> u64 {
        let ring = self.engine.log().ring_bytes();
        self.pace.settle_bytes.min(ring / 8)
    }

    /// Whether the tail must move now. It costs pages of the map and three syncs, so it moves on in steps, unless there
    /// is nothing more to wait for.
    fn must_checkpoint(&self) -> bool {
        if self.is_idle() {
            return true;
        }
        let (asked, drain) = {
            let signals = lock(&self.signals);
            (signals.checkpoint_now, signals.drain)
        };
        let log = self.engine.log();
        let step = log.ring_bytes() / 16;
        let gain = self.engine.oldest().0.saturating_sub(log.tail().0);
        (asked || self.used_percent() >= self.pace.full_percent)
            && (gain >= step || gain > 0 && self.engine.is_home_idle(all_if(drain)))
    }

    pub(super) fn look_for_others(&self) {
        if let Some(why) = self.engine.lease().and_then(|lease| lease.lost())
            && self.engine.failure().is_none()
        {
            self.engine.fail(&why);
            self.wake_all();
            return;
        }
        if let Err(error) = self.engine.log().check_session()
            && self.engine.failure().is_none()
        {
            self.engine.fail(&chain(&error));
            self.wake_all();
        }
    }

    /// Syncs the data device once, if something was written to it.
    pub(super) fn settle(&self) {
        if self.engine.failure().is_some() {
            return;
        }
        let turn = lock(&self.settling);
        lock(&self.signals).settle_now = false;
        self.unsynced.store(0, Ordering::Relaxed);
        if let Some(settling) = self.engine.settle_begin() {
            match self.engine.settle_run(&settling) {
                Ok(done) => {
                    self.engine.settle_end(&done);
                    add(&self.traffic.settles, 1);
                }
                Err(error) => self.engine.fail(&chain(&error)),
            }
        }
        drop(turn);
        self.to_home.notify_all();
        self.announce();
    }

    /// Moves the log's tail, if it can move.
    pub(super) fn checkpoint(&self) {
        let _turn = lock(&self.settling);
        let can_move = self.engine.oldest() > self.engine.log().tail();
        if self.engine.failure().is_some() || !can_move {
            return;
        }
        match self.engine.checkpoint() {
            Ok(()) => {
                add(&self.traffic.checkpoints, 1);
                let mut signals = lock(&self.signals);
                signals.checkpoint_now = false;
                // Whoever finds the log still full asks again.
                signals.drain = signals.detached;
            }
            Err(error) => self.engine.fail(&chain(&error)),
        }
        self.announce();
    }
}

fn all_if(drain: bool) -> Redos {
    match drain {
        true => Redos::All,
        false => Redos::None,
    }
}
