//! The port to logs that messages are read from again, to replay them to a consumer.
//!
//! A log is read from its oldest message, and messages of one key come in publishing order. Reading changes nothing.
//! The reader keeps its own position: the number of the last message.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::broker::Publication;
use crate::consume::{Lane, Raw};
use crate::message::Message;
use crate::route::{self, Routes};
use crate::store::StoreError;
use crate::wire;

/// Selects messages of a log. All set fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Published to an address that matches this pattern. Dots separate segments; `*` matches one, `**` the rest.
    pub address: Option<String>,
    /// With this topic.
    pub topic: Option<String>,
    /// With this type.
    pub kind: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// Entered the log at this time or later.
    pub since: Option<Timestamp>,
    /// Entered the log before this time.
    pub until: Option<Timestamp>,
    /// With this log number or a higher one.
    pub from: Option<u64>,
    /// With this log number or a lower one.
    pub to: Option<u64>,
}

impl Filter {
    /// Whether the filter selects this message. A message that is not from Relevo has no topic, type or key.
    pub fn admits(&self, logged: &Logged) -> bool {
        let header = |name: &str| {
            // If a header occurs twice, the last one is used, as in decoding.
            let found = logged.raw.headers.iter().rev().find(|(header, _)| header == name);
            found.map(|(_, value)| value)
        };
        let is = |wanted: &Option<String>, name: &str| {
            wanted.as_ref().is_none_or(|wanted| header(name).is_some_and(|value| value == wanted.as_bytes()))
        };
        is(&self.topic, wire::TOPIC)
            && is(&self.kind, wire::KIND)
            && is(&self.key, wire::KEY)
            && self.address.as_ref().is_none_or(|pattern| route::matches(pattern, &logged.address))
            && self.since.is_none_or(|since| logged.at >= since)
            && self.until.is_none_or(|until| logged.at < until)
            && self.from.is_none_or(|from| logged.number >= from)
            && self.to.is_none_or(|to| logged.number <= to)
    }

    /// The number after which reading starts, for a reader that has reached `after`.
    pub fn start(&self, after: u64) -> u64 {
        after.max(self.from.map_or(0, |from| from.saturating_sub(1)))
    }
}

/// A message of a log, as a consumer received it or would receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its number in the log. A reader continues after this number.
    pub number: u64,
    /// When it entered the log.
    pub at: Timestamp,
    /// The headers and payload, unchanged.
    pub raw: Raw,
    /// The address it was published to.
    pub address: Arc<str>,
    /// The lane it arrives in.
    pub lane: Lane,
    /// Its number at the broker, if consumers receive one.
    pub place: Option<u64>,
}

/// How much one call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Read after this number. Zero starts at the beginning.
    pub after: u64,
    /// The maximum number of messages.
    pub limit: usize,
    /// Stop after this number of payload bytes. At least one message is always read.
    pub bytes: usize,
}

/// The result of one read call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Selected messages in log order. May be empty even if more follow.
    pub messages: Vec<Logged>,
    /// Everything up to this number was read.
    pub next: u64,
    /// No selected message follows.
    pub ended: bool,
}

/// The oldest and the newest number of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The oldest retained number.
    pub first: u64,
    /// The newest number.
    pub last: u64,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It is unreachable now.
    #[error("the log cannot be reached")]
    Away(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It does not support replays.
    #[error("{0}")]
    Unfit(String),
    /// It is reachable, but cannot be read.
    #[error("the log cannot be read")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store that contains it returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SourceError {
    /// Whether a later retry may succeed.
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Away(_) => true,
            Self::Store(error) => error.is_passing(),
            Self::Unfit(_) | Self::Broken(_) => false,
        }
    }
}

/// A log that retains published messages.
#[async_trait]
pub trait ReplaySource: Send + Sync {
    /// The oldest and newest number of the log now. `None` if it is empty. A replay that starts now ends at the newest
    /// number; later messages are delivered live.
    async fn extent(&self) -> Result<Option<Extent>, SourceError>;

    /// Counts the selected messages.
    async fn count(&self, filter: &Filter) -> Result<u64, SourceError>;

    /// Reads the next selected messages. One call scans a bounded part of the log, even if it selects few messages.
    async fn read(&self, filter: &Filter, ask: Ask) -> Result<Read, SourceError>;
}

/// Reads the first selected messages, at most `limit`.
pub async fn sample(source: &dyn ReplaySource, filter: &Filter, limit: usize) -> Result<Vec<Logged>, SourceError> {
    /// Enough for any sample.
    const BYTES_MAX: usize = 1 << 20;
    let mut found = Vec::new();
    let mut after = 0;
    while found.len() < limit {
        let read = source.read(filter, Ask { after, limit: limit - found.len(), bytes: BYTES_MAX }).await?;
        found.extend(read.messages);
        after = read.next;
        if read.ended {
            break;
        }
    }
    Ok(found)
}

/// How the messages of an outbox are published. The log alone does not contain this.
#[derive(Clone, Debug, PartialEq)]
pub struct Sending {
    /// Their addresses and header changes.
    pub routes: Routes,
    /// Their `ce-source`.
    pub source: String,
}

