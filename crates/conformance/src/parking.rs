//! Parking: a failed message holds back its own key, and no other.

use std::time::Duration;

use relevo_core::store::{Leases, Settled, Stop, Stopped};

use crate::harness::StoreHarness;
use crate::relay::{LONG, PAUSE, Relay, behind, emit_all, ids, ok, park, parked, retry, run_ids, run_keys, stopped};

/// The head and its successors come from one settlement, further successors from a later one.
pub async fn a_failed_message_and_its_successors_wait_in_order(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let mut waiting = parked(h, &mut relay, &["a", "a", "a"], retry(Duration::ZERO, 1)).await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let parks = page.entries.iter().map(behind).collect();
    assert_eq!(relay.settle(page.end, parks).await, Settled::default());
    waiting.extend(page.entries);

    assert_eq!(relay.drain(10).await.len(), 0, "what is parked is settled");
    let runs = relay.due().await;
    assert_eq!(run_keys(&runs), ["a"]);
    assert_eq!(run_ids(&runs[0]), ids(&waiting));
    assert_eq!((runs[0].attempts, runs[0].quarantined, &runs[0].address), (1, false, &None));
    assert_eq!(runs[0].slot, waiting[0].slot);
    let limited = ok(relevo_core::store::ParkedKeys::due(&relay.store, &relay.leases, 10, 2).await);
    assert_eq!(run_ids(&limited[0]), ids(&waiting[..2]));
}

/// C3: the head was delivered meanwhile, so the message must be delivered too, before later ones of its key.
pub async fn a_message_behind_a_head_that_is_gone_is_passed(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a"], retry(Duration::ZERO, 1)).await;
    let emitted = emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    let runs = relay.due().await;
    relay.advance(&runs[0], 1, None).await;

    let before = relay.position(&relay.lease_of(&page.entries[0]));
    let parks: Vec<_> = page.entries.iter().map(behind).collect();
    let mut settled = relay.settle(page.end, parks).await;
    settled.passed.sort_unstable();
    let seqs: Vec<i64> = page.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(settled, Settled { lost: Vec::new(), passed: seqs });
    let lease = relay.lease_of(&page.entries[0]);
    let standing = ok(relay.store.standing(&[lease]).await).remove(0);
    assert_eq!((standing.position, standing.parked.len()), (before, 0), "nothing of the shard was changed");
    assert!(relay.due().await.is_empty());
    assert_eq!(ids(&relay.drain(10).await), emitted);
}

/// A message passed in one shard does not affect other shards. A head from the same call counts like an existing one.
pub async fn a_passed_message_leaves_other_shards_alone(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    // "o-1" has slot 189 and "o-2" slot 875: shards 5 and 3 of 8.
    let emitted = emit_all(h, &["o-1", "o-1", "o-2"]).await;
    let page = relay.read(10).await;
    let [head, tail, other] = &page.entries[..] else { panic!("three messages") };
    let parks = vec![park(head, retry(Duration::ZERO, 1)), behind(tail), behind(other)];
    let settled = relay.settle(page.end, parks).await;
    assert_eq!(settled, Settled { lost: Vec::new(), passed: vec![other.seq] });
    let runs = relay.due().await;
    assert_eq!(run_keys(&runs), ["o-1"]);
    assert_eq!(run_ids(&runs[0]), emitted[..2]);
    assert_eq!(ids(&relay.drain(10).await), emitted[2..]);
}

/// The key was parked meanwhile: the later failure waits its turn, and the head keeps its attempts.
pub async fn a_new_head_of_a_parked_key_waits_behind_the_old_one(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let mut waiting = parked(h, &mut relay, &["a"], retry(Duration::ZERO, 3)).await;
    waiting.extend(parked(h, &mut relay, &["a"], retry(LONG, 1)).await);
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting));
    assert_eq!(runs[0].attempts, 3);
}

/// P4: keys and errors come from callers and brokers. No such text may make a settlement fail.
pub async fn any_key_and_any_error_can_be_parked(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let keys = [r"a\u0000", r#""\\u0000'"#, r"\", "ñ\u{1f512}"];
    emit_all(h, &keys).await;
    let page = relay.read(10).await;
    let errors = [r"refused: \u0000", "refused: \0", r"\\\u0000\", "\u{fffd}'"];
    let parks = page
        .entries
        .iter()
        .zip(errors)
        .map(|(entry, error)| park(entry, Stopped { error: error.to_owned(), ..retry(Duration::ZERO, 1) }));
    assert_eq!(relay.settle(page.end, parks.collect()).await, Settled::default());
    let mut runs = relay.due().await;
    runs.sort_by_key(|run| run.messages[0].1.seq);
    assert_eq!(run_keys(&runs), keys);
    for (run, error) in runs.iter().zip(errors) {
        relay.advance(run, 0, Some(Stopped { error: error.to_owned(), ..retry(Duration::ZERO, 2) })).await;
    }
    let again = relay.due().await;
    assert_eq!(again.iter().map(|run| run.attempts).collect::<Vec<_>>(), [2; 4]);
}

/// P4: all other keys continue, also in the same page.
pub async fn other_keys_flow_past_a_parked_one(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    emit_all(h, &["a", "b", "a", "c"]).await;
    let page = relay.read(10).await;
    let parks = vec![park(&page.entries[0], retry(PAUSE, 1)), behind(&page.entries[2])];
    assert_eq!(relay.settle(page.end, parks).await, Settled::default());
    let next = emit_all(h, &["b", "c"]).await;
    assert_eq!(ids(&relay.drain(10).await), next);
    h.let_pass(PAUSE * 2).await;
    let runs = relay.due().await;
    assert_eq!(run_keys(&runs), ["a"]);
    assert_eq!(run_ids(&runs[0]), [page.entries[0].message.id, page.entries[2].message.id]);
}

/// A new owner of a shard must know its parked keys, including those that wait for an operator; otherwise it overtakes
/// them.
pub async fn a_new_owner_is_told_which_keys_wait(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a", "b", "b"], retry(LONG, 1)).await;
    parked(h, &mut relay, &["c"], stopped(Stop::DeadHold, 1)).await;
    parked(h, &mut relay, &["d"], stopped(Stop::DeadContinue, 1)).await;
    relay.leave().await;
    let next = Relay::start(h.store().await, 2).await;
    let mut keys = Vec::new();
    for standing in ok(next.store.standing(&next.leases).await) {
        for key in standing.parked {
            assert_eq!(relevo_core::slot::slot_of(&key) % 8, standing.shard);
            keys.push(key.to_string());
        }
    }
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"]);
}
