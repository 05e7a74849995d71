//! The part of a file that a `Range` header asks for (RFC 9110, 14.2). Sans-I/O.

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// All of it.
    Whole,
    /// These bytes, the last included.
    Part {
        /// First.
        first: u64,
        /// Last, in the file.
        last: u64,
    },
    /// Nothing: the range begins behind the file's end.
    Nowhere,
}

/// The part of a file of `len_bytes` that a header asks for. Anything but a single range in bytes is
/// ignored, as the standard allows.
pub(super) fn piece(header: Option<&str>, len_bytes: u64) -> Piece {
    let asked = header.and_then(|text| {
        let (unit, set) = text.trim().split_once('=')?;
        let (first, last) = set.trim().split_once('-')?;
        unit.eq_ignore_ascii_case("bytes").then_some((first, last))
    });
    let Some((first, last)) = asked else {
        return Piece::Whole;
    };
    let (first, last) = match (first, last) {
        ("", suffix) => match number(suffix) {
            None => return Piece::Whole,
            Some(0) => return Piece::Nowhere,
            Some(suffix) => (len_bytes.saturating_sub(suffix), u64::MAX),
        },
        (first, "") => match number(first) {
            None => return Piece::Whole,
            Some(first) => (first, u64::MAX),
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, last),
            _ => return Piece::Whole,
        },
    };
    match len_bytes.checked_sub(1) {
        Some(end) if first <= end => Piece::Part {
            first,
            last: last.min(end),
        },
        _ => Piece::Nowhere,
    }
}

/// A number of digits only; one that does not fit is the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_cut_and_others_ignored() {
        let part = |first, last| Piece::Part { first, last };
        for (text, len, expected) in [
            ("bytes=0-0", 10, part(0, 0)),
            ("bytes=2-5", 10, part(2, 5)),
            ("Bytes = 2-5", 10, Piece::Whole),
            ("BYTES=2-5", 10, part(2, 5)),
            ("bytes=2-", 10, part(2, 9)),
            ("bytes=9-99999999999999999999999", 10, part(9, 9)),
            ("bytes=-3", 10, part(7, 9)),
            ("bytes=-30", 10, part(0, 9)),
            ("bytes=10-", 10, Piece::Nowhere),
            ("bytes=99999999999999999999999-", 10, Piece::Nowhere),
            ("bytes=-0", 10, Piece::Nowhere),
            ("bytes=0-0", 0, Piece::Nowhere),
            ("bytes=-5", 0, Piece::Nowhere),
            ("bytes=5-2", 10, Piece::Whole),
            ("bytes=0-1,3-4", 10, Piece::Whole),
            ("bytes=+1-2", 10, Piece::Whole),
            ("bytes=-", 10, Piece::Whole),
            ("bytes=--1", 10, Piece::Whole),
            ("lines=0-1", 10, Piece::Whole),
            ("", 10, Piece::Whole),
            ("bytes", 10, Piece::Whole),
        ] {
            assert_eq!(piece(Some(text), len), expected, "{text} of {len}");
        }
        assert_eq!(piece(None, 10), Piece::Whole);
    }
}
