//! A replica behind a mirror: [`RemoteStore`] implements `store::Replica`.
//!
//! It connects at the first call, sends many requests over one connection at a time, and connects
//! again after a failure, with a growing pause. Callers keep their own deadlines by dropping their future;
//! a server that goes silent is noticed here. Memory is bounded by admission: a request waits until its
//! longest honest answer fits into [`RemoteOptions::max_held_bytes`].

mod collect;
mod failure;
mod link;
mod pushed;
mod records;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use store::{BlockStore, BoxFuture, Objects, Replica, StoreError};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use trust::frame::MAX_BLOCK_BYTES;
use trust::record::MAX_RECORD_BYTES;
use trust::statement::VolumeId;
use trust::{Frame, Handle, Record, Reject};

use crate::frame::MAX_ANSWER_BYTES;
use crate::mirror::{
    MAX_AROUND_BYTES, MAX_HANDLES, MAX_RANGE_BYTES, NO_OBJECT, NO_VOLUME, Request, check_path,
    head_name, put_get_data,
};
use crate::object::ObjectName;
use crate::refusal::{ErrorCode, Refusal};
use collect::{Answer, Ask};
use failure::Failure;
use link::{Link, Patience};
use pushed::PushedRecords;

/// Memory is reserved in units of so many bytes.
const UNIT_BYTES: usize = 16 << 10;
/// Most handles in one request if nothing is known of their lengths; more handles go into several requests at once.
const HANDLES_PER_REQUEST: usize = 64;
/// Most bytes of records that may come with a head; they take at most four times this in memory.
const MAX_PUSHED_BYTES: usize = 64 << 10;

/// How a [`RemoteStore`] behaves.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// Longest time to connect, all addresses of the name together.
    pub connect_timeout: Duration,
    /// Longest silence of the server while a request is outstanding.
    pub stall: Duration,
    /// Longest time for one request between two messages of its answer.
    pub progress: Duration,
    /// Time without use after which a connection is closed; the next call makes another.
    pub idle: Duration,
    /// Pause between two attempts to connect after the first failure; it doubles with each further one.
    pub first_pause: Duration,
    /// Longest pause between two attempts to connect.
    pub max_pause: Duration,
    /// Most bytes of all answers in flight together; at least 4 MiB.
    pub max_held_bytes: usize,
    /// Bytes of records that may come with the first head, because a new reader needs them next.
    /// A later head comes alone, because it is mostly the old one again.
    pub head_around_bytes: usize,
    /// Bytes of records that may come with a head when the reader names a path.
    pub way_around_bytes: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions {
            connect_timeout: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            progress: Duration::from_secs(60),
            idle: Duration::from_secs(120),
            first_pause: Duration::from_millis(50),
            // A caller may wait for the end of an outage.
            max_pause: Duration::from_millis(500),
            max_held_bytes: 256 << 20,
            head_around_bytes: 8 << 10,
            way_around_bytes: MAX_PUSHED_BYTES,
        }
    }
}

/// A volume on a server that speaks the bulla protocol.
pub struct RemoteStore {
    place: String,
    address: String,
    volume: VolumeId,
    options: RemoteOptions,
    /// In units of [`UNIT_BYTES`].
    admission: Semaphore,
    units: usize,
    state: Mutex<State>,
    pushed: PushedRecords,
    /// The head that came last: the caller knows its tree.
    head: Mutex<Option<Bytes>>,
    /// The current attempt to connect; it goes on when the caller that began it is gone.
    dial: tokio::sync::Mutex<Option<JoinHandle<Result<Link, String>>>>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    failures: u32,
    /// No attempt before this time, and why.
    pause: Option<(Instant, Failure)>,
}

