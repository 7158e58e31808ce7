//! Message ids chosen by callers.

use relevo_core::MessageId;
use relevo_core::{Draft, EmitError, OnDuplicate};

use crate::outbox::harness::{Harness, WriteTransaction, draft};
use crate::outbox::test_relay::{TestRelay, emit_draft, ids};

fn draft_with_id(id: MessageId, on_duplicate: OnDuplicate) -> Draft {
    Draft { id: Some(id), on_duplicate, ..draft("a") }
}

/// The message is in the log once, whichever behaviour the caller requests.
pub async fn a_duplicate_id_is_rejected_or_ignored(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let id = MessageId::v7(1_767_225_600_000, [7; 10]);
    assert_eq!(emit_draft(h, draft_with_id(id, OnDuplicate::Error)).await, id);
    let mut writer = h.begin().await;
    let repeated = writer.emit(draft_with_id(id, OnDuplicate::Error)).await;
    assert!(matches!(repeated, Err(EmitError::DuplicateId(again)) if again == id), "{repeated:?}");
    writer.rollback().await;
    assert_eq!(emit_draft(h, draft_with_id(id, OnDuplicate::Ignore)).await, id);
    assert_eq!(ids(&relay.drain(10).await), [id]);
    assert_eq!(emit_draft(h, draft_with_id(id, OnDuplicate::Ignore)).await, id, "read or not");
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// A use that was rolled back does not count.
pub async fn an_id_of_a_rolled_back_transaction_can_be_reused(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let id = MessageId::v7(1_767_225_600_000, [8; 10]);
    let mut writer = h.begin().await;
    assert_eq!(writer.emit(draft_with_id(id, OnDuplicate::Error)).await.expect("a free id"), id);
    writer.rollback().await;
    assert_eq!(emit_draft(h, draft_with_id(id, OnDuplicate::Error)).await, id);
    assert_eq!(ids(&relay.drain(10).await), [id]);
}
