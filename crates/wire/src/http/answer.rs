//! Judges a web server's answer to a request for a part of a file, by status and headers (RFC 9110).
//! Sans-I/O.
//!
//! The server may be hostile, or an ordinary web server that compresses, ignores ranges, redirects to a
//! login page, or serves another file. An answer is judged before any byte of its body is read; the
//! verdict says how many bytes to read.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName,
    RETRY_AFTER,
};
use trust::Reject;

use super::content_range::{number, parse_content_range};
use super::parts;

/// Most bytes that are read of a whole file when the server ignores ranges.
pub const MAX_UNRANGED_BYTES: u64 = 1 << 20;
/// Longest pause that a server may ask for.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A whole file.
    Whole {
        /// Largest size that is accepted, bytes.
        max_bytes: u64,
        /// Whether the request named a known version, so that "not modified" may be the answer.
        known: bool,
    },
    /// A part of a file.
    Range {
        /// Where it begins.
        offset: u64,
        /// Its length; not zero.
        len_bytes: u64,
    },
    /// Several parts of a file in one answer.
    Parts {
        /// Longest answer, bytes.
        max_bytes: u64,
    },
}

/// How much of a body to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// Bytes to skip before the wanted part.
    pub skip_bytes: u64,
    /// Bytes to read after that.
    pub take_bytes: u64,
    /// What to do when more bytes come.
    pub more: More,
    /// Whether fewer bytes are an error; otherwise they are the end of the file.
    pub exact: bool,
}

/// What to do with a body that is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Stop reading: only a part of the file is wanted.
    Leave,
    /// Refuse it: no honest server sends more.
    Refuse,
}

/// The verdict on an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its body is the requested part or file.
    Body(Take),
    /// Not modified: the client's version is current.
    NotModified,
    /// There is no such file.
    Missing,
    /// The file ends before the part begins.
    PastEnd,
    /// The server does not send several parts in one answer.
    NoParts,
    /// The server is busy. It may say when to try again.
    Busy(StatusCode, Option<Duration>),
    /// The server refuses access.
    Refused(String),
    /// The answer is not usable, but it does not prove an attack.
    Unusable(String),
    /// No honest server gives this answer.
    Bad(&'static str),
}

/// The name of [`Verdict::Bad`] and of bad bodies in errors.
pub(crate) fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "HTTP answer",
        why,
    }
}

/// Judges an answer by its status and headers.
pub fn judge(asked: Asked, status: StatusCode, headers: &HeaderMap) -> Verdict {
    match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => {}
        StatusCode::NOT_MODIFIED => {
            return match asked {
                Asked::Whole { known: true, .. } => Verdict::NotModified,
                _ => Verdict::Bad("`not modified`, and nothing was known"),
            };
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => return Verdict::Missing,
        StatusCode::RANGE_NOT_SATISFIABLE => return Verdict::PastEnd,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => return Verdict::Busy(status, retry_after(headers)),
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            return Verdict::Refused(format!("it does not let us in ({status})"));
        }
        _ => return Verdict::Unusable(format!("it answers {status}")),
    }
    if let Some(encoding) = header(headers, CONTENT_ENCODING)
        && !encoding.eq_ignore_ascii_case("identity")
    {
        let encoding = printable(encoding);
        return Verdict::Unusable(format!(
            "it sends the file encoded ({encoding}) although the request forbids that"
        ));
    }
    match (asked, status) {
        (Asked::Whole { max_bytes, .. }, StatusCode::OK) => whole(max_bytes, headers),
        (Asked::Range { offset, len_bytes }, StatusCode::PARTIAL_CONTENT) => {
            partial(offset, len_bytes, headers)
        }
        (Asked::Parts { max_bytes }, StatusCode::PARTIAL_CONTENT)
            if boundary(headers).is_some() =>
        {
            Verdict::Body(Take {
                skip_bytes: 0,
                take_bytes: max_bytes,
                more: More::Refuse,
                exact: false,
            })
        }
        (Asked::Parts { .. }, _) => Verdict::NoParts,
        (Asked::Range { offset, len_bytes }, _) => unranged(offset, len_bytes, headers),
        (Asked::Whole { .. }, _) => Verdict::Bad("a piece of a file that was asked for whole"),
    }
}

