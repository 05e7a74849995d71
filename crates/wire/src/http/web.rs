//! One GET, judged and bounded: all bytes from web servers come through here.
//!
//! Bounds the number of requests in flight and the bytes of their answers. Retries when that is
//! known to help: after a connection that had been closed, or when a server is busy for a moment.
//! Makes no request for a while to a server that does not answer. Relies on reqwest for connections
//! (HTTP/1.1 kept alive, HTTP/2 if TLS offers it, proxies from the environment) and on
//! [`super::answer`] for the verdict on an answer.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT_ENCODING, CACHE_CONTROL, HeaderMap, HeaderValue, RANGE};
use reqwest::{Client, Response, Url};
use tokio::sync::{AcquireError, OnceCell, Semaphore, SemaphorePermit};
use trust::Reject;

use super::answer::{Asked, More, NOT_A_REPOSITORY, Take, Verdict, bad, boundary, is_html, judge};
use super::parts::{self, Part};
use super::proxy::Proxies;
use super::resolve::Resolver;
use super::{HttpOptions, redirect, tls};

/// Unit of admission, bytes.
const UNIT_BYTES: u64 = 64 << 10;
/// Most memory that is allocated before any byte has come.
const MAX_RESERVE_BYTES: u64 = 4 << 20;
/// Slowest server that the reader waits for, over all requests under way.
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;
/// Pieces of the index under way at first. They are longer than other answers, and a slow line must not be full of them.
const FIRST_PIECES: usize = 4;
/// When a piece takes less than this, one more may be under way.
const FAST_PIECE: Duration = Duration::from_secs(1);
/// Pauses between the attempts at one request, if the server names none.
const BUSY_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// Longest wait inside a request; when the server asks for more, the request fails at once.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Longest pause that the server has not asked for. A caller may wait for the end of an outage.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// Unreachable, broken off, or busy.
    Down(String),
    /// Not a repository, or one that cannot be read over the web.
    Unusable(String),
    /// The server refuses access.
    Refused(String),
    /// There is no head.
    NoHead,
    /// No honest server gives this answer.
    Bad(Reject),
    /// A file that the server's own head or index names does not exist, or is too short.
    Gone(String),
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Got {
    /// Bytes, and the headers that came with them.
    Body(Bytes, HeaderMap),
    /// Not modified: the known version is current.
    NotModified,
    /// There is no such file.
    Missing,
    /// The file ends before the part begins.
    PastEnd,
    /// The server does not send several parts in one answer.
    NoParts,
}

/// Counters, for metrics and tests.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent.
    pub requests: AtomicU64,
    /// Sets of requests that were sent together; each set waits for the one before.
    pub waves: AtomicU64,
    /// Bytes of bodies received.
    pub received_bytes: AtomicU64,
}

/// A client for one place.
pub(super) struct Web {
    client: Client,
    proxies: Proxies,
    slots: Semaphore,
    piece_slots: Semaphore,
    /// How many permits `piece_slots` can still be given.
    piece_growth: AtomicUsize,
    admission: Semaphore,
    /// Whether the server sends several parts in one answer, once that was tried.
    sends_parts: OnceCell<AtomicBool>,
    /// Bytes of the answers under way, at most.
    flight_bytes: AtomicU64,
    units: u32,
    grace: Duration,
    stall: Duration,
    began: Instant,
    /// When bytes came last, on any connection: milliseconds since `began`.
    heard_ms: AtomicU64,
    first_pause: Duration,
    pause: Mutex<Pause>,
    pub(super) counters: Counters,
}

/// Leave to send one request.
pub(super) type Slot<'a> = SemaphorePermit<'a>;

#[derive(Default)]
struct Pause {
    failures: u32,
    until: Option<(Instant, String)>,
}

