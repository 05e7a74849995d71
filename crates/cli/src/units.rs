//! Parses and formats durations (`2s`, `10m`, `7d`), sizes (`512MiB`), times and counts.

use std::str::FromStr;
use std::time::Duration;

use trust::judge::Freshness;
use trust::root::Totals;
use trust::text::{Noun, read};

/// How long before its end a policy is warned about: owners may need weeks to gather their signatures.
pub const POLICY_WARNING: Duration = Duration::from_secs(90 * 24 * 3600);

/// Parses an age, which may be 0. Another number needs a unit.
pub fn parse_age(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration; write for example 2s, 10m or 7d"))
}

/// Parses a duration, which is longer than 0.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_age(text)?;
    if duration.is_zero() {
        return Err("the duration must not be zero".to_owned());
    }
    Ok(duration)
}

/// Parses a duration of statements, whose times are whole seconds.
pub fn parse_validity(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    match duration.as_secs() {
        0 => Err("the duration must be a second or more".to_owned()),
        _ => Ok(duration),
    }
}

/// Parses a freshness: `strict`, `grace=D` or `pinned=VERSION:RECORD`.
pub fn parse_freshness(text: &str) -> Result<Freshness, String> {
    if text == "strict" {
        return Ok(Freshness::Strict);
    }
    if let Some(grace) = text.strip_prefix("grace=") {
        return Ok(Freshness::Grace(parse_duration(grace)?.as_secs().max(1)));
    }
    let Some((version, record)) = text
        .strip_prefix("pinned=")
        .and_then(|pin| pin.split_once(':'))
    else {
        return Err(format!(
            "`{text}` is not one of strict, grace=D and pinned=VERSION:RECORD"
        ));
    };
    let record_hash = read(Noun::Record, record).map_err(|e| format!("`{record}`: {e}"))?;
    Ok(Freshness::Pinned {
        version: parse_version(version)?,
        record_hash,
    })
}

/// Parses the number of a version.
pub fn parse_version(text: &str) -> Result<u64, String> {
    // `parse` alone would accept a sign.
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number > 0);
    number.ok_or_else(|| format!("`{text}` is not a version number (1 or more)"))
}

/// Parses a number without a sign.
pub fn parse_number(text: &str) -> Result<u64, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| format!("`{text}` is not a number"))
}

/// Parses a point in time, in the form in which [`time`] writes it. Returns unix seconds.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let time = humantime::parse_rfc3339_weak(text)
        .map_err(|_| format!("`{text}` is not a time; write for example 2026-01-31T12:00:00Z"))?;
    let since = time.duration_since(std::time::UNIX_EPOCH);
    since
        .map(|since| since.as_secs())
        .map_err(|_| format!("`{text}` is before 1970"))
}

/// Parses the number of an entry of a shared volume.
pub fn parse_position(text: &str) -> Result<u64, String> {
    // `parse` alone would accept a sign.
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text
        .parse()
        .ok()
        .filter(|number| digits && *number < u64::MAX);
    number.ok_or_else(|| format!("`{text}` is not a number"))
}

/// Parses a count of at least one.
pub fn parse_count<T: FromStr + From<u8> + PartialOrd>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number >= T::from(1));
    number.ok_or_else(|| format!("`{text}` is not a number of at least 1"))
}

/// Units of size, largest first within a family.
const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Parses a size in bytes. A number needs a unit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write for example 64KiB, 512MiB or 2GiB");
    let (number, unit_bytes) = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
        .ok_or_else(wrong)?;
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(unit_bytes).ok_or_else(wrong)
}

/// Parses a rate in bytes per second: a size, with or without `/s`. Zero is refused.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text.strip_suffix("/s").unwrap_or(text))? {
        0 => Err("the rate must not be zero".to_owned()),
        rate => Ok(rate),
    }
}

/// Formats a size for people: `1.3 MiB`.
pub fn size(bytes: u64) -> String {
    let (unit, unit_bytes) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => ("KiB", 1u64 << 10),
        0x10_0000..0x4000_0000 => ("MiB", 1 << 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 1 << 30),
        _ => ("TiB", 1 << 40),
    };
    format!("{:.1} {unit}", bytes as f64 / unit_bytes as f64)
}

/// Formats the totals of a tree for people.
pub fn totals(totals: &Totals) -> String {
    let other = match totals.other {
        0 => String::new(),
        other => count(other, "link or special file, ", "links and special files, "),
    };
    let files = count(totals.files, "file", "files");
    let directories = count(totals.directories, "directory", "directories");
    format!("{files}, {other}{directories}, {}", size(totals.bytes))
}

/// Formats a count with the singular or plural noun.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Formats a number of leaves of a shared volume's log.
pub fn leaves(number: u64) -> String {
    count(number, "entry or mark", "entries and marks")
}

