//! Windows: each message is read once, after it commits.

use relevo_core::outbox::log::WindowLimit;
use relevo_core::{Draft, MessageId};

use crate::outbox::harness::{Harness, WriteTransaction, draft};
use crate::outbox::test_relay::{ANY_BYTES, TestRelay, emit, emit_all, emit_draft, emit_during_write, ids};

/// A rolled-back transaction leaves no messages, whether it ended before or after the tick.
pub async fn a_rolled_back_message_is_never_read(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut early = h.begin().await;
    early.emit(draft("a")).await.expect("a new id");
    let mut late = h.try_begin_second().await;
    assert_eq!(late.is_none(), h.capabilities().single_writer);
    if let Some(late) = &mut late {
        late.emit(draft("a")).await.expect("a new id");
    }
    early.rollback().await;
    let late = match late {
        Some(late) => late,
        None => begin_late_transaction(h).await.0,
    };
    let retained = emit_during_write(h, &["a"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), retained);
    late.rollback().await;
    assert_eq!(ids(&relay.drain(10).await), []);
    let retained = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [retained]);
    assert_eq!(ids(&relay.drain(10).await), []);
    let dropped = h.begin().await;
    drop(dropped);
    // The next writer waits until the dropped transaction has ended.
    h.begin().await.rollback().await;
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// Messages rolled back to a savepoint are never read; those before and after it in the same transaction are.
pub async fn a_message_undone_by_a_savepoint_is_never_read(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut writer = h.begin().await;
    let first = writer.emit(draft("a")).await.expect("a new id");
    writer.savepoint("here").await;
    writer.emit(draft("a")).await.expect("a new id");
    writer.rollback_to("here").await;
    let second = writer.emit(draft("a")).await.expect("a new id");
    writer.savepoint("there").await;
    let third = writer.emit(draft("a")).await.expect("a new id");
    writer.commit().await;
    assert_eq!(ids(&relay.drain(10).await), [first, second, third]);
}

/// The transaction was listed as open when younger ones were read.
pub async fn a_long_transaction_is_read_once_when_it_commits(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut long = h.begin().await;
    let first = long.emit(draft("long")).await.expect("a new id");
    let young = emit_during_write(h, &["a", "b", "c"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 2).await), young);
    let second = long.emit(draft("long")).await.expect("a new id");
    let younger = emit_during_write(h, &["a", "b"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), younger);
    long.commit().await;
    assert_eq!(ids(&relay.drain(10).await), [first, second]);
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// The transaction has the highest number at the tick: no snapshot lists it, and its sequence number is not above the
/// tick's.
pub async fn a_late_commit_of_the_youngest_transaction_is_read(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let before = emit(h, "a").await;
    let mut open = h.begin().await;
    let late = open.emit(draft("b")).await.expect("a new id");
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), [before]);
    open.commit().await;
    assert_eq!(ids(&relay.drain(10).await), [late]);
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// One transaction has sequence numbers below and above the tick.
pub async fn a_skipped_transaction_is_read_completely(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut open = h.begin().await;
    let mut emitted = vec![open.emit(draft("a")).await.expect("a new id")];
    for _ in 0..3 {
        let young = emit_during_write(h, &["b"]).await;
        assert_eq!(ids(&relay.drain_during_write(h, 10).await), young);
        emitted.push(open.emit(draft("a")).await.expect("a new id"));
    }
    open.commit().await;
    assert_eq!(ids(&relay.drain(2).await), emitted);
}

/// Reading has no side effects: the same call returns the same page, also after later commits.
pub async fn the_same_window_read_twice_gives_the_same_page(h: &mut impl Harness) {
    let relay = TestRelay::start(h.store().await, 1).await;
    emit_all(h, &["a", "b", "c", "d", "e"]).await;
    let after = relay.read(2).await.end;
    let second = relay.read_at(&relay.leases, &after, 2, ANY_BYTES).await;
    emit_all(h, &["a", "b"]).await;
    let repeated = relay.read_at(&relay.leases, &after, 2, ANY_BYTES).await;
    assert_eq!((ids(&repeated.entries), repeated.end), (ids(&second.entries), second.end));
}

/// A3: progress names both ends of the window, so that it cannot be mistaken for another window.
pub async fn a_position_within_a_window_survives_newer_ticks_and_sessions(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    // The only writer cannot be open while others emit, so with such a store it begins and commits in mid-window.
    let mut open = if h.capabilities().single_writer { None } else { Some(begin_late_transaction(h).await) };
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    assert_eq!(ids(&relay.deliver(2).await), emitted[..2]);
    let (open, late) = match open.take() {
        Some(open) => open,
        None => begin_late_transaction(h).await,
    };
    open.commit().await;
    let young = emit_all(h, &["a", "b"]).await;
    h.add_destination("other", 1, relevo_core::outbox::admin::StartFrom::Oldest).await;
    let mut other = TestRelay::start(h.store_for("other").await, 9).await;
    assert_eq!(other.drain(100).await.len(), 8);

    relay.release_all().await;
    let mut next = TestRelay::start(h.store().await, 2).await;
    assert_eq!(ids(&next.deliver(100).await), emitted[2..]);
    assert_eq!(ids(&next.drain(100).await), [&[late], &young[..]].concat());
}

async fn begin_late_transaction<H: Harness>(h: &H) -> (H::Writer, MessageId) {
    let mut open = h.begin().await;
    let late = open.emit(draft("z")).await.expect("a new id");
    (open, late)
}

