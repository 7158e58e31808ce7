//! Publishes copies of dead letters to a broker. The dead letter itself is in the store.

use std::sync::Arc;

use relevo_core::broker::OutcomeReceiver;
use relevo_core::inbox::InboxMessage;
use relevo_core::inbox::retries::InboxFailure;
use relevo_core::{HeaderRules, Message, MessageId, Publication};
use tokio::time::{sleep, timeout};
use tracing::field::display;
use tracing::warn;
use uuid::Uuid;

use crate::config::{Config, DeadLetterCopy};
use crate::decode::{content_type, text_headers};
use crate::incoming::Incoming;
use crate::stats::{ConsumerStatus, add};

/// How often publishing a copy is tried.
const ATTEMPTS_MAX: u32 = 4;

/// Publishes a copy if configured. A failure is logged and counted.
pub(crate) async fn publish(
    config: &Config,
    stats: &ConsumerStatus,
    id: Uuid,
    arrival: &InboxMessage,
    incoming: Option<&Incoming>,
    setback: &InboxFailure,
) {
    let Some(to) = &config.dead_letter_copy else { return };
    let publication = Publication {
        message: Arc::new(build_copy(config, id, arrival, incoming, setback)),
        address: Arc::clone(&to.address),
        headers: Arc::new(HeaderRules::default()),
        seq: incoming.and_then(|incoming| incoming.seq).unwrap_or(0),
        epoch: 0,
    };
    for failures in 0..ATTEMPTS_MAX {
        if failures > 0 {
            sleep(config.outage(failures)).await;
        }
        match publish_once(config, to, &publication).await {
            Ok(()) => return,
            Err(why) => {
                let trace_id = incoming.and_then(|incoming| config.tracer.trace_id(&incoming.message)).map(display);
                warn!(message_id = %arrival.dedup_id.id, trace_id, address = %to.address, why, "a dead letter was not copied");
            }
        }
    }
    add(&stats.dead_letter_copies_failed, 1);
}

async fn publish_once(config: &Config, to: &DeadLetterCopy, publication: &Publication) -> Result<(), String> {
    let reports = OutcomeReceiver::default();
    let confirms = reports.sender(0);
    let call = to.broker.publish(std::slice::from_ref(publication), &confirms);
    let in_time = timeout(config.broker_timeout, call).await.is_ok();
    match reports.take().pop() {
        Some((_, _, outcome)) => outcome.map_err(|failure| failure.error_chain()),
        None if in_time => Err("the broker did not say whether it has it".to_owned()),
        None => Err("the broker did not answer in time".to_owned()),
    }
}

/// The copy has its own id: a broker that deduplicates would drop it as a duplicate of the message.
fn build_copy(
    config: &Config,
    id: Uuid,
    arrival: &InboxMessage,
    incoming: Option<&Incoming>,
    setback: &InboxFailure,
) -> Message {
    let mut headers = text_headers(&arrival.raw);
    let content_type = content_type(&headers);
    headers.retain(|name, _| !name.starts_with("ce-"));
    let said = [
        ("dead-letter-id", arrival.dedup_id.id.to_string()),
        ("dead-letter-consumer", config.consumer.clone()),
        ("dead-letter-address", arrival.address.to_string()),
        ("dead-letter-class", setback.class.to_owned()),
        ("dead-letter-error", setback.error.clone()),
        ("dead-letter-attempts", setback.attempts.to_string()),
    ];
    // Broker headers must not contain control characters, and errors can have several lines.
    let plain = |text: String| text.replace(char::is_control, " ");
    headers.extend(said.map(|(name, value)| (name.to_owned(), plain(value))));
    let text = |part: fn(&Message) -> &bytestring::ByteString, without: &str| {
        incoming.map_or_else(|| without.into(), |incoming| part(&incoming.message).clone())
    };
    Message {
        id: MessageId::from_uuid(id),
        kind: text(|message| &message.kind, "undecodable"),
        key: text(|message| &message.key, &arrival.queue),
        topic: text(|message| &message.topic, &arrival.address),
        payload: arrival.raw.payload.clone(),
        content_type,
        headers,
        created_at: config.clock.now(),
    }
}
