//! A request and its response: GET and HEAD of the head and of immutable objects.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderName, IF_NONE_MATCH, IF_RANGE, RANGE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use store::StoreError;
use store::disk::DiskFile;
use store::head::MAX_HEAD_BYTES;
use trust::statement::VolumeId;
use wire::ObjectName;

use super::body::{Answer, Section};
use super::deadlines::{Answering, ConnectionDeadlines, PIECE_BYTES};
use super::range::{Part, Requested, requested};
use crate::mirror::reader::RepositoryReader;
use crate::mirror::volumes::Mirror;
use crate::net::{Account, Held};

/// For objects that never change.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// For objects that change.
const EACH_TIME: &str = "no-cache";

/// The type of all objects.
const BYTES: &str = "application/octet-stream";

/// The object of a name.
enum Found {
    Bytes(Bytes),
    File(Arc<dyn DiskFile>, u64),
}

impl Found {
    fn len_bytes(&self) -> u64 {
        match self {
            Found::Bytes(bytes) => bytes.len() as u64,
            Found::File(_, len) => *len,
        }
    }
}

/// Answers a request. The body of a request is never read.
pub(super) async fn respond<B>(
    mirror: &Arc<Mirror>,
    account: &Arc<Account>,
    deadlines: &Arc<ConnectionDeadlines>,
    request: Request<B>,
) -> Response<Answer> {
    let answering = deadlines.answer();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            &[(ALLOW, "GET, HEAD".to_owned())],
            answering,
        );
    }
    let counters = &mirror.counters;
    let Some((id, name)) = parse(request.uri().path()) else {
        counters.no_object.add(1);
        return refusal(StatusCode::NOT_FOUND, &[], answering);
    };
    let Some(volume) = mirror.volume(&id) else {
        counters.no_volume.add(1);
        return refusal(StatusCode::NOT_FOUND, &[], answering);
    };
    match name {
        ObjectName::Head => counters.head_requests.add(1),
        _ => counters.range_requests.add(1),
    }
    let Some(held) = account.reserve(PIECE_BYTES).await else {
        counters.net.busy.add(1);
        return refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            &[(RETRY_AFTER, "1".to_owned())],
            answering,
        );
    };
    match find(mirror, Arc::clone(&volume.reader), name).await {
        Ok(Some(found)) => send(mirror, &request, name, (found, held), answering),
        Ok(None) => {
            counters.no_object.add(1);
            refusal(StatusCode::NOT_FOUND, &[], answering)
        }
        Err(error) => {
            counters.storage_errors.add(1);
            // For the log only, because it names paths of this machine.
            tracing::error!(place = volume.reader.place(), %error, "cannot read what was asked for");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, &[], answering)
        }
    }
}

/// `/VOLUMEID/NAME`, in its one spelling.
fn parse(path: &str) -> Option<(VolumeId, ObjectName)> {
    let (id, name) = path.strip_prefix('/')?.split_once('/')?;
    let volume: VolumeId = id.parse().ok()?;
    // One spelling for each name, so that caches in between have one entry.
    let name: ObjectName = name.parse().ok()?;
    (volume.to_string() == id).then_some((volume, name))
}

/// Finds the object on a thread that may wait for the disk.
async fn find(
    mirror: &Arc<Mirror>,
    reader: Arc<dyn RepositoryReader>,
    name: ObjectName,
) -> Result<Option<Found>, StoreError> {
    let place = reader.place().to_owned();
    let unavailable = |cause: String| StoreError::Unavailable { place, cause };
    let Ok(turn) = Arc::clone(&mirror.disk_reads).acquire_owned().await else {
        return Err(unavailable("closed".to_owned()));
    };
    let found = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        // A new head may replace the file at any time, so it is read whole at once.
        if name == ObjectName::Head {
            let head = reader.read_range(name, 0, MAX_HEAD_BYTES)?;
            return Ok(head.map(Found::Bytes));
        }
        let opened = reader.open_object(name)?;
        Ok(opened.map(|(file, len)| Found::File(file, len)))
    });
    found
        .await
        .unwrap_or_else(|e| Err(unavailable(e.to_string())))
}

/// The ETag of an object.
fn tag(name: ObjectName, found: &Found) -> String {
    match found {
        // A head ends with a checksum of itself.
        Found::Bytes(bytes) => {
            let sum = bytes.last_chunk::<16>().copied().unwrap_or_default();
            let hex: String = sum.iter().map(|b| format!("{b:02x}")).collect();
            format!("\"{hex}\"")
        }
        // The content of any other name never changes.
        Found::File(_, len) => {
            let name = name.to_string().replace('/', "-");
            format!("\"{name}-{len}\"")
        }
    }
}

