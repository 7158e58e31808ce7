//! Pruning: deletes finished rows after their retention, and no others.

use std::time::Duration;

use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::InboxFailureAction;
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{Inbox, InboxMessage, InboxRetention, InboxState};

use super::harness::{Harness, RETENTION};
use super::steps::{
    BILLING, LONG, SHORT, acquire_lane, all_dead_letters, begin, dead_letter, fail, handle, heartbeat, id, ids_filter,
    inbox_message, lane, mark, must, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// Longer than any retention.
const OLDER_THAN_RETENTION: Duration = Duration::from_hours(100);

/// Prunes until no expired rows are left.
async fn prune(inbox: &impl Inbox) {
    for _ in 0..100 {
        if !must(inbox.prune(10).await) {
            return;
        }
    }
    panic!("pruning never ends");
}

/// Messages that wait, run or are dead must be known when a duplicate arrives, however old they are.
pub async fn only_done_and_skipped_messages_are_pruned(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, skipped, open, calling, waiting, dead, reopened, behind] =
        [1, 2, 3, 4, 5, 6, 7, 8].map(|number| inbox_message(number, &number.to_string()));
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    let (mut transaction, _) = begin(&inbox, std::slice::from_ref(&skipped)).await;
    must(inbox.skip(&mut transaction, skipped.dedup_id).await);
    must(inbox.commit(transaction).await);
    must(inbox.record_start(&open).await);
    must(inbox.claim_call(&calling, None, LONG).await);
    fail(&inbox, &waiting, &retry(LONG, 1)).await;
    let behind = InboxMessage { queue: waiting.queue.clone(), ..behind };
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&behind)).await, [EnterOutcome::QueuedBehind]);
    dead_letter(&inbox, &dead, InboxFailureAction::DeadContinue).await;
    dead_letter(&inbox, &reopened, InboxFailureAction::DeadContinue).await;
    must(h.operator().await.redrive(&mark(ids_filter(&[7]))).await);
    h.age_records(OLDER_THAN_RETENTION).await;
    prune(&inbox).await;
    let known = handle(h, &inbox, &[waiting, dead, reopened, behind]).await;
    assert_eq!(
        known,
        [InboxState::Waiting, InboxState::Dead, InboxState::Redriven, InboxState::Waiting].map(EnterOutcome::Duplicate)
    );
    assert_eq!(must(inbox.record_start(&open).await), 2);
    assert!(matches!(must(inbox.claim_call(&calling, None, LONG).await), ClaimOutcome::Busy(_)));
    assert_eq!(handle(h, &inbox, &[done, skipped]).await, [EnterOutcome::New; 2]);
}

/// Rows are deleted no earlier than their retention, and only those of the consumer with that retention.
pub async fn recent_messages_are_not_pruned(h: &mut impl Harness) {
    let brief = InboxRetention { done: Duration::from_hours(1), ..RETENTION };
    let (billing, shipping) = (h.inbox_with_retention(BILLING, brief).await, h.inbox("shipping").await);
    handle(h, &billing, &[inbox_message(1, "a")]).await;
    handle(h, &shipping, &[inbox_message(1, "a")]).await;
    h.age_records(Duration::from_hours(2)).await;
    handle(h, &billing, &[inbox_message(2, "a")]).await;
    prune(&billing).await;
    prune(&shipping).await;
    assert_eq!(handle(h, &billing, &[inbox_message(2, "a")]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(handle(h, &shipping, &[inbox_message(1, "a")]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(handle(h, &billing, &[inbox_message(1, "a")]).await, [EnterOutcome::New]);
}

/// Each call deletes a limited number of rows, so that no other transaction waits long.
pub async fn pruning_works_in_batches(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let messages: Vec<_> = (0..7).map(|number| inbox_message(number, "a")).collect();
    handle(h, &inbox, &messages).await;
    h.age_records(OLDER_THAN_RETENTION).await;
    assert!(must(inbox.prune(3).await), "there is more");
    let BeginOutcome::Open(transaction, entered) = must(inbox.begin(Enter { held: None, arrivals: &messages }).await)
    else {
        panic!("no other transaction is open")
    };
    assert_eq!(entered.iter().filter(|entered| **entered == EnterOutcome::New).count(), 3);
    must(inbox.rollback(transaction).await);
    assert!(must(inbox.prune(3).await), "there is more");
    while must(inbox.prune(3).await) {}
    assert_eq!(handle(h, &inbox, &messages).await, [EnterOutcome::New; 7]);
}

/// Dead letters without an operator's decision are kept for ever.
pub async fn only_redriven_and_discarded_dead_letters_are_pruned(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        dead_letter(&inbox, &inbox_message(number, &number.to_string()), InboxFailureAction::DeadContinue).await;
    }
    let operator = h.operator().await;
    must(operator.discard(&mark(ids_filter(&[1]))).await);
    must(operator.redrive(&mark(ids_filter(&[2]))).await);
    prune(&inbox).await;
    assert_eq!(must(operator.summaries(&all_dead_letters(), 10).await).len(), 3, "they are too young");
    h.age_records(OLDER_THAN_RETENTION).await;
    prune(&inbox).await;
    let left = must(operator.summaries(&all_dead_letters(), 10).await);
    assert_eq!(left.iter().map(|row| row.id).collect::<Vec<_>>(), [id(3)]);
}

/// A member that expired long ago is deleted. If it returns, the heartbeat reply reports that it had expired.
pub async fn long_expired_members_are_pruned(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, SHORT).await;
    prune(&inbox).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.get_consumer(BILLING, 10).await).expect("a consumer").members.len(), 1);
    h.age_records(OLDER_THAN_RETENTION).await;
    must(inbox.heartbeat(&heartbeat(2, LONG)).await);
    prune(&inbox).await;
    let shown = must(operator.get_consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!(shown.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["member 2"]);
    let mut back = heartbeat(1, LONG);
    back.settled_offsets = vec![(lane(), None)];
    assert!(must(inbox.heartbeat(&back).await).expired);
}

/// After the first prune, operators can see the retention of a consumer's inbox.
pub async fn the_done_retention_is_shown(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[inbox_message(1, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.list_consumers().await)[0].done_retention, None, "nothing was pruned yet");
    must(inbox.prune(10).await);
    assert_eq!(must(operator.list_consumers().await)[0].done_retention, Some(RETENTION.done));
    let days = Duration::from_hours(45 * 24) + Duration::from_millis(7);
    must(h.inbox_with_retention(BILLING, InboxRetention { done: days, ..RETENTION }).await.prune(10).await);
    assert_eq!(must(operator.get_consumer(BILLING, 1).await).expect("a consumer").summary.done_retention, Some(days));
}
