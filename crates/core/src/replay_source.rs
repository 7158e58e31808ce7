//! The port to logs that messages are read from again, to replay them to a consumer.
//!
//! A log is read from its oldest message, and messages of one key come in publishing order. Reading changes nothing.
//! The reader keeps its own position: the number of the last message.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::broker::Publication;
use crate::broker_consumer::{Lane, RawMessage};
use crate::failure::{Class, Failure};
use crate::message::Message;
use crate::route::{self, Routes};
use crate::store::StoreError;
use crate::wire;

/// Selects messages of a log. All set fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayFilter {
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

impl ReplayFilter {
    /// Whether the filter selects this message. A message that is not from Relevo has no topic, type or key.
    pub fn matches(&self, logged: &LogMessage) -> bool {
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
            && self.address.as_ref().is_none_or(|pattern| route::pattern_matches(pattern, &logged.address))
            && self.since.is_none_or(|since| logged.at >= since)
            && self.until.is_none_or(|until| logged.at < until)
            && self.from.is_none_or(|from| logged.number >= from)
            && self.to.is_none_or(|to| logged.number <= to)
    }

    /// The number after which reading starts, for a reader that has reached `after`.
    pub fn start_after(&self, after: u64) -> u64 {
        after.max(self.from.map_or(0, |from| from.saturating_sub(1)))
    }
}

/// A message of a log, as a consumer received it or would receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogMessage {
    /// Its number in the log. A reader continues after this number.
    pub number: u64,
    /// When it entered the log.
    pub at: Timestamp,
    /// The headers and payload, unchanged.
    pub raw: RawMessage,
    /// The address it was published to.
    pub address: Arc<str>,
    /// The lane it arrives in.
    pub lane: Lane,
    /// Its number at the broker, if consumers receive one.
    pub offset: Option<u64>,
}

/// How much one call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayReadRequest {
    /// Read after this number. Zero starts at the beginning.
    pub after: u64,
    /// The maximum number of messages.
    pub limit: usize,
    /// Stop after this number of payload bytes. At least one message is always read.
    pub bytes: usize,
}

/// The result of one read call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayPage {
    /// Selected messages in log order. May be empty even if more follow.
    pub messages: Vec<LogMessage>,
    /// Everything up to this number was read.
    pub next: u64,
    /// No selected message follows.
    pub ended: bool,
}

/// The oldest and the newest number of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest retained number.
    pub first: u64,
    /// The newest number.
    pub last: u64,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplaySourceError {
    /// It is unreachable now.
    #[error("the log cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It does not support replays.
    #[error("{0}")]
    Unsupported(String),
    /// It, or the group, does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It is reachable, but cannot be read.
    #[error("the log cannot be read")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store that contains it returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Failure> for ReplaySourceError {
    fn from(failure: Failure) -> Self {
        match failure.class() {
            Class::Outage | Class::Unknown | Class::Throttled(_) => Self::Unreachable(failure.into()),
            Class::Transient | Class::Poison | Class::Blocked => Self::Failed(failure.into()),
        }
    }
}

impl ReplaySourceError {
    /// Whether a later retry may succeed.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Store(error) => error.is_retryable(),
            Self::Unsupported(_) | Self::NotFound(_) | Self::Failed(_) => false,
        }
    }

    /// The broker has no group of this name, but these.
    pub fn group_not_found(group: &str, groups: &[String]) -> Self {
        let hint = if groups.is_empty() {
            "it has no groups".to_owned()
        } else {
            format!("its groups are `{}`", groups.join("`, `"))
        };
        Self::NotFound(format!("the broker has no group `{group}`; hint: {hint}"))
    }
}

/// A log that retains published messages.
#[async_trait]
pub trait ReplaySource: Send + Sync {
    /// The oldest and newest number of the log now. `None` if it is empty. A replay that starts now ends at the newest
    /// number; later messages are delivered live.
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError>;

    /// Counts the selected messages. The default reads them all.
    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        /// A page is limited by its bytes.
        const LIMIT: usize = 10_000;
        const BYTES_MAX: usize = 64 << 20;
        let (mut count, mut after) = (0, 0);
        loop {
            let page = self.read(filter, ReplayReadRequest { after, limit: LIMIT, bytes: BYTES_MAX }).await?;
            count += page.messages.len() as u64;
            after = page.next;
            if page.ended {
                return Ok(count);
            }
        }
    }

    /// Reads the next selected messages. One call scans a bounded part of the log, even if it selects few messages.
    async fn read(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError>;
}

