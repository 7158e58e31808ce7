//! Publishers. They publish each key's messages in order, some of them twice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::broker::Publication;
use relevo_core::inbox::{Entry, identity};
use relevo_core::message::Headers;
use relevo_core::{Message, MessageId, Raw, wire};
use tokio::time::sleep;

use crate::history::{Name, fingerprint_of, lock};
use crate::inbox::broker::{ADDRESS, Group};
use crate::inbox::event::{Event, History};
use crate::inbox::kind::Kind;
use crate::inbox::scenario::Scenario;
use relevo_core::random::SplitMix64;

/// The broker's publishing side. Every message goes to every group.
pub struct Front {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The history.
    pub history: Arc<History>,
    /// The groups.
    pub groups: Vec<Arc<Group>>,
    /// The wall clock time at the start.
    pub began_at: Timestamp,
    /// The last place.
    pub places: Mutex<u64>,
}

impl Front {
    /// Publishes a message of a key at the next place.
    fn publish(&self, key: usize, name: &Name, kind: Kind, raw: &Raw) {
        let mut places = lock(&self.places);
        *places += 1;
        let place = *places;
        for (number, group) in self.groups.iter().enumerate() {
            let lane = self.scenario.consumers[number].lane_of(key);
            let id = if kind == Kind::Malformed {
                // Its id cannot be parsed, so its id is derived from its bytes and its place.
                identity::of_foreign(ADDRESS, Some((&Group::lane(lane), place)), &raw.payload)
            } else {
                name.id
            };
            group.put(lane, place, name.clone(), Entry { id, replay: 0 }, raw.clone());
        }
    }
}

/// One publisher.
pub struct Publisher {
    front: Arc<Front>,
    number: u64,
    random: SplitMix64,
    sent: u64,
    /// Messages to publish again later.
    again: Vec<(usize, Name, Kind, Raw)>,
}

impl Publisher {
    /// Creates a publisher with its own random numbers.
    pub fn new(front: Arc<Front>, number: u64) -> Self {
        let random = SplitMix64::for_part(front.scenario.seed, "publisher", number);
        Self { front, number, random, sent: 0, again: Vec::new() }
    }

    /// Publishes until the faults end.
    pub async fn work(mut self) {
        loop {
            sleep(self.random.time(Duration::ZERO, self.front.scenario.pause * 2)).await;
            if self.front.history.now() >= self.front.scenario.faults_for {
                return;
            }
            for _ in 0..self.random.count(1, 5) {
                self.publish();
            }
            if self.random.permille(300)
                && let Some((key, name, kind, raw)) = self.again.pop()
            {
                self.front.history.record(Event::PublishedAgain(name.clone()));
                self.front.publish(key, &name, kind, &raw);
            }
        }
    }

    fn publish(&mut self) {
        let scenario = Arc::clone(&self.front.scenario);
        let key = self.random.count(0, scenario.keys.len() - 1);
        let plan = &scenario.keys[key];
        let kind = Kind::random(&mut self.random, plan.trouble, !scenario.calm);
        let kind_word = kind.word(self.random.permille(plan.calls));
        let message = self.message(&plan.name, &kind_word);
        let name = Name::of(&message);
        let raw = self.raw(message, kind);
        let bytes = bytes_of(&raw);
        self.front.history.record(Event::Published { name: name.clone(), kind: kind_word.into(), bytes });
        self.front.publish(key, &name, kind, &raw);
        if kind != Kind::Malformed && self.random.permille(scenario.repeated) {
            self.again.push((key, name, kind, raw));
        }
    }

    fn message(&mut self, key: &str, kind: &str) -> Message {
        self.sent += 1;
        let payload: Bytes = (0..self.random.count(0, 12)).map(|_| self.random.next_u64().to_le_bytes()[0]).collect();
        let created_at = self.front.began_at + self.front.history.now();
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

    fn raw(&mut self, message: Message, kind: Kind) -> Raw {
        let seq = i64::try_from(self.sent).unwrap_or_default();
        let publication =
            Publication { message: Arc::new(message), address: ADDRESS.into(), headers: Arc::default(), seq, epoch: 1 };
        let mut headers = wire::headers(&publication, "/outbox");
        if kind == Kind::Malformed {
            headers.remove("ce-specversion");
        }
        Raw::new(headers, publication.message.payload.clone())
    }
}

/// A hash of the received headers and payload.
pub(crate) fn bytes_of(raw: &Raw) -> u64 {
    let mut bytes = raw.payload.to_vec();
    for (name, value) in &raw.headers {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(value);
    }
    fingerprint_of(&bytes)
}
