//! How a host comes to its claim.
//!
//! It writes the claim and then looks for others, so of two that come at once at least one sees the other, and yields. A
//! claim of another host that stays without an answer for [`WATCH`] is of a host that is dead, or that will look at the
//! claims before it writes again.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::lease::{LEASE, Lease, Parts, others};
use super::page::{self, Claim, ClaimKey, SLOTS, Session, Slot};
use super::{Host, Life};
use crate::device::Device;
use crate::error::LogError;
use crate::key::Key;
use crate::superblock::{self, SuperblockKey};

/// How long a claim of another host is watched: longer than [`LEASE`] by the time that a write may be on its way.
pub const WATCH: Duration = Duration::from_secs(4);
/// How often to look meanwhile.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// By force, the watch begins anew so often because another host has come.
const RESTARTS: usize = 3;

/// How a log is claimed.
#[derive(Clone)]
pub struct ClaimOptions {
    /// The host that claims it.
    pub host: Arc<dyn Host>,
    /// Take it although another host uses it. That host stops when it looks at the claims.
    pub force: bool,
    /// Answer other hosts from a thread. Without it, the caller must [`look`](Lease::look) often enough.
    pub keep: bool,
}

/// Claims the log on a device for this host. Watches the claims of other hosts for [`WATCH`], if there are any.
///
/// # Errors
/// [`LogError::Claimed`] if another host, or another process of this one, uses the log. As [`crate::open`] for a
/// device without a log or with a wrong key. [`LogError::Io`].
pub fn claim(
    device: Arc<dyn Device>,
    secret: &Key,
    options: &ClaimOptions,
) -> Result<Lease, LogError> {
    let volume = superblock::load(&*device, secret)?.newest.volume;
    let key = ClaimKey::new(secret, volume);
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(|_| LogError::Random)?;
    let host = &*options.host;
    let before = page::read(&*device, &key).map_err(failed("read"))?;
    let (ended, watched) = sort(&before, &key, host, options.force)?;
    let slot = choose(&before, &ended, &session, options.force)?;
    let mut taking = Taking {
        claim: Claim::new(session, &key, host),
        device: &*device,
        key: &key,
        host,
        force: options.force,
        slot,
        before: &before,
        ended: &ended,
        newcomers: Vec::new(),
        watched,
    };
    if let Err(error) = taking.take() {
        taking.withdraw();
        return Err(error);
    }
    let silent = taking.watched.into_iter().collect();
    let superblocks = SuperblockKey::new(secret, volume);
    let claim = taking.claim;
    let host = Arc::clone(&options.host);
    let parts = Parts {
        device: Arc::clone(&device),
        key,
        superblocks,
        host,
        slot,
        silent,
    };
    let lease = Lease::new(parts, claim);
    match lease.look() {
        Err(_) if lease.lost().is_some() => Err(LogError::Foreign),
        looked => looked.map(|()| lease).map_err(failed("read")),
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> LogError {
    move |error| LogError::io(action, 0, error)
}

fn claimed(claim: &Claim) -> LogError {
    LogError::Claimed { by: claim.owner() }
}

/// The slots of processes of this host that have ended, and those that must be watched.
fn sort(
    slots: &[Slot],
    key: &ClaimKey,
    host: &dyn Host,
    force: bool,
) -> Result<(Vec<usize>, BTreeMap<usize, Slot>), LogError> {
    let system = key.system(host);
    let (mut ended, mut watched) = (Vec::new(), BTreeMap::new());
    for (number, slot) in slots.iter().enumerate() {
        let life = match slot {
            Slot::Free => continue,
            Slot::Claim(claim) if claim.system == system && system != [0; 16] => {
                host.life(&claim.process)
            }
            Slot::Claim(_) | Slot::Unknown(_) => Life::Unknown,
        };
        match (life, slot) {
            (Life::Ended, _) => ended.push(number),
            (Life::Runs, Slot::Claim(claim)) if !force => return Err(claimed(claim)),
            _ => {
                watched.insert(number, slot.clone());
            }
        }
    }
    Ok((ended, watched))
}

/// A slot for the own claim. Two hosts that come at once choose the same one only by chance; both then read it again
/// before they use the log.
fn choose(
    slots: &[Slot],
    ended: &[usize],
    session: &Session,
    force: bool,
) -> Result<usize, LogError> {
    let start = usize::from(session[0]) % SLOTS;
    let order = || (0..SLOTS).map(|n| (start + n) % SLOTS);
    let free = || order().find(|slot| slots[*slot] == Slot::Free);
    let free = ended.first().copied().or_else(free);
    // No host uses a page that is not authentic.
    let free = free.or_else(|| order().find(|slot| slots[*slot].is_unknown()));
    match (free, slots[start].claim()) {
        (Some(slot), _) => Ok(slot),
        (None, Some(claim)) if !force => Err(claimed(claim)),
        (None, _) => Ok(start),
    }
}

struct Taking<'a> {
    device: &'a dyn Device,
    key: &'a ClaimKey,
    host: &'a dyn Host,
    force: bool,
    slot: usize,
    claim: Claim,
    before: &'a [Slot],
    /// Slots of processes of this host that have ended.
    ended: &'a [usize],
    /// Claims that came after the own one, from which the log is taken by force.
    newcomers: Vec<Session>,
    /// Slots of others, as they were before the own claim was written.
    watched: BTreeMap<usize, Slot>,
}

impl Taking<'_> {
    fn take(&mut self) -> Result<(), LogError> {
        self.watched.remove(&self.slot);
        // By force, the others see at once that they must stop, and have stopped when the time is over.
        if self.force {
            self.take_from_others();
        }
        self.write()?;
        self.watch_for(WATCH)?;
        if !self.watched.is_empty() && !self.force {
            self.take_from_others();
            self.write()?;
            // The owner may have answered since. If it has not, it sees that the log is taken before it writes again.
            self.look()?;
        }
        let ended: Vec<_> = self
            .ended
            .iter()
            .filter(|slot| **slot != self.slot)
            .collect();
        for slot in &ended {
            page::free(self.device, **slot).map_err(failed("write"))?;
        }
        // Marks in the others' slots stay until the log is open. If this host ends before, the next one also leaves the
        // gap that late writes of the others need.
        for slot in self.watched.keys() {
            let mark = self.claim.mark(*slot);
            page::write(self.device, self.key, *slot, &mark).map_err(failed("write"))?;
        }
        match ended.is_empty() && self.watched.is_empty() {
            true => Ok(()),
            false => self.device.sync().map_err(failed("sync")),
        }
    }

    /// The claim keeps this term, because another owner may be so slow that it writes its claim once more.
    fn take_from_others(&mut self) {
        let ended = self.ended.iter().map(|slot| &self.before[*slot]);
        let terms = self.watched.values().chain(ended).filter_map(Slot::claim);
        let newest = terms.map(|claim| claim.term).max();
        self.claim.term = newest.map_or(0, |term| term.saturating_add(1));
    }

    fn write(&mut self) -> Result<(), LogError> {
        self.claim.counter += 1;
        let written = page::write(self.device, self.key, self.slot, &self.claim);
        let synced = written.and_then(|()| self.device.sync());
        synced.map_err(failed("write"))
    }

    /// Looks at once, and then for so long as there are claims of others. By force, a host that comes meanwhile is told to
    /// stop like the others, and the time begins anew.
    fn watch_for(&mut self, time: Duration) -> Result<(), LogError> {
        let mut until = self.host.now() + time;
        let mut newcomers = self.newcomers.len();
        self.look()?;
        loop {
            if self.newcomers.len() > newcomers {
                newcomers = self.newcomers.len();
                self.take_from_others();
                self.write()?;
                until = self.host.now() + time;
            } else if self.watched.is_empty() || self.host.now() >= until {
                return Ok(());
            } else {
                self.host.wait(POLL);
            }
            self.look()?;
        }
    }

    /// Yields to a host that answers or has come meanwhile. Claims that were given back are not watched any more.
    fn look(&mut self) -> Result<(), LogError> {
        let slots = page::read(self.device, self.key).map_err(failed("read"))?;
        if !slots[self.slot].is_of(&self.claim.session) {
            return Err(slots[self.slot].claim().map_or(LogError::Foreign, claimed));
        }
        let known = |claim: &&Claim| {
            let session = &claim.session;
            self.newcomers.contains(session) || self.before.iter().any(|slot| slot.is_of(session))
        };
        if let Some(claim) = others(&slots, self.slot).find(|claim| !known(claim)) {
            // Of two that use force, none goes on against the other one.
            if !self.force || claim.term > 0 || self.newcomers.len() == RESTARTS {
                return Err(claimed(claim));
            }
            self.newcomers.push(claim.session);
            let slot = slots.iter().position(|slot| slot.is_of(&claim.session));
            let slot = slot.unwrap_or_default();
            self.watched.insert(slot, slots[slot].clone());
        }
        self.watched.retain(|slot, _| slots[*slot] != Slot::Free);
        for (slot, before) in &self.watched {
            if let Slot::Claim(claim) = &slots[*slot]
                && slots[*slot] != *before
                && (!self.force || claim.term >= self.claim.term)
            {
                return Err(claimed(claim));
            }
        }
        Ok(())
    }

    /// Another one has the log. If this fails, the claim stays, and the next host watches it for nothing.
    fn withdraw(&self) {
        let is_own = |slots: Vec<Slot>| slots[self.slot].is_of(&self.claim.session);
        let withdrawn = match page::read(self.device, self.key).map(is_own) {
            Ok(true) => page::free(self.device, self.slot).and_then(|()| self.device.sync()),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = withdrawn {
            tracing::warn!(%error, "cannot withdraw a claim on the log");
        }
    }
}

const _: () = assert!(LEASE.as_millis() < WATCH.as_millis());
