//! The files of a volume, as one device sees them: calls of programs, and their answers (decision 0045).
//!
//! [`Files`] is what the engine knows of a volume: its members, the outlines of its entries, and a [`Shelf`] with the
//! bodies and blocks that were fetched. A call is built at the end of the log; what it misses is named. The client
//! fetches it, verifies it, puts it on the shelf, and calls [`Engine::supplied`](ordering::engine::Engine::supplied).
//!
//! | file | what it does |
//! |---|---|
//! | `call`, `codec` | what programs ask, and its bytes for the journal |
//! | `answer` | what they are told, and what it rests on |
//! | `sight` | values at a position, with permission |
//! | `place` | paths, symbolic links |
//! | `plan`, `build` | what a call comes to: an answer or an op |
//! | `reading` | listings; attributes |
//! | `history`, `logged` | entries of the log, for people |
//! | `feed`, `feed_codec` | what may have changed, as programs get it, and its bytes |
//! | `touched` | which files and names an entry may have changed |
//! | `fold` | folds, decisions about members |
//! | `outcome` | what became of an op, and whether that answers its call |
//! | `room` | how many ops an entry has room for |
//! | `shelf` | what was fetched, in bounded memory |
//! | `tidy` | which principals should be folded; forgetting what is folded |
//! | `turn` | whose turn it is to change a file that many devices want to change |
//! | `checkpoint` | rows of a checkpoint, and files that begin with one |
//! | `snapshot` | what a device keeps of them for a restart |
//!
//! A copy of `Files` shares the outlines until one of the two grows. The engine's own is the only one while it runs,
//! unless somebody keeps a clone of the ledger's `Arc`: then the next leaf copies everything. So nobody keeps one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trust::device::DeviceKey;
use trust::error::Reject;
use trust::tree::inode::Time;
use trust_shared::effect::{Missing, Replay, Stop, Volume as Terms};
use trust_shared::genesis::Policies;
use trust_shared::key::Key;
use trust_shared::members::Members;
use trust_shared::ops::Op;
use trust_shared::outline::Outline;
use trust_shared::principal::Device;

use ordering::roster::{END, Product, Roster, lacks_decision, outline_of};
use ordering::signed::Entry;
use ordering::volume::{self, Attempt, Build, Leftover, Outcome, Volume};
use plan::{Plan, Try};
use shelf::Question;
use sight::{Halt, Sight};
use tidy::Unfolded;
use turn::Claimed;

mod answer;
mod build;
mod call;
mod checkpoint;
mod codec;
mod feed;
mod feed_codec;
mod fold;
mod history;
mod logged;
mod outcome;
mod place;
mod plan;
mod reading;
mod room;
mod shelf;
mod sight;
mod snapshot;
mod tidy;
mod touched;
mod turn;

pub use answer::{Answer, Basis, Changed, File, Listed, Refused, Roll};
pub use call::{
    Attributes, Call, FileRef, MAX_CALL_BYTES, MAX_LISTED, MAX_LISTED_INODES, MAX_PLACE_NAMES,
    Over, Place, Replace, Seen, Stamped,
};
pub use checkpoint::NoRows;
pub use feed::{After, Cursor, Feed, MAX_TOUCHED, Thing, Touched};
pub use logged::{History, Logged, LoggedOp, MAX_LOGGED};
pub use plan::Made;
pub use shelf::{Shelf, ShelfBytes};
pub use tidy::MAX_UNFORGOTTEN_OPS;

/// The outlines of entries. Evaluation keeps what it finds out, so asking changes them.
#[derive(Debug)]
struct Known(Mutex<Replay>);

impl Known {
    fn get(&self) -> MutexGuard<'_, Replay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_mut(&mut self) -> &mut Replay {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Known {
    fn clone(&self) -> Self {
        Known(Mutex::new(self.get().clone()))
    }
}

/// The files of a volume after a prefix of its log.
#[derive(Debug)]
pub struct Files {
    terms: Arc<Terms>,
    roster: Roster,
    known: Arc<Known>,
    shelf: Arc<Shelf>,
    /// How far each device's last entry attests.
    attests: HashMap<Device, u64>,
    /// A prefix in which every entry is attested or accepted. Once that is so for a log, it stays so.
    attested: AtomicU64,
    unfolded: Unfolded,
    /// Whose device this is, if it writes.
    own: Option<DeviceKey>,
    claimed: Claimed,
    /// Positions of the entries that the members follow from.
    deciding: Vec<u64>,
    /// Why no question has an answer any more.
    mute: Option<Refused>,
}

