//! Converts deliveries of the client library to messages for the consumer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use relevo_core::RawMessage;
use serde_json::Value;

use super::retry_queues::{ADDRESS_HEADER, DELAY_LEFT_HEADER, RETRIES_HEADER};

/// A received message, kept until it is acknowledged.
pub(crate) struct ReceivedMessage {
    /// The delivery tag of the channel.
    pub(crate) delivery_tag: u64,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
    /// The address that it was published to, without the lane.
    pub(crate) address: Arc<str>,
    /// It may have been delivered before.
    pub(crate) redelivered: bool,
    /// How often a retry was requested.
    pub(crate) retries: u32,
    /// The remaining retry delay. If it is not zero, the message must move to another retry queue.
    pub(crate) delay_left: Duration,
}

impl ReceivedMessage {
    /// Reads a delivery from a lane's queue. `lanes`: publishers append the lane to the routing key. `exchange` is the
    /// configured exchange, which addresses do not name.
    pub(crate) fn new(delivery: lapin::message::Delivery, lanes: bool, exchange: &str) -> Self {
        let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
        let value = |name: &str| headers.and_then(|headers| headers.get(name));
        let number = |name: &str| value(name).and_then(header_u64).unwrap_or_default();
        let retries = number(RETRIES_HEADER).try_into().unwrap_or(u32::MAX);
        let delay_left = Duration::from_millis(number(DELAY_LEFT_HEADER));
        let recorded = match value(ADDRESS_HEADER) {
            Some(AMQPValue::LongString(address)) => std::str::from_utf8(address.as_bytes()).ok().map(Arc::from),
            _ => None,
        };
        let published =
            || published_address(delivery.exchange.as_str(), delivery.routing_key.as_str(), lanes, exchange).into();
        Self {
            delivery_tag: delivery.delivery_tag,
            address: recorded.unwrap_or_else(published),
            redelivered: delivery.redelivered || retries > 0 || number("x-delivery-count") > 0,
            retries,
            delay_left,
            payload: delivery.data.into(),
            properties: delivery.properties,
        }
    }

    /// The message in the form that a consumer receives.
    pub(crate) fn to_raw_message(&self) -> RawMessage {
        raw_message(&self.properties, self.payload.clone())
    }
}

/// The address as a publisher writes it: the routing key, with the exchange before it unless it is the configured one.
fn published_address(exchange: &str, key: &str, lanes: bool, configured: &str) -> String {
    let key = match key.rsplit_once('.') {
        Some((key, _)) if lanes => key,
        None if lanes => "",
        _ => key,
    };
    if exchange == configured { key.to_owned() } else { format!("{exchange}/{key}") }
}

/// Headers and properties as names and bytes. A property does not replace a header of the same name. A property that
/// repeats a CloudEvents attribute is left out.
pub fn raw_message(properties: &BasicProperties, payload: Bytes) -> RawMessage {
    let table = properties.headers().as_ref().map(FieldTable::inner);
    let mut headers: Vec<(String, Bytes)> = Vec::with_capacity(table.map_or(0, |table| table.len() + 2));
    headers.extend(table.into_iter().flatten().map(|(name, value)| (name.to_string(), header_bytes(value))));
    let text = |value: &Option<ShortString>| value.as_ref().map(|value| Bytes::from(value.to_string()));
    for (name, value, repeats) in [
        ("content-type", text(properties.content_type()), ""),
        ("content-encoding", text(properties.content_encoding()), ""),
        ("message-id", text(properties.message_id()), "ce-id"),
        ("type", text(properties.kind()), "ce-type"),
        ("timestamp", properties.timestamp().map(|seconds| format_timestamp(seconds).into()), "ce-time"),
        ("correlation-id", text(properties.correlation_id()), ""),
        ("reply-to", text(properties.reply_to()), ""),
        ("expiration", text(properties.expiration()), ""),
        ("user-id", text(properties.user_id()), ""),
        ("app-id", text(properties.app_id()), "ce-source"),
        ("priority", properties.priority().map(|priority| priority.to_string().into()), ""),
    ] {
        let hidden = |(header, _): &(String, Bytes)| header == name || header == repeats;
        if let Some(value) = value
            && !headers.iter().any(hidden)
        {
            headers.push((name.to_owned(), value));
        }
    }
    RawMessage { headers, payload }
}

fn header_u64(value: &AMQPValue) -> Option<u64> {
    let number = match value {
        AMQPValue::ShortShortInt(number) => i64::from(*number),
        AMQPValue::ShortShortUInt(number) => i64::from(*number),
        AMQPValue::ShortInt(number) => i64::from(*number),
        AMQPValue::ShortUInt(number) => i64::from(*number),
        AMQPValue::LongInt(number) => i64::from(*number),
        AMQPValue::LongUInt(number) => i64::from(*number),
        AMQPValue::LongLongInt(number) => *number,
        _ => return None,
    };
    number.try_into().ok()
}

fn header_bytes(value: &AMQPValue) -> Bytes {
    match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        AMQPValue::ByteArray(bytes) => Bytes::copy_from_slice(bytes.as_slice()),
        AMQPValue::Void => Bytes::new(),
        other => match header_json(other) {
            Value::String(text) => text.into(),
            value => value.to_string().into(),
        },
    }
}

