//! What the suite needs of a log beyond the port: messages in it, and what a consumer received of them.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::inbox::source::{Ask, Filter, Logged, ReplaySource};
use relevo_core::{BrokerConsumer, Delivery, Draft, Message, MessageId, Publication};

/// A log of its own for one case, empty at first.
///
/// A call that fails panics: cases look at what the port answers, not at the harness.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The log, as another process would open it.
    async fn source(&self) -> Box<dyn ReplaySource>;

    /// Publishes or emits these messages, one after the other.
    async fn put(&mut self, drafts: Vec<Draft>) -> Vec<MessageId>;

    /// Everything that a consumer receives of them, in the order of the log; `None` for the log of an outbox, which no
    /// consumer reads.
    async fn received(&self) -> Option<Vec<Delivery>>;
}

/// What a relay would publish of these, to addresses named as their topics; the first has this number.
pub fn publications(drafts: Vec<Draft>, first: u64) -> Vec<Publication> {
    let publication = |(draft, number): (Draft, u64)| {
        let Draft { topic, key, kind, payload, content_type, headers, .. } = draft;
        let address: Arc<str> = (*topic).into();
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        let id = MessageId::v7(number, random);
        let created_at = "2026-03-01T12:00:00.123456Z".parse().expect("a time");
        let message = Message { id, kind, key, topic, payload, content_type, headers, created_at };
        let seq = i64::try_from(number).expect("a small number");
        Publication { message: Arc::new(message), address, headers: Arc::default(), seq, epoch: 1 }
    };
    drafts.into_iter().zip(first..).map(publication).collect()
}

/// So many deliveries of a consumer, in the order of the log.
pub async fn receive(consumer: &impl BrokerConsumer, count: usize) -> Vec<Delivery> {
    let mut received = Vec::new();
    while received.len() < count {
        let next = crate::broker::harness::soon(consumer.receive(count)).await;
        received.extend(next.expect("the broker is there"));
    }
    received.sort_by_key(|delivery| delivery.place);
    received
}

/// The message of this number: one of three keys, two topics, two types.
pub(crate) fn draft(number: usize) -> Draft {
    let (topic, kind) = if number.is_multiple_of(2) { ("orders.eu", "Placed") } else { ("orders.us", "Shipped") };
    Draft::json(topic, &format!("k-{}", number % 3), kind, format!("{{\"n\":{number}}}"))
}

/// The first so many messages.
pub(crate) fn drafts(count: usize) -> Vec<Draft> {
    (0..count).map(draft).collect()
}

/// Everything that a filter means, read page by page.
pub(crate) async fn all(source: &dyn ReplaySource, filter: &Filter, limit: usize) -> Vec<Logged> {
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        let read = source.read(filter, Ask { after, limit, bytes: 1 << 20 }).await.expect("the log can be read");
        assert!(read.messages.len() <= limit, "a page is not longer than was asked for");
        assert!(read.messages.iter().all(|logged| after < logged.number && logged.number <= read.next));
        assert!(read.ended || read.next > after, "every call gets further");
        found.extend(read.messages);
        after = read.next;
        if read.ended {
            return found;
        }
    }
}

/// The ids of messages of ours.
pub(crate) fn ids(logged: &[Logged]) -> Vec<MessageId> {
    logged.iter().map(|logged| logged.raw.decode().expect("a message of ours").message.id).collect()
}
