//! Times as operators type and read them.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};

use crate::exit::usage;

/// A time in UTC and how long ago it was, or how far in the future it is.
pub(crate) fn with_age(at: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", utc(at), age(at, now))
}

/// RFC 3339 in UTC, to the second.
pub(crate) fn utc(at: Timestamp) -> String {
    format!("{at:.0}")
}

/// How long ago, or how far in the future.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let apart = at.duration_until(now);
    if apart.abs() < SignedDuration::from_secs(1) {
        "now".to_owned()
    } else if apart.is_negative() {
        format!("in {}", short(apart.unsigned_abs()))
    } else {
        format!("{} ago", short(apart.unsigned_abs()))
    }
}

/// A duration in its largest unit.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A time in the past: RFC 3339, or how long ago, as `10m`.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    when(text, |now, duration| now - duration)
}

/// A time in the future: RFC 3339, or a duration from now, as `10m`.
pub(crate) fn ahead(text: &str) -> Result<Timestamp, String> {
    when(text, |now, duration| now + duration)
}

/// Rejects a range that ends before it begins.
pub(crate) fn in_order(since: Option<Timestamp>, until: Option<Timestamp>) -> Result<()> {
    match (since, until) {
        (Some(since), Some(until)) if since > until => Err(usage(format!(
            "`--since` is {} and so after `--until`, which is {}; hint: `--since 2h --until 1h` is the hour before the last",
            utc(since),
            utc(until)
        ))),
        _ => Ok(()),
    }
}

fn when(text: &str, from_now: impl Fn(Timestamp, SignedDuration) -> Timestamp) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let duration = duration(text).map_err(|_| {
        format!("`{text}` is neither a time as `2026-01-31T12:00:00Z` nor a duration as `90s`, `10m`, `2h` or `7d`")
    })?;
    let duration = SignedDuration::try_from(duration).map_err(|error| error.to_string())?;
    Ok(from_now(Timestamp::now(), duration))
}

/// A number and its unit: `500ms`, `90s`, `10m`, `2h`, `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    // A century is enough, and every sum of it with the present is a time.
    let millis = number.parse::<u64>().ok().zip(millis).and_then(|(number, unit)| number.checked_mul(unit));
    let millis = millis.filter(|millis| *millis <= 36_500 * 86_400_000);
    millis.map(Duration::from_millis).ok_or_else(|| format!("`{text}` is no duration as `90s`, `10m`, `2h` or `7d`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let seconds = |text| duration(text).ok().map(|duration| duration.as_secs());
        assert_eq!(seconds("90s"), Some(90));
        assert_eq!(seconds("10m"), Some(600));
        assert_eq!(seconds("2h"), Some(7200));
        assert_eq!(seconds("7d"), Some(604_800));
        for wrong in ["", "10", "m", "-1m", "1.5h", "10 m", "99999999999999999999d", "36501d"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_printed_with_their_age() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let at = |text: &str| with_age(text.parse().unwrap(), now);
        assert_eq!(at("2026-01-31T11:57:00.75Z"), "2026-01-31T11:57:00Z (2 min ago)");
        assert_eq!(at("2026-01-31T15:00:00Z"), "2026-01-31T15:00:00Z (in 3 h)");
        assert_eq!(at("2026-01-31T12:00:00Z"), "2026-01-31T12:00:00Z (now)");
    }

    #[test]
    fn a_time_is_a_timestamp_or_a_duration() {
        assert_eq!(past("2026-01-31T12:00:00Z"), Ok("2026-01-31T12:00:00Z".parse().unwrap()));
        assert!(past("10m").unwrap() < Timestamp::now());
        assert!(ahead("10m").unwrap() > Timestamp::now());
        assert!(past("yesterday").unwrap_err().contains("`10m`"));
    }
}
