//! The fields of a tar header: octal and base-256 numbers, names, the checksum; and the numbers and
//! times of pax records. All of it is untrusted: each field has exactly one interpretation or is refused.

use trust::inode::Time;

/// Length of a header and of what pads content, bytes.
pub(crate) const BLOCK: usize = 512;

/// A header block and its fields.
pub(crate) struct Header<'a>(pub &'a [u8; BLOCK]);

impl Header<'_> {
    pub(crate) fn field(&self, from: usize, len: usize) -> &[u8] {
        self.0
            .get(from..from.saturating_add(len))
            .unwrap_or_default()
    }
    pub(crate) fn mode(&self) -> &[u8] {
        self.field(100, 8)
    }
    pub(crate) fn uid(&self) -> &[u8] {
        self.field(108, 8)
    }
    pub(crate) fn gid(&self) -> &[u8] {
        self.field(116, 8)
    }
    pub(crate) fn size(&self) -> &[u8] {
        self.field(124, 12)
    }
    pub(crate) fn mtime(&self) -> &[u8] {
        self.field(136, 12)
    }
    pub(crate) fn kind(&self) -> u8 {
        self.field(156, 1).first().copied().unwrap_or(0)
    }
    pub(crate) fn major(&self) -> &[u8] {
        self.field(329, 8)
    }
    pub(crate) fn minor(&self) -> &[u8] {
        self.field(337, 8)
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let name = text(self.field(0, 100));
        let prefix = text(self.field(345, 155));
        // GNU headers have other fields there.
        if self.field(257, 6) == b"ustar\0" && !prefix.is_empty() {
            return [&prefix, &b"/"[..], &name].concat();
        }
        name
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        text(self.field(157, 100))
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let counts = |at: usize, byte: u8| match at {
            148..156 => i64::from(b' '),
            _ => i64::from(byte),
        };
        let bytes = || self.0.iter().enumerate();
        let sum: i64 = bytes().map(|(at, b)| counts(at, *b)).sum();
        // Some old programs summed the bytes as signed numbers.
        let of_signed = |(at, b): (usize, &u8)| match at {
            148..156 => i64::from(b' '),
            _ => i64::from(b.cast_signed()),
        };
        let signed: i64 = bytes().map(of_signed).sum();
        match number(self.field(148, 8)) {
            Some(told) if told == sum || told == signed => Ok(()),
            _ => Err("not a tar archive (a compressed one must be unpacked first), or damaged"),
        }
    }
}

/// Bytes up to the first NUL.
pub(crate) fn text(field: &[u8]) -> Vec<u8> {
    let end = field.iter().position(|b| *b == 0);
    field
        .get(..end.unwrap_or(field.len()))
        .unwrap_or_default()
        .to_vec()
}

/// A number of a header: octal digits, or base 256 with the top bit set.
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let mut value: i128 = if *first == 0xff {
            -1
        } else {
            i128::from(first & 0x7f)
        };
        for byte in rest {
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = field.trim_ascii();
    let end = digits.iter().position(|b| matches!(b, 0 | b' '));
    let digits = digits.get(..end.unwrap_or(digits.len()))?;
    let mut value: i64 = 0;
    for digit in digits {
        if !matches!(digit, b'0'..=b'7') {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(value)
}

pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    Some(value)
}

/// `[-]SECONDS[.FRACTION]`, rounded down to the nanosecond.
pub(crate) fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|b| *b == b'.');
    let (whole, fraction) = text.split_at(dot.unwrap_or(text.len()));
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let fraction = fraction.get(1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |d| u32::from(d - b'0'));
    let nanos = (0..9).fold(0u32, |sum, at| sum * 10 + digit(at));
    let beyond = fraction.iter().skip(9).any(|d| *d != b'0');
    if !negative {
        return Some(Time { seconds, nanos });
    }
    // −1.25 s is 0.75 s after −2 s; fractions of a nanosecond are rounded down as well.
    let nanos = i64::from(nanos) + i64::from(beyond);
    let (seconds, nanos) = match nanos {
        0 => (-seconds, 0),
        nanos => ((-seconds).checked_sub(1)?, 1_000_000_000 - nanos),
    };
    Some(Time {
        seconds,
        nanos: u32::try_from(nanos).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_headers() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"777777777777"), Some(0o777_777_777_777));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\x02"), Some(258));
        assert_eq!(
            number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"),
            Some(-2)
        );
        assert_eq!(number(b"\x80\x01\0\0\0\0\0\0\0\0\0\0"), None);
        for bad in [&b"8"[..], b"-1", b"0x1", b""] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_round_down() {
        let at = |seconds, nanos| Some(Time { seconds, nanos });
        assert_eq!(time(b"12"), at(12, 0));
        assert_eq!(time(b"12.5"), at(12, 500_000_000));
        assert_eq!(time(b"12.1234567899"), at(12, 123_456_789));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-1"), at(-1, 0));
        assert_eq!(time(b"-0.0000000001"), at(-1, 999_999_999));
        for bad in [
            &b""[..],
            b".",
            b"-",
            b"1.x",
            b"1e3",
            b"--1",
            b"99999999999999999999",
        ] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
