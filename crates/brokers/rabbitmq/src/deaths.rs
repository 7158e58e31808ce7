//! The headers that the broker adds when it moves a message from one queue to another.

use relevo_core::RawMessage;
use serde_json::Value;

/// One entry of `x-death`: why and how often a message left a queue without an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The queue that it left.
    pub queue: String,
    /// The reason in AMQP: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: String,
    /// How often it left that queue for that reason.
    pub count: u64,
    /// The time of the first event, in whole seconds; `None` if it is invalid.
    pub time: Option<jiff::Timestamp>,
    /// The exchange that had routed it to that queue.
    pub exchange: String,
    /// The routing keys that it had.
    pub routing_keys: Vec<String>,
}

impl Death {
    /// The `x-death` entries of a received message, the latest first. Invalid entries are left out.
    ///
    /// A message in a retry queue has only the last entry. The others are removed, because RabbitMQ drops a message
    /// that it considers to be in a cycle.
    pub fn read(raw: &RawMessage) -> Vec<Self> {
        let header = raw.headers.iter().find(|(name, _)| name == "x-death").map(|(_, value)| value);
        let entries = header.and_then(|value| serde_json::from_slice::<Vec<Value>>(value).ok()).unwrap_or_default();
        entries.iter().filter_map(Self::of).collect()
    }

    fn of(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        let keys = entry.get("routing-keys").and_then(Value::as_array).into_iter().flatten();
        Some(Self {
            queue: text("queue")?,
            reason: text("reason")?,
            count: entry.get("count").and_then(Value::as_u64)?,
            time: text("time").and_then(|time| time.parse().ok()),
            exchange: text("exchange").unwrap_or_default(),
            routing_keys: keys.filter_map(|key| key.as_str().map(str::to_owned)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_is_no_history_is_none() {
        for value in ["", "no", "{}", "[1]", "[{\"queue\":1}]"] {
            let raw = RawMessage { headers: vec![("x-death".to_owned(), value.into())], payload: Bytes::new() };
            assert_eq!(Death::read(&raw), [], "{value}");
        }
        assert_eq!(Death::read(&RawMessage::default()), []);
    }
}