fn whole(max_bytes: u64, headers: &HeaderMap) -> Verdict {
    if content_length(headers).is_some_and(|len| len > max_bytes) {
        return if is_html(headers) {
            Verdict::Unusable(NOT_A_REPOSITORY.to_owned())
        } else {
            Verdict::Bad("longer than such a file can be")
        };
    }
    Verdict::Body(Take {
        skip_bytes: 0,
        take_bytes: max_bytes,
        more: More::Refuse,
        exact: false,
    })
}

fn partial(offset: u64, len_bytes: u64, headers: &HeaderMap) -> Verdict {
    let range = header(headers, CONTENT_RANGE).and_then(parse_content_range);
    let Some(range) = range else {
        return Verdict::Bad("a piece without saying which");
    };
    if range.first != offset {
        return Verdict::Bad("another piece than was asked for");
    }
    let came = (range.last - range.first).saturating_add(1);
    if came > len_bytes {
        return Verdict::Bad("a longer piece than was asked for");
    }
    if came < len_bytes && range.total != range.last.checked_add(1) {
        return Verdict::Unusable("it sends less than was asked for".to_owned());
    }
    Verdict::Body(Take {
        skip_bytes: 0,
        take_bytes: came,
        more: More::Refuse,
        exact: true,
    })
}

/// The verdict on a whole file instead of a part: allowed (RFC 9110, 14.2), and usable while it is
/// small.
fn unranged(offset: u64, len_bytes: u64, headers: &HeaderMap) -> Verdict {
    if is_html(headers) {
        return Verdict::Unusable(NOT_A_REPOSITORY.to_owned());
    }
    if offset.saturating_add(len_bytes) > MAX_UNRANGED_BYTES {
        return Verdict::Unusable(
            "it ignores range requests and sends whole files; it must answer them (`Range: bytes=`)"
                .to_owned(),
        );
    }
    Verdict::Body(Take {
        skip_bytes: offset,
        take_bytes: len_bytes,
        more: More::Leave,
        exact: false,
    })
}

/// The message for an HTML page instead of a repository.
pub const NOT_A_REPOSITORY: &str = "it sends a web page and no repository: a login page, an error page, \
     or the wrong address";

/// Whether bytes that should belong to a repository are an HTML page.
pub fn looks_like_html(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.first() == Some(&b'<')
}

/// Whether the headers announce an HTML page.
pub fn is_html(headers: &HeaderMap) -> bool {
    header(headers, CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
    })
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    number(header(headers, CONTENT_LENGTH)?)
}

/// Seconds only: the use of a date would need trust in the server's clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = number(header(headers, RETRY_AFTER)?.trim())?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The boundary, if the headers announce several parts.
pub(super) fn boundary(headers: &HeaderMap) -> Option<&str> {
    parts::boundary_of(header(headers, CONTENT_TYPE)?)
}