impl Clone for Files {
    fn clone(&self) -> Self {
        Files {
            terms: Arc::clone(&self.terms),
            roster: self.roster.clone(),
            known: Arc::clone(&self.known),
            shelf: Arc::clone(&self.shelf),
            attests: self.attests.clone(),
            attested: AtomicU64::new(self.attested.load(Ordering::Relaxed)),
            unfolded: self.unfolded.clone(),
            own: self.own,
            claimed: self.claimed.clone(),
            deciding: self.deciding.clone(),
            mute: self.mute.clone(),
        }
    }
}

impl Files {
    /// The files of a volume before the first entry. What is fetched is put on this shelf, which serves one log: a
    /// device that goes over to another one takes a new shelf.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a founder whose name no user may have.
    pub fn new(policies: &Policies, shelf: Arc<Shelf>) -> Result<Files, Reject> {
        let volume = policies.chain().volume();
        let terms = Terms::new(volume, policies.chain().hasher());
        let replay = Replay::new(terms.clone());
        Ok(Files {
            terms: Arc::new(terms),
            roster: Roster::new(volume, policies.founder())?,
            known: Arc::new(Known(Mutex::new(replay))),
            shelf,
            attests: HashMap::new(),
            attested: AtomicU64::new(0),
            unfolded: Unfolded::default(),
            own: None,
            claimed: Claimed::default(),
            deciding: Vec::new(),
            mute: None,
        })
    }

    /// The members, at every position.
    pub fn members(&self) -> &Arc<Members> {
        self.roster.members()
    }

    /// The members after this prefix, and who of them is which device.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The hasher of the volume, and its root directory.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What was fetched.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// The device by its number, for a basis. Devices keep their numbers after they are removed.
    fn named(&self, entries: Vec<(u64, Device)>) -> Basis {
        let members = self.members();
        let named = entries.into_iter().filter_map(|(at, device)| {
            let key = members.key(device)?;
            Some((at, DeviceKey::from(key)))
        });
        Basis::new(named.collect())
    }

    /// Asks a question, and keeps what it needs on the shelf while something is missing.
    fn ask<T>(
        &self,
        question: Question,
        ask: impl FnOnce(&mut Replay) -> Result<T, Halt>,
    ) -> Result<T, Halt> {
        self.shelf.ask();
        let asked = ask(&mut self.known.get());
        let missing = match &asked {
            Err(Halt::Missing(missing)) => Some(missing),
            _ => None,
        };
        self.shelf.answered(question, missing);
        asked
    }

    fn sight<'a>(
        &'a self,
        replay: &'a mut Replay,
        device: Device,
        (at, members_at): (u64, u64),
        time: Time,
    ) -> Sight<'a> {
        Sight {
            replay,
            volume: &self.terms,
            members: self.members(),
            shelf: &self.shelf,
            at,
            members_at,
            device,
            time,
            about: Vec::new(),
        }
    }

    fn planned(
        &self,
        Stamped { time, call }: &Stamped,
        attempt: &Attempt<DeviceKey>,
    ) -> Result<(Plan, Basis), Halt> {
        if let Some(why) = &self.mute {
            return Err(Halt::Refused(why.clone()));
        }
        let device = self.roster.number(attempt.device);
        let device = device.ok_or(Refused::NotPermitted)?;
        let since = attempt.foldable;
        self.attested.fetch_max(since, Ordering::Relaxed);
        // An entry may fold only what its author's floor on disk has. The last entry says how far that is.
        let kept = self.attests.get(&device).copied().unwrap_or(0);
        let attempt = Try {
            failed: attempt.failed,
            foldable: match attempt.failed {
                0 => since,
                _ => since.min(kept),
            },
            lapsed: attempt.lapsed,
        };
        let question = question(&(0u8, call));
        // An edit of trees and a page of names begin anew each time. They wait for all that they miss, however often
        // others are supplied.
        if let Call::Fold(_) | Call::List { .. } = call
            && let Some(missing) = self.shelf.awaited(question)
        {
            return Err(Halt::Missing(missing));
        }
        self.ask(question, |replay| {
            let at = replay.size();
            let mut sight = self.sight(replay, device, (at, END), *time);
            let plan = match sight.plan(call, attempt) {
                Err(Halt::Refused(why)) => Plan::Says(Answer::Refused(why)),
                plan => plan?,
            };
            let (about, at) = (std::mem::take(&mut sight.about), sight.at);
            let basis = match plan {
                Plan::Says(_) => replay.rests_on(at, about, since, &*self.shelf)?,
                _ => Vec::new(),
            };
            Ok((plan, self.named(basis)))
        })
    }
}