/// Late messages have lower numbers than the rest of the window; a page may end among them.
pub async fn a_page_can_end_among_late_messages(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut open = h.begin().await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(open.emit(draft("late")).await.expect("a new id"));
    }
    let young = emit_during_write(h, &["a"]).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), young);
    open.commit().await;
    expected.extend(emit_all(h, &["a", "b", "c"]).await);
    let mut read = Vec::new();
    for _ in 0..4 {
        read.extend(relay.deliver(2).await);
    }
    assert_eq!(ids(&read), expected);
    assert_eq!(ids(&relay.drain(2).await), []);
}

/// Without new messages pages are empty, and the position stays unless other applications use the server.
pub async fn an_idle_outbox_gives_empty_pages(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut before = relay.position(&relay.leases[0]);
    for emitted in 0..3 {
        if emitted > 0 {
            emit(h, "a").await;
            assert_eq!(relay.drain(10).await.len(), 1);
            before = relay.position(&relay.leases[0]);
        }
        for _ in 0..3 {
            let page = relay.read(10).await;
            assert_eq!(ids(&page.entries), []);
            assert!(page.end.is_exhausted());
            if h.capabilities().exclusive_server {
                assert_eq!(page.end, before);
            }
        }
    }
}

/// Each message belongs to exactly one shard.
pub async fn every_shard_reads_its_own_keys(h: &mut impl Harness) {
    let relay = TestRelay::start(h.store().await, 1).await;
    let keys: Vec<String> = (0..40).map(|number| format!("k-{number}")).collect();
    let mut expected = emit_all(h, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut read = Vec::new();
    for lease in &relay.leases {
        let page = relay.read_at(&[*lease], &relay.position(lease), 100, ANY_BYTES).await;
        assert!(page.entries.iter().all(|entry| relay.lease_of(entry) == *lease));
        assert!(page.entries.iter().all(|entry| entry.slot == relevo_core::slot::slot_of(&entry.message.key)));
        read.extend(ids(&page.entries));
    }
    read.sort();
    expected.sort();
    assert_eq!(read, expected);
}

/// A shard without progress reads in one window what the others read in many.
pub async fn a_lagging_shard_jumps_to_the_newest_tick(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let first = emit_all(h, &["a", "b", "c", "d"]).await;
    let page = relay.read(10).await;
    let lagging = relay.lease_of(&page.entries[0]);
    let others: Vec<_> = relay.leases.iter().filter(|lease| **lease != lagging).copied().collect();
    relay.settle_some(&others, page.end.clone(), Vec::new()).await;
    let mut missed: Vec<_> = page.entries.iter().filter(|entry| relay.lease_of(entry) == lagging).cloned().collect();
    for _ in 0..3 {
        emit_all(h, &["a", "b"]).await;
        for (leases, page) in relay.read_groups(100).await {
            if leases == [lagging] {
                missed = page.entries;
            } else {
                relay.settle_some(&leases, page.end, Vec::new()).await;
            }
        }
    }
    assert_eq!(missed[0].message.id, first[0]);
    let read = relay.drain(3).await;
    assert_eq!(ids(&read), ids(&missed));
    assert!(relay.leases.iter().all(|lease| relay.position(lease).is_exhausted()));
}

/// During resharding, open windows are finished and no new one is opened, or none beyond a tick.
pub async fn a_window_limit_stops_new_windows(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let start = relay.position(&relay.leases[0]);
    let first = emit_all(h, &["a", "b", "c"]).await;
    assert_eq!(ids(&relay.deliver(2).await), first[..2]);
    relay.window_limit = WindowLimit::CurrentWindow;
    assert_eq!(ids(&relay.deliver(2).await), first[2..]);
    let stand = relay.position(&relay.leases[0]);
    let second = emit_all(h, &["a", "b", "c"]).await;
    let page = relay.read(2).await;
    assert_eq!((ids(&page.entries), &page.end), (vec![], &stand));

    relay.window_limit = WindowLimit::UntilTick(stand.to_tick());
    let page = relay.read(2).await;
    assert_eq!((ids(&page.entries), &page.end), (vec![], &stand));
    let page = relay.read_at(&relay.leases, &start, 100, ANY_BYTES).await;
    assert_eq!((ids(&page.entries), page.end), (first, stand));

    relay.window_limit = WindowLimit::Unlimited;
    assert_eq!(ids(&relay.drain(2).await), second);
}

/// Bytes limit a page as well as the number of messages. It has at least one message, however large.
pub async fn a_page_ends_at_its_byte_limit(h: &mut impl Harness) {
    let relay = TestRelay::start(h.store().await, 1).await;
    let mut emitted = Vec::new();
    for size in [10, 5000, 10, 10, 9000] {
        emitted.push(emit_draft(h, Draft { payload: vec![b'x'; size].into(), ..draft("a") }).await);
    }
    let lease = [relay.lease_of(&relay.read(10).await.entries[0])];
    let mut after = relay.position(&lease[0]);
    let mut pages = Vec::new();
    loop {
        let page = relay.read_at(&lease, &after, 10, 5000).await;
        if page.entries.is_empty() {
            break;
        }
        after = page.end;
        pages.push(ids(&page.entries));
    }
    assert_eq!(pages.concat(), emitted);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3], "cut once 5000 bytes are reached");
}