impl RemoteStore {
    /// The volume at `address` (`host:port`). Sends nothing before the first call.
    pub fn new(address: &str, volume: VolumeId, options: RemoteOptions) -> RemoteStore {
        let held_bytes = options.max_held_bytes.max(MAX_ANSWER_BYTES);
        let units = (held_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        RemoteStore {
            place: format!("bulla://{address}"),
            address: address.to_owned(),
            volume,
            options,
            admission: Semaphore::new(units),
            units,
            state: Mutex::new(State::default()),
            pushed: PushedRecords::default(),
            head: Mutex::default(),
            dial: tokio::sync::Mutex::new(None),
        }
    }

    /// A part of an immutable object of the repository; shorter at the object's end, `None` when the
    /// repository does not have the object.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]. Returns at most 4 MiB.
    pub async fn range(
        &self,
        object: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let len_bytes = len_bytes.min(MAX_RANGE_BYTES);
        let request = Request::Range {
            volume: self.volume,
            object,
            offset,
            len_bytes,
        };
        let ask = Ask::Range { len_bytes };
        match self
            .call(len_bytes, ask, |id, out| request.put(id, out))
            .await
        {
            Ok(Answer::Bytes(bytes)) => Ok(Some(bytes)),
            Ok(Answer::Records(_) | Answer::Head(..) | Answer::Unchanged) => Ok(None),
            Err(Failure::Refused(Refusal {
                code: NO_OBJECT, ..
            })) => Ok(None),
            Err(failure) => Err(self.error(failure)),
        }
    }

    async fn get_some(
        &self,
        want: &[Handle],
        around_bytes: usize,
        most_bytes: Option<usize>,
    ) -> Result<Vec<Record>, StoreError> {
        let around_bytes = around_bytes.min(MAX_AROUND_BYTES);
        let longest_bytes = want.len().saturating_mul(MAX_RECORD_BYTES);
        let records_bytes = want
            .len()
            .saturating_mul(MAX_RECORD_BYTES - MAX_BLOCK_BYTES);
        let expected_bytes = most_bytes.map(|most| records_bytes.saturating_add(most));
        let mut reserved_bytes =
            expected_bytes.map_or(longest_bytes, |most| most.min(longest_bytes));
        let put = |id, out: &mut BytesMut| put_get_data(out, id, &self.volume, around_bytes, want);
        loop {
            let ask = Ask::Data {
                want: want.to_vec(),
                around_bytes,
                reserved_bytes: reserved_bytes.saturating_add(around_bytes),
            };
            let held_bytes = reserved_bytes.saturating_add(around_bytes);
            return match self.call(held_bytes, ask, put).await {
                Ok(Answer::Records(records)) => Ok(records),
                Ok(Answer::Bytes(_) | Answer::Head(..) | Answer::Unchanged) => Ok(Vec::new()),
                // What the caller believes of a block may be wrong, so this proves nothing against the server.
                Err(Failure::Longer) if reserved_bytes < longest_bytes => {
                    reserved_bytes = longest_bytes;
                    continue;
                }
                Err(failure) => Err(self.error(failure)),
            };
        }
    }

    /// One request and its answer; tries once more on a new connection if an old one was closed.
    async fn call(
        &self,
        held_bytes: usize,
        ask: Ask,
        put: impl Fn(u32, &mut BytesMut),
    ) -> Result<Answer, Failure> {
        let units = held_bytes.div_ceil(UNIT_BYTES).clamp(1, self.units) as u32;
        let _admitted = self
            .admission
            .acquire_many(units)
            .await
            .map_err(|_| Failure::Closed("closed".into()))?;
        let (link, fresh) = self.link().await?;
        match link.call(ask.clone(), &put).await {
            Err(Failure::Closed(_)) if !fresh => {}
            answer => return answer,
        }
        drop(link);
        let (link, _) = self.link().await?;
        link.call(ask, &put).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current connection, or a new one; also returns whether it is new.
    async fn link(&self) -> Result<(Arc<Link>, bool), Failure> {
        if let Some(link) = self.living() {
            return Ok((link, false));
        }
        let mut dial = self.dial.lock().await;
        if let Some(link) = self.living() {
            return Ok((link, false));
        }
        if dial.is_none() {
            if let Some(failure) = self.paused() {
                return Err(failure);
            }
            let attempt = connect(self.address.clone(), self.options.clone());
            *dial = Some(tokio::spawn(attempt));
        }
        let Some(attempt) = dial.as_mut() else {
            return Err(Failure::Closed("no attempt to connect".into()));
        };
        let made = attempt.await;
        *dial = None;
        let mut state = self.state();
        match made {
            Ok(Ok(link)) => {
                tracing::debug!(place = %self.place, "connected");
                let link = Arc::new(link);
                state.link = Some(Arc::clone(&link));
                Ok((link, true))
            }
            Ok(Err(why)) => {
                let failure = Failure::Stalled(why);
                self.pause(&mut state, failure.clone());
                Err(failure)
            }
            Err(e) => Err(Failure::Closed(e.to_string())),
        }
    }

    /// The connection, if it is alive. Drops a dead one; how it ended decides whether the next
    /// attempt waits: not after a server that answered and closed, but after one that stalled, sent
    /// a bad answer or never answered.
    fn living(&self) -> Option<Arc<Link>> {
        let mut state = self.state();
        let link = state.link.as_ref()?;
        let Some(failure) = link.dead() else {
            return Some(Arc::clone(link));
        };
        let good = link.has_answered();
        state.link = None;
        match failure {
            Failure::Closed(_) if good => {
                state.failures = 0;
                state.pause = None;
            }
            failure => {
                if good {
                    state.failures = 0;
                }
                self.pause(&mut state, failure);
            }
        }
        None
    }

    /// Why no attempt is made yet.
    fn paused(&self) -> Option<Failure> {
        let state = self.state();
        let (until, failure) = state.pause.as_ref()?;
        let left = until.checked_duration_since(Instant::now())?;
        if failure.is_unsupported() {
            return Some(failure.clone());
        }
        let why = match failure {
            Failure::Closed(why) | Failure::Stalled(why) => why.clone(),
            failure => self.error(failure.clone()).to_string(),
        };
        let text = format!("{why}; next attempt in {:.1} s", left.as_secs_f32());
        Some(Failure::Stalled(text))
    }

    fn pause(&self, state: &mut State, failure: Failure) {
        let pause = (self.options.first_pause)
            .saturating_mul(1 << state.failures.min(16))
            .min(self.options.max_pause);
        state.failures = state.failures.saturating_add(1);
        tracing::debug!(place = %self.place, ?failure, pause_ms = pause.as_millis() as u64, "will connect again");
        state.pause = Some((Instant::now() + pause, failure));
    }

    fn error(&self, failure: Failure) -> StoreError {
        let place = self.place.clone();
        match failure {
            Failure::Closed(cause) | Failure::Stalled(cause) => {
                StoreError::Unavailable { place, cause }
            }
            Failure::Longer => StoreError::Unusable {
                place,
                cause: "its answer is longer than expected".to_owned(),
            },
            // Another service at a mistyped port is not an attack.
            Failure::Bad(Reject::Malformed { what: "hello", .. }) => StoreError::Unusable {
                place,
                cause: "it does not speak bulla; write http:// for the HTTP port of a mirror"
                    .to_owned(),
            },
            // A server of a later bulla is not an attack either.
            Failure::Bad(Reject::Unsupported { why, .. }) => StoreError::Unsupported { place, why },
            Failure::Bad(why) => StoreError::BadAnswer { place, why },
            Failure::Refused(refusal) => match refusal.code {
                NO_VOLUME => StoreError::NoVolume { place },
                ErrorCode::UNSUPPORTED => StoreError::Unsupported {
                    place,
                    why: format!("the server says: {}", refusal.text),
                },
                _ => StoreError::Unavailable {
                    place,
                    cause: format!("the server says: {}", refusal.text),
                },
            },
        }
    }
}

impl BlockStore for RemoteStore {
    fn place(&self) -> &str {
        &self.place
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            // An honest answer has each record once, so a handle must not be requested twice.
            let mut seen = HashSet::new();
            let unique: Vec<Handle>;
            let want = if want.len() > 1 {
                unique = want.iter().copied().filter(|h| seen.insert(*h)).collect();
                unique.as_slice()
            } else {
                want
            };
            self.get_new(want, around, None).await
        })
    }

