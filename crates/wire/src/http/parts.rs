//! Several parts of one file in one answer: `multipart/byteranges` (RFC 9110, 14.6). Sans-I/O.
//!
//! Directories of a published tree lie between the content of its files, so who lists the tree wants thousands of short
//! parts of a few files. With a request for each, it waits for requests and not for bytes. Servers need not send several
//! parts: object stores send the whole file instead. So an answer is taken only if it has exactly the parts that were
//! asked for, in their order; otherwise the reader asks for one part at a time.

use bytes::Bytes;

use super::content_range::parse_content_range;

/// Most parts of one request. Its header is 2.7 kB long at most; servers allow 4 to 8.
pub const MAX_PARTS: usize = 64;
/// What may stand before a part, bytes.
const MAX_BEFORE_BYTES: u64 = 1024;
/// Longest boundary (RFC 2046, 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub offset: u64,
    /// Its length, bytes; not zero.
    pub len_bytes: u64,
}

/// The value of the header `Range`; `None` for a part that cannot be asked for.
pub fn range_header(parts: &[Part]) -> Option<String> {
    let mut value = "bytes=".to_owned();
    for (n, part) in parts.iter().enumerate() {
        let last = part.offset.checked_add(part.len_bytes.checked_sub(1)?)?;
        let comma = if n > 0 { "," } else { "" };
        value.push_str(&format!("{comma}{}-{last}", part.offset));
    }
    Some(value)
}

/// Longest answer with these parts, bytes.
pub fn most_bytes(parts: &[Part]) -> u64 {
    let parts = parts.iter().map(|part| part.len_bytes);
    let with_headers = parts.map(|len| len.saturating_add(MAX_BEFORE_BYTES));
    with_headers.fold(MAX_BEFORE_BYTES, u64::saturating_add)
}

/// The boundary that a `Content-Type` names, if it is that of several parts.
pub fn boundary_of(content_type: &str) -> Option<&str> {
    let mut words = content_type.split(';').map(str::trim);
    let is_parts = words.next()?.eq_ignore_ascii_case("multipart/byteranges");
    let mut words = words.filter_map(|word| word.split_once('='));
    let (_, boundary) = words.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"))?;
    let boundary = boundary.trim().trim_matches('"');
    let fits = (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len());
    (is_parts && fits).then_some(boundary)
}

/// Cuts a body into exactly these parts; `None` when it has others.
pub fn split(body: &Bytes, boundary: &str, parts: &[Part]) -> Option<Vec<Bytes>> {
    let mut rest = body.clone();
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        while rest.starts_with(b"\r\n") {
            drop(rest.split_to(2));
        }
        let start = line(&mut rest)?;
        let start = start.strip_prefix(b"--")?;
        if start.trim_ascii_end() != boundary.as_bytes() {
            return None;
        }
        if range_of(&mut rest)? != *part {
            return None;
        }
        let len = usize::try_from(part.len_bytes).ok()?;
        if rest.len() < len {
            return None;
        }
        found.push(rest.split_to(len));
    }
    let end = [b"\r\n--", boundary.as_bytes(), b"--"].concat();
    rest.starts_with(&end).then_some(found)
}

/// Takes the headers of a part; gives the part that they name.
fn range_of(rest: &mut Bytes) -> Option<Part> {
    let mut range = None;
    loop {
        let line = line(rest)?;
        if line.is_empty() {
            return range;
        }
        let (name, value) = std::str::from_utf8(&line).ok()?.split_once(':')?;
        if !name.eq_ignore_ascii_case("content-range") {
            continue;
        }
        let value = parse_content_range(value)?;
        range = Some(Part {
            offset: value.first,
            len_bytes: value.last.checked_sub(value.first)?.checked_add(1)?,
        });
    }
}