/// Text from a peer, made short and safe for a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| c.is_ascii_graphic())
        .take(40)
        .collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    const PIECE: Asked = Asked::Range {
        offset: 100,
        len_bytes: 50,
    };
    const WHOLE: Asked = Asked::Whole {
        max_bytes: 1000,
        known: false,
    };

    fn judged(asked: Asked, status: u16, pairs: &[(&str, &str)]) -> Verdict {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        judge(asked, StatusCode::from_u16(status).unwrap(), &headers)
    }

    fn piece(range: &str) -> Verdict {
        judged(PIECE, 206, &[("content-range", range)])
    }

    fn exactly(take_bytes: u64) -> Verdict {
        Verdict::Body(Take {
            skip_bytes: 0,
            take_bytes,
            more: More::Refuse,
            exact: true,
        })
    }

    #[test]
    fn only_the_requested_piece_is_accepted() {
        assert_eq!(piece("bytes 100-149/5000"), exactly(50));
        assert_eq!(piece("bytes 100-149/*"), exactly(50));
        assert_eq!(piece("Bytes 100-120/121"), exactly(21), "the file's end");
        for other in [
            "bytes 99-148/5000",
            "bytes 101-150/5000",
            "bytes 0-49/5000",
            "bytes 100-150/5000",
            "bytes 100-18446744073709551615/*",
        ] {
            assert!(matches!(piece(other), Verdict::Bad(_)), "{other}");
        }
        for short in ["bytes 100-120/5000", "bytes 100-120/*"] {
            assert!(matches!(piece(short), Verdict::Unusable(_)), "{short}");
        }
        for none in [
            "",
            "bytes",
            "bytes */5000",
            "items 100-149/5000",
            "bytes 149-100/5000",
        ] {
            assert!(matches!(piece(none), Verdict::Bad(_)), "{none}");
        }
        assert!(matches!(judged(PIECE, 206, &[]), Verdict::Bad(_)));
        assert!(matches!(judged(WHOLE, 206, &[]), Verdict::Bad(_)));
    }

    #[test]
    fn a_server_that_ignores_ranges_is_read_for_small_files() {
        let small = judged(PIECE, 200, &[("content-length", "900000000")]);
        let take = Take {
            skip_bytes: 100,
            take_bytes: 50,
            more: More::Leave,
            exact: false,
        };
        assert_eq!(small, Verdict::Body(take));
        let far = Asked::Range {
            offset: MAX_UNRANGED_BYTES,
            len_bytes: 1,
        };
        match judged(far, 200, &[]) {
            Verdict::Unusable(why) => assert!(why.contains("ignores range"), "{why}"),
            other => panic!("{other:?}"),
        }
        let page = judged(PIECE, 200, &[("content-type", "text/HTML; charset=utf-8")]);
        assert_eq!(page, Verdict::Unusable(NOT_A_REPOSITORY.to_owned()));
    }

    #[test]
    fn several_parts_are_taken_only_if_announced() {
        let asked = Asked::Parts { max_bytes: 99 };
        let kind = [("content-type", "multipart/byteranges; boundary=x")];
        let take = Take {
            skip_bytes: 0,
            take_bytes: 99,
            more: More::Refuse,
            exact: false,
        };
        assert_eq!(judged(asked, 206, &kind), Verdict::Body(take));
        // What object stores and small web servers answer.
        let one = [("content-range", "bytes 100-149/5000")];
        assert_eq!(judged(asked, 206, &one), Verdict::NoParts);
        assert_eq!(judged(asked, 200, &[]), Verdict::NoParts);
        assert_eq!(judged(asked, 416, &[]), Verdict::PastEnd);
    }

    #[test]
    fn each_status_has_its_meaning() {
        let known = Asked::Whole {
            max_bytes: 1000,
            known: true,
        };
        assert_eq!(judged(known, 304, &[]), Verdict::NotModified);
        assert!(matches!(judged(WHOLE, 304, &[]), Verdict::Bad(_)));
        assert!(matches!(judged(PIECE, 304, &[]), Verdict::Bad(_)));
        assert_eq!(judged(PIECE, 404, &[]), Verdict::Missing);
        assert_eq!(judged(WHOLE, 410, &[]), Verdict::Missing);
        assert_eq!(judged(PIECE, 416, &[]), Verdict::PastEnd);
        for (status, header, after) in [
            (503, Some("7"), Some(7)),
            (429, Some("100000"), Some(MAX_RETRY_AFTER.as_secs())),
            (429, Some("-1"), None),
            (503, Some("Fri, 31 Dec 1999 23:59:59 GMT"), None),
            (500, None, None),
        ] {
            let pairs: Vec<(&str, &str)> = header.iter().map(|h| ("retry-after", *h)).collect();
            let after = after.map(Duration::from_secs);
            let status_code = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                judged(PIECE, status, &pairs),
                Verdict::Busy(status_code, after)
            );
        }
        for status in [401, 403, 407] {
            assert!(matches!(judged(PIECE, status, &[]), Verdict::Refused(_)));
        }
        for status in [201, 204, 301, 307, 400, 405, 418, 451, 501, 999] {
            let verdict = judged(WHOLE, status, &[]);
            assert!(
                matches!(verdict, Verdict::Unusable(_)),
                "{status}: {verdict:?}"
            );
        }
    }

    #[test]
    fn an_encoded_or_endless_answer_is_refused_before_its_body() {
        for asked in [PIECE, WHOLE] {
            for status in [200, 206] {
                let pairs = [
                    ("content-encoding", "gzip"),
                    ("content-range", "bytes 100-149/200"),
                ];
                match judged(asked, status, &pairs) {
                    Verdict::Unusable(why) => assert!(why.contains("(gzip)"), "{why}"),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(matches!(
            judged(WHOLE, 200, &[("content-encoding", "identity")]),
            Verdict::Body(_)
        ));
        assert!(matches!(
            judged(WHOLE, 200, &[("content-length", "1001")]),
            Verdict::Bad(_)
        ));
        assert!(looks_like_html(b"\n\xef\xbb\xbf<!DOCTYPE html>") || looks_like_html(b" <html>"));
        assert!(!looks_like_html(b"bullahd\n") && !looks_like_html(b""));
    }
}
