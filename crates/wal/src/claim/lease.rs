//! The claim of a host that uses the log.
//!
//! It may write for [`LEASE`] after it began to look at the claims, if its own stood there and it had answered all others.
//! A host that takes the log over has shown a claim for longer than that without an answer.

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
/// After a look that failed or took longer than [`LEASE`], it is looked again so often.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// How often others are answered in one look.
const ANSWERS: usize = 16;

/// The right to write, as long as the claim stands.
pub struct Lease {
    parts: Parts,
    /// Nanoseconds of the host's clock. 0: nothing is written any more.
    valid_until: AtomicU64,
    /// Looks that have begun.
    begun: AtomicU64,
    state: Mutex<State>,
}

/// What a lease is about.
pub(super) struct Parts {
    pub device: Arc<dyn Device>,
    pub key: ClaimKey,
    pub superblocks: SuperblockKey,
    pub host: Arc<dyn Host>,
    pub slot: usize,
    /// Slots of others that were watched in vain, as they were.
    pub silent: Vec<(usize, Slot)>,
}

struct State {
    claim: Claim,
    /// The session of the log, once it is open.
    log_session: Option<[u8; 16]>,
    /// What others have in their slots, and was answered.
    answered: Vec<Asked>,
    /// The number of the last look that found the own claim.
    confirmed: u64,
    lost: Option<Arc<str>>,
    released: bool,
    /// The claim was written since, and nobody has looked yet whether the log was this host's then.
    is_put_back: bool,
}

/// What another host asks by. A page that is not authentic may be a claim that is being written.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Claim(Session),
    Page(usize, Option<[u8; 32]>),
}

impl Asked {
    fn by((number, slot): (usize, &Slot)) -> Option<Asked> {
        match slot {
            Slot::Free => None,
            Slot::Claim(claim) => Some(Asked::Claim(claim.session)),
            Slot::Unknown(hash) => Some(Asked::Page(number, *hash)),
        }
    }
}

/// The claim is gone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(Arc<str>);