/// Names a question among those that wait.
fn question(what: &impl Hash) -> Question {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl volume::Roll<Product> for Files {
    /// A device that cannot tell who is a member takes nobody's entry for a lie, and answers nothing.
    fn active(&self, device: DeviceKey) -> bool {
        self.mute.is_some() || self.roster.active(device)
    }

    fn admitted(&self, device: DeviceKey) -> u64 {
        match self.mute {
            Some(_) => 0,
            None => self.roster.admitted(device),
        }
    }

    /// A malformed outline or body has no ops, and its entry is valid (decision 0043): nothing here convicts an
    /// orderer.
    fn malformed(&self, _: &Entry) -> Option<&'static str> {
        None
    }

    fn lacks(&self, entry: &Entry) -> Option<&'static str> {
        lacks_decision(entry).then_some("an entry that decides about members came without its body")
    }

    fn is_weighty(&self, entry: &Entry) -> bool {
        let weighty = |outline: Outline| outline.decides() || outline.folds();
        // An outline that cannot be read has no effect, or silences this device.
        outline_of(entry).is_ok_and(weighty)
    }

    fn extend(&mut self, at: u64, entry: &Entry) {
        let Some(written) = self.roster.written(at, entry) else {
            return;
        };
        let outline = outline_of(entry).unwrap_or_else(|why| {
            if let Reject::Unsupported { .. } = why {
                self.mute = Some(why.into());
            }
            Default::default()
        });
        if self.roster.is_concerned(&written, &outline) {
            self.deciding.push(at);
        }
        self.roster.take(&written, entry, &outline);
        if let Some(position) = self.roster.lost() {
            let why = format!("the decision at position {position} cannot be read");
            self.mute.get_or_insert(Refused::Unsupported(why));
        }
        self.attests.insert(written.device, written.attests());
        let members = Arc::clone(self.members());
        self.unfolded.count(&written, &outline, &members);
        let replay = Arc::make_mut(&mut self.known).get_mut();
        if let Err(Stop::Full) = replay.push(&written, &outline, &members) {
            self.mute = Some(Refused::Full);
        }
        if self.is_own(written.device) {
            self.claimed.note(&outline);
        }
        let mut keys = outline.ops().iter().flatten();
        if keys.any(|key| matches!(key, Key::Fold(_))) {
            self.shelf.folded();
        }
        if let Some(body) = entry.body() {
            self.shelf.keep_unread(written.position, body.clone());
        }
    }
}

impl Volume<Product> for Files {
    type Call = Stamped;
    type Answer = Answer;
    type Basis = Basis;
    type Missing = Missing;
    type Block = Made;

    fn accepted(&self, device: DeviceKey) -> u64 {
        let number = self.roster.number(device);
        number.map_or(0, |number| self.members().accepted(number, END))
    }

    fn build(&self, call: &Stamped, attempt: &Attempt<DeviceKey>) -> Build<Product, Self> {
        match self.planned(call, attempt) {
            Ok((Plan::Says(answer), basis)) => Build::Says(answer, basis),
            Ok((Plan::Op(op, blocks), _)) => Build::Op(op, blocks),
            Ok((Plan::Blocked(last), _)) => Build::Blocked(last),
            Err(Halt::Locked(_, lock)) => Build::Blocked(lock.last),
            Err(Halt::Missing(missing)) => Build::Missing(missing),
            Err(Halt::Refused(why)) => Build::Says(Answer::Refused(why), Basis::default()),
        }
    }

    /// A lock is for its program.
    fn forsaken(&self, call: &Stamped) -> Option<Answer> {
        let is_hold = matches!(call.call, Call::Hold { .. });
        is_hold.then_some(Answer::Refused(Refused::Locked))
    }

    fn outcome(&self, at: u64, op: usize, call: &Stamped) -> Outcome<Product, Self> {
        self.became(at, op, call)
    }

    fn leftover(&self, device: DeviceKey, wanted: &[Op]) -> Leftover<Missing, Stamped> {
        match self.mute {
            Some(_) => Leftover::Nothing,
            None => self.unused(device, wanted),
        }
    }

    /// Another decision may have come between this one and the entry that made it count.
    fn settled(&self, at: u64, op: usize, answer: Answer) -> Answer {
        let why = self.roster.lapsed(at, op);
        why.map_or(answer, |why| Answer::Refused(why.into()))
    }

    fn contends(&self, op: &Op) -> bool {
        turn::only_claims(op)
    }

    fn has_room(&self, ops: &[Op], next: &Op) -> bool {
        room::has_room(ops, next)
    }

    fn silent(unattested: &Basis) -> Answer {
        let first = unattested.entries().first().copied();
        // The engine asks only when an entry is unattested.
        let (position, device) = first.unwrap_or((0, DeviceKey::from_bytes([0; 32])));
        Answer::Silent { position, device }
    }
}
