//! One connection of a device: messages to the orderer, what the device is sent, blocks, and older leaves.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::disk::Space;
use trust::device::{DeviceKey, KnownDevice};
use trust::{Handle, Record};
use trust_shared::mark::{MarkProof, Nonce};

use super::draft::{Delivery, Draft};
use super::promise::{Asked, Promise, Turn};
use super::pulse::Pulse;
use super::record::StoredLeaf;
use super::tail::MAX_TAIL_BYTES;
use super::{Core, HostError, Slot, State};
use crate::blocks::storage::lock;
use crate::blocks::{self, Batch, Device, Done};
use ordering::engine::Request;
use ordering::orderer::{Quotas, Turned};
use ordering::roster::Product;
use ordering::signed::Entry;
use ordering::volume::Roll;

/// Is called when there may be something to draw. It must be short.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Bytes of entries that wait for a commit.
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// Proofs of marks that a device was not sent yet.
const MAX_PROOFS: usize = 64;
/// Most leaves that are read at once, and bytes of them.
pub const MAX_LEAVES: u64 = 256;
/// Most bytes of bodies that are read at once.
pub const MAX_BODIES_BYTES: usize = 4 << 20;
/// Most bodies that are asked for at once.
pub const MAX_BODIES: usize = 256;

/// Calls `wake` once until the session draws.
pub(super) struct Bell {
    wake: Wake,
    rung: AtomicBool,
}

impl Bell {
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }
}

/// See the head of this file. Dropping it ends it.
pub struct Session {
    core: Arc<Core>,
    device: DeviceKey,
    known: KnownDevice,
    number: u64,
    bell: Arc<Bell>,
    blocks: blocks::Session,
    promise: Promise,
}

