//! Durations (`2s`, `10m`, `7d`), sizes (`512MiB`) and times as people write and read them.

use std::time::Duration;

use trust::root::Totals;

/// Reads a duration; a number without unit is refused.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is no duration; write for example 2s, 10m or 7d"))?;
    if duration.is_zero() {
        return Err("a duration must be longer than nothing".to_owned());
    }
    Ok(duration)
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

/// Reads a size in bytes; a number without unit is refused.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write for example 64KiB, 512MiB or 2GiB");
    let (number, unit_bytes) = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
        .ok_or_else(wrong)?;
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(unit_bytes).ok_or_else(wrong)
}

/// A size for people: `1.3 MiB`.
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

/// How much a tree holds, for people.
pub fn totals(totals: &Totals) -> String {
    let other = match totals.other {
        0 => String::new(),
        other => format!("{other} links and special files, "),
    };
    format!(
        "{} files, {other}{} directories, {}",
        totals.files,
        totals.directories,
        size(totals.bytes)
    )
}

/// A time for people and machines: RFC 3339, seconds.
pub fn time(unix_s: u64) -> String {
    let at = std::time::UNIX_EPOCH.checked_add(Duration::from_secs(unix_s));
    match at {
        // Beyond the year 9999 the crate refuses to write; such a time means "never".
        Some(at) if unix_s < 253_402_300_800 => humantime::format_rfc3339_seconds(at).to_string(),
        _ => "never".to_owned(),
    }
}

/// The same for a time of the system.
pub fn system_time(time: std::time::SystemTime) -> String {
    let since = time.duration_since(std::time::UNIX_EPOCH);
    self::time(since.map_or(0, |since| since.as_secs()))
}

/// How long something takes, to two units: `6days 23h`.
pub fn span(duration: Duration) -> String {
    let whole = match duration.as_secs() {
        0 => Duration::from_millis(duration.as_millis() as u64),
        seconds => Duration::from_secs(seconds),
    };
    let text = humantime::format_duration(whole).to_string();
    let units: Vec<&str> = text.split(' ').take(2).collect();
    units.join(" ")
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
    fn durations_want_a_unit() {
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86400)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["7", "d", "-1s", "0s", ""] {
            assert!(parse_duration(bad).is_err(), "{bad}");
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
        assert_eq!(span(Duration::from_millis(90_061_500)), "1day 1h");
        assert_eq!(span(Duration::from_micros(1_500)), "1ms");
        assert_eq!(span(Duration::ZERO), "0s");
    }
}
