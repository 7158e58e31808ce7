//! Replays: the same messages are handled once more, under the number of the replay.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::replays::{ConsumerReplays as _, EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::retries::InboxFailureAction;
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{InboxMessage, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, claim_due, claim_one, dead_letter, fail, failure, handle, handle_at, handle_queue, heartbeat,
    in_queue, inbox_message, lines, must, numbers, retry,
};

fn replay_plan(consumer: &str) -> ReplayPlan {
    ReplayPlan {
        consumer: consumer.to_owned(),
        source: "orders from 2026-01-01".to_owned(),
        count: 3,
        rate: 100,
        dead_letters_max: 2,
        requested_by: "ana".to_owned(),
        reason: "the tax rate was wrong".to_owned(),
    }
}

async fn newest_replay(h: &impl Harness) -> Replay {
    must(h.operator().await.list_replays(BILLING).await).remove(0)
}

/// Enqueues messages as a reader at the current cursor of the replay.
async fn enqueue(h: &impl Harness, number: u32, messages: &[InboxMessage], to: Option<&str>) -> EnqueueOutcome {
    let operator = h.operator().await;
    let replays = must(operator.list_replays(BILLING).await);
    let from = replays.into_iter().find(|replay| replay.number == number).and_then(|replay| replay.cursor);
    must(
        operator
            .enqueue_replay(BILLING, number, ReplayBatch { messages, cursor: from.as_deref(), next_cursor: to })
            .await,
    )
}

/// Numbers are above zero and increase with each replay.
pub async fn replays_are_numbered_for_each_consumer(h: &mut impl Harness) {
    for consumer in [BILLING, "shipping"] {
        must(h.inbox(consumer).await.heartbeat(&heartbeat(1, LONG)).await);
    }
    let operator = h.operator().await;
    let first = must(operator.create_replay(&replay_plan(BILLING)).await);
    let second = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert!(0 < first && first < second);
    must(operator.create_replay(&replay_plan("shipping")).await);
    let replays = must(operator.list_replays(BILLING).await);
    assert_eq!(replays.iter().map(|replay| replay.number).collect::<Vec<_>>(), [second, first], "the newest first");
    assert_eq!(replays[1].plan, replay_plan(BILLING));
    assert_eq!(
        (replays[1].state, replays[1].enqueued, replays[1].done, replays[1].dead),
        (ReplayState::Running, 0, 0, 0)
    );
    assert_eq!(must(operator.list_replays("shipping").await).len(), 1);
    assert_eq!(must(operator.list_replays("unknown").await), []);
}

/// Messages are handled again once per replay, whatever their state was.
pub async fn replayed_messages_are_handled_once_more(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[inbox_message(1, "1"), inbox_message(2, "2")]).await;
    let operator = h.operator().await;
    for _ in 0..2 {
        let number = must(operator.create_replay(&replay_plan(BILLING)).await);
        let messages = [inbox_message(1, "1"), inbox_message(2, "2")];
        assert_eq!(enqueue(h, number, &messages, Some("2")).await, EnqueueOutcome::Enqueued);
        let claimed = claim_due(&inbox).await;
        assert_eq!(claimed.len(), 2);
        for claimed in &claimed {
            let dedup_id = claimed.messages[0].message.dedup_id;
            assert_eq!(dedup_id.replay, number, "the source's number is replaced");
            handle_queue(h, &inbox, claimed).await;
        }
        let replay = newest_replay(h).await;
        assert_eq!((replay.enqueued, replay.done, replay.dead), (2, 2, 0));
    }
    let mut effects = h.effects().await;
    effects.sort();
    assert_eq!(effects, lines(&[1, 1, 1, 2, 2, 2]));
    let repeated = handle(h, &inbox, &[inbox_message(1, "1"), inbox_message(2, "2")]).await;
    assert_eq!(repeated, [EnterOutcome::Duplicate(InboxState::Done); 2]);
}

/// A reader that crashed before recording its position reads some messages again.
pub async fn an_enqueued_message_is_not_enqueued_again(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert_eq!(
        enqueue(h, number, &[inbox_message(1, "a"), inbox_message(2, "a")], Some("2")).await,
        EnqueueOutcome::Enqueued
    );
    assert_eq!(newest_replay(h).await.cursor.as_deref(), Some("2"));
    let claimed = claim_one(&inbox).await;
    handle_at(h, &inbox, &claimed, 0).await;
    let repeated = [inbox_message(1, "a"), inbox_message(2, "a"), inbox_message(3, "a"), inbox_message(3, "a")];
    assert_eq!(enqueue(h, number, &repeated, Some("3")).await, EnqueueOutcome::Enqueued);
    must(inbox.release_queue(&claimed.claim).await);
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    let replay = newest_replay(h).await;
    assert_eq!((replay.enqueued, replay.done, replay.cursor.as_deref()), (3, 1, Some("3")));
}

