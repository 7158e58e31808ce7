//! Retry queues: a message waits in each for a fixed time, and then returns to its own queue.
//!
//! The delay belongs to the queue, not to the message: a message with a long time to live would block all messages
//! after it. A delay that is longer than that of any queue takes several steps. The message carries the remaining delay
//! as a duration, so that no clocks are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

/// Header: how often a retry of the message was requested.
pub(crate) const RETRIES_HEADER: &str = "relevo-retries";
/// Header: the milliseconds of the delay that remain after the current retry queue.
pub(crate) const DELAY_LEFT_HEADER: &str = "relevo-delay-left-ms";
/// Header: the address that the message was published to. When it returns, the broker knows only the retry queue.
pub(crate) const ADDRESS_HEADER: &str = "relevo-address";

/// Headers that the broker adds. They apply to one queue only. With them, the broker could treat the return as a cycle
/// and drop the message.
const BROKER_HEADERS: [&str; 5] =
    ["x-death", "x-delivery-count", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"];

/// Headers that would affect a copy as they affected the original. With them, further queues would receive the message
/// again, and the broker interprets these values itself. The value is kept under the second name.
const ACTING_HEADERS: [(&str, &str); 2] = [("CC", "relevo-cc"), ("BCC", "relevo-bcc")];

/// The delay of the next retry queue, and what then remains of the requested delay. It is the longest one that fits, or
/// the shortest one if none fits.
pub(crate) fn next_delay(retry_delays: &[Duration], requested: Duration) -> Option<(Duration, Duration)> {
    let fitting = retry_delays.iter().filter(|delay| **delay <= requested).max();
    let delay = *fitting.or_else(|| retry_delays.iter().min())?;
    Some((delay, requested.saturating_sub(delay)))
}

/// The properties of a message for a retry queue: the original ones, and the retry headers.
pub(crate) fn retry_properties(
    original: &BasicProperties,
    retries: u32,
    left: Duration,
    address: &str,
) -> BasicProperties {
    let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
    let headers = [
        (RETRIES_HEADER, AMQPValue::LongLongInt(retries.into())),
        (DELAY_LEFT_HEADER, AMQPValue::LongLongInt(left)),
        (ADDRESS_HEADER, AMQPValue::LongString(address.into())),
    ];
    copy_with_headers(original, headers)
}

fn copy_with_headers<const N: usize>(
    original: &BasicProperties,
    added: [(&'static str, AMQPValue); N],
) -> BasicProperties {
    let kept = original.headers().as_ref().map(FieldTable::inner).into_iter().flatten();
    let kept = kept.filter(|(name, _)| !BROKER_HEADERS.contains(&name.as_str()));
    let mut headers: BTreeMap<ShortString, AMQPValue> =
        kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    for (acting, name) in ACTING_HEADERS {
        if let Some(value) = headers.remove(acting) {
            headers.insert(name.into(), value);
        }
    }
    // As a property, `expiration` would expire the copy early, and the broker refuses a `user-id` of another user. As
    // headers, consumers see both where they saw them before.
    for (name, value) in [("expiration", original.expiration()), ("user-id", original.user_id())] {
        if let Some(value) = value {
            headers.entry(name.into()).or_insert_with(|| AMQPValue::LongString(value.as_str().into()));
        }
    }
    headers.extend(added.map(|(name, value)| (name.into(), value)));
    // Persistent, even if the original publisher did not set it.
    descriptive_properties(original).with_headers(headers.into()).with_delivery_mode(2)
}

/// The properties that only describe the message. The library can set a property but not remove one.
fn descriptive_properties(original: &BasicProperties) -> BasicProperties {
    type Set = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortString>, Set); 8] = [
        (original.content_type(), BasicProperties::with_content_type),
        (original.content_encoding(), BasicProperties::with_content_encoding),
        (original.correlation_id(), BasicProperties::with_correlation_id),
        (original.reply_to(), BasicProperties::with_reply_to),
        (original.message_id(), BasicProperties::with_message_id),
        (original.kind(), BasicProperties::with_type),
        (original.app_id(), BasicProperties::with_app_id),
        (original.cluster_id(), BasicProperties::with_cluster_id),
    ];
    let mut kept = BasicProperties::default();
    for (value, set) in texts {
        if let Some(value) = value {
            kept = set(kept, value.clone());
        }
    }
    if let Some(priority) = original.priority() {
        kept = kept.with_priority(*priority);
    }
    if let Some(timestamp) = original.timestamp() {
        kept = kept.with_timestamp(*timestamp);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_mins(1);

    fn delays_of(mut requested: Duration) -> Vec<u64> {
        let retry_delays = [MIN, 5 * MIN, 15 * MIN];
        let mut minutes = Vec::new();
        loop {
            let (delay, left) = next_delay(&retry_delays, requested).expect("there are retry delays");
            minutes.push(delay.as_secs() / 60);
            if left.is_zero() {
                return minutes;
            }
            requested = left;
        }
    }

    #[test]
    fn a_delay_is_made_of_retry_delays_and_is_never_shorter() {
        assert_eq!(delays_of(Duration::ZERO), [1]);
        assert_eq!(delays_of(MIN / 2), [1]);
        assert_eq!(delays_of(MIN), [1]);
        assert_eq!(delays_of(MIN * 3 / 2), [1, 1]);
        assert_eq!(delays_of(7 * MIN), [5, 1, 1]);
        assert_eq!(delays_of(15 * MIN), [15]);
        assert_eq!(delays_of(36 * MIN), [15, 15, 5, 1]);
    }

    #[test]
    fn without_retry_delays_there_is_no_next_delay() {
        assert_eq!(next_delay(&[], MIN), None);
    }

    fn published_properties() -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert("x-own".into(), AMQPValue::LongInt(-7));
        headers.insert("x-death".into(), AMQPValue::Void);
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(2));
        BasicProperties::default().with_message_id("m-1".into()).with_headers(headers)
    }

    fn headers(properties: &BasicProperties) -> BTreeMap<&str, &AMQPValue> {
        let table = properties.headers().as_ref().expect("headers");
        table.inner().iter().map(|(name, value)| (name.as_str(), value)).collect()
    }

    #[test]
    fn a_retry_copy_keeps_its_own_headers_and_drops_the_brokers() {
        let properties = retry_properties(&published_properties(), 1, MIN, "shop/orders");
        let headers = headers(&properties);
        assert_eq!(
            headers.keys().copied().collect::<Vec<_>>(),
            [ADDRESS_HEADER, DELAY_LEFT_HEADER, RETRIES_HEADER, "x-own"]
        );
        assert_eq!(headers["x-own"], &AMQPValue::LongInt(-7));
        for (name, number) in [(RETRIES_HEADER, 1), (DELAY_LEFT_HEADER, 60_000)] {
            assert_eq!(headers[name], &AMQPValue::LongLongInt(number), "{name}");
        }
        assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some("m-1"));
    }

    #[test]
    fn acting_headers_of_a_copy_are_renamed() {
        let mut acting = FieldTable::default();
        acting.insert("CC".into(), AMQPValue::LongString("elsewhere".into()));
        let original = BasicProperties::default()
            .with_priority(3)
            .with_timestamp(7)
            .with_correlation_id("c".into())
            .with_expiration("500".into())
            .with_user_id("writer".into())
            .with_headers(acting);
        let copy = retry_properties(&original, 1, MIN, "a");
        assert_eq!((copy.expiration(), copy.user_id()), (&None, &None));
        assert_eq!((copy.priority(), copy.timestamp()), (&Some(3), &Some(7)));
        assert_eq!(copy.correlation_id().as_ref().map(ShortString::as_str), Some("c"));
        let headers = headers(&copy);
        assert!(!headers.contains_key("CC"));
        for (name, value) in [("expiration", "500"), ("user-id", "writer"), ("relevo-cc", "elsewhere")] {
            assert_eq!(headers[name], &AMQPValue::LongString(value.into()));
        }
    }
}