/// Reads the first selected messages, at most `limit`.
pub async fn first_matching(
    source: &dyn ReplaySource,
    filter: &ReplayFilter,
    limit: usize,
) -> Result<Vec<LogMessage>, ReplaySourceError> {
    /// Enough for any sample.
    const BYTES_MAX: usize = 1 << 20;
    let mut found = Vec::new();
    let mut after = 0;
    while found.len() < limit {
        let read =
            source.read(filter, ReplayReadRequest { after, limit: limit - found.len(), bytes: BYTES_MAX }).await?;
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
pub struct OutboxRouting {
    /// Their addresses and header changes.
    pub routes: Routes,
    /// Their `ce-source`.
    pub source: String,
}

impl Default for OutboxRouting {
    /// Publishes every message to the address named like its topic, with the default source of the brokers.
    fn default() -> Self {
        Self { routes: Routes::default(), source: "/relevo".to_owned() }
    }
}

impl OutboxRouting {
    /// The lane name for messages that are read from an outbox's log. It is not a lane of the broker.
    pub const LANE: &str = "outbox";

    /// Converts a message of the log into the form that a consumer receives. `None` if no route matches.
    ///
    /// The lease epoch under which it was sent is no longer known, so its header is omitted.
    pub fn to_log_message(&self, seq: i64, message: Message) -> Option<LogMessage> {
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
        Some(LogMessage {
            number: seq.unsigned_abs(),
            at,
            raw: RawMessage::new(headers, payload),
            address,
            lane: Lane::new(Self::LANE),
            offset: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Draft;
    use crate::header_rules::HeaderRules;
    use crate::message::{Headers, MessageId};
    use crate::route::Route;

    fn message(topic: &str, key: &str) -> Message {
        let headers = Headers::from([("x-own".to_owned(), "1".to_owned())]);
        let draft = Draft { headers, ..Draft::json(topic, key, "OrderPlaced", "{}") };
        draft.into_message(MessageId::v7(5, [1; 10]), Timestamp::UNIX_EPOCH)
    }

    fn log_message(topic: &str, key: &str) -> LogMessage {
        OutboxRouting::default().to_log_message(7, message(topic, key)).expect("everything has a route")
    }

    #[test]
    fn a_consumer_decodes_a_log_message() {
        let logged = log_message("orders.eu", "o-1");
        let received = logged.raw.decode().expect("a message of ours");
        assert_eq!(received.message, message("orders.eu", "o-1"));
        assert_eq!((received.seq, received.epoch, received.source.as_str()), (Some(7), None, "/relevo"));
        assert_eq!((&*logged.address, logged.number, logged.offset), ("orders.eu", 7, None));
    }

    #[test]
    fn a_route_sets_the_address_and_the_headers() {
        let rules =
            HeaderRules { rename: [("x-own".to_owned(), "x-their".to_owned())].into(), ..HeaderRules::default() };
        let route = Route {
            topic: "orders".to_owned(),
            address: "shop/{topic}".to_owned(),
            headers: Arc::new(rules),
            ..Route::catch_all()
        };
        let sending = OutboxRouting { routes: Routes::new(vec![route]), source: "/shop".to_owned() };
        let logged = sending.to_log_message(7, message("orders", "o-1")).expect("its route");
        let received = logged.raw.decode().expect("a message of ours");
        assert_eq!((&*logged.address, received.source.as_str()), ("shop/orders", "/shop"));
        assert!(received.message.headers.contains_key("x-their"));
        assert_eq!(sending.to_log_message(8, message("bills", "b-1")), None, "no route takes it");
    }

    #[test]
    fn a_filter_requires_every_field_that_is_set() {
        let one = log_message("orders.eu", "o-1");
        let text = |text: &str| Some(text.to_owned());
        for (filter, admitted) in [
            (ReplayFilter::default(), true),
            (ReplayFilter { topic: text("orders.eu"), key: text("o-1"), ..ReplayFilter::default() }, true),
            (ReplayFilter { topic: text("orders.eu"), key: text("o-2"), ..ReplayFilter::default() }, false),
            (ReplayFilter { topic: text("orders"), ..ReplayFilter::default() }, false),
            (ReplayFilter { kind: text("OrderPlaced"), ..ReplayFilter::default() }, true),
            (ReplayFilter { address: text("orders.**"), ..ReplayFilter::default() }, true),
            (ReplayFilter { address: text("bills.**"), ..ReplayFilter::default() }, false),
            (ReplayFilter { since: Some(Timestamp::UNIX_EPOCH), ..ReplayFilter::default() }, true),
            (ReplayFilter { until: Some(Timestamp::UNIX_EPOCH), ..ReplayFilter::default() }, false),
            (ReplayFilter { from: Some(7), to: Some(7), ..ReplayFilter::default() }, true),
            (ReplayFilter { from: Some(8), ..ReplayFilter::default() }, false),
            (ReplayFilter { to: Some(6), ..ReplayFilter::default() }, false),
        ] {
            assert_eq!(filter.matches(&one), admitted, "{filter:?}");
        }
    }

    #[test]
    fn a_foreign_message_has_neither_topic_nor_key() {
        let foreign = LogMessage { raw: RawMessage::default(), ..log_message("orders", "o-1") };
        assert!(ReplayFilter::default().matches(&foreign));
        assert!(!ReplayFilter { key: Some("o-1".to_owned()), ..ReplayFilter::default() }.matches(&foreign));
    }

    #[test]
    fn reading_starts_at_the_later_of_cursor_and_filter() {
        let filter = ReplayFilter { from: Some(10), ..ReplayFilter::default() };
        assert_eq!((filter.start_after(0), filter.start_after(9), filter.start_after(20)), (9, 9, 20));
        assert_eq!(ReplayFilter::default().start_after(3), 3);
    }
}
