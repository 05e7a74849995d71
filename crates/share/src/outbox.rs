//! What waits to be sent: an entry and the blocks that it names travel in one flight (decision 0113).
//!
//! The server orders an entry only if every block is there that its session stored before it. So the blocks are put on
//! the wire, and the entry right behind them. The outbox keeps what the server has not confirmed, without input and output:
//!
//! - *Blocks of a call* are kept until the call is answered, those of the next entry itself until that entry is in the log.
//! - *A new connection* stores them all again before it sends the entry again.
//! - *The server says that it has not ordered the entry*, because blocks before it were missing: those of the entry, or
//!   others of this device. What is not known to be there is stored again, and the same bytes are sent again: at once, and
//!   after a pause that grows if the server says so again. So a server that says so for ever is not asked without end.
//! - *Blocks that the server refuses* when they are stored alone are given up with their call. An entry that may have that
//!   call is never sent again: the server has told of the missing blocks, and would order it without them.
//!
//! Messages that are no entries never wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use trust::Record;
use wire::shared::MAX_NAMES;

use ordering::engine::Request;
use ordering::roster::Product;
use ordering::scheme::Scheme;

/// Bytes of blocks that travel with one call, at most, and with the entry, until the server has answered for them. More of
/// them wait for the server: what is lost with a connection, or refused, has to be sent again. 1 MiB of content that does
/// not compress travels, with one block more and the nodes of its tree.
pub const FLIGHT_BYTES: usize = (1 << 20) + (128 << 10);
/// Blocks that travel together, at most: one message has no more names.
pub const FLIGHT_BLOCKS: usize = MAX_NAMES;
/// The first pause before an entry goes a third time, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Blocks are given up after so many refusals, unless the server says at once that it has no room.
pub const TRIES: u32 = 3;
/// Batches whose answers a parcel waits for, at most. What a server says of older ones counts no more.
const ASKED: usize = 8;

/// Names a call.
pub type Ticket = u64;

/// Blocks that travel with a call, and the memory that they may take.
#[derive(Debug, Default)]
pub struct Flight {
    records: Vec<Record>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Flight {
    /// These blocks.
    pub fn of(records: Vec<Record>, room: Option<OwnedSemaphorePermit>) -> Flight {
        Flight {
            records,
            _room: room,
        }
    }

    /// The blocks.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Why blocks were not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unstored {
    /// The connection is over, or the server may take them later.
    Now,
    /// The server refuses them.
    Refused,
    /// The server has no room.
    Full,
}

/// Whose blocks they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Call(Ticket),
    /// The next entry, or the one in flight, made them.
    Entry,
}

#[derive(Debug)]
struct Parcel {
    owner: Owner,
    flight: Flight,
    bytes: usize,
    state: State,
    /// Batches of this connection that it was in and that have no answer yet, the oldest first, and whether it was alone.
    /// An entry that is not ordered may be told of before the refusal that is the reason.
    asked: Vec<(u64, bool)>,
    /// It is stored alone: the server has refused it together with others.
    alone: bool,
    /// How often the server has refused it alone.
    refusals: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// It waits for [`Outbox::retry`].
    Resting,
    /// It is in this batch. On the wire, or on the way there.
    UnderWay {
        batch: u64,
        on_wire: bool,
    },
    /// The server has it.
    Stored,
    /// No entry may name it.
    GivenUp,
}

/// Blocks, and the entry that waits for them.
#[derive(Debug, Default)]
pub struct Outbox {
    parcels: Vec<Parcel>,
    /// Batches of blocks that were begun to be stored.
    begun: u64,
    entry: Option<Request<Product>>,
    /// The entry that made blocks, once it is known.
    made_by: Option<[u8; 32]>,
    /// The server missed blocks before the entry. It waits for [`Outbox::retry`].
    is_refused: bool,
    /// How often the server has not ordered the entry because blocks were missing.
    refusals: u32,
}

impl Outbox {
    /// The next entry names these blocks.
    pub fn store(&mut self, blocks: Vec<Record>) {
        self.settled();
        self.made_by = None;
        self.push(Owner::Entry, Flight::of(blocks, None));
    }

    /// This call names these blocks, in whichever entry it will be.
    pub fn keep(&mut self, ticket: Ticket, flight: Flight) {
        if !flight.is_empty() {
            self.push(Owner::Call(ticket), flight);
        }
    }

