//! The header `Content-Range` (RFC 9110, 14.4). Sans-I/O.

/// A parsed `Content-Range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRange {
    /// First byte.
    pub first: u64,
    /// Last byte, included; not before the first.
    pub last: u64,
    /// Length of the file, if stated; greater than `last`.
    pub total: Option<u64>,
}

/// Reads `bytes FIRST-LAST/TOTAL` or `bytes FIRST-LAST/*`; `None` for anything else.
pub fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (unit, rest) = text.trim().split_once(' ')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    let total = match total {
        "*" => None,
        total => Some(number(total)?),
    };
    let sound = first <= last && total.is_none_or(|total| last < total);
    sound.then_some(ContentRange { first, last, total })
}

/// A number of digits only; `parse` would accept a sign.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsed_ranges_are_well_formed(text in "(?i)bytes [0-9+-]{0,22}-[0-9]{0,22}/([0-9]{0,22}|\\*)") {
            if let Some(range) = parse_content_range(&text) {
                prop_assert!(range.first <= range.last);
                prop_assert!(range.total.is_none_or(|t| range.last < t));
            }
        }
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,60}") {
            let _ = parse_content_range(&text);
        }
    }
}
