//! Destinations: one outbox feeds several brokers or services, and none delays the others.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::store::{DeadFilter, DeadLetters, Stop};

use crate::harness::{Draft, Start, StoreHarness, Writer};
use crate::relay::{Relay, emit, emit_all, ids, ok, park, retry, run_keys, stopped};

/// Both destinations read everything, each at its own pace and with its own leases.
pub async fn each_destination_has_its_own_progress(h: &mut impl StoreHarness) {
    h.add_destination("other", 4, Start::Now).await;
    let mut main = Relay::start(h.store().await, 1).await;
    let mut other = Relay::start(h.store_for("other").await, 1).await;
    assert_eq!((main.leases.len(), other.leases.len()), (8, 4));
    let first = emit_all(h, &["a", "b"]).await;
    assert_eq!(ids(&main.drain(10).await), first);
    let second = emit_all(h, &["a", "b"]).await;
    assert_eq!(ids(&other.drain(10).await), [&first[..], &second[..]].concat());
    assert_eq!(ids(&main.drain(10).await), second);
    assert_eq!(ids(&other.drain(10).await), []);
}

/// `Now` begins with messages committed afterwards, even if emitted before; `Oldest` begins with all retained messages.
pub async fn a_destination_starts_now_or_with_the_oldest(h: &mut impl StoreHarness) {
    let before = emit_all(h, &["a", "b"]).await;
    // An only writer would block the other sessions, so with such a store it begins after they are done.
    let one_writer = h.capabilities().one_writer;
    let open = if one_writer { None } else { Some(begin_late(h).await) };
    let young = emit(h, "d").await;
    h.add_destination("now", 2, Start::Now).await;
    h.add_destination("oldest", 2, Start::Oldest).await;
    let after = emit(h, "e").await;
    let mut now = Relay::start(h.store_for("now").await, 1).await;
    let mut oldest = Relay::start(h.store_for("oldest").await, 1).await;
    assert_eq!(ids(&now.drain(10).await), [after]);
    assert_eq!(ids(&oldest.drain(10).await), [&before[..], &[young, after]].concat());
    let (open, late) = match open {
        Some(open) => open,
        None => begin_late(h).await,
    };
    assert_eq!(ids(&now.drain_beside(h, 10).await), []);
    open.commit().await;
    assert_eq!(ids(&now.drain(10).await), [late]);
    assert_eq!(ids(&oldest.drain(10).await), [late]);
}

async fn begin_late<H: StoreHarness>(h: &H) -> (H::Writer, MessageId) {
    let mut open = h.begin().await;
    let late = open.emit(Draft::of("c")).await.expect("a new id");
    (open, late)
}

/// A failure at one destination parks messages for that destination only.
pub async fn parked_keys_and_dead_letters_belong_to_one_destination(h: &mut impl StoreHarness) {
    h.add_destination("other", 4, Start::Now).await;
    let mut main = Relay::start(h.store().await, 1).await;
    let mut other = Relay::start(h.store_for("other").await, 2).await;
    let emitted = emit_all(h, &["a", "b"]).await;
    let page = main.read(10).await;
    let parks =
        vec![park(&page.entries[0], retry(Duration::ZERO, 1)), park(&page.entries[1], stopped(Stop::DeadHold, 1))];
    main.settle(page.end, parks).await;
    assert_eq!(ids(&other.drain(10).await), emitted);
    assert!(other.due().await.is_empty());
    assert!(ok(other.store.dead(&DeadFilter::default(), 10).await).is_empty());
    assert_eq!(run_keys(&main.due().await), ["a"]);
    assert_eq!(ok(main.store.dead(&DeadFilter::default(), 10).await).len(), 1);
}