/// Messages that already wait stay before them.
pub async fn replayed_messages_are_queued_behind_waiting_ones(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(9, "a"), &retry(Duration::ZERO, 1)).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert_eq!(
        enqueue(h, number, &[inbox_message(2, "a"), inbox_message(1, "a")], None).await,
        EnqueueOutcome::Enqueued
    );
    assert_eq!(handle(h, &inbox, &[inbox_message(3, "a")]).await, [EnterOutcome::QueuedBehind]);
    let claimed = claim_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![9, 2, 1, 3], 1));
}

/// All messages were enqueued, and no more can be.
pub async fn a_replay_at_the_end_of_its_source_is_finished(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert_eq!(enqueue(h, number, &[inbox_message(1, "a")], None).await, EnqueueOutcome::Enqueued);
    assert_eq!(newest_replay(h).await.state, ReplayState::Finished);
    assert_eq!(enqueue(h, number, &[inbox_message(2, "b")], None).await, EnqueueOutcome::NotRunning);
    assert_eq!(
        enqueue(h, number + 1, &[inbox_message(2, "b")], None).await,
        EnqueueOutcome::NotRunning,
        "there is none"
    );
    assert!(!must(operator.stop_replay(BILLING, number).await));
    assert_eq!(newest_replay(h).await.enqueued, 1);
    assert_eq!(numbers(&claim_one(&inbox).await), [1]);
}

/// Messages that were not begun are removed, and keys that waited only for them continue.
pub async fn a_stopped_replay_removes_unstarted_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    fail(&inbox, &inbox_message(9, "b"), &retry(Duration::ZERO, 1)).await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert_eq!(
        enqueue(h, number, &[inbox_message(1, "a"), inbox_message(2, "b")], Some("2")).await,
        EnqueueOutcome::Enqueued
    );
    assert!(must(operator.stop_replay(BILLING, number).await));
    assert!(!must(operator.stop_replay(BILLING, number).await));
    assert_eq!(newest_replay(h).await.state, ReplayState::Stopped);
    assert_eq!(enqueue(h, number, &[inbox_message(3, "c")], None).await, EnqueueOutcome::NotRunning);
    assert_eq!(numbers(&claim_one(&inbox).await), [9], "messages outside the replay stay");
    assert_eq!(handle(h, &inbox, &[inbox_message(4, "a")]).await, [EnterOutcome::New]);
}

