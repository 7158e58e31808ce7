//! Scheduled messages: they wait outside the log and enter it when due.

use std::time::Duration;

use relevo_core::Draft;
use relevo_core::outbox::LogEntry;

use crate::outbox::harness::{Harness, WriteTransaction, draft};
use crate::outbox::test_relay::{RETRY_DELAY, TestRelay, emit, emit_draft, ids};

/// A pause in real time, for stores where stored times cannot change while a writer is open.
const REAL_WAIT: Duration = Duration::from_secs(2);

fn scheduled_draft(h: &impl Harness, key: &str, wait: Duration) -> Draft {
    Draft { deliver_at: Some(h.now() + wait), ..draft(key) }
}

/// Messages enter no earlier than their time and in the order of their times, independent of the order of emitting.
pub async fn scheduled_messages_enter_when_due_in_the_order_of_their_times(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let third = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY)).await;
    let first = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY / 4)).await;
    let second = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY / 2)).await;
    let much_later = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY * 3)).await;
    assert_eq!(ids(&relay.drain(10).await), []);
    assert_eq!(h.stored_messages().await, 0);
    h.advance_time(RETRY_DELAY + Duration::from_millis(200)).await;
    assert_eq!(ids(&relay.drain(10).await), [first, second, third]);
    h.advance_time(RETRY_DELAY * 3).await;
    assert_eq!(ids(&relay.drain(10).await), [much_later]);
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// Its position in the order of the key is set when it enters the log.
pub async fn a_scheduled_message_gets_its_order_when_it_enters_the_log(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let scheduled = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY)).await;
    let before = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [before]);
    h.advance_time(RETRY_DELAY * 2).await;
    assert_eq!(ids(&relay.drain(10).await), [scheduled]);
    let behind = emit(h, "a").await;
    assert_eq!(ids(&relay.drain(10).await), [behind]);
}

/// Its age counts from when it enters the log, not from when it was emitted. Otherwise a message scheduled for longer
/// than the inbox retention would be too old (rule E6).
pub async fn the_age_of_a_scheduled_message_counts_from_its_entry_into_the_log(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY)).await;
    h.advance_time(RETRY_DELAY / 4).await;
    emit(h, "a").await;
    let before = relay.drain(10).await;
    h.advance_time(RETRY_DELAY * 2).await;
    let entered = relay.drain(10).await;
    let age = |entries: &[LogEntry]| entries[0].message.created_at;
    assert!(age(&entered) >= age(&before), "{} is before {}", age(&entered), age(&before));
}

/// Cancelling deletes the message: once, before its time, and only if the cancelling transaction commits.
pub async fn a_cancelled_message_is_never_read(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let cancelled = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY)).await;
    let retained = emit_draft(h, scheduled_draft(h, "a", RETRY_DELAY)).await;
    let mut writer = h.begin().await;
    assert!(writer.cancel(retained).await);
    writer.rollback().await;
    let mut writer = h.begin().await;
    assert!(writer.cancel(cancelled).await);
    assert!(!writer.cancel(cancelled).await);
    writer.commit().await;
    h.advance_time(RETRY_DELAY * 2).await;
    assert_eq!(ids(&relay.drain(10).await), [retained]);
    let mut writer = h.begin().await;
    assert!(!writer.cancel(retained).await, "it is in the log by now");
    writer.rollback().await;
}

/// P2 for scheduled messages. An open writer also holds back its own messages when their time comes.
pub async fn a_scheduled_message_that_rolled_back_is_never_read(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut rolled_back = h.begin().await;
    rolled_back.emit(scheduled_draft(h, "a", REAL_WAIT)).await.expect("a new id");
    let open = h.try_begin_second().await;
    assert_eq!(open.is_none(), h.capabilities().single_writer);
    let (open, late) = if let Some(mut open) = open {
        let late = open.emit(scheduled_draft(h, "a", REAL_WAIT)).await.expect("a new id");
        rolled_back.rollback().await;
        (open, late)
    } else {
        rolled_back.rollback().await;
        let mut open = h.begin().await;
        let late = open.emit(scheduled_draft(h, "a", REAL_WAIT)).await.expect("a new id");
        (open, late)
    };
    h.advance_time(REAL_WAIT * 2).await;
    assert_eq!(ids(&relay.drain_during_write(h, 10).await), []);
    open.commit().await;
    h.advance_time(REAL_WAIT * 2).await; // again, for a store that moves stored times: this one was not stored yet
    assert_eq!(ids(&relay.drain(10).await), [late]);
}