impl Web {
    /// A client for the repository at `url`.
    pub(super) fn new(options: &HttpOptions, url: &Url) -> Result<Web, String> {
        let mut always = HeaderMap::new();
        always.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let proxies = Proxies::of_environment();
        let client = proxies
            .give(Client::builder())
            .tls_backend_preconfigured(tls::client(&options.tls)?)
            .redirect(redirect::policy())
            .dns_resolver(Resolver::new(url, &proxies))
            .referer(false)
            .user_agent(concat!("bulla/", env!("CARGO_PKG_VERSION")))
            .default_headers(always)
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(options.idle)
            .pool_max_idle_per_host(options.max_in_flight)
            .http2_initial_stream_window_size(2 << 20)
            .http2_initial_connection_window_size(8 << 20)
            .build()
            .map_err(|e| describe(&e))?;
        let units = (options.max_held_bytes as u64 / UNIT_BYTES).clamp(64, 1 << 20) as u32;
        Ok(Web {
            client,
            proxies,
            slots: Semaphore::new(options.max_in_flight.max(1)),
            piece_slots: Semaphore::new(FIRST_PIECES),
            piece_growth: AtomicUsize::new(options.max_in_flight.saturating_sub(FIRST_PIECES)),
            sends_parts: OnceCell::new(),
            flight_bytes: AtomicU64::new(0),
            admission: Semaphore::new(units as usize),
            units,
            grace: options.grace,
            stall: options.stall,
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            first_pause: options.first_pause,
            pause: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// Counts a set of requests that are sent together.
    pub(super) fn begin_wave(&self) {
        self.counters.waves.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until one more request may be sent.
    pub(super) async fn slot(&self) -> Result<Slot<'_>, Fault> {
        self.slots.acquire().await.map_err(closed)
    }

    /// A part of a file; shorter at its end.
    pub(super) async fn range(&self, url: &Url, offset: u64, len_bytes: u64) -> Result<Got, Fault> {
        let slot = self.slot().await?;
        self.range_in(slot, url, (offset, len_bytes)).await
    }

    /// The same, for who has waited already: from an offset on, so many bytes.
    pub(super) async fn range_in(
        &self,
        slot: Slot<'_>,
        url: &Url,
        (offset, len_bytes): (u64, u64),
    ) -> Result<Got, Fault> {
        let Some(last) = offset
            .checked_add(len_bytes)
            .and_then(|end| end.checked_sub(1))
        else {
            return Ok(Got::PastEnd);
        };
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("bytes={offset}-{last}"));
        headers.insert(
            RANGE,
            value.map_err(|_| Fault::Bad(bad("impossible range")))?,
        );
        let asked = Asked::Range { offset, len_bytes };
        self.get(slot, url, headers, asked).await
    }

    /// Several parts of a file in one answer; `None` when the server does not send them so.
    pub(super) async fn parts_in(
        &self,
        slot: Slot<'_>,
        url: &Url,
        parts: &[Part],
    ) -> Result<Option<Vec<Bytes>>, Fault> {
        let impossible = || Fault::Bad(bad("impossible range"));
        let value = parts::range_header(parts).ok_or_else(impossible)?;
        let value = HeaderValue::from_str(&value).map_err(|_| impossible())?;
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, value);
        let max_bytes = parts::most_bytes(parts);
        let asked = Asked::Parts { max_bytes };
        match self.get(slot, url, headers, asked).await? {
            Got::Body(body, headers) => {
                let boundary = boundary(&headers);
                Ok(boundary.and_then(|boundary| parts::split(&body, boundary, parts)))
            }
            Got::NoParts => Ok(None),
            Got::PastEnd => Err(Fault::Gone(format!("{} is cut short", url.path()))),
            Got::Missing | Got::NotModified => {
                Err(Fault::Gone(format!("{} is not there", url.path())))
            }
        }
    }

    /// Whether the server sends several parts in one answer. Asks it once, for some bytes of the file at `url`.
    pub(super) async fn sends_parts(&self, url: &Url) -> bool {
        let probe = || async {
            let part = |offset| Part {
                offset,
                len_bytes: 1,
            };
            let slot = self.slot().await?;
            match self.parts_in(slot, url, &[part(0), part(2)]).await {
                Err(gone @ Fault::Gone(_)) => Err(gone),
                got => Ok(AtomicBool::new(matches!(got, Ok(Some(_))))),
            }
        };
        let known = self.sends_parts.get_or_try_init(probe).await;
        known.is_ok_and(|sends| sends.load(Ordering::Relaxed))
    }

    /// Whether it is known that the server sends several parts in one answer.
    pub(super) fn is_known_to_send_parts(&self) -> bool {
        let known = self.sends_parts.get();
        known.is_some_and(|sends| sends.load(Ordering::Relaxed))
    }

    /// The server has sent others than were asked for.
    pub(super) fn parts_failed(&self) {
        if let Some(sends) = self.sends_parts.get() {
            sends.store(false, Ordering::Relaxed);
        }
    }

    /// Reads a long part of an index in its turn. Few are under way at a time, and more where they come quickly.
    pub(super) async fn in_turn<T>(
        &self,
        read: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let _piece_slot = self.piece_slots.acquire().await.map_err(closed)?;
        let began = Instant::now();
        let got = read.await?;
        let less = |growth: usize| growth.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if began.elapsed() < FAST_PIECE && self.piece_growth.fetch_update(set, fetch, less).is_ok()
        {
            self.piece_slots.add_permits(1);
        }
        Ok(got)
    }

    /// A whole file, not from a cache; `conditions` say which version is known.
    pub(super) async fn newest(
        &self,
        url: &Url,
        mut conditions: HeaderMap,
        max_bytes: u64,
    ) -> Result<Got, Fault> {
        let known = !conditions.is_empty();
        conditions.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let (slot, asked) = (self.slot().await?, Asked::Whole { max_bytes, known });
        self.get(slot, url, conditions, asked).await
    }

    async fn get(
        &self,
        _slot: Slot<'_>,
        url: &Url,
        headers: HeaderMap,
        asked: Asked,
    ) -> Result<Got, Fault> {
        let most_bytes = match asked {
            Asked::Whole { max_bytes, .. } => max_bytes,
            Asked::Range { len_bytes, .. } => len_bytes,
            Asked::Parts { max_bytes } => max_bytes,
        };
        let units = most_bytes
            .div_ceil(UNIT_BYTES)
            .clamp(1, u64::from(self.units)) as u32;
        // Who has room has a slot too, so nobody with room waits for one.
        let _room = self.admission.acquire_many(units).await.map_err(closed)?;
        self.check_pause()?;
        self.proxies.check(url).map_err(Fault::Down)?;
        // All answers under way share the line.
        let flight = Flight::begin(&self.flight_bytes, most_bytes);
        let budget = self.grace + Duration::from_secs(flight.total_bytes / MIN_BYTES_PER_SECOND);
        let mut pauses = BUSY_PAUSES.iter();
        loop {
            // After the last attempt the request is lost, so that one has all its time.
            let patience = match pauses.len() {
                0 => Duration::MAX,
                _ => self.stall.saturating_add(self.stall / 2),
            };
            let attempt = self.attempt(url, headers.clone(), (asked, patience));
            let failure = match tokio::time::timeout(budget, attempt).await {
                Ok(Ok(got)) => {
                    self.pause().failures = 0;
                    return Ok(got);
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Silent("it is too slow".to_owned()),
            };
            match (failure.through(&self.proxies, url), pauses.next()) {
                (Failure::Final(fault), _) => return Err(fault),
                (Failure::Silent(why), _) => return Err(self.leave_alone(why, None)),
                (Failure::Broken(_), Some(_)) => {}
                (Failure::Broken(why), None) => return Err(self.leave_alone(why, None)),
                (Failure::Busy(why, after), pause) => match pause {
                    Some(pause) if after.unwrap_or(*pause) <= MAX_WAIT => {
                        tokio::time::sleep(after.unwrap_or(*pause)).await;
                    }
                    _ => return Err(self.leave_alone(why, after)),
                },
            }
        }
    }

    async fn attempt(
        &self,
        url: &Url,
        headers: HeaderMap,
        (asked, patience): (Asked, Duration),
    ) -> Result<Got, Failure> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let request = self.client.get(url.clone()).headers(headers);
        let response = self.unless_silent(request.send(), patience).await?;
        match judge(asked, response.status(), response.headers()) {
            Verdict::Body(take) => self.body(response, take, patience).await,
            Verdict::NotModified => Ok(Got::NotModified),
            Verdict::Missing => Ok(Got::Missing),
            Verdict::PastEnd => Ok(Got::PastEnd),
            Verdict::NoParts => Ok(Got::NoParts),
            Verdict::Busy(status, after) => {
                Err(Failure::Busy(format!("it answers {status}"), after))
            }
            Verdict::Unusable(why) => Err(Failure::Final(Fault::Unusable(why))),
            Verdict::Refused(why) => Err(Failure::Final(Fault::Refused(why))),
            Verdict::Bad(_) if is_html(response.headers()) => {
                Err(Failure::Final(Fault::Unusable(NOT_A_REPOSITORY.to_owned())))
            }
            Verdict::Bad(why) => Err(Failure::Final(Fault::Bad(bad(why)))),
        }
    }

    /// Reads a body up to its bound. Copies it, because the connection's buffer is shared by many
    /// answers.
    async fn body(
        &self,
        mut response: Response,
        take: Take,
        patience: Duration,
    ) -> Result<Got, Failure> {
        let headers = std::mem::take(response.headers_mut());
        let mut skip = take.skip_bytes;
        let mut left = take.take_bytes;
        // The admitted length is allocated at once; otherwise memory grows as bytes come.
        let announced = if take.exact {
            left.min(MAX_RESERVE_BYTES)
        } else {
            0
        };
        let mut all = BytesMut::with_capacity(announced as usize);
        while let Some(chunk) = self.unless_silent(response.chunk(), patience).await? {
            let len = chunk.len() as u64;
            self.counters
                .received_bytes
                .fetch_add(len, Ordering::Relaxed);
            let skipped = skip.min(len);
            skip -= skipped;
            let here = (len - skipped).min(left);
            if here < len - skipped && take.more == More::Refuse {
                return Err(Failure::Final(Fault::Bad(bad("more bytes than may come"))));
            }
            let end = skipped.saturating_add(here) as usize;
            all.extend_from_slice(chunk.get(skipped as usize..end).unwrap_or_default());
            left -= here;
            if left == 0 && take.more == More::Leave {
                break;
            }
        }
        if take.exact && left > 0 {
            return Err(Failure::Broken("it broke off in the middle".to_owned()));
        }
        if all.capacity() / 2 > all.len() {
            return Ok(Got::Body(Bytes::copy_from_slice(&all), headers));
        }
        Ok(Got::Body(all.freeze(), headers))
    }

    /// Waits until the server has been silent for too long, or this connection for longer than `patience` while others are
    /// served: over a narrow line that loses packets one of many waits for very long, and another one is quicker.
    async fn unless_silent<T>(
        &self,
        answer: impl Future<Output = Result<T, reqwest::Error>>,
        patience: Duration,
    ) -> Result<T, Failure> {
        let mut answer = std::pin::pin!(answer);
        let (mut wait, asked) = (self.stall, Instant::now());
        loop {
            if let Ok(answer) = tokio::time::timeout(wait, &mut answer).await {
                let now_ms = self.began.elapsed().as_millis() as u64;
                self.heard_ms.fetch_max(now_ms, Ordering::Relaxed);
                return answer.map_err(Failure::from);
            }
            let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
            let silent = self.began.elapsed().saturating_sub(heard);
            wait = self.stall.saturating_sub(silent);
            if wait.is_zero() {
                return Err(Failure::Silent("it has gone silent".to_owned()));
            }
            let left = patience.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Err(Failure::Broken("a connection has gone silent".to_owned()));
            }
            wait = wait.min(left);
        }
    }