impl Session {
    pub(super) fn begin(
        core: &Arc<Core>,
        device: DeviceKey,
        wake: Wake,
    ) -> Result<Session, HostError> {
        let bell = Arc::new(Bell {
            wake,
            rung: AtomicBool::new(false),
        });
        let known = KnownDevice::new(device).map_err(|_| Turned::Forged)?;
        let mut state = lock(&core.state);
        state.is_running()?;
        state.is_member(device)?;
        let full = state.slots.len() >= core.options.limits.sessions;
        if full && !state.slots.contains_key(&device) {
            return Err(Turned::Busy.into());
        }
        let storage = core.blocks.storage();
        let blocks = storage.open_session(Device(*device.as_bytes()))?;
        state.orderer.disconnect(device);
        state.last_slot += 1;
        let number = state.last_slot;
        let slot = Slot {
            number,
            bell: Arc::clone(&bell),
            pulse: Pulse::new(core.options.heartbeat, Instant::now()),
            proofs: Vec::new(),
        };
        let before = state.slots.insert(device, slot);
        drop(state);
        if let Some(before) = before {
            before.bell.ring();
        }
        Ok(Session {
            core: Arc::clone(core),
            device,
            known,
            number,
            bell,
            blocks,
            promise: Promise::default(),
        })
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// The device.
    pub fn device(&self) -> DeviceKey {
        self.device
    }

    /// The device has sent a message, or is given an answer, which counts so many bytes. Gives how long it rests before the
    /// next. Reconnecting changes nothing.
    pub fn pay(&self, bytes: u64) -> Duration {
        lock(&self.core.meter).pay(self.device, bytes, Instant::now())
    }

    /// From now on the device is sent something at least after each such pause.
    pub fn set_heartbeat(&self, pause: Duration) {
        let mut state = lock(&self.core.state);
        if state.slot(self).is_ok()
            && let Some(slot) = state.slots.get_mut(&self.device)
        {
            slot.pulse = Pulse::new(pause, Instant::now());
            let due = slot.pulse.due();
            state.beat_at = state.beat_at.min(due);
        }
        drop(state);
        self.core.signals.look_at_deadlines();
    }

    /// A message for the orderer. The first one must open the session. An entry for which blocks are under way is turned
    /// away as busy; [`Session::order`] does not need another try.
    ///
    /// # Errors
    /// [`HostError::Turned`], [`HostError::NoMember`], [`HostError::Superseded`]; [`HostError::Restored`],
    /// [`HostError::Blocks`] or [`HostError::Stopped`] when the orderer has stopped.
    pub fn receive(&self, request: &Request<Product>) -> Result<(), HostError> {
        match request {
            Request::Entry(_) => self.order(request, &self.turn()),
            _ => self.count(self.take(request, None)),
        }
    }

    /// The place of an entry that comes now: after all that was stored and asked for in this session until now.
    pub fn turn(&self) -> Turn {
        self.promise.entry()
    }

    /// The same for an entry that has its place. If blocks that came before are missing, it is not ordered, and the
    /// device is told so by a delivery: that is no error.
    ///
    /// # Errors
    /// As [`Session::receive`]. [`Turned::Busy`] when the turn is not ready.
    pub fn order(&self, request: &Request<Product>, turn: &Turn) -> Result<(), HostError> {
        let taken = match turn.is_ready() {
            true => self.take(request, Some(turn)),
            false => Err(Turned::Busy.into()),
        };
        self.count(taken)
    }

    fn count(&self, taken: Result<(), HostError>) -> Result<(), HostError> {
        if let Err(HostError::Turned(why)) = &taken {
            lock(&self.core.state).counts.turned(*why);
        }
        taken
    }

    /// An entry came before its blocks: its author is told.
    fn unstored(&self, entry: &Entry, turn: &Turn) -> Result<(), HostError> {
        let bell = {
            let mut state = lock(&self.core.state);
            state.is_running()?;
            let bell = Arc::clone(&state.slot(self)?.bell);
            if !state.orderer.unstored(self.device, entry)? {
                return Ok(());
            }
            state.counts.unstored += 1;
            bell
        };
        turn.told();
        bell.ring();
        Ok(())
    }

    fn take(&self, request: &Request<Product>, turn: Option<&Turn>) -> Result<(), HostError> {
        self.judge(&mut lock(&self.core.state), request)?;
        if let (Request::Entry(entry), Some(turn)) = (request, turn)
            && turn.lacks()
        {
            return self.unstored(entry, turn);
        }
        if let Request::Open(Some(note)) = request
            && note.note().log.epoch != self.core.epoch
        {
            return Err(Turned::OtherEpoch.into());
        }
        // Most of the work, so not under the lock.
        let verified = match request {
            Request::Entry(entry) => {
                let verified = entry.verified(self.core.volume, &self.known);
                Some(Request::Entry(verified.map_err(|_| Turned::Forged)?))
            }
            _ => None,
        };
        let request = verified.as_ref().unwrap_or(request);
        let mut state = lock(&self.core.state);
        state.is_running()?;
        state.slot(self)?;
        match state.orderer.receive(self.device, request) {
            Ok(()) => {}
            Err(Turned::Restored) => {
                drop(state);
                let Request::Open(Some(note)) = request else {
                    return Err(Turned::Restored.into());
                };
                return Err(self.core.found_restored(note));
            }
            Err(turned) => return Err(turned.into()),
        }
        if let Request::Entry(entry) = request {
            state.compare(entry);
        }
        if matches!(request, Request::Open(_)) && state.orderer.is_forked(self.device) {
            tracing::error!(device = %self.device, "a device has a note of this server's key for another log: the key \
                has signed a fork, as two servers or a restored copy do. The device is shown it");
        }
        let bells = state.after(self.device, request);
        if !state.orderer.waits() {
            state.waiting_bytes = 0;
        }
        drop(state);
        for bell in bells {
            bell.ring();
        }
        if let Request::Attest(_) = request {
            self.core.signals.look_at_tail();
        }
        if self.core.begin_commit() {
            self.core.sign_note();
        }
        Ok(())
    }

    /// What speaks against a message before the orderer sees it.
    fn judge(&self, state: &mut State, request: &Request<Product>) -> Result<(), HostError> {
        state.is_running()?;
        let slot = state.slot(self)?;
        state.is_member(self.device)?;
        let full = match request {
            Request::Entry(_) => {
                state.waiting_bytes >= MAX_WAITING_BYTES
                    || state.orderer.is_full()
                    || lock(&self.core.tail).bytes() >= MAX_TAIL_BYTES
            }
            Request::Mark(_) => slot.proofs.len() >= MAX_PROOFS,
            _ => false,
        };
        if full {
            return Err(Turned::Busy.into());
        }
        match state.has_room_for(self.device, request) {
            true => Ok(()),
            false => Err(Turned::Quota.into()),
        }
    }

    /// What the device is sent next; its leaves are not read yet. None: nothing now; the session is woken when there may
    /// be more.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`], [`HostError::Stopped`], [`HostError::Restored`]. The session
    /// cannot go on then.
    pub fn draft(&self) -> Result<Option<Draft>, HostError> {
        self.bell.rung.store(false, Ordering::Release);
        let mut state = lock(&self.core.state);
        state.is_running()?;
        state.slot(self)?;
        state.is_member(self.device)?;
        let Some(drawn) = state.orderer.draw(self.device) else {
            return Ok(None);
        };
        if let Some(slot) = state.slots.get_mut(&self.device) {
            slot.pulse.sent(Instant::now());
        }
        let proofs = state.proofs_before(self.device, drawn.leaves.end);
        drop(state);
        Ok(Some(Draft::new(&self.core, drawn, proofs)))
    }

    /// What the device is sent next. Reads from the disk when the device is behind. None as in [`Session::draft`].
    ///
    /// # Errors
    /// As [`Session::draft`] and [`Draft::read`].
    pub fn draw(&self) -> Result<Option<Delivery>, HostError> {
        self.draft()?.map(Draft::read).transpose()
    }

    /// Durable leaves from a position on, with all bodies: at most [`MAX_LEAVES`], at least one. Reads from the disk.
    ///
    /// # Errors
    /// [`HostError::NoLeaf`] for a range that is empty or beyond the log; as [`Session::draw`].
    pub fn leaves(&self, range: Range<u64>) -> Result<Vec<StoredLeaf>, HostError> {
        let published = self.published()?;
        if range.is_empty() || range.end > published {
            return Err(HostError::NoLeaf {
                position: range.start,
                published,
            });
        }
        let end = range.end.min(range.start.saturating_add(MAX_LEAVES));
        self.core.read(range.start..end)
    }

    /// Bodies of the entries at these positions, for the first of them: at least one, at most [`MAX_BODIES_BYTES`].
    /// None for a leaf without a body. Reads from the disk.
    ///
    /// # Errors
    /// As [`Session::leaves`].
    pub fn bodies(&self, positions: &[u64]) -> Result<Vec<Option<Bytes>>, HostError> {
        let published = self.published()?;
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        for &position in positions.iter().take(MAX_BODIES) {
            if position >= published {
                return Err(HostError::NoLeaf {
                    position,
                    published,
                });
            }
            let leaf = self.core.read(position..position + 1)?.pop();
            let body = leaf.and_then(|leaf| leaf.body);
            bytes += body.as_ref().map_or(0, Bytes::len);
            if bytes > MAX_BODIES_BYTES && !bodies.is_empty() {
                break;
            }
            bodies.push(body);
        }
        Ok(bodies)
    }

    fn published(&self) -> Result<u64, HostError> {
        let state = lock(&self.core.state);
        state.slot(self)?;
        state.is_member(self.device)?;
        Ok(state.orderer.published())
    }

    /// Whether the session goes on: it is the device's last, and the device is a member.
    pub(super) fn is_valid(&self) -> Result<(), HostError> {
        let state = lock(&self.core.state);
        state.slot(self)?;
        state.is_member(self.device)
    }

    /// STORE: takes blocks; `done` is told when they are durable.
    pub fn store(&self, blocks: Vec<Record>, done: Done) {
        if self.is_valid().is_err() {
            return done(Err(blocks::Error::NoSession));
        }
        let done = self.promised(blocks.iter().map(|block| block.handle).collect(), done);
        let batch = Batch {
            session: self.blocks,
            blocks,
            entries: Vec::new(),
        };
        self.core.blocks.submit(batch, done);
    }

    /// PSTORE: takes a block that goes straight to the segments.
    pub fn pstore(&self, block: Record, done: Done) {
        if self.is_valid().is_err() {
            return done(Err(blocks::Error::NoSession));
        }
        let done = self.promised(vec![block.handle], done);
        self.core.blocks.submit_permanent(self.blocks, block, done);
    }

    /// Entries that come from now on wait for the answer about these blocks.
    fn promised(&self, handles: Vec<Handle>, done: Done) -> Done {
        let asked = self.promise.ask(handles);
        Box::new(move |result| {
            // The client is told first: then it knows which blocks when it is told of the entry.
            let is_stored = result.is_ok();
            done(result);
            match is_stored {
                true => asked.stored(),
                false => drop(asked),
            }
        })
    }

    /// CSTORE has come, and will be answered: entries that come from now on wait for the answer.
    pub fn asks(&self, handles: &[Handle]) -> Asked {
        self.promise.ask(handles.to_vec())
    }

    /// RETRIEVE. Reads from the disk.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`]; those of [`blocks::Storage::retrieve`].
    pub fn retrieve(&self, handle: &Handle) -> Result<Option<Record>, HostError> {
        self.is_valid()?;
        let storage = self.core.blocks.storage();
        Ok(storage.retrieve(self.blocks, handle)?)
    }

    /// CSTORE of one block ([`Session::asks`]). May read from the disk.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`]; those of [`blocks::Storage::cstore`].
    pub fn cstore(&self, handle: &Handle) -> Result<bool, HostError> {
        self.is_valid()?;
        let storage = self.core.blocks.storage();
        Ok(storage.cstore(self.blocks, handle)?)
    }

    /// USAGE: what the device has used of its quota, and the file system with the blocks, if it says how large it is.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`].
    pub fn usage(&self) -> Result<(blocks::Used, Option<Space>), HostError> {
        self.is_valid()?;
        let storage = self.core.blocks.storage();
        let space = storage.repository().disk_shared().space();
        Ok((storage.used(self.blocks)?, space.ok()))
    }

    /// DECREF.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`]; those of [`blocks::Storage::decref`].
    pub fn decref(&self, handle: &Handle) -> Result<bool, HostError> {
        self.is_valid()?;
        let storage = self.core.blocks.storage();
        Ok(storage.decref(self.blocks, handle)?)
    }
}

/// Bytes of an entry and its body.
fn entry_bytes(entry: &Entry) -> u64 {
    (entry.signed().bytes().len() + entry.body().map_or(0, Bytes::len)) as u64
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = lock(&self.core.state);
        if state.slot(self).is_ok() {
            state.orderer.disconnect(self.device);
            state.slots.remove(&self.device);
        }
        drop(state);
        self.core.blocks.storage().close_session(self.blocks);
    }
}

