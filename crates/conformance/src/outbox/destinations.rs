//! Destinations: one outbox publishes to several brokers or services, and no destination delays another.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::MessageId;
use relevo_core::dead_letters::DeadLetterFilter;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin as _, OutboxSettings, StartFrom};
use relevo_core::outbox::log::ParkAction;
use relevo_core::slot::SLOTS;

use crate::dead_letters::DeadLetterCalls as _;
use crate::outbox::harness::{Harness, MAIN, WriteTransaction, draft};
use crate::outbox::test_relay::{TestRelay, batch_keys, emit, emit_all, failed, ids, must, park, retry};

/// Both destinations read everything, each at its own pace and with its own leases.
pub async fn each_destination_has_its_own_progress(h: &mut impl Harness) {
    h.add_destination("other", 4, StartFrom::Now).await;
    let mut main = TestRelay::start(h.store().await, 1).await;
    let mut other = TestRelay::start(h.store_for("other").await, 1).await;
    assert_eq!((main.leases.len(), other.leases.len()), (8, 4));
    let first = emit_all(h, &["a", "b"]).await;
    assert_eq!(ids(&main.drain(10).await), first);
    let second = emit_all(h, &["a", "b"]).await;
    assert_eq!(ids(&other.drain(10).await), [&first[..], &second[..]].concat());
    assert_eq!(ids(&main.drain(10).await), second);
    assert_eq!(ids(&other.drain(10).await), []);
}

/// A second start of a program changes nothing, and a misspelt name is reported.
pub async fn only_a_new_destination_is_added_and_only_an_existing_one_is_changed(h: &mut impl Harness) {
    let operator = h.operator().await;
    assert!(must(operator.add_destination("other", 4, StartFrom::Now).await));
    assert!(!must(operator.add_destination("other", 2, StartFrom::Oldest).await), "it exists");
    assert_eq!(TestRelay::start(h.store_for("other").await, 1).await.leases.len(), 4);
    for change in [DestinationChange::Enabled(false), DestinationChange::Shards(3)] {
        assert!(!must(operator.update_destination("misspelt", change).await), "{change:?}");
    }
    assert!(!must(operator.remove_destination("misspelt").await));
    for shards in [0, SLOTS + 1] {
        let refused = operator.add_destination("invalid", shards, StartFrom::Now).await;
        assert!(refused.is_err(), "{shards}");
    }
}

/// Settings are read back as they were set.
pub async fn the_settings_are_replaced(h: &mut impl Harness) {
    let operator = h.operator().await;
    let settings = OutboxSettings {
        retention: Duration::from_hours(2),
        id_retention: Duration::from_hours(3),
        dead_letter_retention: Duration::from_hours(4),
    };
    for _ in 0..2 {
        must(operator.set_settings(&settings).await);
        assert_eq!(must(h.operator().await.settings().await), settings);
    }
}

/// `Now` begins with messages committed afterwards, even if emitted before; `Oldest` begins with all retained messages.
pub async fn a_destination_starts_now_or_with_the_oldest_message(h: &mut impl Harness) {
    let before = emit_all(h, &["a", "b"]).await;
    // An only writer would block the other sessions, so with such a store it begins after they are done.
    let one_writer = h.capabilities().single_writer;
    let open = if one_writer { None } else { Some(begin_late_transaction(h).await) };
    let young = emit(h, "d").await;
    h.add_destination("now", 2, StartFrom::Now).await;
    h.add_destination("oldest", 2, StartFrom::Oldest).await;
    let after = emit(h, "e").await;
    let mut now = TestRelay::start(h.store_for("now").await, 1).await;
    let mut oldest = TestRelay::start(h.store_for("oldest").await, 1).await;
    assert_eq!(ids(&now.drain(10).await), [after]);
    assert_eq!(ids(&oldest.drain(10).await), [&before[..], &[young, after]].concat());
    let (open, late) = match open {
        Some(open) => open,
        None => begin_late_transaction(h).await,
    };
    assert_eq!(ids(&now.drain_during_write(h, 10).await), []);
    open.commit().await;
    assert_eq!(ids(&now.drain(10).await), [late]);
    assert_eq!(ids(&oldest.drain(10).await), [late]);
}

async fn begin_late_transaction<H: Harness>(h: &H) -> (H::Writer, MessageId) {
    let mut open = h.begin().await;
    let late = open.emit(draft("c")).await.expect("a new id");
    (open, late)
}

/// A failure at one destination parks messages for that destination only.
pub async fn parked_keys_and_dead_letters_belong_to_one_destination(h: &mut impl Harness) {
    h.add_destination("other", 4, StartFrom::Now).await;
    let mut main = TestRelay::start(h.store().await, 1).await;
    let mut other = TestRelay::start(h.store_for("other").await, 2).await;
    let emitted = emit_all(h, &["a", "b"]).await;
    let page = main.read(10).await;
    let parks = vec![
        park(&page.entries[0], retry(Duration::ZERO, 1)),
        park(&page.entries[1], failed(ParkAction::DeadLetter(AfterDead::Hold), 1)),
    ];
    main.settle(page.end, parks).await;
    assert_eq!(ids(&other.drain(10).await), emitted);
    assert!(other.read_parked().await.is_empty());
    assert!(must(h.operator().await.summaries(&DeadLetterFilter::of_destination("other"), 10).await).is_empty());
    assert_eq!(batch_keys(&main.read_parked().await), ["a"]);
    assert_eq!(must(h.operator().await.summaries(&DeadLetterFilter::of_destination(MAIN), 10).await).len(), 1);
}
