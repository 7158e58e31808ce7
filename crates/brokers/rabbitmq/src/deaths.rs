//! What the broker writes on a message that it moved from one queue to another.

use relevo_core::Raw;
use serde_json::Value;

/// One entry of `x-death`: why and how often a message left a queue without being acknowledged there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The queue that it left.
    pub queue: String,
    /// The broker's word: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: String,
    /// How often it left that queue for that reason.
    pub count: u64,
    /// When it did so first, to the second; `None` if it cannot be read.
    pub time: Option<jiff::Timestamp>,
    /// The exchange through which it had come there.
    pub exchange: String,
    /// The routing keys with which it had come there.
    pub routing_keys: Vec<String>,
}

impl Death {
    /// The deaths of a message that was received from RabbitMQ, the latest first. Entries that cannot be read are left out.
    ///
    /// A message on its way over the retry ladder has only the last one: the others are taken off, because
    /// RabbitMQ drops what it believes to go round in a circle.
    pub fn read(raw: &Raw) -> Vec<Self> {
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
            let raw = Raw { headers: vec![("x-death".to_owned(), value.into())], payload: Bytes::new() };
            assert_eq!(Death::read(&raw), [], "{value}");
        }
        assert_eq!(Death::read(&Raw::default()), []);
    }
}
