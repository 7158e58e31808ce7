//! The operations that the suite needs from a log, beyond the port: publishing messages and receiving their deliveries.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::replay_source::{LogMessage, ReplayFilter, ReplayReadRequest, ReplaySource};
use relevo_core::{BrokerConsumer, Delivery, Draft, Message, MessageId, Publication};

/// A log for one case, initially empty.
///
/// Harness calls panic on failure, because cases test the port, not the harness.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens the log as another process would.
    async fn source(&self) -> Box<dyn ReplaySource>;

    /// Publishes or emits these messages, one after the other.
    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId>;

    /// All deliveries of these messages to a consumer, in the order of the log. `None` for the log of an outbox, which
    /// no consumer reads.
    async fn received(&self) -> Option<Vec<Delivery>>;
}

/// The publications that a relay would make of these drafts, to addresses named like their topics. `first` is the
/// number of the first.
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

/// Receives `count` deliveries and sorts them in the order of the log.
pub async fn receive(consumer: &impl BrokerConsumer, count: usize) -> Vec<Delivery> {
    let mut received = Vec::new();
    while received.len() < count {
        let next = crate::broker::harness::within_timeout(consumer.receive(count)).await;
        received.extend(next.expect("the broker is reachable"));
    }
    received.sort_by_key(|delivery| delivery.offset);
    received
}

/// The draft with this number: one of three keys, two topics and two types.
pub(crate) fn draft(number: usize) -> Draft {
    let (topic, kind) = if number.is_multiple_of(2) { ("orders.eu", "Placed") } else { ("orders.us", "Shipped") };
    Draft::json(topic, &format!("k-{}", number % 3), kind, format!("{{\"n\":{number}}}"))
}

/// The first `count` drafts.
pub(crate) fn drafts(count: usize) -> Vec<Draft> {
    (0..count).map(draft).collect()
}

/// All messages that match a filter, read page by page.
pub(crate) async fn read_all(source: &dyn ReplaySource, filter: &ReplayFilter, limit: usize) -> Vec<LogMessage> {
    let mut messages = Vec::new();
    let mut after = 0;
    loop {
        let page =
            source.read(filter, ReplayReadRequest { after, limit, bytes: 1 << 20 }).await.expect("the log can be read");
        assert!(page.messages.len() <= limit, "a page is not longer than its limit");
        assert!(page.messages.iter().all(|message| after < message.number && message.number <= page.next));
        assert!(page.ended || page.next > after, "every call makes progress");
        messages.extend(page.messages);
        after = page.next;
        if page.ended {
            return messages;
        }
    }
}

/// The ids of messages published by Relevo.
pub(crate) fn ids(messages: &[LogMessage]) -> Vec<MessageId> {
    messages.iter().map(|message| message.raw.decode().expect("a message of Relevo").message.id).collect()
}