    fn get_within<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
        most_bytes: u64,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let mut seen = HashSet::new();
            let unique: Vec<Handle> = want.iter().copied().filter(|h| seen.insert(*h)).collect();
            self.get_new(&unique, around, usize::try_from(most_bytes).ok())
                .await
        })
    }

    fn heard(&self) -> Option<Instant> {
        let state = self.state();
        state.link.as_ref().and_then(|link| link.heard())
    }

    /// A block that came with the head. Given only once: a caller that finds it wrong asks the network.
    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        self.pushed.take(handle)
    }
}

impl RemoteStore {
    /// Blocks that came with the head, and others; `want` has no handle twice.
    async fn get_new(
        &self,
        want: &[Handle],
        around: usize,
        most_bytes: Option<usize>,
    ) -> Result<Vec<Record>, StoreError> {
        if want.is_empty() {
            return Ok(Vec::new());
        }
        let (mut given, left) = self.pushed.take_many(want);
        if given.is_empty() {
            return self.get_parts(want, around, most_bytes).await;
        }
        if !left.is_empty() {
            let pushed: HashSet<Handle> = given.iter().map(|r| r.handle).collect();
            let asked = self.get_parts(&left, around, most_bytes).await?;
            // A neighbour of a block that was asked for may be one that came with the head.
            given.extend(asked.into_iter().filter(|r| !pushed.contains(&r.handle)));
        }
        Ok(given)
    }