fn send<B>(
    mirror: &Arc<Mirror>,
    request: &Request<B>,
    name: ObjectName,
    (found, mut held): (Found, Held),
    answering: Answering,
) -> Response<Answer> {
    let headers = request.headers();
    let tag = tag(name, &found);
    let keep = match name {
        ObjectName::Head | ObjectName::Format => EACH_TIME,
        _ => FOR_EVER,
    };
    let len = found.len_bytes();
    let mut about = vec![
        (ETAG, tag.clone()),
        (CACHE_CONTROL, keep.to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CONTENT_TYPE, BYTES.to_owned()),
    ];
    if text(headers, IF_NONE_MATCH).is_some_and(|asked| matches_tag(asked, &tag)) {
        let body = Answer::bytes(Bytes::new(), None, answering);
        return response(StatusCode::NOT_MODIFIED, &about, body);
    }
    let in_range = text(headers, IF_RANGE).is_none_or(|asked| asked == tag);
    let range = text(headers, RANGE).filter(|_| in_range && *request.method() == Method::GET);
    let (mut status, mut sections) = (StatusCode::PARTIAL_CONTENT, VecDeque::new());
    let wanted = requested(range, len);
    let boundary = match (&wanted, &found) {
        (Requested::Parts(_), Found::File(..)) => boundary(),
        _ => None,
    };
    match (wanted, boundary) {
        (Requested::Part(part), _) => {
            about.push((CONTENT_RANGE, content_range(part, len)));
            sections.push_back(section(part));
        }
        (Requested::Parts(parts), Some(boundary)) => {
            let kind = format!("multipart/byteranges; boundary={boundary}");
            about.push((CONTENT_TYPE, kind));
            sections = several(&parts, len, &boundary);
        }
        // The head is short, and sent whole instead of in parts.
        (Requested::Whole | Requested::Parts(_), _) => {
            status = StatusCode::OK;
            sections.extend(
                len.checked_sub(1)
                    .map(|last| section(Part { first: 0, last })),
            );
        }
        (Requested::Nowhere, _) => {
            let about = [(CONTENT_RANGE, format!("bytes */{len}"))];
            return refusal(StatusCode::RANGE_NOT_SATISFIABLE, &about, answering);
        }
    }
    let count: u64 = sections.iter().map(Section::len_bytes).sum();
    about.push((CONTENT_LENGTH, count.to_string()));
    let body = match found {
        _ if *request.method() == Method::HEAD => Answer::bytes(Bytes::new(), None, answering),
        Found::Bytes(bytes) => {
            held.resize(bytes.len());
            let part = match sections.front() {
                Some(Section::File { offset, len_bytes }) => {
                    let end = offset.saturating_add(*len_bytes).min(len) as usize;
                    bytes.slice((*offset).min(len) as usize..end)
                }
                _ => Bytes::new(),
            };
            Answer::bytes(part, Some(held), answering)
        }
        Found::File(file, _) => {
            held.resize(count.min(PIECE_BYTES as u64) as usize);
            Answer::file((file, Arc::clone(mirror)), sections, held, answering)
        }
    };
    response(status, &about, body)
}

fn section(part: Part) -> Section {
    Section::File {
        offset: part.first,
        len_bytes: part.len_bytes(),
    }
}

fn content_range(Part { first, last }: Part, len: u64) -> String {
    format!("bytes {first}-{last}/{len}")
}

/// The body with several parts (RFC 9110, 14.6).
fn several(parts: &[Part], len: u64, boundary: &str) -> VecDeque<Section> {
    let mut sections = VecDeque::with_capacity(parts.len() * 2 + 1);
    for part in parts {
        let before = format!(
            "\r\n--{boundary}\r\n{CONTENT_TYPE}: {BYTES}\r\n{CONTENT_RANGE}: {}\r\n\r\n",
            content_range(*part, len)
        );
        sections.push_back(Section::Ready(before.into()));
        sections.push_back(section(*part));
    }
    sections.push_back(Section::Ready(format!("\r\n--{boundary}--\r\n").into()));
    sections
}

/// What separates parts: drawn for each answer, because a publisher chose the bytes of the parts. `None` without
/// randomness.
fn boundary() -> Option<String> {
    let mut drawn = [0; 16];
    getrandom::fill(&mut drawn).ok()?;
    Some(drawn.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a list of tags names this one; weak ones do as well (RFC 9110, 13.1.2).
fn matches_tag(asked: &str, tag: &str) -> bool {
    let mut tags = asked.split(',').map(|one| one.trim());
    asked.trim() == "*" || tags.any(|one| one.strip_prefix("W/").unwrap_or(one) == tag)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// A response without an object. No cache may keep it, because the object may exist later.
fn refusal(
    status: StatusCode,
    about: &[(HeaderName, String)],
    answering: Answering,
) -> Response<Answer> {
    let words = Bytes::from(format!("{status}\n"));
    let mut all = vec![
        (CONTENT_TYPE, "text/plain".to_owned()),
        (CACHE_CONTROL, EACH_TIME.to_owned()),
    ];
    all.extend_from_slice(about);
    response(status, &all, Answer::bytes(words, None, answering))
}

fn response(status: StatusCode, about: &[(HeaderName, String)], body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // A publisher chose the bytes, so a browser must not interpret them as a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in about {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_one_spelling() {
        let id = VolumeId::from_bytes([7; 32]).to_string();
        let segment = "segments/00112233445566778899aabbccddeeff.seg";
        for name in ["head", "bulla", "log/0/3", segment] {
            assert!(parse(&format!("/{id}/{name}")).is_some(), "{name}");
        }
        for path in [
            "",
            "/",
            "/head",
            &format!("/{id}"),
            &format!("/{id}/"),
            &format!("/{id}/lock"),
            &format!("//{id}/head"),
            &format!("/{id}//head"),
            &format!("/{id}/head/"),
            &format!("/{id}/./head"),
            &format!("/{id}/../{id}/head"),
            &format!("/{id}/%68ead"),
            &format!("/{id}/segments/../head"),
            &format!("/{}/head", id.to_uppercase()),
            &format!("/{}/head", &id[..id.len() - 1]),
        ] {
            assert!(parse(path).is_none(), "{path}");
        }
    }

    #[test]
    fn tags_are_compared_weakly() {
        for (asked, same) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", \"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("a", false),
            ("", false),
        ] {
            assert_eq!(matches_tag(asked, "\"a\""), same, "{asked}");
        }
    }
}
