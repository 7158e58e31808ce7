//! How long an inbox must remember messages: as long as a message can be delivered again.

use std::time::Duration;

use super::admin::ConsumerSummary;
use crate::finding::{Finding, Severity};

/// The subject of every finding in this module.
const SUBJECT: &str = "inbox retention";

/// A source that can deliver a handled message again, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedeliveryWindow {
    /// A readable name, such as "outbox `shop`".
    pub source: String,
    /// How long after it was handled a message can come again. `None` means without limit.
    pub duration: Option<Duration>,
}

/// Compares how long a consumer's inbox remembers messages with how long they can come again.
///
/// The consumer runtime dead-letters messages that are older than its inbox remembers. This prevents double handling,
/// but those messages are not handled at all. Consumers that use the inbox only through SQL have no such protection.
pub fn check_retention(consumer: &ConsumerSummary, horizons: &[RedeliveryWindow]) -> Finding {
    let name = &consumer.name;
    let finding = |severity, seen, fix| Finding { severity, subject: SUBJECT.to_owned(), detail: seen, fix };
    let Some(remembers) = consumer.done_retention else {
        return finding(Severity::Ok, format!("`{name}` was never pruned: it has forgotten nothing"), None);
    };
    let has = format!("`{name}` remembers for {}", format_duration(remembers));
    let shorter = |horizon: &&RedeliveryWindow| horizon.duration.is_some_and(|lasts| lasts > remembers);
    if let Some(far) = horizons.iter().filter(shorter).max_by_key(|horizon| horizon.duration) {
        let lasts = format_duration(far.duration.unwrap_or_default());
        let (severity, means) = match consumer.heartbeat_at {
            Some(_) => (Severity::Warning, "later redeliveries are dead-lettered as `expired`"),
            None => (Severity::Danger, "later redeliveries are handled again"),
        };
        let fix = format!(
            "open its inbox with `InboxRetention {{ done }}` of {lasts} or more (`done_retention` of `inbox_prune` from SQL), or let {} \
             keep messages for less",
            far.source
        );
        return finding(
            severity,
            format!("{has}, messages can come again for {lasts} ({}): {means}", far.source),
            Some(fix),
        );
    }
    if let Some(endless) = horizons.iter().find(|horizon| horizon.duration.is_none()) {
        let seen =
            format!("{has}; {} keeps messages forever, and a new consumer of it gets all of them", endless.source);
        return finding(Severity::Note, seen, Some("give it a largest age".to_owned()));
    }
    match horizons.iter().max_by_key(|horizon| horizon.duration) {
        Some(far) => {
            let lasts = format_duration(far.duration.unwrap_or_default());
            finding(Severity::Ok, format!("{has}, messages can come again for {lasts} ({})", far.source), None)
        }
        None => finding(Severity::Ok, format!("{has}; nothing here sends to it"), None),
    }
}

/// Formats a duration in the largest unit that fits at least twice. Rounds up, so that the suggested fix is long
/// enough.
fn format_duration(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        7200..172_800 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn consumer(remembers: Option<Duration>, beats: bool) -> ConsumerSummary {
        ConsumerSummary {
            name: "billing".to_owned(),
            paused: false,
            members: 0,
            heartbeat_at: beats.then_some(jiff::Timestamp::UNIX_EPOCH),
            last_message_at: None,
            waiting: 0,
            dead: 0,
            done_retention: remembers,
        }
    }

    fn window(source: &str, lasts: Option<Duration>) -> RedeliveryWindow {
        RedeliveryWindow { source: source.to_owned(), duration: lasts }
    }

    #[test]
    fn a_retention_below_the_redelivery_window_is_reported_with_a_fix() {
        let horizons = [window("the outbox", Some(7 * DAY)), window("stream `ORDERS`", Some(40 * DAY))];
        let found = check_retention(&consumer(Some(30 * DAY), true), &horizons);
        assert_eq!((found.severity, found.subject.as_str()), (Severity::Warning, "inbox retention"));
        assert!(found.detail.contains("`billing` remembers for 30 days"), "{}", found.detail);
        assert!(found.detail.contains("40 days (stream `ORDERS`)"), "{}", found.detail);
        assert!(found.fix.expect("there is one").contains("40 days or more"));
    }

    #[test]
    fn a_short_retention_without_heartbeats_is_a_danger() {
        let horizons = [window("the outbox", Some(7 * DAY))];
        assert_eq!(check_retention(&consumer(Some(DAY), false), &horizons).severity, Severity::Danger);
    }

    #[test]
    fn a_retention_above_the_redelivery_window_is_good() {
        let horizons = [window("the outbox", Some(7 * DAY))];
        assert_eq!(check_retention(&consumer(Some(7 * DAY), true), &horizons).severity, Severity::Ok);
        assert_eq!(check_retention(&consumer(None, false), &horizons).severity, Severity::Ok);
        assert_eq!(check_retention(&consumer(Some(DAY), true), &[]).severity, Severity::Ok);
    }

    #[test]
    fn an_unlimited_redelivery_window_is_noted() {
        let found = check_retention(&consumer(Some(30 * DAY), true), &[window("stream `ORDERS`", None)]);
        assert_eq!(found.severity, Severity::Note);
    }
}
