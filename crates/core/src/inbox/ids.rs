//! Derived ids: the same input gives the same id in every process.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::DedupId;
use crate::broker_consumer::Lane;
use crate::message::MessageId;

/// Derives an id for a message without one, from its bytes, its address and its number at the broker.
///
/// Headers are not used, because brokers change them between deliveries. Without a `place`, two different messages with
/// equal bytes get the same id: a broker without stable numbers cannot tell them from a repeat.
pub fn foreign_id(address: &str, at: Option<(&Lane, u64)>, payload: &[u8]) -> MessageId {
    let mut hash = Hash::new("relevo foreign message");
    hash.part(address.as_bytes());
    match at {
        Some((lane, place)) => {
            hash.part(lane.name().as_bytes());
            hash.part(&place.to_be_bytes());
        }
        None => hash.part(&[]),
    }
    hash.part(payload);
    MessageId::from_uuid(hash.finish())
}

/// Derives an id for a message whose own id is not a UUID.
pub fn named_id(address: &str, name: &[u8]) -> MessageId {
    let mut hash = Hash::new("relevo named message");
    hash.part(address.as_bytes());
    hash.part(name);
    MessageId::from_uuid(hash.finish())
}

/// Derives the id for a consumer's call to an external service. It stays the same for every attempt, and differs per
/// consumer and per replay.
pub fn idempotency_id(consumer: &str, entry: DedupId) -> Uuid {
    let mut hash = Hash::new("relevo call");
    hash.part(consumer.as_bytes());
    hash.part(entry.id.as_uuid().as_bytes());
    hash.part(&entry.replay.to_be_bytes());
    hash.finish()
}

/// Hashes each part together with its length, so that different lists of parts never produce the same bytes.
struct Hash(Sha256);

impl Hash {
    fn new(domain: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.part(domain.as_bytes());
        hash
    }

    fn part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// A version 8 UUID, the version for custom formats.
    fn finish(self) -> Uuid {
        let digest = self.0.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dedup_id(replay: u32) -> DedupId {
        DedupId { id: MessageId::v7(5, [1; 10]), replay }
    }

    #[test]
    fn a_foreign_id_is_the_same_in_every_process() {
        let lane = Lane::new("3");
        let id = foreign_id("orders", Some((&lane, 7)), b"{}");
        assert_eq!(id.to_string(), "ca0b4148-bddd-8646-8b19-f59dcfc44dde");
    }

    #[test]
    fn equal_messages_at_different_offsets_have_different_ids() {
        let (one, other) = (Lane::new("1"), Lane::new("2"));
        let ids = [
            foreign_id("orders", None, b"{}"),
            foreign_id("orders", Some((&one, 7)), b"{}"),
            foreign_id("orders", Some((&one, 8)), b"{}"),
            foreign_id("orders", Some((&other, 7)), b"{}"),
            foreign_id("invoices", None, b"{}"),
            foreign_id("orders", None, b"{ }"),
            foreign_id("order", None, b"s{}"),
        ];
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn an_idempotency_id_differs_by_consumer_and_replay() {
        assert_eq!(idempotency_id("mail", dedup_id(0)), idempotency_id("mail", dedup_id(0)));
        assert_ne!(idempotency_id("mail", dedup_id(0)), idempotency_id("mail", dedup_id(1)));
        assert_ne!(idempotency_id("mail", dedup_id(0)), idempotency_id("tax", dedup_id(0)));
        assert_ne!(named_id("a", b"7"), named_id("b", b"7"));
    }
}
