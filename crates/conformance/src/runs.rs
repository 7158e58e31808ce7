//! Runs: parked messages that are due.

use std::time::Duration;

use relevo_core::store::{Advanced, ParkedKeys, Settled, Stop};

use crate::harness::StoreHarness;
use crate::relay::{
    LONG, PAUSE, Relay, behind, emit, emit_all, ids, ok, park, parked, retry, run_ids, run_keys, stopped,
};

/// The pause counts on the database's clock, from the time of settling.
pub async fn a_retry_is_due_after_its_pause_and_not_before(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a"], retry(PAUSE, 1)).await;
    assert!(relay.due().await.is_empty());
    h.let_pass(PAUSE + Duration::from_millis(100)).await;
    let runs = relay.due().await;
    assert_eq!(run_keys(&runs), ["a"]);
    assert_eq!(relay.advance(&runs[0], 0, Some(retry(PAUSE, 2))).await, Advanced::Waits);
    assert!(relay.due().await.is_empty());
    h.let_pass(PAUSE + Duration::from_millis(100)).await;
    assert_eq!(relay.due().await[0].attempts, 2);
}

/// A limit returns the oldest runs, so that no key starves.
pub async fn the_run_that_waited_longest_comes_first(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    emit_all(h, &["a", "b", "c"]).await;
    let page = relay.read(10).await;
    let pauses = [PAUSE, PAUSE / 4, PAUSE / 2];
    let parks = page.entries.iter().zip(pauses).map(|(entry, pause)| park(entry, retry(pause, 1))).collect();
    relay.settle(page.end, parks).await;
    h.let_pass(PAUSE * 2).await;
    assert_eq!(run_keys(&relay.due().await), ["b", "c", "a"]);
    assert_eq!(run_keys(&ok(relay.store.due(&relay.leases, 2, 10).await)), ["b", "c"]);
}

/// The messages before the failed one are removed; the failed one and the rest wait.
pub async fn what_was_delivered_goes_and_the_rest_stays(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "a", "a", "a"], retry(Duration::ZERO, 1)).await;
    let runs = relay.due().await;
    assert_eq!(relay.advance(&runs[0], 2, Some(retry(PAUSE, 1))).await, Advanced::Waits);
    assert!(relay.due().await.is_empty());
    h.let_pass(PAUSE * 2).await;
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting[2..]));
    assert_eq!(relay.advance(&runs[0], 1, None).await, Advanced::Waits);
    assert_eq!(run_ids(&relay.due().await[0]), ids(&waiting[3..]), "the next one is due at once");
}

/// The key then takes the live path again.
pub async fn a_key_is_unparked_when_its_queue_is_empty(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a", "a"], retry(Duration::ZERO, 1)).await;
    let runs = relay.due().await;
    assert_eq!(relay.advance(&runs[0], 2, None).await, Advanced::Unparked);
    assert!(relay.due().await.is_empty());
    let next = emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(ids(&page.entries), [next]);
    assert_eq!(relay.settle(page.end, vec![behind(&page.entries[0])]).await.passed, [page.entries[0].seq]);
}

/// C3: the task of the window appends messages while the retry task empties the queue it knows.
pub async fn a_message_appended_while_the_run_was_out_keeps_its_place(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a"], retry(Duration::ZERO, 1)).await;
    let runs = relay.due().await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let parks = page.entries.iter().map(behind).collect();
    assert_eq!(relay.settle(page.end, parks).await, Settled::default());
    assert_eq!(relay.advance(&runs[0], 1, None).await, Advanced::Waits);
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&page.entries));
    assert_eq!(relay.advance(&runs[0], 2, None).await, Advanced::Unparked);
}

/// A successor begins with zero attempts.
pub async fn attempts_belong_to_the_first_message(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a", "a"], retry(Duration::ZERO, 4)).await;
    let runs = relay.due().await;
    assert_eq!(runs[0].attempts, 4);
    assert_eq!(relay.advance(&runs[0], 1, None).await, Advanced::Waits);
    let runs = relay.due().await;
    assert_eq!(runs[0].attempts, 0);
    assert_eq!(relay.advance(&runs[0], 0, Some(retry(Duration::ZERO, 1))).await, Advanced::Waits);
    assert_eq!(relay.due().await[0].attempts, 1);
}

/// It caused connection failures: it is sent alone and no attempt is counted.
pub async fn a_quarantined_message_goes_alone(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let quarantine = |after| stopped(Stop::Quarantine { after }, 0);
    let waiting = parked(h, &mut relay, &["a", "a"], quarantine(PAUSE)).await;
    assert!(relay.due().await.is_empty());
    h.let_pass(PAUSE * 2).await;
    let runs = relay.due().await;
    assert!(runs[0].quarantined);
    assert_eq!(runs[0].attempts, 0);
    assert_eq!(run_ids(&runs[0])[0], waiting[0].message.id);
    assert_eq!(relay.advance(&runs[0], 0, Some(quarantine(LONG))).await, Advanced::Waits);
    assert!(relay.due().await.is_empty());
}
