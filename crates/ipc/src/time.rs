//! Times as text: moments of the wall clock, and how long something lasts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time as RFC 3339 in UTC with milliseconds: `2026-01-31T23:59:58.007Z`. Times before 1970 are written as 1970.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The time that [`rfc3339`] wrote as this; `None` for what it would not write.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u64>().ok()
    };
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    let seconds = days_before(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second;
    let time = UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + digits(20, 23)?);
    // Whatever is out of range, or between the digits, is not written so.
    (rfc3339(time) == text).then_some(time)
}

/// A moment as people are shown it, of the text that [`rfc3339`] wrote: `2026-01-31 23:59:58.007 UTC`. What is no such
/// text stays as it is.
#[must_use]
pub fn moment(time: &str) -> String {
    match parse_rfc3339(time) {
        Some(_) => time.trim_end_matches('Z').replacen('T', " ", 1) + " UTC",
        None => time.to_owned(),
    }
}

/// The same to the second: `2026-01-31 23:59:58 UTC`.
#[must_use]
pub fn moment_to_the_second(time: &str) -> String {
    match (parse_rfc3339(time), time.split_once('.')) {
        (Some(_), Some((seconds, _))) => seconds.replacen('T', " ", 1) + " UTC",
        _ => time.to_owned(),
    }
}

/// How long something lasts, in its two largest units: `3 d 4 h`, `12 s`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |(more, of): (u64, &str), (less, than): (u64, &str)| match less {
        0 => format!("{more} {of}"),
        _ => format!("{more} {of} {less} {than}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => two((minutes, "min"), (seconds % 60, "s")),
        (0, _, _) => two((hours, "h"), (minutes, "min")),
        _ => two((days, "d"), (hours, "h")),
    }
}

/// The same of what was measured, with as many digits as mean something: `4.1 ms`, `41 ms`, `12.3 s`, `2 min 1 s`.
#[must_use]
pub fn measured(took: Duration) -> String {
    let millis = took.as_secs_f64() * 1e3;
    match millis {
        ..9.95 => format!("{millis:.1} ms"),
        ..999.5 => format!("{millis:.0} ms"),
        ..59_950.0 => format!("{:.1} s", millis / 1e3),
        _ => duration(took),
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, which [`civil_date`] turns around.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month_from_march) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, (month + 9).min(11)) };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month_from_march + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(DAYS_TO_ERA)
}

/// From the first day of an era of [`civil_date`] to 1970-01-01.
const DAYS_TO_ERA: u64 = 719_468;

/// Days since 1970-01-01 as (year, month, day) of the Gregorian calendar.
///
/// Counts in eras of 400 years that begin on 1 March, so that the leap day is the last of a year.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_TO_ERA;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_shown_one_notation() {
        assert_eq!(moment("2026-01-31T23:59:58.007Z"), "2026-01-31 23:59:58.007 UTC");
        assert_eq!(moment_to_the_second("2026-01-31T23:59:58.007Z"), "2026-01-31 23:59:58 UTC");
        assert_eq!((moment("yesterday"), moment_to_the_second("a.b")), ("yesterday".to_owned(), "a.b".to_owned()));
        for (seconds, text) in
            [(0, "0 s"), (600, "10 min"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        for (micros, text) in [
            (0, "0.0 ms"),
            (4_120, "4.1 ms"),
            (41_250, "41 ms"),
            (999_400, "999 ms"),
            (999_600, "1.0 s"),
            (12_340_000, "12.3 s"),
            (61_000_000, "1 min 1 s"),
        ] {
            assert_eq!(measured(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn known_dates() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
            assert_eq!(parse_rfc3339(text), Some(UNIX_EPOCH + Duration::from_millis(millis)));
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for day in (0..200 * 366).step_by(13) {
            let time = UNIX_EPOCH + Duration::from_millis(day * 86_400_000 + day * 7);
            assert_eq!(parse_rfc3339(&rfc3339(time)), Some(time));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-02-30T00:00:00.000Z",
            "2026-01-31T24:00:00.000Z",
            "2026-01-31 23:59:58.007Z",
            "2026-01-31T23:59:58.007",
            "2026-01-31T23:59:58.007+",
            "2026-01-31T23:59:58.007Zx",
            "0000-01-01T00:00:00.000Z",
            "9999-99-99T99:99:99.999Z",
            "+026-01-31T23:59:58.007Z",
            "2026-01-\u{fe}1T23:59:58.007Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