impl Lease {
    pub(super) fn new(parts: Parts, claim: Claim) -> Lease {
        let silent = parts.silent.iter();
        let answered = silent.map(|(slot, _)| Asked::Claim(claim.mark(*slot).session));
        let answered = answered.collect();
        Lease {
            valid_until: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            state: Mutex::new(State {
                claim,
                log_session: None,
                answered,
                confirmed: 0,
                lost: None,
                released: false,
                is_put_back: false,
            }),
            parts,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log was taken from another host that did not give its claim back: it may have writes on their way.
    pub fn took_over(&self) -> bool {
        !self.parts.silent.is_empty()
    }

    /// Whether a write is safe now. Looks at the claims if the last look is too long ago, as after a suspension.
    ///
    /// # Errors
    /// Another host has taken the log, or the claims cannot be read, or only so slowly that the answer is old when it
    /// comes: then nothing may be written.
    pub fn check(&self) -> io::Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        let mut state = self.state();
        for _ in 0..LOOKS {
            // Another thread may have looked while this one waited for the lock.
            if self.is_valid() {
                return Ok(());
            }
            self.look_again(&mut state)?;
        }
        match self.is_valid() {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the claims on the log are read too slowly",
            )),
        }
    }

    fn is_valid(&self) -> bool {
        nanoseconds(self.parts.host.now()) < self.valid_until.load(Ordering::Acquire)
    }

    /// Whether the claim stands in a look that begins after this call. What was durable before the call was so before
    /// another host could read the log. Needs no clock.
    ///
    /// # Errors
    /// As [`check`](Lease::check).
    pub fn confirm(&self) -> io::Result<()> {
        let begun = self.begun.load(Ordering::SeqCst);
        let mut state = self.state();
        // A look of another thread that began after the call does as well.
        if state.confirmed > begun {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // A host that takes the log writes over this page before it reads the log. Only a claim that was written since may
        // stand there by mistake.
        let is_over = state.released || state.lost.is_some() || state.is_put_back;
        let Parts { device, key, .. } = &self.parts;
        if !is_over
            && page::read_one(&**device, key, self.parts.slot)
                .is_ok_and(|slot| slot.is_of(&state.claim.session))
        {
            state.confirmed = number;
            return Ok(());
        }
        self.look_again(&mut state)
    }

    /// Looks at the claims, and answers those of others.
    ///
    /// # Errors
    /// As [`check`](Lease::check).
    pub fn look(&self) -> io::Result<()> {
        self.look_once(&mut self.state())
    }

    /// Looks until it succeeds, or a bounded number of times.
    fn look_again(&self, state: &mut State) -> io::Result<()> {
        for _ in 1..LOOKS {
            match self.look_once(state) {
                Err(_) if state.lost.is_none() && !state.released => {
                    self.parts.host.wait(PAUSE);
                }
                looked => return looked,
            }
        }
        self.look_once(state)
    }

    fn look_once(&self, state: &mut State) -> io::Result<()> {
        if state.released {
            return Err(io::Error::other("the claim on the log was given back"));
        }
        if let Some(why) = &state.lost {
            return Err(io::Error::other(Lost(Arc::clone(why))));
        }
        let mut has_mended = false;
        for _ in 0..ANSWERS {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let began = self.parts.host.now();
            let slots = self.read_slots(&state.claim.session)?;
            if let Some(why) = self.taken(&slots, &state.claim) {
                return Err(self.lose(state, why));
            }
            let stands = slots[self.parts.slot].is_of(&state.claim.session);
            if !stands && has_mended {
                return Err(io::Error::other("the claim on the log cannot be read"));
            }
            let others = slots.iter().enumerate();
            let others = others.filter(|(slot, _)| *slot != self.parts.slot);
            let asked: Vec<Asked> = others.filter_map(Asked::by).collect();
            state.answered.retain(|it| asked.contains(it));
            let is_new = |it: &Asked| !state.answered.contains(it);
            let unanswered: Vec<Asked> = asked.into_iter().filter(is_new).collect();
            if stands && unanswered.is_empty() {
                if state.is_put_back && !self.is_log_ours(state)? {
                    let why = "another host has attached and detached the device since";
                    return Err(self.lose(state, why.into()));
                }
                state.is_put_back = false;
                let until = nanoseconds(began + LEASE);
                self.valid_until.store(until, Ordering::Release);
                state.confirmed = number;
                return Ok(());
            }
            // The others see an answer by the counter. Then everything is read again: one of them may have taken the log
            // before it could see the answer. A claim of this host that is damaged is mended in the same way.
            state.claim.counter += 1;
            state.is_put_back = true;
            self.write(&state.claim)?;
            state.answered.extend(unanswered);
            has_mended = !stands;
        }
        Err(io::Error::other(
            "the claims on the log change faster than they can be answered",
        ))
    }

    fn write(&self, claim: &Claim) -> io::Result<()> {
        let Parts { device, key, .. } = &self.parts;
        page::write(&**device, key, self.parts.slot, claim)?;
        device.sync()
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
        match found.unreadable {
            // It may be the newest.
            Some(error) => Err(io::Error::other(error)),
            None => Ok(found.newest.session == session),
        }
    }

    /// The log is open, with this session, and so is the gap if it was taken from other hosts: clears their slots.
    pub fn has_opened(&self, session: [u8; 16]) {
        let mut state = self.state();
        state.log_session = Some(session);
        if state.released || state.lost.is_some() || self.parts.silent.is_empty() {
            return;
        }
        if let Err(error) = self.clear_silent(&state.claim) {
            tracing::warn!(%error, "cannot clear old claims on the log");
        }
    }

    fn clear_silent(&self, own: &Claim) -> io::Result<()> {
        let device = &*self.parts.device;
        let slots = page::read(device, &self.parts.key)?;
        for (number, before) in &self.parts.silent {
            // An answer that came late may have put the claim of the other host back.
            let late = before.claim().map(|claim| claim.session);
            let mark = own.mark(*number).session;
            let found = slots[*number].claim().map(|claim| claim.session);
            if found == Some(mark) || found.is_some() && found == late {
                page::free(device, *number)?;
            }
        }
        device.sync()
    }

    /// Why the log is lost, if another host has taken it.
    fn taken(&self, slots: &[Slot], own: &Claim) -> Option<Arc<str>> {
        let mut others = others(slots, self.parts.slot);
        let slot = &slots[self.parts.slot];
        let taker = match slot.is_of(&own.session) || slot.is_unknown() {
            // Another host writes claims or zeros, so a page that is neither is damaged.
            true => Some(others.find(|claim| claim.term > own.term)?),
            // The host that took the log has cleared the page.
            false => slot.claim().or_else(|| others.next()),
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
        state.confirmed = 0;
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
        state.confirmed = 0;
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
