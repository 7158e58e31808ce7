//! How long an inbox must remember messages: as long as a message can be delivered again.

use std::time::Duration;

use super::operate::Consumer;
use crate::operate::{Finding, Severity};

/// The subject of every finding in this module.
const SUBJECT: &str = "inbox retention";

/// A source that can deliver a handled message again, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// A readable name, such as "outbox `shop`".
    pub source: String,
    /// How long after it was handled a message can come again. `None` means without limit.
    pub lasts: Option<Duration>,
}

/// Compares how long a consumer's inbox remembers messages with how long they can come again.
///
/// The consumer runtime dead-letters messages that are older than its inbox remembers. This prevents double handling,
/// but those messages are not handled at all. Consumers that use the inbox only through SQL have no such protection.
pub fn compare(consumer: &Consumer, horizons: &[Horizon]) -> Finding {
    let name = &consumer.name;
    let finding = |severity, seen, fix| Finding { severity, subject: SUBJECT.to_owned(), seen, fix };
    let Some(remembers) = consumer.remembers else {
        return finding(Severity::Good, format!("`{name}` was never pruned: it has forgotten nothing"), None);
    };
    let has = format!("`{name}` remembers for {}", told(remembers));
    let shorter = |horizon: &&Horizon| horizon.lasts.is_some_and(|lasts| lasts > remembers);
    if let Some(far) = horizons.iter().filter(shorter).max_by_key(|horizon| horizon.lasts) {
        let lasts = told(far.lasts.unwrap_or_default());
        let (severity, means) = match consumer.beat_at {
            Some(_) => (Severity::Warning, "what comes later than that goes to the dead letters as `expired`"),
            None => (Severity::Danger, "what comes later than that is handled again"),
        };
        let fix = format!(
            "open its inbox with `Keeping {{ done }}` of {lasts} or more (`done_retention` of `inbox_prune` from SQL), or let {} \
             keep messages for less",
            far.source
        );
        return finding(
            severity,
            format!("{has}, messages can come again for {lasts} ({}): {means}", far.source),
            Some(fix),
        );
    }
    if let Some(endless) = horizons.iter().find(|horizon| horizon.lasts.is_none()) {
        let seen =
            format!("{has}; {} keeps messages for ever, and whoever reads it anew gets all of them", endless.source);
        return finding(Severity::Note, seen, Some("give it a largest age".to_owned()));
    }
    match horizons.iter().max_by_key(|horizon| horizon.lasts) {
        Some(far) => {
            let lasts = told(far.lasts.unwrap_or_default());
            finding(Severity::Good, format!("{has}, messages can come again for {lasts} ({})", far.source), None)
        }
        None => finding(Severity::Good, format!("{has}; nothing here sends to it"), None),
    }
}

/// Formats a duration in the largest unit that fits at least twice. Rounds up, so that the suggested fix is long
/// enough.
fn told(time: Duration) -> String {
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

    fn consumer(remembers: Option<Duration>, beats: bool) -> Consumer {
        Consumer {
            name: "billing".to_owned(),
            paused: false,
            members: 0,
            beat_at: beats.then_some(jiff::Timestamp::UNIX_EPOCH),
            last_message_at: None,
            waiting: 0,
            dead: 0,
            remembers,
        }
    }

    fn horizon(source: &str, lasts: Option<Duration>) -> Horizon {
        Horizon { source: source.to_owned(), lasts }
    }

    #[test]
    fn an_inbox_that_forgets_too_early_is_named_with_what_mends_it() {
        let horizons = [horizon("the outbox", Some(7 * DAY)), horizon("stream `ORDERS`", Some(40 * DAY))];
        let found = compare(&consumer(Some(30 * DAY), true), &horizons);
        assert_eq!((found.severity, found.subject.as_str()), (Severity::Warning, "inbox retention"));
        assert!(found.seen.contains("`billing` remembers for 30 days"), "{}", found.seen);
        assert!(found.seen.contains("40 days (stream `ORDERS`)"), "{}", found.seen);
        assert!(found.fix.expect("there is one").contains("40 days or more"));
    }

    #[test]
    fn without_the_runtimes_guard_it_is_a_danger() {
        let horizons = [horizon("the outbox", Some(7 * DAY))];
        assert_eq!(compare(&consumer(Some(DAY), false), &horizons).severity, Severity::Danger);
    }

    #[test]
    fn what_remembers_longer_or_never_forgot_is_good() {
        let horizons = [horizon("the outbox", Some(7 * DAY))];
        assert_eq!(compare(&consumer(Some(7 * DAY), true), &horizons).severity, Severity::Good);
        assert_eq!(compare(&consumer(None, false), &horizons).severity, Severity::Good);
        assert_eq!(compare(&consumer(Some(DAY), true), &[]).severity, Severity::Good);
    }

    #[test]
    fn a_source_without_an_end_is_worth_knowing() {
        let found = compare(&consumer(Some(30 * DAY), true), &[horizon("stream `ORDERS`", None)]);
        assert_eq!(found.severity, Severity::Note);
    }
}
