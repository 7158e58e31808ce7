//! Retention: drops messages that are old and settled by every destination, and keeps all others.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::dead_letters::DeadLetterFilter;
use relevo_core::outbox::admin::StartFrom;
use relevo_core::outbox::log::ParkAction;
use relevo_core::outbox::maintenance::Maintenance;

use crate::dead_letters::DeadLetterCalls as _;
use crate::outbox::harness::{Harness, MAIN, RETENTION, WriteTransaction, draft};
use crate::outbox::test_relay::{
    ANY_BYTES, TestRelay, batch_ids, emit, emit_all, emit_during_write, failed, ids, must, park, retry,
};

/// The time for one call of maintenance.
const BUDGET: Duration = Duration::from_secs(10);

/// Makes all existing data old enough, in a partition that receives no more messages, and runs maintenance.
async fn age_and_maintain(h: &impl Harness, store: &impl Maintenance) {
    h.next_partition().await;
    h.age_records(RETENTION * 2).await;
    must(store.maintain(BUDGET).await);
}

/// Like `grow_old`, while another transaction is open. If that is the only writer, maintenance is postponed.
async fn age_and_maintain_during_write(h: &impl Harness, store: &impl Maintenance) {
    if h.capabilities().single_writer {
        let maintained = must(store.maintain(BUDGET).await);
        assert!(maintained.skipped, "the only writer is open");
    } else {
        age_and_maintain(h, store).await;
    }
}

/// The message is dropped, but its parked copy and its dead letter stay.
pub async fn old_settled_messages_are_dropped(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c"]).await;
    let page = relay.read(10).await;
    let parks = vec![
        park(&page.entries[0], retry(Duration::ZERO, 1)),
        park(&page.entries[1], failed(ParkAction::DeadLetter(AfterDead::Hold), 1)),
    ];
    relay.settle(page.end, parks).await;
    must(relay.store.maintain(BUDGET).await);
    assert_eq!(h.stored_messages().await, 3, "settled and not old");
    // The next tick is settled too, so that the shards have left the window.
    h.next_partition().await;
    let young = emit(h, "d").await;
    assert_eq!(ids(&relay.drain(10).await), [young]);
    h.next_partition().await;
    h.age_records(RETENTION * 2).await;
    let newest = emit(h, "e").await;
    assert_eq!(ids(&relay.drain(10).await), [newest]);
    must(relay.store.maintain(BUDGET).await);
    assert_eq!(h.stored_messages().await, 1, "only the new message is left");
    assert_eq!(batch_ids(&relay.read_parked().await[0]), emitted[..1]);
    assert_eq!(must(h.operator().await.summaries(&DeadLetterFilter::of_destination(MAIN), 10).await)[0].id, emitted[1]);
}

/// With few messages a partition takes years to fill, but messages far beyond their retention are dropped anyway.
pub async fn very_old_settled_messages_are_dropped_one_by_one(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "a"]).await;
    assert_eq!(ids(&relay.drain(10).await), emitted);
    h.age_records(RETENTION * 3).await;
    // The next tick is settled too, so that the shards have left the window.
    let young = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [young]);
    must(relay.store.maintain(BUDGET).await);
    assert_eq!(h.stored_messages().await, 1, "only the new message is left");
}

/// Unsettled messages are kept, however old they are.
pub async fn unsettled_messages_are_never_dropped(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let settled = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [settled]);
    h.next_partition().await;
    let waiting = emit_all(h, &["a", "b"]).await;
    let page = relay.read(10).await;
    age_and_maintain(h, &relay.store).await;
    assert_eq!(h.stored_messages().await, 2);
    assert_eq!(ids(&page.entries), waiting);
    assert_eq!(ids(&relay.drain(10).await), waiting);
}

/// D1: a writer stays open while its partition grows old, and commits afterwards.
pub async fn a_late_commit_is_never_dropped_unread(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut open = h.begin().await;
    let late = open.emit(draft("a")).await.expect("a new id");
    let young = emit_during_write(h, &["b", "c"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), young);
    age_and_maintain_during_write(h, &relay.store).await;
    let younger = emit_during_write(h, &["b"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), younger);
    open.commit().await;
    age_and_maintain(h, &relay.store).await;
    assert_eq!(ids(&relay.drain(10).await), [late]);
    age_and_maintain(h, &relay.store).await;
    assert_eq!(h.stored_messages().await, 0, "it is settled and old");
}

/// D2: a destination without progress retains its unsettled messages until it is removed.
pub async fn a_stopped_destination_delays_retention(h: &mut impl Harness) {
    let mut main = TestRelay::start(h.store().await, 1).await;
    h.add_destination("stopped", 4, StartFrom::Now).await;
    h.set_enabled("stopped", false).await;
    let emitted = emit_all(h, &["a", "b", "c"]).await;
    assert_eq!(ids(&main.drain(10).await), emitted);
    age_and_maintain(h, &main.store).await;
    assert_eq!(h.stored_messages().await, 3);
    h.set_enabled("stopped", true).await;
    let mut stopped = TestRelay::start(h.store_for("stopped").await, 1).await;
    assert_eq!(ids(&stopped.deliver(2).await), emitted[..2]);
    stopped.release_all().await;
    age_and_maintain(h, &main.store).await;
    assert_eq!(h.stored_messages().await, 3, "its window is not finished");
    h.remove_destination("stopped").await;
    age_and_maintain(h, &main.store).await;
    assert_eq!(h.stored_messages().await, 0);
}

/// The position of a shard is in mid-window: the ticks of the window and its remaining messages stay.
pub async fn a_partly_read_window_is_not_dropped(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c", "d"]).await;
    assert_eq!(ids(&relay.deliver(2).await), emitted[..2]);
    for _ in 0..3 {
        h.add_destination("passing", 1, StartFrom::Now).await;
        emit(h, "e").await;
        TestRelay::start(h.store_for("passing").await, 5).await.drain(10).await;
        h.remove_destination("passing").await;
        age_and_maintain(h, &relay.store).await;
    }
    relay.release_all().await;
    let mut next = TestRelay::start(h.store().await, 2).await;
    assert_eq!(ids(&next.deliver(10).await), emitted[2..]);
    assert_eq!(next.drain(10).await.len(), 3);
}

/// A relay has read the first part of a window and settled nothing of it. The ticks of the window stay, although the
/// last one is old and no position in the store names it.
pub async fn an_unsettled_window_can_be_read_to_its_end(h: &mut impl Harness) {
    let relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c", "d"]).await;
    let page = relay.read(2).await;
    assert_eq!(ids(&page.entries), emitted[..2]);
    h.add_destination("passing", 1, StartFrom::Now).await;
    emit(h, "e").await;
    TestRelay::start(h.store_for("passing").await, 5).await.drain(10).await;
    h.remove_destination("passing").await;
    age_and_maintain(h, &relay.store).await;
    let rest = relay.read_at(&relay.leases, &page.end, 10, ANY_BYTES).await;
    assert_eq!(ids(&rest.entries), emitted[2..]);
}
