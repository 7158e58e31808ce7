//! Publishers. They publish each key's messages in order, some of them twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::broker::Publication;
use relevo_core::inbox::{DedupId, ids};
use relevo_core::message::Headers;
use relevo_core::{Message, MessageId, RawMessage, wire};
use tokio::time::sleep;

use crate::history::{MessageName, fingerprint_of};
use crate::inbox::behaviour::HandlerBehaviour;
use crate::inbox::broker::{ADDRESS, Group};
use crate::inbox::event::{Event, History};
use crate::inbox::scenario::Scenario;
use relevo_core::random::SplitMix64;

/// The broker's publishing side. Every message goes to every group.
pub struct Fanout {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The history.
    pub history: Arc<History>,
    /// The groups.
    pub groups: Vec<Arc<Group>>,
    /// The wall clock time at the start.
    pub started_at: Timestamp,
    /// The last offset.
    pub last_offset: Mutex<u64>,
}

impl Fanout {
    /// Publishes a message of a key at the next offset.
    fn publish(&self, key: usize, name: &MessageName, kind: HandlerBehaviour, raw: &RawMessage) {
        let mut last_offset = self.last_offset.lock();
        *last_offset += 1;
        let offset = *last_offset;
        for (number, group) in self.groups.iter().enumerate() {
            let lane = self.scenario.consumers[number].lane_of(key);
            let id = if kind == HandlerBehaviour::Malformed {
                // Its id cannot be parsed, so its id is derived from its bytes and its offset.
                ids::foreign_id(ADDRESS, Some((&Group::lane(lane), offset)), &raw.payload)
            } else {
                name.id
            };
            group.publish(lane, offset, name.clone(), DedupId { id, replay: 0 }, raw.clone());
        }
    }
}

/// One publisher.
pub struct Publisher {
    fanout: Arc<Fanout>,
    number: u64,
    random: SplitMix64,
    sent: u64,
    /// Messages to publish again later.
    duplicates: Vec<(usize, MessageName, HandlerBehaviour, RawMessage)>,
}

impl Publisher {
    /// Creates a publisher with its own random numbers.
    pub fn new(fanout: Arc<Fanout>, number: u64) -> Self {
        let random = SplitMix64::for_part(fanout.scenario.seed, "publisher", number);
        Self { fanout, number, random, sent: 0, duplicates: Vec::new() }
    }

    /// Publishes until the faults end.
    pub async fn run(mut self) {
        loop {
            sleep(self.random.time(Duration::ZERO, self.fanout.scenario.pause * 2)).await;
            if self.fanout.history.now() >= self.fanout.scenario.faults_for {
                return;
            }
            for _ in 0..self.random.count(1, 5) {
                self.publish();
            }
            if self.random.permille(300)
                && let Some((key, name, kind, raw)) = self.duplicates.pop()
            {
                self.fanout.history.record(Event::PublishedAgain(name.clone()));
                self.fanout.publish(key, &name, kind, &raw);
            }
        }
    }

    fn publish(&mut self) {
        let scenario = Arc::clone(&self.fanout.scenario);
        let key = self.random.count(0, scenario.keys.len() - 1);
        let plan = &scenario.keys[key];
        let kind = HandlerBehaviour::random(&mut self.random, plan.failing_permille, !scenario.calm);
        let kind_word = kind.message_type(self.random.permille(plan.call_permille));
        let message = self.message(&plan.name, &kind_word);
        let name = MessageName::of(&message);
        let raw = self.raw(message, kind);
        let bytes = bytes_of(&raw);
        self.fanout.history.record(Event::Published { name: name.clone(), kind: kind_word.into(), bytes });
        self.fanout.publish(key, &name, kind, &raw);
        if kind != HandlerBehaviour::Malformed && self.random.permille(scenario.duplicate_permille) {
            self.duplicates.push((key, name, kind, raw));
        }
    }

    fn message(&mut self, key: &str, kind: &str) -> Message {
        self.sent += 1;
        let payload: Bytes = (0..self.random.count(0, 12)).map(|_| self.random.next_u64().to_le_bytes()[0]).collect();
        let created_at = self.fanout.started_at + self.fanout.history.now();
        let mut tail = [0; 10];
        tail[2..].copy_from_slice(&self.random.next_u64().to_be_bytes());
        Message {
            id: MessageId::v7(u64::try_from(created_at.as_millisecond()).unwrap_or_default(), tail),
            kind: kind.into(),
            key: key.into(),
            topic: ADDRESS.into(),
            payload,
            content_type: "application/octet-stream".into(),
            headers: Headers::from([("x-number".to_owned(), format!("{}-{}", self.number, self.sent))]),
            created_at,
        }
    }

    fn raw(&mut self, message: Message, kind: HandlerBehaviour) -> RawMessage {
        let seq = i64::try_from(self.sent).unwrap_or_default();
        let publication =
            Publication { message: Arc::new(message), address: ADDRESS.into(), headers: Arc::default(), seq, epoch: 1 };
        let mut headers = wire::headers(&publication, "/outbox");
        if kind == HandlerBehaviour::Malformed {
            headers.remove("ce-specversion");
        }
        RawMessage::new(headers, publication.message.payload.clone())
    }
}

/// A hash of the received headers and payload.
pub(crate) fn bytes_of(raw: &RawMessage) -> u64 {
    let mut bytes = raw.payload.to_vec();
    for (name, value) in &raw.headers {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(value);
    }
    fingerprint_of(&bytes)
}