    /// When bytes came last, on any connection.
    pub(super) fn heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    fn pause(&self) -> MutexGuard<'_, Pause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_pause(&self) -> Result<(), Fault> {
        let pause = self.pause();
        let Some((until, why)) = &pause.until else {
            return Ok(());
        };
        match until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Err(Fault::Down(format!(
                "{why}; next attempt in {:.1} s",
                left.as_secs_f32()
            ))),
            _ => Ok(()),
        }
    }

    /// Makes no request to this server for a while, and remembers why.
    fn leave_alone(&self, why: String, after: Option<Duration>) -> Fault {
        let mut pause = self.pause();
        let now = Instant::now();
        // Only the first of the requests that fail together counts.
        if pause.until.as_ref().is_none_or(|(until, _)| *until <= now) {
            let doubled = (self.first_pause).saturating_mul(1 << pause.failures.min(16));
            let longest = MAX_PAUSE.max(self.first_pause);
            let length = after.unwrap_or(doubled.min(longest));
            pause.failures = pause.failures.saturating_add(1);
            pause.until = Some((now + length, why.clone()));
        }
        Fault::Down(why)
    }
}

fn closed(_: AcquireError) -> Fault {
    Fault::Down("closed".to_owned())
}

/// A request under way.
struct Flight<'a> {
    all_bytes: &'a AtomicU64,
    len_bytes: u64,
    /// Bytes under way when it began, its own among them.
    total_bytes: u64,
}

