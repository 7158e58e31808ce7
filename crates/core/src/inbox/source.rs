//! The port to logs that messages are read from once more, to be replayed to a consumer.
//!
//! A log is read from its oldest message on, in an order in which messages of one key stand as they were published. Reading
//! changes nothing, and whoever reads remembers where it stands: the number of the last message.

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

/// Which messages of a log are meant; everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Published to an address that matches this pattern: segments between dots, `*` for one, `**` for any rest.
    pub address: Option<String>,
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// Entered the log at this time or later.
    pub since: Option<Timestamp>,
    /// Entered the log before this time.
    pub until: Option<Timestamp>,
    /// With this number of the log, or a higher one.
    pub from: Option<u64>,
    /// With this number of the log, or a lower one.
    pub to: Option<u64>,
}

impl Filter {
    /// Whether a message is meant, by all that can be told of it alone. One that is no message of ours has neither topic
    /// nor type nor key.
    pub fn admits(&self, logged: &Logged) -> bool {
        let header = |name: &str| {
            // Of a header that comes twice the last one counts, as when it is decoded.
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

    /// The number behind which reading begins, for a reader that has come so far.
    pub fn start(&self, after: u64) -> u64 {
        after.max(self.from.map_or(0, |from| from.saturating_sub(1)))
    }
}

/// A message of a log, as a consumer received it or would have received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its number in the log: whoever goes on behind it says this one.
    pub number: u64,
    /// When it entered the log.
    pub at: Timestamp,
    /// What arrives, exactly.
    pub raw: Raw,
    /// Where it was published to.
    pub address: Arc<str>,
    /// Which lane it comes through.
    pub lane: Lane,
    /// Its number at the broker, where a consumer is told one.
    pub place: Option<u64>,
}

/// How much one call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Behind this number; zero for the beginning.
    pub after: u64,
    /// At most so many messages.
    pub limit: usize,
    /// No further message once payloads have this many bytes; always at least one.
    pub bytes: usize,
}

/// What one call read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Messages that are meant, in the order of their numbers; may be none although there are more.
    pub messages: Vec<Logged>,
    /// Everything up to this number was looked at.
    pub next: u64,
    /// Nothing that is meant is left behind it.
    pub ended: bool,
}

/// The oldest and the newest number of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The oldest that is kept.
    pub first: u64,
    /// The newest.
    pub last: u64,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be reached now.
    #[error("the log cannot be reached")]
    Away(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It cannot be replayed from, whatever is tried.
    #[error("{0}")]
    Unfit(String),
    /// It is there and cannot be read.
    #[error("the log cannot be read")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store that it is in said no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SourceError {
    /// Whether it may be mended by waiting.
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Away(_) => true,
            Self::Store(error) => error.is_passing(),
            Self::Unfit(_) | Self::Broken(_) => false,
        }
    }
}

/// A log that keeps what was published.
#[async_trait]
pub trait ReplaySource: Send + Sync {
    /// What the log holds now; `None` if it is empty. What enters it later is live: a replay that begins now ends at its
    /// newest number.
    async fn extent(&self) -> Result<Option<Extent>, SourceError>;

    /// How many messages are meant.
    async fn count(&self, filter: &Filter) -> Result<u64, SourceError>;

    /// The next messages that are meant. One call looks at a bounded part of the log, however little of it is meant.
    async fn read(&self, filter: &Filter, ask: Ask) -> Result<Read, SourceError>;
}

/// The first messages that are meant, at most so many.
pub async fn sample(source: &dyn ReplaySource, filter: &Filter, limit: usize) -> Result<Vec<Logged>, SourceError> {
    /// No sample needs more.
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

/// How the messages of an outbox leave it: what its log alone does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Sending {
    /// Where they go, and with which headers.
    pub routes: Routes,
    /// What `ce-source` says of them.
    pub source: String,
}

impl Default for Sending {
    /// Every message to the address named as its topic, from the source that brokers name unless they are told another.
    fn default() -> Self {
        Self { routes: Routes::default(), source: "/relevo".to_owned() }
    }
}

impl Sending {
    /// The lane of messages that are read from an outbox's log: none of the broker's.
    pub const LANE: &str = "outbox";

    /// A message of the log as a consumer receives it; `None` if no route takes it.
    ///
    /// The epoch of the lease under which it was sent is not known any more, and left out.
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