/// Takes a line and its end.
fn line(rest: &mut Bytes) -> Option<Bytes> {
    let within = rest.get(..rest.len().min(MAX_BEFORE_BYTES as usize))?;
    let at = within.windows(2).position(|two| two == b"\r\n")?;
    let line = rest.split_to(at);
    drop(rest.split_to(2));
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARTS: [Part; 2] = [
        Part {
            offset: 3,
            len_bytes: 4,
        },
        Part {
            offset: 10,
            len_bytes: 2,
        },
    ];
    /// As nginx sends it.
    const BODY: &str = "\r\n--00000000000000000001\r\nContent-Type: application/octet-stream\r\n\
        Content-Range: bytes 3-6/20\r\n\r\n3456\r\n--00000000000000000001\r\n\
        Content-Type: application/octet-stream\r\nContent-Range: bytes 10-11/20\r\n\r\nab\r\n\
        --00000000000000000001--\r\n";
    const BOUNDARY: &str = "00000000000000000001";

    fn cut(body: &str, parts: &[Part]) -> Option<Vec<Bytes>> {
        split(&Bytes::copy_from_slice(body.as_bytes()), BOUNDARY, parts)
    }

    #[test]
    fn parts_that_were_asked_for_are_taken() {
        assert_eq!(range_header(&PARTS).unwrap(), "bytes=3-6,10-11");
        assert!(BODY.len() as u64 <= most_bytes(&PARTS));
        let expected = vec![Bytes::from_static(b"3456"), Bytes::from_static(b"ab")];
        assert_eq!(cut(BODY, &PARTS), Some(expected.clone()));
        // As Apache and Go send it: without a line before the first boundary, or other headers.
        assert_eq!(cut(&BODY[2..], &PARTS), Some(expected.clone()));
        let lower = BODY.replace("Content-Range", "content-range");
        assert_eq!(cut(&lower, &PARTS), Some(expected));
    }

    #[test]
    fn other_parts_are_refused() {
        let [a, b] = PARTS;
        assert_eq!(cut(BODY, &[b, a]), None, "another order");
        assert_eq!(cut(BODY, &[a]), None, "one too many");
        assert_eq!(cut(BODY, &[a, b, b]), None, "one is missing");
        for (from, to) in [
            ("3-6/20", "3-7/20"),
            ("3-6/20", "4-7/20"),
            ("3-6/20", "6-3/20"),
            ("3-6/20", "3-18446744073709551615/*"),
            ("3456", "345"),
            ("3456", "34567"),
            ("Content-Range", "Range"),
            ("ab\r\n--00000000000000000001--", "ab"),
            (
                "--00000000000000000001\r\nContent",
                "--00000000000000000002\r\nContent",
            ),
        ] {
            assert!(BODY.contains(from), "{from}");
            assert_eq!(cut(&BODY.replacen(from, to, 1), &PARTS), None, "{to}");
        }
        for end in 0..BODY.len() - 2 {
            assert_eq!(cut(&BODY[..end], &PARTS), None, "{end}");
        }
    }

    #[test]
    fn impossible_parts_are_not_asked_for() {
        let part = |offset, len_bytes| [Part { offset, len_bytes }];
        assert_eq!(range_header(&part(7, 0)), None);
        assert_eq!(range_header(&part(u64::MAX, 2)), None);
        assert_eq!(most_bytes(&part(0, u64::MAX)), u64::MAX);
    }

    #[test]
    fn boundary_is_that_of_several_parts() {
        let kind = "multipart/byteranges; boundary=00000000000000000001";
        assert_eq!(boundary_of(kind), Some(BOUNDARY));
        let quoted = "Multipart/ByteRanges; x=y; Boundary=\"a b\"";
        assert_eq!(boundary_of(quoted), Some("a b"));
        let long = format!("multipart/byteranges; boundary={}", "x".repeat(71));
        let empty = "multipart/byteranges; boundary=";
        for other in [
            "multipart/byteranges",
            "text/html; boundary=x",
            "",
            empty,
            &long,
        ] {
            assert_eq!(boundary_of(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_cut_without_a_panic(body in "(\r\n|--x|:|[ -~]){0,60}", len in 0u64..9) {
            let part = Part { offset: 0, len_bytes: len };
            let _ = split(&Bytes::from(body), "x", &[part, part]);
        }
    }
}
