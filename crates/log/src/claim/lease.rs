//! The claim of a host that uses the log.
//!
//! It may write for [`LEASE`] after it began to look at the claims, if its own stood there and it had answered all others.
//! Whoever takes the log over has shown a claim for longer than that without an answer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Host;
use super::page::{self, Claim, ClaimKey, Session, Slot};
use crate::device::Device;
use crate::error::LogError;
use crate::superblock::{self, SuperblockKey};

/// How often the claims are looked at.
pub const LOOK: Duration = Duration::from_secs(1);
/// Writes are safe for so long after a look began.
pub const LEASE: Duration = Duration::from_millis(2500);
/// A claim that is not where it was is read again, in case it was changed on the way.
const TRIES: usize = 3;

/// The right to write, as long as the claim stands.
pub struct Lease {
    parts: Parts,
    /// Nanoseconds of the host's clock. 0: nothing is written any more.
    valid_until: AtomicU64,
    state: Mutex<State>,
}

/// What a lease is about.
pub(super) struct Parts {
    pub device: Arc<dyn Device>,
    pub key: ClaimKey,
    pub superblocks: SuperblockKey,
    pub host: Arc<dyn Host>,
    pub slot: usize,
    pub took_over: bool,
}

struct State {
    claim: Claim,
    /// The session of the log, once it is open.
    log_session: Option<[u8; 16]>,
    /// Claims of others that were answered.
    answered: Vec<Session>,
    lost: Option<Arc<str>>,
    released: bool,
}

/// The claim is gone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(Arc<str>);