/// A running handler is not interrupted.
pub async fn a_stopped_replay_keeps_started_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert_eq!(enqueue(h, number, &[inbox_message(1, "a")], Some("1")).await, EnqueueOutcome::Enqueued);
    let claimed = claim_one(&inbox).await;
    assert!(must(operator.stop_replay(BILLING, number).await));
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(newest_replay(h).await.done, 1);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A replay with too many dead letters stops without an operator.
pub async fn a_replay_stops_after_too_many_dead_letters(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    // Dead letters of other messages do not count.
    dead_letter(&inbox, &inbox_message(8, "8"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    dead_letter(&inbox, &inbox_message(9, "9"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    for message in [1, 2] {
        let messages = [inbox_message(message, &message.to_string())];
        assert_eq!(enqueue(h, number, &messages, Some("more")).await, EnqueueOutcome::Enqueued, "{message}");
        let claimed = claim_one(&inbox).await;
        must(
            inbox
                .record_failure(
                    &claimed.messages[0].message,
                    in_queue(&claimed, 0),
                    &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 1),
                )
                .await,
        );
        must(inbox.release_queue(&claimed.claim).await);
    }
    assert_eq!(enqueue(h, number, &[inbox_message(3, "3")], Some("more")).await, EnqueueOutcome::NotRunning);
    let replay = newest_replay(h).await;
    assert_eq!((replay.state, replay.enqueued, replay.dead), (ReplayState::Stopped, 2, 2));
    assert!(claim_due(&inbox).await.is_empty());

    assert!(must(operator.resume_replay(BILLING, number, 1).await));
    assert_eq!(newest_replay(h).await.plan.dead_letters_max, 3, "one more than there are");
    assert_eq!(enqueue(h, number, &[inbox_message(3, "3")], None).await, EnqueueOutcome::Enqueued);
}

/// A reader that was suspended or started twice cannot move a replay that another reader has moved.
pub async fn concurrent_runners_at_one_cursor_enqueue_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    let (first, second) = ([inbox_message(1, "a")], [inbox_message(2, "a")]);
    let early = ReplayBatch { messages: &first, cursor: None, next_cursor: Some("1") };
    assert_eq!(must(operator.enqueue_replay(BILLING, number, early).await), EnqueueOutcome::Enqueued);
    assert_eq!(must(operator.enqueue_replay(BILLING, number, early).await), EnqueueOutcome::CursorMoved);
    let late = ReplayBatch { messages: &second, cursor: None, next_cursor: None };
    assert_eq!(must(operator.enqueue_replay(BILLING, number, late).await), EnqueueOutcome::CursorMoved);
    let replay = newest_replay(h).await;
    assert_eq!((replay.state, replay.enqueued, replay.cursor.as_deref()), (ReplayState::Running, 1, Some("1")));
    assert_eq!(numbers(&claim_one(&inbox).await), [1]);
}

/// No message is skipped: the cursor returns to before the first removed message. None is enqueued twice: messages
/// handled before are known.
pub async fn a_resumed_replay_enqueues_removed_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&replay_plan(BILLING)).await);
    assert!(!must(operator.resume_replay(BILLING, number, 1).await), "it runs");
    for (message, to) in [(1, "1"), (2, "2"), (3, "3")] {
        assert_eq!(
            enqueue(h, number, &[inbox_message(message, &message.to_string())], Some(to)).await,
            EnqueueOutcome::Enqueued
        );
    }
    let claimed = claim_due(&inbox).await;
    for claimed in claimed.iter().filter(|claimed| numbers(claimed) != [2]) {
        handle_queue(h, &inbox, claimed).await;
    }
    for claimed in claimed.iter().filter(|claimed| numbers(claimed) == [2]) {
        must(inbox.release_queue(&claimed.claim).await);
    }
    assert!(must(operator.stop_replay(BILLING, number).await));
    let replay = newest_replay(h).await;
    assert_eq!((replay.enqueued, replay.done, replay.cursor.as_deref()), (2, 2, Some("1")), "the second was removed");
    assert!(must(operator.resume_replay(BILLING, number, 1).await));
    assert!(!must(operator.resume_replay(BILLING, number, 1).await));
    assert_eq!(
        enqueue(h, number, &[inbox_message(2, "2"), inbox_message(3, "3")], None).await,
        EnqueueOutcome::Enqueued
    );
    handle_queue(h, &inbox, &claim_one(&inbox).await).await;
    let replay = newest_replay(h).await;
    assert_eq!((replay.state, replay.enqueued, replay.done), (ReplayState::Finished, 3, 3));
    let mut effects = h.effects().await;
    effects.sort();
    assert_eq!(effects, lines(&[1, 2, 3]));
}

/// Messages that wait for a retry or for an operator are not ready to be handled.
pub async fn messages_that_are_ready_are_counted(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = must(operator.create_replay(&ReplayPlan { dead_letters_max: 9, ..replay_plan(BILLING) }).await);
    let messages = [
        inbox_message(1, "a"),
        inbox_message(2, "a"),
        inbox_message(3, "b"),
        inbox_message(4, "b"),
        inbox_message(5, "c"),
    ];
    assert_eq!(enqueue(h, number, &messages, Some("5")).await, EnqueueOutcome::Enqueued);
    let replay = newest_replay(h).await;
    assert_eq!((replay.ready, replay.waiting()), (5, 5));
    for claimed in claim_due(&inbox).await {
        match &*claimed.claim.queue {
            "a" => must(
                inbox
                    .record_failure(
                        &claimed.messages[0].message,
                        in_queue(&claimed, 0),
                        &failure(InboxFailureAction::DeadLetter(AfterDead::Hold), 1),
                    )
                    .await,
            ),
            "b" => must(
                inbox
                    .record_failure(
                        &claimed.messages[0].message,
                        in_queue(&claimed, 0),
                        &retry(Duration::from_mins(1), 1),
                    )
                    .await,
            ),
            _ => continue,
        };
    }
    let replay = newest_replay(h).await;
    assert_eq!((replay.ready, replay.waiting(), replay.dead), (1, 4, 1));
}
