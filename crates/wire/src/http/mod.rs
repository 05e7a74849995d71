//! A repository behind any web server: [`HttpStore`] implements `store::Replica`.
//!
//! The server knows nothing of bulla: it answers GET with ranges, for files that never change and
//! for the head, which does (docs/formats/repository.md says what it must do). So the reader does
//! the work of a mirror: it looks handles up in the index, gathers neighbours into few ranges, and
//! reads some records behind the first one. A look-up costs one round of requests for index pages
//! and one for records; the first round is saved when the pages are already in memory.
//!
//! Nothing that arrives is trusted; the caller verifies the hash. The costs that a server can cause are
//! bounded: memory ([`HttpOptions::max_held_bytes`], `index`), time, redirects (`redirect`).
//!
//! | module | what it holds |
//! |---|---|
//! | `address` | the URL of a repository |
//! | [`answer`] | the meaning of status and headers |
//! | [`content_range`] | the header that says which part of a file an answer is |
//! | [`parts`] | several parts of a file in one answer |
//! | `web` | one GET, judged and bounded |
//! | `proxy` | which proxy of the environment a request goes through |
//! | `redirect`, `tls` | which redirects to follow, which certificates to accept |
//! | `index`, `run` | head, tables and pages of the index |
//! | `read` | handles to records |
//! | `shared` | ranges that wait for a request, and share it |
//! | [`witness`] | requests for cosignatures |

mod address;
pub mod answer;
pub mod content_range;
mod index;
pub mod parts;
mod proxy;
mod read;
mod redirect;
mod resolve;
mod run;
mod shared;
mod tls;
mod web;
pub mod witness;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quick_cache::sync::Cache;
use reqwest::header::{
    DATE, ETAG, HeaderMap, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use store::head::{Head, MAX_HEAD_BYTES};
use store::names::HEAD_FILE;
use store::object::ObjectName;
use store::{BlockStore, BoxFuture, MAX_RANGE_BYTES, Objects, Replica, StoreError};
use trust::statement::VolumeId;
use trust::{Handle, Record, Reject};

pub use address::HttpAddress;
pub use tls::Tls;
pub use web::Counters;

use answer::{NOT_A_REPOSITORY, header, is_html, looks_like_html};
use index::View;
use run::{PageWeight, Pages};
use shared::Waiting;
use web::{Fault, Got, Web};

/// Longest ETag or date that is kept, bytes.
const MAX_VALIDATOR_BYTES: usize = 256;
/// A file that changed less than this before it was sent may have changed again within the same
/// second (RFC 9110, 8.8.2.2).
const SETTLED: Duration = Duration::from_secs(2);

/// How an [`HttpStore`] behaves.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Which certificates of an https server are accepted.
    pub tls: Tls,
    /// Longest time to connect.
    pub connect_timeout: Duration,
    /// Longest silence of the server, on all connections, while a request is outstanding.
    pub stall: Duration,
    /// Longest time for one request, besides the time for its answer at 16 KiB/s.
    pub grace: Duration,
    /// Time without requests to the server after the first failure; it doubles with each further one, to 5 s.
    pub first_pause: Duration,
    /// Time without use after which a connection is closed.
    pub idle: Duration,
    /// Most requests at a time.
    pub max_in_flight: usize,
    /// Most bytes of all answers in flight together; at least 4 MiB.
    pub max_held_bytes: usize,
    /// Memory for pages of the index, bytes.
    pub page_cache_bytes: u64,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            tls: Tls::System,
            connect_timeout: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            first_pause: Duration::from_millis(50),
            idle: Duration::from_secs(60),
            max_in_flight: 16,
            max_held_bytes: 256 << 20,
            page_cache_bytes: 16 << 20,
        }
    }
}

/// A volume in a repository behind a web server.
pub struct HttpStore {
    place: String,
    /// The addresses at which the repository may be, the most likely first.
    bases: Vec<HttpAddress>,
    web: Web,
    pages: Pages,
    waiting: Waiting,
    view: Mutex<Option<Arc<View>>>,
    /// Held while the head is read.
    reading: tokio::sync::Mutex<()>,
}

impl HttpStore {
    /// The volume at `address`: the directory of the repository's `head`, or the parent of a directory
    /// that is named by the volume's id. Sends nothing before the first call.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the file of authorities cannot be used.
    pub fn new(
        address: &HttpAddress,
        volume: VolumeId,
        options: &HttpOptions,
    ) -> Result<HttpStore, StoreError> {
        let web = Web::new(options, address.url()).map_err(|why| StoreError::Io {
            path: match &options.tls {
                Tls::Authority(path) => path.clone(),
                Tls::System | Tls::Unverified => PathBuf::from("TLS"),
            },
            source: std::io::Error::other(why),
        })?;
        let id = volume.to_string();
        let mut bases = vec![address.clone()];
        if !address.ends_with(&id) {
            bases.extend(address.below(&id));
        }
        let pages = (options.page_cache_bytes / 4224).max(16) as usize;
        Ok(HttpStore {
            place: address.to_string(),
            bases,
            web,
            pages: Cache::with_weighter(pages, options.page_cache_bytes, PageWeight),
            waiting: Waiting::default(),
            view: Mutex::new(None),
            reading: tokio::sync::Mutex::new(()),
        })
    }