    fn push(&mut self, owner: Owner, flight: Flight) {
        self.parcels.push(Parcel {
            owner,
            bytes: flight.records.iter().map(Record::len).sum(),
            flight,
            state: State::Waiting,
            asked: Vec::new(),
            alone: false,
            refusals: 0,
        });
    }

    /// Whether it has blocks of a call.
    pub fn has(&self, ticket: Ticket) -> bool {
        let mut parcels = self.parcels.iter();
        parcels.any(|parcel| parcel.owner == Owner::Call(ticket))
    }

    /// The call is answered: nothing of it is sent any more.
    pub fn answered(&mut self, ticket: Ticket) {
        self.parcels
            .retain(|parcel| parcel.owner != Owner::Call(ticket));
    }

    /// What may be sent now. Call it when [`Outbox::begin`] has nothing more to store.
    pub fn send(&mut self, request: Request<Product>) -> Option<Request<Product>> {
        let Request::Entry(entry) = &request else {
            return Some(request);
        };
        if !entry.signed().entry().is_resume() {
            let id = Product::id(entry);
            // One entry is in flight: the one before has its place, or will never have one.
            if self.made_by.replace(id).is_some_and(|other| other != id) {
                self.settled();
            }
        }
        // An entry that was to be sent again is over: the engine has another one.
        (self.refusals, self.is_refused) = (0, false);
        self.entry = Some(request);
        self.ready()
    }

    /// The entry, if it waits for nothing any more.
    pub fn ready(&mut self) -> Option<Request<Product>> {
        let Some(Request::Entry(entry)) = &self.entry else {
            return None;
        };
        // A Resume names no blocks, and blocks that are given up wait for it.
        let names_blocks = !entry.signed().entry().is_resume();
        match self.is_refused || (names_blocks && self.is_blocked()) {
            true => None,
            false => self.entry.take(),
        }
    }

    /// Whether an entry would come before blocks that it may name, or too many of them have no answer.
    fn is_blocked(&self) -> bool {
        let waits = |parcel: &Parcel| match parcel.state {
            State::Waiting | State::Resting | State::GivenUp => true,
            State::UnderWay { on_wire, .. } => !on_wire,
            State::Stored => false,
        };
        self.parcels.iter().any(waits) || self.flying() > FLIGHT_BYTES
    }

    /// Bytes on the wire that the server has not answered for.
    fn flying(&self) -> usize {
        let is_flying = |parcel: &&Parcel| matches!(parcel.state, State::UnderWay { .. });
        let flying = self.parcels.iter().filter(is_flying);
        flying.map(|parcel| parcel.bytes).sum()
    }

    /// The server has not ordered this entry, because blocks were missing. Gives the pause before [`Outbox::retry`].
    pub fn again(&mut self, entry: Request<Product>) -> Duration {
        self.entry = Some(entry);
        self.is_refused = true;
        // Whatever has no answer counts as refused.
        for parcel in &mut self.parcels {
            if let State::UnderWay { .. } = parcel.state {
                parcel.state = State::Resting;
            }
        }
        let (first, longest) = PAUSES;
        let pause = match self.refusals {
            0 => Duration::ZERO,
            more => first.saturating_mul(1 << more.min(10)).min(longest),
        };
        self.refusals = self.refusals.saturating_add(1);
        pause
    }

    /// The pause is over: blocks go again, and then the entry.
    pub fn retry(&mut self) {
        self.is_refused = false;
        for parcel in &mut self.parcels {
            if parcel.state == State::Resting {
                parcel.state = State::Waiting;
            }
        }
    }

