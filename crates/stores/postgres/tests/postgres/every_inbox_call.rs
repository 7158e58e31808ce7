//! Calls every method of the inbox ports once, in the order of a message's life cycle.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction, MarkRequest};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{ConsumerControl, RemoveOutcome};
use relevo_core::inbox::attempts::{ClaimOutcome, InboxAttempts as _};
use relevo_core::inbox::members::{Heartbeat, InboxMembers as _};
use relevo_core::inbox::replays::{EnqueueOutcome, ReplayBatch, ReplayPlan};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, InboxRetries as _, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, InboxTransactions as _};
use relevo_core::inbox::{DedupId, Fence, InboxMessage};
use uuid::Uuid;

const LASTS: Duration = Duration::from_mins(1);

fn arrival(number: u128) -> InboxMessage {
    InboxMessage {
        dedup_id: DedupId { id: MessageId::from_uuid(Uuid::from_u128(number)), replay: 0 },
        queue: number.to_string().into(),
        raw: RawMessage::default(),
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: None,
        attempts: 0,
    }
}

fn setback(stop: InboxFailureAction) -> InboxFailure {
    InboxFailure { action: stop, attempts: 1, class: "refused", error: "no".to_owned(), backtrace: None }
}

fn in_queue(due: &ClaimedQueue, index: usize) -> Fence<'_> {
    Fence::Queue { claim: &due.claim, ordinal: due.messages[index].ordinal }
}

/// All calls of a member. Leaves message 4 as a dead letter.
pub(crate) async fn call_every_inbox_function(inbox: &relevo_store_postgres::inbox::Inbox) {
    let owner = Uuid::from_u128(1);
    let beat = Heartbeat {
        owner,
        name: "member".to_owned(),
        ttl: LASTS,
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    inbox.heartbeat(&beat).await.expect("beat");
    let held = inbox.acquire_lanes(owner, &[Lane::new("0")]).await.expect("take").remove(0);
    let [inside, called, failed, dead] = [1, 2, 3, 4].map(arrival);
    inbox.record_start(&inside).await.expect("start");
    let BeginOutcome::Open(tx, _) =
        inbox.begin(std::slice::from_ref(&inside), Fence::Live { lane: Some(&held) }).await.expect("begin")
    else {
        panic!("no other session has a lock")
    };
    inbox.commit(tx, &[inside.dedup_id]).await.expect("commit");
    let ClaimOutcome::Claimed(claim) = inbox.claim_call(&called, Some(&held), LASTS).await.expect("claim") else {
        panic!("no other session has a lock")
    };
    let BeginOutcome::Open(tx, _) = inbox
        .begin(std::slice::from_ref(&called), Fence::Call { lane: Some(&held), claim })
        .await
        .expect("begin_claimed")
    else {
        panic!("no other session has a lock")
    };
    inbox.rollback(tx).await.expect("roll_back");
    inbox.end_attempt(called.dedup_id, Some(claim)).await.expect("ended");
    let retry = setback(InboxFailureAction::Retry { after: Duration::ZERO });
    assert_eq!(
        inbox.record_failure(&failed, Fence::Live { lane: Some(&held) }, &retry).await.expect("set_back"),
        RecordOutcome::Recorded
    );
    let behind = InboxMessage { queue: failed.queue.clone(), ..arrival(5) };
    let BeginOutcome::Open(tx, _) = inbox.begin(&[behind], Fence::Live { lane: None }).await.expect("begin") else {
        panic!("no other session has a lock")
    };
    inbox.commit(tx, &[]).await.expect("commit");
    let due = inbox.claim_due(1, 10, LASTS).await.expect("due").remove(0);
    let BeginOutcome::Open(tx, _) =
        inbox.begin(std::slice::from_ref(&due.messages[0].message), in_queue(&due, 0)).await.expect("begin_due")
    else {
        panic!("it is claimed")
    };
    inbox.commit(tx, &[]).await.expect("commit");
    let dead_setback = setback(InboxFailureAction::DeadLetter(AfterDead::Continue));
    assert_eq!(
        inbox.record_failure(&due.messages[1].message, in_queue(&due, 1), &dead_setback).await.expect("set_back_due"),
        RecordOutcome::Recorded
    );
    inbox.release_queue(&due.claim).await.expect("release");
    assert_eq!(
        inbox.record_failure(&dead, Fence::Live { lane: None }, &dead_setback).await.expect("set_back"),
        RecordOutcome::Recorded
    );
    inbox.prune(10).await.expect("prune");
    inbox.release_lanes(owner, &[Lane::new("0")]).await.expect("give_back");
    inbox.leave(owner).await.expect("leave");
}

/// All calls of an operator.
pub(crate) async fn call_every_operator_function(operator: &impl ConsumerOperator) {
    assert_eq!(operator.list_consumers().await.expect("consumers").len(), 1);
    assert!(operator.get_consumer("billing", 10).await.expect("consumer").is_some());
    assert!(operator.set_control("billing", None, ConsumerControl::Pause).await.expect("order"));
    let all = DeadLetterFilter::of_consumer("billing");
    let letters = operator.list_dead_letters(&all, None, 10).await.expect("dead").letters;
    assert_eq!(letters.len(), 2);
    assert_eq!(operator.get_dead_letters(&all, 10).await.expect("dead").len(), 2);
    let mark = MarkRequest {
        filter: DeadLetterFilter { ids: vec![letters[0].id], ..all.clone() },
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "ana".to_owned(),
        reason: "fixed".to_owned(),
    };
    assert_eq!(operator.mark_dead_letters(&mark).await.expect("redrive").count, 1);
    let discard = MarkRequest { filter: all, action: MarkAction::Discard, ..mark };
    assert_eq!(operator.mark_dead_letters(&discard).await.expect("discard").count, 1);
    let replays = operator.as_replays().expect("replays");
    let plan = ReplayPlan {
        consumer: "billing".to_owned(),
        source: "log".to_owned(),
        count: 1,
        rate: 1,
        dead_letters_max: 1,
        requested_by: "ana".to_owned(),
        reason: "wrong".to_owned(),
    };
    let number = replays.create_replay(&plan).await.expect("begin_replay");
    let portion = ReplayBatch { messages: &[arrival(9)], cursor: None, next_cursor: Some("9") };
    assert_eq!(replays.enqueue_replay("billing", number, portion).await.expect("feed"), EnqueueOutcome::Enqueued);
    assert!(replays.stop_replay("billing", number).await.expect("stop_replay"));
    assert!(replays.resume_replay("billing", number, 1).await.expect("resume_replay"));
    assert_eq!(replays.list_replays("billing").await.expect("replays").len(), 1);
    assert_eq!(operator.remove_consumer("billing").await.expect("forget"), RemoveOutcome::Removed);
}
