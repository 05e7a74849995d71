//! The parts of a file that a `Range` header asks for (RFC 9110, 14.2). Sans-I/O.

/// Most parts of one answer; for more, the header is ignored. Each part costs a read of the disk.
const MAX_PARTS: usize = 64;

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Requested {
    /// All of it.
    Whole,
    /// These bytes.
    Part(Part),
    /// Several parts, each behind the one before.
    Parts(Vec<Part>),
    /// Nothing: every range begins behind the file's end.
    Nowhere,
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// First.
    pub(super) first: u64,
    /// Last, in the file.
    pub(super) last: u64,
}

impl Part {
    pub(super) fn len_bytes(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

/// The parts of a file of `len_bytes` that a header asks for. The standard allows to ignore it: so is anything but
/// ranges in bytes, and what only an attacker asks for: parts that overlap or go back, and very many.
pub(super) fn requested(header: Option<&str>, len_bytes: u64) -> Requested {
    let set = header.and_then(|text| {
        let (unit, set) = text.trim().split_once('=')?;
        unit.eq_ignore_ascii_case("bytes").then_some(set)
    });
    let Some(set) = set else {
        return Requested::Whole;
    };
    let mut parts: Vec<Part> = Vec::new();
    for text in set.split(',') {
        let Some(part) = range(text.trim(), len_bytes) else {
            return Requested::Whole;
        };
        let goes_on = |part: &Part| parts.last().is_none_or(|before| before.last < part.first);
        match part {
            None => {}
            Some(part) if goes_on(&part) && parts.len() < MAX_PARTS => parts.push(part),
            Some(_) => return Requested::Whole,
        }
    }
    match parts.as_slice() {
        [] => Requested::Nowhere,
        [part] => Requested::Part(*part),
        _ => Requested::Parts(parts),
    }
}

/// Parses one range. `None`: malformed. `Some(None)`: it starts past the end.
fn range(text: &str, len_bytes: u64) -> Option<Option<Part>> {
    let (first, last) = match text.split_once('-')? {
        ("", suffix) => match number(suffix)? {
            0 => return Some(None),
            suffix => (len_bytes.saturating_sub(suffix), u64::MAX),
        },
        (first, "") => (number(first)?, u64::MAX),
        (first, last) => (number(first)?, number(last)?),
    };
    if first > last {
        return None;
    }
    let end = len_bytes.checked_sub(1).filter(|end| first <= *end);
    Some(end.map(|end| Part {
        first,
        last: last.min(end),
    }))
}

/// A number of digits only; one that does not fit is the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: u64, last: u64) -> Part {
        Part { first, last }
    }

    #[test]
    fn ranges_are_cut_and_others_ignored() {
        let one = |first, last| Requested::Part(part(first, last));
        for (text, len, expected) in [
            ("bytes=0-0", 10, one(0, 0)),
            ("bytes=2-5", 10, one(2, 5)),
            ("Bytes = 2-5", 10, Requested::Whole),
            ("BYTES=2-5", 10, one(2, 5)),
            ("bytes=2-", 10, one(2, 9)),
            ("bytes=9-99999999999999999999999", 10, one(9, 9)),
            ("bytes=-3", 10, one(7, 9)),
            ("bytes=-30", 10, one(0, 9)),
            ("bytes=10-", 10, Requested::Nowhere),
            ("bytes=99999999999999999999999-", 10, Requested::Nowhere),
            ("bytes=-0", 10, Requested::Nowhere),
            ("bytes=0-0", 0, Requested::Nowhere),
            ("bytes=-5", 0, Requested::Nowhere),
            ("bytes=5-2", 10, Requested::Whole),
            ("bytes=+1-2", 10, Requested::Whole),
            ("bytes=-", 10, Requested::Whole),
            ("bytes=--1", 10, Requested::Whole),
            ("lines=0-1", 10, Requested::Whole),
            ("", 10, Requested::Whole),
            ("bytes", 10, Requested::Whole),
        ] {
            assert_eq!(requested(Some(text), len), expected, "{text} of {len}");
        }
        assert_eq!(requested(None, 10), Requested::Whole);
    }

    #[test]
    fn several_ranges_are_parts_if_they_go_on() {
        let parts = |parts: &[(u64, u64)]| {
            Requested::Parts(
                parts
                    .iter()
                    .map(|(first, last)| part(*first, *last))
                    .collect(),
            )
        };
        for (text, expected) in [
            ("bytes=0-1,3-4", parts(&[(0, 1), (3, 4)])),
            ("bytes= 0-1 , 2-4", parts(&[(0, 1), (2, 4)])),
            ("bytes=0-1,-2", parts(&[(0, 1), (8, 9)])),
            ("bytes=0-1,7-", parts(&[(0, 1), (7, 9)])),
            ("bytes=0-1,7-99,10-11", parts(&[(0, 1), (7, 9)])),
            ("bytes=0-1,10-11", Requested::Part(part(0, 1))),
            ("bytes=10-11,12-13", Requested::Nowhere),
            ("bytes=0-1,1-2", Requested::Whole),
            ("bytes=3-4,0-1", Requested::Whole),
            ("bytes=0-,0-", Requested::Whole),
            ("bytes=0-1,", Requested::Whole),
            ("bytes=0-1,x", Requested::Whole),
            ("bytes=,", Requested::Whole),
        ] {
            assert_eq!(requested(Some(text), 10), expected, "{text}");
        }
        let many = |count: u64| {
            let ranges: Vec<String> = (0..count).map(|n| format!("{}-{}", n * 2, n * 2)).collect();
            requested(Some(&format!("bytes={}", ranges.join(","))), 1000)
        };
        assert!(matches!(many(64), Requested::Parts(parts) if parts.len() == 64));
        assert_eq!(many(65), Requested::Whole);
    }
}
