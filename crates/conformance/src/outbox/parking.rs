//! Parking: a failed message holds back its own key, and no other.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::outbox::log::{ParkAction, PublishFailure, SettleResult};

use crate::outbox::harness::Harness;
use crate::outbox::test_relay::{
    LONG, RETRY_DELAY, TestRelay, batch_ids, batch_keys, emit_all, emit_and_park, failed, ids, must, park, park_behind,
    retry,
};

/// The head and its successors come from one settlement, further successors from a later one.
pub async fn a_failed_message_and_its_successors_wait_in_order(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut waiting = emit_and_park(h, &mut relay, &["a", "a", "a"], retry(Duration::ZERO, 1)).await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let parks = page.entries.iter().map(park_behind).collect();
    assert_eq!(relay.settle(page.end, parks).await, SettleResult::default());
    waiting.extend(page.entries);

    assert_eq!(relay.drain(10).await.len(), 0, "parked messages are settled");
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["a"]);
    assert_eq!(batch_ids(&batches[0]), ids(&waiting));
    assert_eq!((batches[0].attempts, batches[0].quarantined, &batches[0].probe_address), (1, false, &None));
    assert_eq!(batches[0].slot, waiting[0].slot);
    let limited =
        must(relevo_core::outbox::parked::ParkedReader::read_parked(&relay.store, &relay.leases, 10, 2).await);
    assert_eq!(batch_ids(&limited[0]), ids(&waiting[..2]));
}

/// C3: the head was delivered meanwhile, so the message must be delivered too, before later ones of its key.
pub async fn a_message_behind_a_removed_head_is_read_again(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a"], retry(Duration::ZERO, 1)).await;
    let emitted = emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let batches = relay.read_parked().await;
    relay.settle_parked(&batches[0], 1, None).await;

    let before = relay.position(&relay.lease_of(&page.entries[0]));
    let parks: Vec<_> = page.entries.iter().map(park_behind).collect();
    let mut settled = relay.settle(page.end, parks).await;
    settled.reread.sort_unstable();
    let seqs: Vec<i64> = page.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(settled, SettleResult { lost_shards: Vec::new(), reread: seqs });
    let lease = relay.lease_of(&page.entries[0]);
    let shards = relay.load_shards().await;
    let shard = shards.into_iter().find(|shard| shard.lease == lease).expect("its shard");
    assert_eq!((shard.position, shard.parked_keys.len()), (before, 0), "the shard is unchanged");
    assert!(relay.read_parked().await.is_empty());
    assert_eq!(ids(&relay.drain(10).await), emitted);
}

/// A message passed in one shard does not affect other shards. A head from the same call counts like an existing one.
pub async fn a_reread_message_does_not_affect_other_shards(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    // "o-1" has slot 189 and "o-2" slot 875: shards 5 and 3 of 8.
    let emitted = emit_all(h, &["o-1", "o-1", "o-2"]).await;
    let page = relay.read(10).await;
    let [head, tail, other] = &page.entries[..] else { panic!("three messages") };
    let parks = vec![park(head, retry(Duration::ZERO, 1)), park_behind(tail), park_behind(other)];
    let settled = relay.settle(page.end, parks).await;
    assert_eq!(settled, SettleResult { lost_shards: Vec::new(), reread: vec![other.seq] });
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["o-1"]);
    assert_eq!(batch_ids(&batches[0]), emitted[..2]);
    assert_eq!(ids(&relay.drain(10).await), emitted[2..]);
}

/// The key was parked meanwhile: the later failure waits its turn, and the head keeps its attempts.
pub async fn a_new_head_of_a_parked_key_waits_behind_the_old_one(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut waiting = emit_and_park(h, &mut relay, &["a"], retry(Duration::ZERO, 3)).await;
    waiting.extend(emit_and_park(h, &mut relay, &["a"], retry(LONG, 1)).await);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting));
    assert_eq!(batches[0].attempts, 3);
}

/// P4: keys and errors come from callers and brokers. No such text may make a settlement fail.
pub async fn any_key_and_any_error_can_be_parked(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let keys = [r"a\u0000", r#""\\u0000'"#, r"\", "ñ\u{1f512}"];
    emit_all(h, &keys).await;
    let page = relay.read(10).await;
    let errors = [r"refused: \u0000", "refused: \0", r"\\\u0000\", "\u{fffd}'"];
    let parks = page
        .entries
        .iter()
        .zip(errors)
        .map(|(entry, error)| park(entry, PublishFailure { error: error.to_owned(), ..retry(Duration::ZERO, 1) }));
    assert_eq!(relay.settle(page.end, parks.collect()).await, SettleResult::default());
    let mut batches = relay.read_parked().await;
    batches.sort_by_key(|batch| batch.messages[0].entry.seq);
    assert_eq!(batch_keys(&batches), keys);
    for (batch, error) in batches.iter().zip(errors) {
        relay
            .settle_parked(batch, 0, Some(PublishFailure { error: error.to_owned(), ..retry(Duration::ZERO, 2) }))
            .await;
    }
    let retried = relay.read_parked().await;
    assert_eq!(retried.iter().map(|batch| batch.attempts).collect::<Vec<_>>(), [2; 4]);
}

/// P4: all other keys continue, also in the same page.
pub async fn a_parked_key_does_not_delay_other_keys(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_all(h, &["a", "b", "a", "c"]).await;
    let page = relay.read(10).await;
    let parks = vec![park(&page.entries[0], retry(RETRY_DELAY, 1)), park_behind(&page.entries[2])];
    assert_eq!(relay.settle(page.end, parks).await, SettleResult::default());
    let next = emit_all(h, &["b", "c"]).await;
    assert_eq!(ids(&relay.drain(10).await), next);
    h.advance_time(RETRY_DELAY * 2).await;
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["a"]);
    assert_eq!(batch_ids(&batches[0]), [page.entries[0].message.id, page.entries[2].message.id]);
}

/// A new owner of a shard must know its parked keys, including those that wait for an operator; otherwise it overtakes
/// them.
pub async fn a_new_owner_learns_the_parked_keys(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a", "b", "b"], retry(LONG, 1)).await;
    emit_and_park(h, &mut relay, &["c"], failed(ParkAction::DeadLetter(AfterDead::Hold), 1)).await;
    emit_and_park(h, &mut relay, &["d"], failed(ParkAction::DeadLetter(AfterDead::Continue), 1)).await;
    relay.release_all().await;
    let next = TestRelay::start(h.store().await, 2).await;
    let mut keys = Vec::new();
    for shard in next.load_shards().await {
        for key in shard.parked_keys {
            assert_eq!(relevo_core::slot::slot_of(&key) % 8, shard.lease.shard);
            keys.push(key.to_string());
        }
    }
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"]);
}