/// Converts any value to JSON. Bytes that are not UTF-8 are converted lossily.
fn header_json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(number) => (*number).into(),
        AMQPValue::ShortShortUInt(number) => (*number).into(),
        AMQPValue::ShortInt(number) => (*number).into(),
        AMQPValue::ShortUInt(number) => (*number).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongUInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => (*number).into(),
        AMQPValue::Float(number) => (*number).into(),
        AMQPValue::Double(number) => (*number).into(),
        AMQPValue::DecimalValue(decimal) => format!("{}e-{}", decimal.value, decimal.scale).into(),
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into(),
        AMQPValue::ByteArray(bytes) => String::from_utf8_lossy(bytes.as_slice()).into(),
        AMQPValue::Timestamp(seconds) => format_timestamp(*seconds).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(header_json).collect(),
        AMQPValue::FieldTable(table) => {
            Value::Object(table.inner().iter().map(|(name, value)| (name.to_string(), header_json(value))).collect())
        }
        AMQPValue::Void => Value::Null,
    }
}

fn format_timestamp(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use lapin::types::{DecimalValue, FieldArray};

    use super::*;

    #[test]
    fn every_type_of_header_becomes_bytes() {
        let mut table = FieldTable::default();
        table.insert("inner".into(), AMQPValue::Boolean(false));
        let mut array = FieldArray::default();
        array.push(AMQPValue::LongInt(-1));
        array.push(AMQPValue::LongString("é".into()));
        array.push(AMQPValue::Void);
        for (value, expected) in [
            (AMQPValue::Boolean(true), &b"true"[..]),
            (AMQPValue::ShortShortInt(-1), b"-1"),
            (AMQPValue::ShortShortUInt(255), b"255"),
            (AMQPValue::ShortInt(-2), b"-2"),
            (AMQPValue::ShortUInt(65_535), b"65535"),
            (AMQPValue::LongInt(-3), b"-3"),
            (AMQPValue::LongUInt(4_294_967_295), b"4294967295"),
            (AMQPValue::LongLongInt(i64::MIN), b"-9223372036854775808"),
            (AMQPValue::Float(0.5), b"0.5"),
            (AMQPValue::Double(1.25), b"1.25"),
            (AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }), b"314e-2"),
            (AMQPValue::ShortString("a".into()), b"a"),
            (AMQPValue::LongString("clave-ñ".into()), "clave-ñ".as_bytes()),
            (AMQPValue::LongString(vec![0xff, 0].into()), &[0xff, 0]),
            (AMQPValue::ByteArray(vec![0, 0xfe].into()), &[0, 0xfe]),
            (AMQPValue::Timestamp(1_772_366_400), b"2026-03-01T12:00:00Z"),
            (AMQPValue::Timestamp(u64::MAX), b"18446744073709551615"),
            (AMQPValue::FieldArray(array), "[-1,\"é\",null]".as_bytes()),
            (AMQPValue::FieldTable(table), b"{\"inner\":false}"),
            (AMQPValue::Void, b""),
        ] {
            assert_eq!(&*header_bytes(&value), expected, "{value:?}");
        }
    }

    fn header_values(raw: &RawMessage, name: &str) -> Vec<String> {
        let values = raw.headers.iter().filter(|(header, _)| header == name);
        values.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
    }

    #[test]
    fn properties_are_added_to_the_headers_and_replace_none() {
        let mut headers = FieldTable::default();
        headers.insert("correlation-id".into(), AMQPValue::LongString("own".into()));
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_message_id("m-1".into())
            .with_type("OrderPlaced".into())
            .with_timestamp(0)
            .with_correlation_id("property".into())
            .with_headers(headers);
        let raw = raw_message(&properties, Bytes::new());
        for (name, expected) in [
            ("content-type", "text/plain"),
            ("message-id", "m-1"),
            ("type", "OrderPlaced"),
            ("timestamp", "1970-01-01T00:00:00Z"),
            ("correlation-id", "own"),
        ] {
            assert_eq!(header_values(&raw, name), [expected], "{name}");
        }
    }

    #[test]
    fn a_property_that_duplicates_an_attribute_is_left_out() {
        let mut headers = FieldTable::default();
        headers.insert("ce-id".into(), AMQPValue::LongString("1".into()));
        let raw =
            raw_message(&BasicProperties::default().with_message_id("1".into()).with_headers(headers), Bytes::new());
        assert_eq!(raw.headers.len(), 1);
    }

    #[test]
    fn an_address_is_the_one_the_publisher_used() {
        assert_eq!(published_address("shop", "orders.eu.3", true, "shop"), "orders.eu");
        assert_eq!(published_address("shop", "orders.eu", false, "shop"), "orders.eu");
        assert_eq!(published_address("other", "orders.0", true, "shop"), "other/orders");
        assert_eq!(published_address("fanout", "3", true, ""), "fanout/");
        assert_eq!(published_address("", "queue", false, ""), "queue");
    }
}