impl<'a> Flight<'a> {
    fn begin(all_bytes: &'a AtomicU64, len_bytes: u64) -> Flight<'a> {
        let before = all_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Flight {
            all_bytes,
            len_bytes,
            total_bytes: before.saturating_add(len_bytes),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

/// How an attempt failed.
enum Failure {
    /// Another attempt would not help.
    Final(Fault),
    /// The connection broke: an old one may have been closed just then.
    Broken(String),
    /// The server is silent.
    Silent(String),
    /// The server asks to try later.
    Busy(String, Option<Duration>),
}

impl Failure {
    /// The same, with the name of the proxy that the request went through.
    fn through(self, proxies: &Proxies, url: &Url) -> Failure {
        let blame = |why| proxies.blame(url, why);
        match self {
            Failure::Final(Fault::Down(why)) => Failure::Final(Fault::Down(blame(why))),
            Failure::Final(Fault::Refused(why)) => Failure::Final(Fault::Refused(blame(why))),
            Failure::Broken(why) => Failure::Broken(blame(why)),
            Failure::Silent(why) => Failure::Silent(blame(why)),
            Failure::Busy(why, after) => Failure::Busy(blame(why), after),
            Failure::Final(_) => self,
        }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Failure {
        let why = describe(&error);
        if error.is_redirect() || error.is_builder() || is_distrusted(&error) {
            Failure::Final(Fault::Unusable(why))
        } else if error.is_timeout() || error.is_connect() {
            Failure::Silent(why)
        } else {
            Failure::Broken(why)
        }
    }
}

/// The message of an error: the innermost cause, and what to do about a certificate.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(inner) = source(innermost) {
        innermost = inner;
    }
    let text = innermost.to_string();
    if is_distrusted(error) {
        format!(
            "no trusted authority vouches for its certificate ({text}): name its authority, or \
             accept any certificate (the volume id proves what is read)"
        )
    } else if error.is_redirect() {
        text
    } else if error.is_timeout() {
        let when = if error.is_connect() {
            "cannot connect: no answer"
        } else {
            "it has gone silent"
        };
        when.to_owned()
    } else if error.is_connect() {
        format!("cannot connect: {text}")
    } else {
        format!("the connection broke: {text}")
    }
}

/// Whether no authority that is trusted vouches for the server's certificate.
fn is_distrusted(error: &reqwest::Error) -> bool {
    let causes = std::iter::successors(source(error), |cause| source(*cause));
    let mut causes = causes.filter_map(|cause| cause.downcast_ref::<rustls::Error>());
    causes.any(tls::nobody_vouches)
}

/// The next cause; `io::Error` hides the error that it wraps.
fn source<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a (dyn std::error::Error + 'static)> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as _),
        None => error.source(),
    }
}
