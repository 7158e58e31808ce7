//! Due batches of parked keys.

use std::time::Duration;

use relevo_core::outbox::log::{ParkAction, SettleResult};
use relevo_core::outbox::parked::{ParkedReader, ParkedResult};

use crate::outbox::harness::Harness;
use crate::outbox::test_relay::{
    LONG, RETRY_DELAY, TestRelay, batch_ids, batch_keys, emit, emit_all, emit_and_park, failed, ids, must, park,
    park_behind, retry,
};

/// The delay starts when the failure is settled, and counts on the database's clock.
pub async fn a_retry_is_due_only_after_its_delay(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a"], retry(RETRY_DELAY, 1)).await;
    assert!(relay.read_parked().await.is_empty());
    h.advance_time(RETRY_DELAY + Duration::from_millis(100)).await;
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["a"]);
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(retry(RETRY_DELAY, 2))).await, ParkedResult::StillParked);
    assert!(relay.read_parked().await.is_empty());
    h.advance_time(RETRY_DELAY + Duration::from_millis(100)).await;
    assert_eq!(relay.read_parked().await[0].attempts, 2);
}

/// With a limit, the batches that were due first are returned, so that no key starves.
pub async fn the_longest_waiting_key_is_retried_first(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_all(h, &["a", "b", "c"]).await;
    let page = relay.read(10).await;
    let delays = [RETRY_DELAY, RETRY_DELAY / 4, RETRY_DELAY / 2];
    let parked = page.entries.iter().zip(delays).map(|(entry, delay)| park(entry, retry(delay, 1))).collect();
    relay.settle(page.end, parked).await;
    h.advance_time(RETRY_DELAY * 2).await;
    assert_eq!(batch_keys(&relay.read_parked().await), ["b", "c", "a"]);
    assert_eq!(batch_keys(&must(relay.store.read_parked(&relay.leases, 2, 10).await)), ["b", "c"]);
}

/// The messages before the failed one are removed; the failed one and the rest wait.
pub async fn published_messages_are_removed_and_the_rest_stays(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "a", "a", "a"], retry(Duration::ZERO, 1)).await;
    let batches = relay.read_parked().await;
    assert_eq!(relay.settle_parked(&batches[0], 2, Some(retry(RETRY_DELAY, 1))).await, ParkedResult::StillParked);
    assert!(relay.read_parked().await.is_empty());
    h.advance_time(RETRY_DELAY * 2).await;
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting[2..]));
    assert_eq!(relay.settle_parked(&batches[0], 1, None).await, ParkedResult::StillParked);
    assert_eq!(batch_ids(&relay.read_parked().await[0]), ids(&waiting[3..]), "the next one is due at once");
}

/// The key is then no longer parked.
pub async fn a_key_is_unparked_when_its_queue_is_empty(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a", "a"], retry(Duration::ZERO, 1)).await;
    let batches = relay.read_parked().await;
    assert_eq!(relay.settle_parked(&batches[0], 2, None).await, ParkedResult::KeyFreed);
    assert!(relay.read_parked().await.is_empty());
    let next = emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(ids(&page.entries), [next]);
    assert_eq!(relay.settle(page.end, vec![park_behind(&page.entries[0])]).await.reread, [page.entries[0].seq]);
}

/// A settlement of the log adds messages to a queue while a retry empties the part of it that it has read.
pub async fn a_message_appended_during_a_retry_keeps_its_order(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a"], retry(Duration::ZERO, 1)).await;
    let batches = relay.read_parked().await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let parked = page.entries.iter().map(park_behind).collect();
    assert_eq!(relay.settle(page.end, parked).await, SettleResult::default());
    assert_eq!(relay.settle_parked(&batches[0], 1, None).await, ParkedResult::StillParked);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&page.entries));
    assert_eq!(relay.settle_parked(&batches[0], 2, None).await, ParkedResult::KeyFreed);
}

/// A successor begins with zero attempts.
pub async fn attempts_belong_to_the_first_message(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a", "a"], retry(Duration::ZERO, 4)).await;
    let batches = relay.read_parked().await;
    assert_eq!(batches[0].attempts, 4);
    assert_eq!(relay.settle_parked(&batches[0], 1, None).await, ParkedResult::StillParked);
    let batches = relay.read_parked().await;
    assert_eq!(batches[0].attempts, 0);
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(retry(Duration::ZERO, 1))).await, ParkedResult::StillParked);
    assert_eq!(relay.read_parked().await[0].attempts, 1);
}

/// A quarantined message caused connection failures. No attempt is counted.
pub async fn a_quarantined_message_is_sent_alone(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let quarantine = |after| failed(ParkAction::Quarantine { after }, 0);
    let waiting = emit_and_park(h, &mut relay, &["a", "a"], quarantine(RETRY_DELAY)).await;
    assert!(relay.read_parked().await.is_empty());
    h.advance_time(RETRY_DELAY * 2).await;
    let batches = relay.read_parked().await;
    assert!(batches[0].quarantined);
    assert_eq!(batches[0].attempts, 0);
    assert_eq!(batch_ids(&batches[0])[0], waiting[0].message.id);
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(quarantine(LONG))).await, ParkedResult::StillParked);
    assert!(relay.read_parked().await.is_empty());
}
