//! Times in messages, as people and date(1) read them. Pure arithmetic: this crate has no clock.

/// Seconds of a day.
const DAY_S: i64 = 86_400;
/// The first second of the year 10000, unix seconds.
const END: u64 = 253_402_300_800;

/// Formats unix seconds as RFC 3339 in UTC. A time after the year 9999 is `never`: validities use it so.
pub fn rfc3339(unix_s: u64) -> String {
    match i64::try_from(unix_s) {
        Ok(seconds) if unix_s < END => {
            let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
            let day = date(seconds);
            format!("{day}T{hour:02}:{minute:02}:{:02}Z", seconds % 60)
        }
        _ => "never".to_owned(),
    }
}

/// The day of a time, in UTC, as YYYY-MM-DD. Times before the year 0 and after the year 9999 have the nearest day.
///
/// Source: the proleptic Gregorian calendar in eras of 400 years, with years that begin in March, so that the leap day is the
/// last of a year (H. Hinnant, *chrono-compatible low-level date algorithms*).
pub fn date(unix_s: i64) -> String {
    let days = unix_s.div_euclid(DAY_S).clamp(-719_468, 2_932_896) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days of each month, counted one by one.
    fn next((year, month, day): (u64, u64, u64)) -> (u64, u64, u64) {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        match (month, day == days) {
            (12, true) => (year + 1, 1, 1),
            (_, true) => (year, month + 1, 1),
            _ => (year, month, day + 1),
        }
    }

    #[test]
    fn every_day_of_400_years_is_that_of_the_calendar() {
        let mut date = (1970, 1, 1);
        // After 400 years the calendar begins again.
        for days in 0..146_097 {
            let (year, month, day) = date;
            let expected = format!("{year:04}-{month:02}-{day:02}T23:59:58Z");
            assert_eq!(rfc3339(days * 86_400 + 86_398), expected);
            date = next(date);
        }
        assert_eq!(date, (2370, 1, 1));
    }

    #[test]
    fn days_before_1970_and_impossible_ones_have_a_text() {
        assert_eq!(date(-1), "1969-12-31");
        assert_eq!(date(-719_468 * DAY_S), "0000-03-01");
        assert_eq!(date(i64::MIN), "0000-03-01");
        assert_eq!(date(i64::MAX), "9999-12-31");
    }

    #[test]
    fn times_without_end_are_never() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(END - 1), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(END), "never");
        assert_eq!(rfc3339(u64::MAX), "never");
    }
}