    /// Blocks that must be stored now, and the number of this batch. There may be more.
    pub fn begin(&mut self) -> Option<(u64, Arc<[Record]>)> {
        if self.is_refused || self.flying() >= FLIGHT_BYTES {
            return None;
        }
        let batch = self.begun.saturating_add(1);
        let (mut records, mut bytes) = (Vec::new(), 0);
        for parcel in &mut self.parcels {
            let fits = records.is_empty()
                || (!parcel.alone
                    && bytes + parcel.bytes <= FLIGHT_BYTES
                    && records.len() + parcel.flight.records.len() <= FLIGHT_BLOCKS);
            if parcel.state != State::Waiting || !fits {
                continue;
            }
            let on_wire = false;
            parcel.state = State::UnderWay { batch, on_wire };
            records.extend_from_slice(&parcel.flight.records);
            bytes += parcel.bytes;
            if parcel.alone {
                break;
            }
        }
        if records.is_empty() {
            return None;
        }
        let is_alone = self.of(batch).count() == 1;
        for parcel in self.of(batch) {
            if parcel.asked.len() == ASKED {
                parcel.asked.remove(0);
            }
            parcel.asked.push((batch, is_alone));
        }
        self.begun = batch;
        Some((batch, records.into()))
    }

    /// The blocks of a batch are on the wire: what is sent now comes after them.
    pub fn flies(&mut self, batch: u64) {
        for parcel in self.of(batch) {
            let on_wire = true;
            parcel.state = State::UnderWay { batch, on_wire };
        }
    }

    /// The blocks of a batch are durable.
    pub fn stored(&mut self, batch: u64) {
        for parcel in &mut self.parcels {
            parcel.asked.retain(|(asked, _)| *asked != batch);
        }
        for parcel in self.of(batch) {
            parcel.state = State::Stored;
        }
    }

    /// The blocks of a batch are not stored. A refusal counts although the blocks are stored again meanwhile. Gives the calls that are given up: the engine takes them back.
    pub fn unstored(&mut self, batch: u64, why: Unstored) -> Vec<Ticket> {
        let mut given_up = Vec::new();
        for parcel in &mut self.parcels {
            let Some(at) = parcel.asked.iter().position(|(asked, _)| *asked == batch) else {
                continue;
            };
            let (_, was_alone) = parcel.asked.remove(at);
            let is_last =
                matches!(parcel.state, State::UnderWay { batch: last, .. } if last == batch);
            if is_last {
                parcel.state = State::Resting;
            }
            match why {
                Unstored::Now => {}
                // The server has it, or it is given up.
                _ if matches!(parcel.state, State::Stored | State::GivenUp) => {}
                // Which of them it refuses shows when each is stored alone.
                Unstored::Refused | Unstored::Full if !was_alone => {
                    parcel.alone = true;
                    if is_last {
                        parcel.state = State::Waiting;
                    }
                }
                Unstored::Refused | Unstored::Full => {
                    parcel.refusals = parcel.refusals.saturating_add(1);
                    let is_over = why == Unstored::Full || parcel.refusals >= TRIES;
                    if is_over {
                        parcel.state = State::GivenUp;
                    }
                    match parcel.owner {
                        Owner::Call(ticket) if is_over => given_up.push(ticket),
                        Owner::Call(_) | Owner::Entry => {}
                    }
                }
            }
        }
        given_up
    }

    /// Whether the blocks are given up that the entry in flight made itself. The engine takes back what made them.
    pub fn has_lost_the_entry(&self) -> bool {
        let is_lost =
            |parcel: &Parcel| (parcel.owner, parcel.state) == (Owner::Entry, State::GivenUp);
        self.parcels.iter().any(is_lost)
    }

    /// The parcels whose last batch it is. That an earlier batch was stored says nothing about blocks that are stored again:
    /// it may be an answer over an earlier connection.
    fn of(&mut self, batch: u64) -> impl Iterator<Item = &mut Parcel> {
        let is_of = move |parcel: &&mut Parcel| match parcel.state {
            State::UnderWay { batch: of, .. } => of == batch,
            _ => false,
        };
        self.parcels.iter_mut().filter(is_of)
    }

    /// The connection is over, or there is a new one: what it stores comes before the entry, which the engine sends again.
    pub fn disconnected(&mut self) {
        self.entry = None;
        self.is_refused = false;
        for parcel in &mut self.parcels {
            parcel.asked.clear();
            if parcel.state != State::GivenUp {
                parcel.state = State::Waiting;
            }
        }
    }

    /// All entries that were sent have their places.
    pub fn settled(&mut self) {
        self.parcels.retain(|parcel| parcel.owner != Owner::Entry);
    }

    /// Nothing is sent any more.
    pub fn clear(&mut self) {
        *self = Outbox::default();
    }
}

#[cfg(test)]
mod tests;