    /// Counters of the requests so far.
    pub fn counters(&self) -> &Counters {
        &self.web.counters
    }

    fn known(&self) -> MutexGuard<'_, Option<Arc<View>>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest known view; reads the head if there is none.
    async fn view(&self) -> Result<Arc<View>, Fault> {
        if let Some(view) = &*self.known() {
            return Ok(Arc::clone(view));
        }
        let reading = self.reading.lock().await;
        if let Some(view) = &*self.known() {
            return Ok(Arc::clone(view));
        }
        let view = self.read_head().await;
        drop(reading);
        view
    }

    /// A view that differs from `stale`, if there is one.
    async fn view_after(&self, stale: &View) -> Result<Option<Arc<View>>, Fault> {
        let _reading = self.reading.lock().await;
        let known = self.known().clone();
        if let Some(view) = known.filter(|view| view.head != stale.head) {
            return Ok(Some(view));
        }
        let view = self.read_head().await?;
        Ok(Some(view).filter(|view| view.head != stale.head))
    }

    /// Reads the head and makes it the known view. The caller holds `reading`.
    async fn read_head(&self) -> Result<Arc<View>, Fault> {
        let old = self.known().clone();
        let bases = match &old {
            Some(old) => std::slice::from_ref(&old.base),
            None => self.bases.as_slice(),
        };
        let mut refused = None;
        for base in bases {
            let url = join(base, HEAD_FILE)?;
            let conditions = old.as_ref().map(|old| old.conditions.clone());
            self.web.begin_wave();
            let max_bytes = MAX_HEAD_BYTES as u64;
            let got = self
                .web
                .newest(&url, conditions.unwrap_or_default(), max_bytes);
            match got.await {
                Ok(Got::Body(bytes, headers)) => {
                    let head = decode(&bytes, &headers)?;
                    return self.adopt(head, base, conditions_of(&headers), old.as_deref());
                }
                Ok(Got::NotModified) => {
                    return old.ok_or_else(|| Fault::Bad(answer::bad("nothing was known")));
                }
                Ok(Got::Missing | Got::PastEnd | Got::NoParts) => {}
                // Object stores give this answer for a missing object when listing is not allowed.
                Err(fault @ Fault::Refused(_)) => refused = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        Err(refused.unwrap_or(Fault::NoHead))
    }

    fn adopt(
        &self,
        head: Head,
        base: &HttpAddress,
        conditions: HeaderMap,
        old: Option<&View>,
    ) -> Result<Arc<View>, Fault> {
        let view = Arc::new(View::new(head, base.clone(), conditions, old)?);
        *self.known() = Some(Arc::clone(&view));
        Ok(view)
    }

    fn error(&self, fault: Fault) -> StoreError {
        let place = self.place.clone();
        match fault {
            Fault::Down(cause) => StoreError::Unavailable { place, cause },
            Fault::Unusable(cause) | Fault::Refused(cause) => StoreError::Unusable { place, cause },
            Fault::Gone(what) => StoreError::Unusable {
                place,
                cause: format!("{what}, and its newest head still names it"),
            },
            Fault::Bad(Reject::Unsupported { why, .. }) => StoreError::Unsupported { place, why },
            Fault::Bad(why) => StoreError::BadAnswer { place, why },
            Fault::NoHead => StoreError::NoVolume { place },
        }
    }
}

fn join(base: &HttpAddress, name: &str) -> Result<reqwest::Url, Fault> {
    base.join(name)
        .ok_or_else(|| Fault::Unusable(format!("{name} has no address there")))
}

/// The error for an index that breaks a rule.
fn bad_index(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "index run",
        why,
    }
}

fn decode(bytes: &[u8], headers: &HeaderMap) -> Result<Head, Fault> {
    Head::decode(bytes).map_err(|why| {
        if is_html(headers) || looks_like_html(bytes) {
            Fault::Unusable(NOT_A_REPOSITORY.to_owned())
        } else {
            Fault::Bad(why)
        }
    })
}

/// Headers for the next request, which ask whether the head has changed; empty when the server sent no
/// reliable validator.
fn conditions_of(headers: &HeaderMap) -> HeaderMap {
    let mut conditions = HeaderMap::new();
    let time = |name| header(headers, name).and_then(|text| httpdate::parse_http_date(text).ok());
    let (modified, sent) = (time(LAST_MODIFIED), time(DATE));
    let settled = match (modified, sent) {
        (Some(modified), Some(sent)) => sent
            .duration_since(modified)
            .is_ok_and(|age| age >= SETTLED),
        _ => false,
    };
    let short = |value: &&HeaderValue| value.len() <= MAX_VALIDATOR_BYTES;
    // Web servers make ETags from times, so a tag is only as reliable as the time beside it.
    if let Some(tag) = headers.get(ETAG).filter(short)
        && (settled || modified.is_none())
    {
        conditions.insert(IF_NONE_MATCH, tag.clone());
    } else if let Some(date) = headers.get(LAST_MODIFIED).filter(short)
        && settled
    {
        conditions.insert(IF_MODIFIED_SINCE, date.clone());
    }
    conditions
}

impl BlockStore for HttpStore {
    fn place(&self) -> &str {
        &self.place
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            if want.is_empty() {
                return Ok(Vec::new());
            }
            let got = self.get(want, around).await;
            got.map_err(|fault| self.error(fault))
        })
    }

    fn heard(&self) -> Option<Instant> {
        Some(self.web.heard())
    }

    /// The pages of the index.
    fn prepare(&self, most_bytes: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(view) = self.view().await
                && let Err(fault) = view.prepare(&self.web, most_bytes).await
            {
                tracing::debug!(
                    place = self.place,
                    ?fault,
                    "the index was not fetched ahead"
                );
            }
        })
    }
}

