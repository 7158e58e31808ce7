//! Retention: drops messages that are old and settled by every destination, and keeps all others.

use std::time::Duration;

use relevo_core::store::{DeadFilter, DeadLetters, Stop, Upkeep};

use crate::harness::{Draft, RETENTION, Start, StoreHarness, Writer};
use crate::relay::{Relay, emit, emit_all, emit_beside, ids, ok, park, retry, run_ids, stopped};

/// Makes all existing data old enough, in a partition that receives no more messages, and runs maintenance.
async fn grow_old(h: &impl StoreHarness, store: &impl Upkeep) {
    h.next_partition().await;
    h.age(RETENTION * 2).await;
    ok(store.maintain().await);
}

/// Like `grow_old`, while another transaction is open. If that is the only writer, maintenance is postponed.
async fn grow_old_beside(h: &impl StoreHarness, store: &impl Upkeep) {
    if h.capabilities().one_writer {
        let maintained = ok(store.maintain().await);
        assert!(maintained.busy && maintained.dropped == 0, "the only writer is open");
    } else {
        grow_old(h, store).await;
    }
}

/// The message is dropped, but its parked copy and its dead letter stay.
pub async fn what_is_old_and_settled_is_dropped(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c"]).await;
    let page = relay.read(10).await;
    let parks =
        vec![park(&page.entries[0], retry(Duration::ZERO, 1)), park(&page.entries[1], stopped(Stop::DeadHold, 1))];
    relay.settle(page.end, parks).await;
    ok(relay.store.maintain().await);
    assert_eq!(h.kept().await, 3, "settled and not old");
    // The next tick is settled too, so that the shards have left the window.
    h.next_partition().await;
    let young = emit(h, "d").await;
    assert_eq!(ids(&relay.drain(10).await), [young]);
    h.next_partition().await;
    h.age(RETENTION * 2).await;
    let newest = emit(h, "e").await;
    assert_eq!(ids(&relay.drain(10).await), [newest]);
    let maintained = ok(relay.store.maintain().await);
    assert!(maintained.dropped > 0);
    assert_eq!(h.kept().await, 1, "only the young one is left");
    assert_eq!(run_ids(&relay.due().await[0]), emitted[..1]);
    assert_eq!(ok(relay.store.dead(&DeadFilter::default(), 10).await)[0].message.id, emitted[1]);
}

/// With few messages a partition takes years to fill, but messages far beyond their retention are dropped anyway.
pub async fn what_is_far_too_old_does_not_wait_for_others(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "a"]).await;
    assert_eq!(ids(&relay.drain(10).await), emitted);
    h.age(RETENTION * 3).await;
    // The next tick is settled too, so that the shards have left the window.
    let young = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [young]);
    ok(relay.store.maintain().await);
    assert_eq!(h.kept().await, 1, "only the young one is left");
}

/// Unsettled messages are kept, however old they are.
pub async fn what_is_not_settled_is_never_dropped(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let settled = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [settled]);
    h.next_partition().await;
    let waiting = emit_all(h, &["a", "b"]).await;
    let page = relay.read(10).await;
    grow_old(h, &relay.store).await;
    assert_eq!(h.kept().await, 2);
    assert_eq!(ids(&page.entries), waiting);
    assert_eq!(ids(&relay.drain(10).await), waiting);
}

/// D1: a writer stays open while its partition grows old, and commits afterwards.
pub async fn a_late_commit_is_never_dropped_unread(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let mut open = h.begin().await;
    let late = open.emit(Draft::of("a")).await.expect("a new id");
    let young = emit_beside(h, &["b", "c"]).await;
    assert_eq!(ids(&relay.drain_beside(h, 10).await), young);
    grow_old_beside(h, &relay.store).await;
    let younger = emit_beside(h, &["b"]).await;
    assert_eq!(ids(&relay.drain_beside(h, 10).await), younger);
    open.commit().await;
    grow_old(h, &relay.store).await;
    assert_eq!(ids(&relay.drain(10).await), [late]);
    grow_old(h, &relay.store).await;
    assert_eq!(h.kept().await, 0, "read and old: now it goes");
}

/// D2: a destination without progress retains its unsettled messages until it is removed.
pub async fn a_stopped_destination_holds_retention_back(h: &mut impl StoreHarness) {
    let mut main = Relay::start(h.store().await, 1).await;
    h.add_destination("stopped", 4, Start::Now).await;
    h.switch("stopped", false).await;
    let emitted = emit_all(h, &["a", "b", "c"]).await;
    assert_eq!(ids(&main.drain(10).await), emitted);
    grow_old(h, &main.store).await;
    assert_eq!(h.kept().await, 3);
    h.switch("stopped", true).await;
    let mut stopped = Relay::start(h.store_for("stopped").await, 1).await;
    assert_eq!(ids(&stopped.deliver(2).await), emitted[..2]);
    stopped.leave().await;
    grow_old(h, &main.store).await;
    assert_eq!(h.kept().await, 3, "its window is not finished");
    h.remove_destination("stopped").await;
    grow_old(h, &main.store).await;
    assert_eq!(h.kept().await, 0);
}

/// The position of a shard is in mid-window: the ticks of the window and its remaining messages stay.
pub async fn a_message_in_mid_window_is_not_dropped(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c", "d"]).await;
    assert_eq!(ids(&relay.deliver(2).await), emitted[..2]);
    for _ in 0..3 {
        h.add_destination("passing", 1, Start::Now).await;
        emit(h, "e").await;
        Relay::start(h.store_for("passing").await, 5).await.drain(10).await;
        h.remove_destination("passing").await;
        grow_old(h, &relay.store).await;
    }
    relay.leave().await;
    let mut next = Relay::start(h.store().await, 2).await;
    assert_eq!(ids(&next.deliver(10).await), emitted[2..]);
    assert_eq!(next.drain(10).await.len(), 3);
}