impl State {
    pub(super) fn is_running(&self) -> Result<(), HostError> {
        match &self.stopped {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    fn is_member(&self, device: DeviceKey) -> Result<(), HostError> {
        match self.orderer.ledger().volume().active(device) {
            true => Ok(()),
            false => Err(HostError::NoMember),
        }
    }

    /// The session's slot, unless a later session of the device has it.
    fn slot(&self, session: &Session) -> Result<&Slot, HostError> {
        let slot = self.slots.get(&session.device);
        slot.filter(|slot| slot.number == session.number)
            .ok_or(HostError::Superseded)
    }

    /// Whether the device may write so many bytes now; they are counted.
    fn has_room_for(&mut self, device: DeviceKey, request: &Request<Product>) -> bool {
        match request {
            Request::Entry(entry) => self.entry_bytes.allows(device, entry_bytes(entry)),
            _ => true,
        }
    }

    /// A message was taken. Gives the bells of those who have something to draw by it.
    fn after(&mut self, from: DeviceKey, request: &Request<Product>) -> Vec<Arc<Bell>> {
        self.counts.taken(request);
        match request {
            Request::Entry(entry) => {
                self.waiting_bytes += entry_bytes(entry);
                self.gather.entry(from, Instant::now());
            }
            Request::Mark(mark) => drop(self.owners.insert(*mark, from)),
            _ => {}
        }
        let concerned: Vec<DeviceKey> = match request {
            Request::Open(_) | Request::Entry(_) => vec![from],
            Request::Ask(device) => vec![*device],
            Request::Mark(_) => Vec::new(),
            Request::Attest(_) => self.slots.keys().copied().collect(),
        };
        let waits = concerned
            .iter()
            .filter(|device| self.orderer.has_news(**device));
        let slots = waits.filter_map(|device| self.slots.get(device));
        slots.map(|slot| Arc::clone(&slot.bell)).collect()
    }

    /// Takes the proofs of a device's marks in leaves before a position.
    fn proofs_before(&mut self, device: DeviceKey, end: u64) -> Vec<(u64, Nonce, MarkProof)> {
        let Some(slot) = self.slots.get_mut(&device) else {
            return Vec::new();
        };
        slot.proofs.extract_if(.., |(at, ..)| *at < end).collect()
    }
}