    /// Asks the server in one or more requests; `want` has no handle twice.
    async fn get_parts(
        &self,
        want: &[Handle],
        around: usize,
        most_bytes: Option<usize>,
    ) -> Result<Vec<Record>, StoreError> {
        // Of blocks of unknown length few are asked for together, because much memory is reserved for each.
        let few = match most_bytes {
            Some(_) => MAX_HANDLES,
            None => HANDLES_PER_REQUEST,
        };
        if want.len() <= few {
            return self.get_some(want, around, most_bytes).await;
        }
        // Only the first request gets read-around; the neighbours of the others are wanted anyway.
        let parts = want.chunks(few).enumerate();
        let parts = parts.map(|(i, part)| {
            let around = if i == 0 { around } else { 0 };
            self.get_some(part, around, most_bytes)
        });
        let answers = try_join_all(parts).await?;
        // Wanted records first. A neighbour of the first part may be wanted by another part.
        let mut missing: HashSet<Handle> = want.iter().copied().collect();
        let (mut records, rest): (Vec<Record>, Vec<Record>) = answers
            .into_iter()
            .flatten()
            .partition(|r| missing.remove(&r.handle));
        let came: HashSet<Handle> = records.iter().map(|r| r.handle).collect();
        records.extend(rest.into_iter().filter(|r| !came.contains(&r.handle)));
        Ok(records)
    }
}

impl Replica for RemoteStore {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        let around_bytes = match self.known_head() {
            Some(_) => 0,
            None => self.options.head_around_bytes.min(MAX_PUSHED_BYTES),
        };
        self.head_and(around_bytes, Vec::new())
    }

    fn head_toward<'a>(&'a self, path: &'a [u8]) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        // The path is only a hint, so one that the protocol cannot carry is left out.
        if path.is_empty() || check_path(path).is_err() {
            return self.head();
        }
        let around_bytes = self.options.way_around_bytes.min(MAX_PUSHED_BYTES);
        self.head_and(around_bytes, path.to_vec())
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }
}

impl RemoteStore {
    fn known_head(&self) -> Option<Bytes> {
        let head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        head.clone()
    }

    /// Asks for the head, if it is another one than the one that came last, and for up to `around_bytes` of records that it leads to.
    fn head_and(
        &self,
        around_bytes: usize,
        toward: Vec<u8>,
    ) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async move {
            // A caller that names a path wants the records on the way, whatever head it has.
            let known = self.known_head().filter(|_| toward.is_empty());
            let request = Request::Head {
                volume: self.volume,
                around_bytes,
                known: known.as_deref().map(head_name),
                toward,
            };
            let held_bytes = MAX_ANSWER_BYTES + around_bytes;
            let knows = known.is_some();
            let ask = Ask::Head {
                around_bytes,
                knows,
            };
            match self
                .call(held_bytes, ask, |id, out| request.put(id, out))
                .await
            {
                Ok(Answer::Head(head, records)) => {
                    let mut last = self.head.lock().unwrap_or_else(PoisonError::into_inner);
                    *last = Some(head.clone());
                    self.pushed.replace(records);
                    Ok(head)
                }
                Ok(Answer::Unchanged) => Ok(known.unwrap_or_default()),
                Ok(Answer::Bytes(_) | Answer::Records(_)) => Ok(Bytes::new()),
                Err(failure) => Err(self.error(failure)),
            }
        })
    }
}

impl Objects for RemoteStore {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(RemoteStore::range(self, name, offset, len_bytes))
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        if let Some(attempt) = self.dial.get_mut() {
            attempt.abort();
        }
    }
}

async fn connect(address: String, options: RemoteOptions) -> Result<Link, String> {
    let attempt = async {
        let addresses: Vec<_> = tokio::net::lookup_host(&address)
            .await
            .map_err(|e| format!("cannot look up {address}: {e}"))?
            .collect();
        // Each address gets a share of the time, so that a dead one does not hide a good one.
        let share = options.connect_timeout / addresses.len().max(1) as u32;
        let mut why = format!("{address} has no address");
        for one in addresses {
            match tokio::time::timeout(share, TcpStream::connect(one)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(e)) => why = format!("cannot connect to {one}: {e}"),
                Err(_) => why = format!("cannot connect to {one}: no answer"),
            }
        }
        Err(why)
    };
    let stream = tokio::time::timeout(options.connect_timeout, attempt)
        .await
        .map_err(|_| format!("cannot connect to {address}: no answer"))??;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let patience = Patience {
        stall: options.stall,
        progress: options.progress,
        idle: options.idle,
    };
    Ok(Link::start(stream, patience))
}