/// Formats a prefix of a shared volume's log.
pub fn first(number: u64) -> String {
    match number {
        1 => "the first entry or mark".to_owned(),
        number => format!("the first {number} entries and marks"),
    }
}

/// Formats a time as RFC 3339 with seconds.
pub fn time(unix_s: u64) -> String {
    trust::calendar::rfc3339(unix_s)
}

/// Formats a [`std::time::SystemTime`] as [`time`] does.
pub fn system_time(time: std::time::SystemTime) -> String {
    let since = time.duration_since(std::time::UNIX_EPOCH);
    self::time(since.map_or(0, |since| since.as_secs()))
}

/// Formats a duration with at most two units: `6 days 23 h`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return match duration.subsec_millis() {
            0 => "0 s".to_owned(),
            millis => format!("{millis} ms"),
        };
    }
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let parts = [
        (days, count(days, "day", "days")),
        (hours, format!("{hours} h")),
        (seconds / 60 % 60, format!("{} min", seconds / 60 % 60)),
        (seconds % 60, format!("{} s", seconds % 60)),
    ];
    // Two units that follow one another: nobody needs the seconds of a day.
    let largest = parts.iter().position(|(number, _)| *number > 0);
    let shown = parts.iter().skip(largest.unwrap_or_default()).take(2);
    let shown = shown.filter(|(number, _)| *number > 0);
    let words: Vec<&str> = shown.map(|(_, words)| words.as_str()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_with_units() {
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("1 GB"), Ok(1_000_000_000));
        assert_eq!(parse_size("0B"), Ok(0));
        for bad in ["512", "MiB", "-1MiB", "99999999999TiB", "1.5GiB", "1mib"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn a_count_is_at_least_one() {
        assert_eq!(parse_count::<u64>("1"), Ok(1));
        for bad in ["0", "-1", "", "x", "1.5", "99999999999999999999"] {
            assert!(parse_count::<u64>(bad).is_err(), "{bad}");
            assert!(parse_count::<usize>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn singular_is_used_for_one() {
        let totals = |files, other, directories| Totals {
            files,
            other,
            directories,
            bytes: 0,
        };
        let one = super::totals(&totals(1, 1, 1));
        assert_eq!(one, "1 file, 1 link or special file, 1 directory, 0 B");
        assert_eq!(
            super::totals(&totals(0, 0, 2)),
            "0 files, 2 directories, 0 B"
        );
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86400)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["7", "d", "-1s", "0s", ""] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn freshness_is_one_of_three() {
        let hash = [7; 32];
        let record = trust::text::write(Noun::Record, &hash);
        let pinned = Freshness::Pinned {
            version: 12,
            record_hash: hash,
        };
        assert_eq!(parse_freshness("strict"), Ok(Freshness::Strict));
        assert_eq!(parse_freshness("grace=2h"), Ok(Freshness::Grace(7200)));
        assert_eq!(parse_freshness(&format!("pinned=12:{record}")), Ok(pinned));
        let mistyped = record.replacen('q', "p", 1);
        for bad in [
            "".to_owned(),
            "Strict".to_owned(),
            "grace".to_owned(),
            "grace=7".to_owned(),
            "pinned=12".to_owned(),
            format!("pinned=0:{record}"),
            format!("pinned=+1:{record}"),
            format!("pinned=12:{mistyped}"),
            format!("pinned=12:{}", trust::text::write(Noun::Policy, &hash)),
        ] {
            assert!(parse_freshness(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for seconds in [0, 1_800_000_000, 4_102_444_800] {
            assert_eq!(parse_time(&time(seconds)), Ok(seconds));
        }
        for wrong in [
            "",
            "never",
            "1800000000",
            "1969-12-31T23:59:59Z",
            "2026-13-01",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_never_panic() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(u64::MAX), "never");
        let before = std::time::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(system_time(before), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let seconds = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(span(Duration::from_millis(90_061_500)), "1 day 1 h");
        assert_eq!(seconds(6 * 86_400 + 23 * 3600 + 3599), "6 days 23 h");
        assert_eq!(seconds(2 * 86_400 + 59), "2 days");
        assert_eq!(seconds(3600 + 61), "1 h 1 min");
        assert_eq!(seconds(119), "1 min 59 s");
        assert_eq!(span(Duration::from_micros(1_500)), "1 ms");
        assert_eq!(span(Duration::ZERO), "0 s");
        assert_eq!(span(Duration::MAX), "213503982334601 days 7 h");
    }

    #[test]
    fn one_leaf_is_no_plural() {
        assert_eq!(
            (leaves(1), leaves(0)),
            ("1 entry or mark".into(), "0 entries and marks".into())
        );
        assert_eq!(first(1), "the first entry or mark");
        assert_eq!(first(7), "the first 7 entries and marks");
    }
}