impl Lease {
    pub(super) fn new(parts: Parts, claim: Claim) -> Lease {
        Lease {
            parts,
            valid_until: AtomicU64::new(0),
            state: Mutex::new(State {
                claim,
                log_session: None,
                answered: Vec::new(),
                lost: None,
                released: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log was taken from another host that did not give its claim back: it may have writes on their way.
    pub fn took_over(&self) -> bool {
        self.parts.took_over
    }

    /// Whether a write is safe now. Looks at the claims if the last look is too long ago, as after a suspension.
    ///
    /// # Errors
    /// Another host has taken the log, or the claims cannot be read: then nothing may be written.
    pub fn check(&self) -> io::Result<()> {
        let now = nanoseconds(self.parts.host.now());
        if now < self.valid_until.load(Ordering::Acquire) {
            return Ok(());
        }
        self.look()
    }

    /// Looks at the claims, and answers those of others.
    ///
    /// # Errors
    /// As [`check`](Lease::check).
    pub fn look(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.released {
            return Err(io::Error::other("the claim on the log was given back"));
        }
        if let Some(why) = &state.lost {
            return Err(io::Error::other(Lost(Arc::clone(why))));
        }
        let mut has_answered = false;
        loop {
            let began = self.parts.host.now();
            let slots = self.read_slots(&state.claim.session)?;
            if let Some(why) = self.taken(&slots, &state.claim) {
                return Err(self.lose(&mut state, why));
            }
            let others = || others(&slots, self.parts.slot).map(|claim| claim.session);
            state
                .answered
                .retain(|session| others().any(|it| it == *session));
            let unanswered: Vec<Session> =
                others().filter(|it| !state.answered.contains(it)).collect();
            if unanswered.is_empty() {
                if has_answered && !self.is_log_ours(&state)? {
                    let why = "another host has attached and detached the device since";
                    return Err(self.lose(&mut state, why.into()));
                }
                let until = nanoseconds(began + LEASE);
                self.valid_until.store(until, Ordering::Release);
                return Ok(());
            }
            // The others see an answer by the counter. Then everything is read again: one of them may have taken the log
            // before it could see the answer.
            state.claim.counter += 1;
            page::write(
                &*self.parts.device,
                &self.parts.key,
                self.parts.slot,
                &state.claim,
            )?;
            state.answered.extend(unanswered);
            has_answered = true;
        }
    }

    fn read_slots(&self, own: &Session) -> io::Result<Vec<Slot>> {
        let mut tries = 1;
        loop {
            let slots = page::read(&*self.parts.device, &self.parts.key)?;
            if slots[self.parts.slot].is_of(own) || tries == TRIES {
                return Ok(slots);
            }
            tries += 1;
        }
    }

    /// Whether the log is still that of this session. An answer that came late has put back a claim that was cleared,
    /// and the host that cleared it may have come and gone.
    fn is_log_ours(&self, state: &State) -> io::Result<bool> {
        let Some(session) = state.log_session else {
            // The log notices when it begins.
            return Ok(true);
        };
        let key = &self.parts.superblocks;
        let found = superblock::load_with(&*self.parts.device, |_| key.clone());
        let found = found.map_err(io::Error::other)?;
        Ok(found.newest.session == session)
    }

    /// The log is open, with this session.
    pub fn has_opened(&self, session: [u8; 16]) {
        self.state().log_session = Some(session);
    }

    /// Who has taken the log, if somebody has.
    fn taken(&self, slots: &[Slot], own: &Claim) -> Option<Arc<str>> {
        let mut others = others(slots, self.parts.slot);
        let taker = match slots[self.parts.slot].is_of(&own.session) {
            true => Some(others.find(|claim| claim.term > own.term)?),
            // Whoever took the log has cleared it.
            false => slots[self.parts.slot].claim().or_else(|| others.next()),
        };
        Some(match taker {
            Some(claim) => format!("{} has attached the device since", claim.owner()).into(),
            None => "another host has attached and detached the device since, or its log was \
                     made anew"
                .into(),
        })
    }

    fn lose(&self, state: &mut State, why: Arc<str>) -> io::Error {
        tracing::error!(%why, "this host must not write to the log any more");
        self.valid_until.store(0, Ordering::Release);
        state.lost = Some(Arc::clone(&why));
        io::Error::other(Lost(why))
    }

    /// Why nothing may be written any more, if another host has taken the log.
    pub fn lost(&self) -> Option<Arc<str>> {
        self.state().lost.clone()
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        state.released || state.lost.is_some()
    }

    /// Gives the claim back, in order: the next host need not wait. Nothing may be written afterwards.
    ///
    /// # Errors
    /// [`LogError::Io`]: the claim stays, and the next host waits.
    pub fn release(&self) -> Result<(), LogError> {
        let mut state = self.state();
        self.valid_until.store(0, Ordering::Release);
        if state.released || state.lost.is_some() {
            return Ok(());
        }
        state.released = true;
        let stands = |slots: Vec<Slot>| slots[self.parts.slot].is_of(&state.claim.session);
        let freed = self
            .read_slots(&state.claim.session)
            .and_then(|slots| match stands(slots) {
                true => page::free(&*self.parts.device, self.parts.slot),
                false => Ok(()),
            })
            .and_then(|()| self.parts.device.sync());
        freed.map_err(|e| LogError::io("write", 0, e))
    }

    /// A thread that looks again and again, so that others are answered.
    ///
    /// # Errors
    /// The system has no threads.
    pub fn keep(self: &Arc<Lease>) -> io::Result<Keeper> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (lease, told) = (Arc::clone(self), Arc::clone(&stop));
        let run = move || {
            let (stopped, changed) = &*told;
            loop {
                let guard = stopped.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(guard, LOOK, |stopped| !*stopped);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 || lease.is_over() {
                    return;
                }
                if let Err(error) = lease.look()
                    && !lease.is_over()
                {
                    tracing::warn!(%error, "cannot look at the claims on the log");
                }
            }
        };
        let thread = std::thread::Builder::new().name("claim".to_owned());
        Ok(Keeper {
            stop,
            thread: Some(thread.spawn(run)?),
        })
    }
}

/// Keeps a lease. Dropping it ends the thread; the claim stays.
pub struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The claims of others.
pub(super) fn others(slots: &[Slot], own: usize) -> impl Iterator<Item = &Claim> {
    let others = slots
        .iter()
        .enumerate()
        .filter(move |(slot, _)| *slot != own);
    others.filter_map(|(_, slot)| slot.claim())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