impl Default for Sending {
    /// Publishes every message to the address named like its topic, with the default source of the brokers.
    fn default() -> Self {
        Self { routes: Routes::default(), source: "/relevo".to_owned() }
    }
}

impl Sending {
    /// The lane name for messages that are read from an outbox's log. It is not a lane of the broker.
    pub const LANE: &str = "outbox";

    /// Converts a message of the log into the form that a consumer receives. `None` if no route matches.
    ///
    /// The lease epoch under which it was sent is no longer known, so its header is omitted.
    pub fn logged(&self, seq: i64, message: Message) -> Option<Logged> {
        let route = Arc::clone(self.routes.find(&message)?);
        let at = message.created_at;
        let payload: Bytes = message.payload.clone();
        let address = route.address_of(&message);
        let publication = Publication {
            message: Arc::new(message),
            address: Arc::clone(&address),
            headers: Arc::clone(&route.headers),
            seq,
            epoch: 0,
        };
        let mut headers = wire::headers(&publication, &self.source);
        headers.remove(wire::EPOCH);
        Some(Logged {
            number: seq.unsigned_abs(),
            at,
            raw: Raw::new(headers, payload),
            address,
            lane: Lane::new(Self::LANE),
            place: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::HeaderRules;
    use crate::message::{Headers, MessageId};
    use crate::route::Route;

    fn message(topic: &str, key: &str) -> Message {
        Message {
            id: MessageId::v7(5, [1; 10]),
            kind: "OrderPlaced".into(),
            key: key.into(),
            topic: topic.into(),
            payload: Bytes::from_static(b"{}"),
            content_type: "application/json".into(),
            headers: Headers::from([("x-own".to_owned(), "1".to_owned())]),
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn logged(topic: &str, key: &str) -> Logged {
        Sending::default().logged(7, message(topic, key)).expect("everything has a route")
    }

    #[test]
    fn a_message_of_the_log_is_what_its_consumer_decodes() {
        let logged = logged("orders.eu", "o-1");
        let received = logged.raw.decode().expect("a message of ours");
        assert_eq!(received.message, message("orders.eu", "o-1"));
        assert_eq!((received.seq, received.epoch, received.source.as_str()), (Some(7), None, "/relevo"));
        assert_eq!((&*logged.address, logged.number, logged.place), ("orders.eu", 7, None));
    }

    #[test]
    fn a_route_says_the_address_and_the_headers() {
        let rules =
            HeaderRules { rename: [("x-own".to_owned(), "x-their".to_owned())].into(), ..HeaderRules::default() };
        let route = Route {
            topic: "orders".to_owned(),
            address: "shop/{topic}".to_owned(),
            headers: Arc::new(rules),
            ..Route::everything()
        };
        let sending = Sending { routes: Routes::new(vec![route]), source: "/shop".to_owned() };
        let logged = sending.logged(7, message("orders", "o-1")).expect("its route");
        let received = logged.raw.decode().expect("a message of ours");
        assert_eq!((&*logged.address, received.source.as_str()), ("shop/orders", "/shop"));
        assert!(received.message.headers.contains_key("x-their"));
        assert_eq!(sending.logged(8, message("bills", "b-1")), None, "no route takes it");
    }

    #[test]
    fn everything_that_is_set_must_hold() {
        let one = logged("orders.eu", "o-1");
        let text = |text: &str| Some(text.to_owned());
        for (filter, admitted) in [
            (Filter::default(), true),
            (Filter { topic: text("orders.eu"), key: text("o-1"), ..Filter::default() }, true),
            (Filter { topic: text("orders.eu"), key: text("o-2"), ..Filter::default() }, false),
            (Filter { topic: text("orders"), ..Filter::default() }, false),
            (Filter { kind: text("OrderPlaced"), ..Filter::default() }, true),
            (Filter { address: text("orders.**"), ..Filter::default() }, true),
            (Filter { address: text("bills.**"), ..Filter::default() }, false),
            (Filter { since: Some(Timestamp::UNIX_EPOCH), ..Filter::default() }, true),
            (Filter { until: Some(Timestamp::UNIX_EPOCH), ..Filter::default() }, false),
            (Filter { from: Some(7), to: Some(7), ..Filter::default() }, true),
            (Filter { from: Some(8), ..Filter::default() }, false),
            (Filter { to: Some(6), ..Filter::default() }, false),
        ] {
            assert_eq!(filter.admits(&one), admitted, "{filter:?}");
        }
    }

    #[test]
    fn what_is_no_message_of_ours_has_neither_topic_nor_key() {
        let foreign = Logged { raw: Raw::default(), ..logged("orders", "o-1") };
        assert!(Filter::default().admits(&foreign));
        assert!(!Filter { key: Some("o-1".to_owned()), ..Filter::default() }.admits(&foreign));
    }

    #[test]
    fn a_reader_begins_where_it_stands_or_where_the_filter_does() {
        let filter = Filter { from: Some(10), ..Filter::default() };
        assert_eq!((filter.start(0), filter.start(9), filter.start(20)), (9, 9, 20));
        assert_eq!(Filter::default().start(3), 3);
    }
}
