//! The server is killed in mid-batch.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::Draft;
use relevo_core::MessageId;
use relevo_core::dead_letters::DeadLetterFilter;
use relevo_core::outbox::log::ParkAction;

use crate::dead_letters::DeadLetterCalls as _;
use crate::outbox::harness::{Harness, MAIN, WriteTransaction, draft};
use crate::outbox::test_relay::{
    LEASE, LONG, TestRelay, batch_ids, batch_keys, emit_all, emit_draft, emit_during_write, failed, ids, must, park,
    park_behind, retry,
};

/// P1: at least once. Settled messages are not read again, unless the store declares that progress may be lost.
pub async fn an_unsettled_message_is_read_again_after_a_crash(h: &mut impl Harness) {
    let mut relay = TestRelay::new(h.store().await, 1);
    relay.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    relay.deliver(2).await;
    let unsettled = relay.read(2).await;
    assert_eq!(ids(&unsettled.entries), emitted[2..4]);
    h.crash().await;
    h.advance_time(LEASE * 2).await;

    let mut next = TestRelay::new(h.store().await, 2);
    next.lease(LONG).await;
    let read = ids(&next.drain(2).await);
    let settled = if h.capabilities().durable_progress { 2 } else { emitted.len() - read.len() };
    assert!(settled <= 2, "an unsettled message was lost");
    assert_eq!(read, emitted[settled..]);
    let after = emit_all(h, &["a", "b"]).await;
    assert_eq!(ids(&next.drain(2).await), after);
}

/// P2: the crash rolls back an open transaction, whether a tick had listed it or not. Ids used in it are free again.
pub async fn an_uncommitted_message_is_lost_in_a_crash(h: &mut impl Harness) {
    let mut relay = TestRelay::new(h.store().await, 1);
    relay.lease(LEASE).await;
    let mut committed = if h.capabilities().single_writer { emit_all(h, &["b"]).await } else { Vec::new() };
    let mut listed = h.begin().await;
    let own = MessageId::v7(1_767_225_600_000, [9; 10]);
    listed.emit(Draft { id: Some(own), ..draft("a") }).await.expect("a new id");
    committed.extend(emit_during_write(h, &["b"]).await);
    let page = relay.read(10).await;
    assert_eq!(ids(&page.entries), committed);
    let mut unlisted = h.try_begin_second().await;
    if let Some(unlisted) = &mut unlisted {
        unlisted.emit(draft("a")).await.expect("a new id");
    }
    h.crash().await;
    h.advance_time(LEASE * 2).await;

    let mut next = TestRelay::new(h.store().await, 2);
    next.lease(LONG).await;
    assert_eq!(ids(&next.drain(10).await), committed);
    let mut after = emit_all(h, &["a", "b", "c"]).await;
    after.push(emit_draft(h, Draft { id: Some(own), ..draft("a") }).await);
    assert_eq!(ids(&next.drain(10).await), after, "reused numbers belong to new messages");
    // Dropped only now, so that the crash itself ends both transactions.
    drop((listed, unlisted));
}

/// Parked keys and dead letters were settled with the page and survive.
pub async fn parked_keys_and_dead_letters_survive_a_crash(h: &mut impl Harness) {
    let mut relay = TestRelay::new(h.store().await, 1);
    relay.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "b", "a", "c"]).await;
    let page = relay.read(10).await;
    let parks = vec![
        park(&page.entries[0], retry(Duration::ZERO, 2)),
        park(&page.entries[1], failed(ParkAction::DeadLetter(AfterDead::Hold), 3)),
        park_behind(&page.entries[2]),
    ];
    relay.settle(page.end, parks).await;
    h.crash().await;
    h.advance_time(LEASE * 2).await;

    let mut next = TestRelay::new(h.store().await, 2);
    next.lease(LONG).await;
    assert_eq!(ids(&next.drain(10).await), []);
    let batches = next.read_parked().await;
    assert_eq!(batch_keys(&batches), ["a"]);
    assert_eq!((batch_ids(&batches[0]), batches[0].attempts), (vec![emitted[0], emitted[2]], 2));
    let dead_letters = must(h.operator().await.summaries(&DeadLetterFilter::of_destination(MAIN), 10).await);
    assert_eq!(dead_letters.iter().map(|dead_letter| dead_letter.id).collect::<Vec<_>>(), [emitted[1]]);
}