impl Objects for HttpStore {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let len_bytes = len_bytes.min(MAX_RANGE_BYTES);
        let get = async move {
            if name == ObjectName::Head {
                let _reading = self.reading.lock().await;
                let head = Bytes::from(self.read_head().await?.head.encode());
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(head.len());
                let to = from.saturating_add(len_bytes).min(head.len());
                return Ok(Some(head.slice(from..to)));
            }
            let base = self.view().await?.base.clone();
            let url = join(&base, &name.to_string())?;
            self.web.begin_wave();
            match self.web.range(&url, offset, len_bytes as u64).await? {
                Got::Body(bytes, _) => Ok(Some(bytes)),
                Got::PastEnd | Got::NoParts => Ok(Some(Bytes::new())),
                Got::Missing | Got::NotModified => Ok(None),
            }
        };
        Box::pin(async move {
            match get.await {
                Err(Fault::NoHead) => Ok(None),
                got => got.map_err(|fault| self.error(fault)),
            }
        })
    }
}

impl Replica for HttpStore {
    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }

    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async move {
            let read = async {
                let _reading = self.reading.lock().await;
                let view = self.read_head().await?;
                let statements = view.head.statements.clone();
                Some(statements)
                    .filter(|statements| !statements.is_empty())
                    .ok_or(Fault::NoHead)
            };
            read.await.map_err(|fault| self.error(fault))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(pairs: &[(&str, &str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: reqwest::header::HeaderName = name.parse().unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let conditions = conditions_of(&headers);
        let show = |(name, value): (&reqwest::header::HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        conditions.iter().map(show).collect()
    }

    #[test]
    fn only_reliable_validators_are_used() {
        let tag = ("etag", "\"6564-1f4\"");
        let sent = ("date", "Sat, 21 Nov 2026 11:00:10 GMT");
        let settled = ("last-modified", "Sat, 21 Nov 2026 11:00:08 GMT");
        let fresh = ("last-modified", "Sat, 21 Nov 2026 11:00:09 GMT");
        let future = ("last-modified", "Sat, 21 Nov 2026 12:00:00 GMT");
        let none: [String; 0] = [];
        assert_eq!(conditions(&[]), none);
        assert_eq!(conditions(&[tag]), ["if-none-match: \"6564-1f4\""]);
        assert_eq!(
            conditions(&[tag, sent, settled]),
            ["if-none-match: \"6564-1f4\""]
        );
        let time = "if-modified-since: Sat, 21 Nov 2026 11:00:08 GMT";
        assert_eq!(conditions(&[sent, settled]), [time]);
        for unsure in [fresh, future, ("last-modified", "yesterday")] {
            let got = conditions(&[sent, unsure]);
            assert_eq!(got, none, "{unsure:?}");
        }
        assert_eq!(conditions(&[tag, sent, fresh]), none);
        assert_eq!(conditions(&[tag, settled]), none, "without a date");
        let long = format!("\"{}\"", "x".repeat(MAX_VALIDATOR_BYTES));
        assert_eq!(conditions(&[("etag", &long)]), none);
    }
}
