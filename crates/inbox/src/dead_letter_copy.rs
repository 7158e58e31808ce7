//! Publishes copies of dead letters to a broker. The dead letter itself is in the store.

use std::sync::Arc;

use relevo_core::broker::OutcomeReceiver;
use relevo_core::inbox::InboxMessage;
use relevo_core::inbox::retries::InboxFailure;
use relevo_core::{HeaderRules, Jitter, Message, MessageId, Publication};
use tokio::time::{sleep, timeout};
use tracing::field::display;
use tracing::warn;
use uuid::Uuid;

use crate::config::{Config, DeadLetterCopy};
use crate::decode::content_type;
use crate::incoming::Incoming;
use crate::status::{ConsumerStatus, add};

/// How often publishing a copy is tried.
const ATTEMPTS_MAX: u32 = 4;

/// Publishes a copy if configured. A failure is logged and counted.
pub(crate) async fn publish(
    config: &Config,
    status: &ConsumerStatus,
    id: Uuid,
    message: &InboxMessage,
    incoming: Option<&Incoming>,
    failure: &InboxFailure,
) {
    let Some(to) = &config.dead_letter_copy else { return };
    let publication = Publication {
        message: Arc::new(build_copy(config, status.consumer(), id, message, incoming, failure)),
        address: Arc::clone(&to.address),
        headers: Arc::new(HeaderRules::default()),
        seq: incoming.and_then(|incoming| incoming.seq).unwrap_or(0),
        epoch: 0,
    };
    let mut backoff = config.outage_backoff();
    for attempt in 1..=ATTEMPTS_MAX {
        if attempt > 1 {
            sleep(backoff.next(Jitter::NONE)).await;
        }
        match publish_once(config, to, &publication).await {
            Ok(()) => return,
            Err(error) => {
                let trace_id = incoming.and_then(|incoming| config.tracer.trace_id(&incoming.message)).map(display);
                warn!(message_id = %message.dedup_id.id, trace_id, address = %to.address, error, "copying a dead letter failed");
            }
        }
    }
    add(&status.dead_letter_copies_failed, 1);
}

async fn publish_once(config: &Config, to: &DeadLetterCopy, publication: &Publication) -> Result<(), String> {
    let outcomes = OutcomeReceiver::default();
    let sender = outcomes.sender(0);
    let call = to.broker.publish(std::slice::from_ref(publication), &sender);
    let in_time = timeout(config.broker_timeout, call).await.is_ok();
    match outcomes.take().pop() {
        Some((_, _, outcome)) => outcome.map_err(|failure| failure.error_chain()),
        None if in_time => Err("the broker did not confirm it".to_owned()),
        None => Err("the broker did not respond in time".to_owned()),
    }
}

/// The copy has its own id: a broker that deduplicates would drop it as a duplicate of the message.
fn build_copy(
    config: &Config,
    consumer: &str,
    id: Uuid,
    message: &InboxMessage,
    incoming: Option<&Incoming>,
    failure: &InboxFailure,
) -> Message {
    let mut headers = message.raw.text_headers();
    let content_type = content_type(&headers);
    headers.retain(|name, _| !name.starts_with("ce-"));
    let added = [
        ("dead-letter-id", message.dedup_id.id.to_string()),
        ("dead-letter-consumer", consumer.to_owned()),
        ("dead-letter-address", message.address.to_string()),
        ("dead-letter-class", failure.class.to_owned()),
        ("dead-letter-error", failure.error.clone()),
        ("dead-letter-attempts", failure.attempts.to_string()),
    ];
    // Broker headers must not contain control characters, and errors can have several lines.
    let plain = |text: String| text.replace(char::is_control, " ");
    headers.extend(added.map(|(name, value)| (name.to_owned(), plain(value))));
    let text = |part: fn(&Message) -> &bytestring::ByteString, default: &str| {
        incoming.map_or_else(|| default.into(), |incoming| part(&incoming.message).clone())
    };
    Message {
        id: MessageId::from_uuid(id),
        kind: text(|message| &message.kind, "undecodable"),
        key: text(|message| &message.key, &message.queue),
        topic: text(|message| &message.topic, &message.address),
        payload: message.raw.payload.clone(),
        content_type,
        headers,
        created_at: config.clock.now(),
    }
}
