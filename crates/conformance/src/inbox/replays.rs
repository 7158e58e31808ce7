//! Replays: the same messages are handled once more, under the number of the replay.

use std::time::Duration;

use relevo_core::inbox::operate::{Fed, Operate, Plan, Portion, Replay, ReplayState};
use relevo_core::inbox::{Arrival, Entered, Inbox, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, arrival, beat, bury, due, due_one, handle, keep, lines, numbers, ok, retry, setback, work, work_on,
};

fn plan(consumer: &str) -> Plan {
    Plan {
        consumer: consumer.to_owned(),
        source: "orders from 2026-01-01".to_owned(),
        count: 3,
        rate: 100,
        dead_max: 2,
        by: "ana".to_owned(),
        reason: "the tax rate was wrong".to_owned(),
    }
}

async fn newest(h: &impl Harness) -> Replay {
    ok(h.operator().await.replays(BILLING).await).remove(0)
}

/// Enqueues messages as a reader at the current cursor of the replay.
async fn feed(h: &impl Harness, number: u32, messages: &[Arrival], to: Option<&str>) -> Fed {
    let operator = h.operator().await;
    let replays = ok(operator.replays(BILLING).await);
    let from = replays.into_iter().find(|replay| replay.number == number).and_then(|replay| replay.cursor);
    ok(operator.feed(BILLING, number, Portion { messages, from: from.as_deref(), to }).await)
}

/// Numbers are above zero and increase with each replay.
pub async fn replays_are_numbered_for_each_consumer(h: &mut impl Harness) {
    for consumer in [BILLING, "shipping"] {
        ok(h.inbox(consumer).await.beat(&beat(1, LONG)).await);
    }
    let operator = h.operator().await;
    let first = ok(operator.begin_replay(&plan(BILLING)).await);
    let second = ok(operator.begin_replay(&plan(BILLING)).await);
    assert!(0 < first && first < second);
    ok(operator.begin_replay(&plan("shipping")).await);
    let replays = ok(operator.replays(BILLING).await);
    assert_eq!(replays.iter().map(|replay| replay.number).collect::<Vec<_>>(), [second, first], "the newest first");
    assert_eq!(replays[1].plan, plan(BILLING));
    assert_eq!((replays[1].state, replays[1].fed, replays[1].done, replays[1].dead), (ReplayState::Running, 0, 0, 0));
    assert_eq!(ok(operator.replays("shipping").await).len(), 1);
    assert_eq!(ok(operator.replays("nobody").await), []);
}

/// Messages are handled again once per replay, whatever happened to them before.
pub async fn fed_messages_are_handled_once_more(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[arrival(1, "1"), arrival(2, "2")]).await;
    let operator = h.operator().await;
    for _ in 0..2 {
        let number = ok(operator.begin_replay(&plan(BILLING)).await);
        let fed = [arrival(1, "1"), arrival(2, "2")];
        assert_eq!(feed(h, number, &fed, Some("2")).await, Fed::Kept);
        let claimed = due(&inbox).await;
        assert_eq!(claimed.len(), 2);
        for claimed in &claimed {
            let entry = claimed.messages[0].arrival.entry;
            assert_eq!(entry.replay, number, "whatever number it was read under");
            work(h, &inbox, claimed).await;
        }
        let replay = newest(h).await;
        assert_eq!((replay.fed, replay.done, replay.dead), (2, 2, 0));
    }
    let mut effects = h.effects().await;
    effects.sort();
    assert_eq!(effects, lines(&[1, 1, 1, 2, 2, 2]));
    let again = handle(h, &inbox, &[arrival(1, "1"), arrival(2, "2")]).await;
    assert_eq!(again, [Entered::Repeat(State::Done); 2]);
}

/// A reader that crashed before recording its position reads some messages again.
pub async fn what_was_fed_before_is_not_fed_again(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert_eq!(feed(h, number, &[arrival(1, "a"), arrival(2, "a")], Some("2")).await, Fed::Kept);
    assert_eq!(newest(h).await.cursor.as_deref(), Some("2"));
    let claimed = due_one(&inbox).await;
    work_on(h, &inbox, &claimed, 0).await;
    let again = [arrival(1, "a"), arrival(2, "a"), arrival(3, "a"), arrival(3, "a")];
    assert_eq!(feed(h, number, &again, Some("3")).await, Fed::Kept);
    ok(inbox.release(&claimed).await);
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    let replay = newest(h).await;
    assert_eq!((replay.fed, replay.done, replay.cursor.as_deref()), (3, 1, Some("3")));
}

/// Messages that already wait came before.
pub async fn fed_messages_go_behind_what_waits(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(9, "a"), &retry(Duration::ZERO, 1)).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert_eq!(feed(h, number, &[arrival(2, "a"), arrival(1, "a")], None).await, Fed::Kept);
    assert_eq!(handle(h, &inbox, &[arrival(3, "a")]).await, [Entered::Behind]);
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts), (vec![9, 2, 1, 3], 1));
}

/// All messages were enqueued, and no more can be.
pub async fn a_replay_that_read_everything_is_finished(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert_eq!(feed(h, number, &[arrival(1, "a")], None).await, Fed::Kept);
    assert_eq!(newest(h).await.state, ReplayState::Finished);
    assert_eq!(feed(h, number, &[arrival(2, "b")], None).await, Fed::Ended);
    assert_eq!(feed(h, number + 1, &[arrival(2, "b")], None).await, Fed::Ended, "there is none");
    assert!(!ok(operator.stop_replay(BILLING, number).await));
    assert_eq!(newest(h).await.fed, 1);
    assert_eq!(numbers(&due_one(&inbox).await), [1]);
}

/// Messages that were not begun are removed, and keys that waited only for them continue.
pub async fn a_stopped_replay_takes_out_what_was_not_begun(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    keep(&inbox, &arrival(9, "b"), &retry(Duration::ZERO, 1)).await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert_eq!(feed(h, number, &[arrival(1, "a"), arrival(2, "b")], Some("2")).await, Fed::Kept);
    assert!(ok(operator.stop_replay(BILLING, number).await));
    assert!(!ok(operator.stop_replay(BILLING, number).await));
    assert_eq!(newest(h).await.state, ReplayState::Stopped);
    assert_eq!(feed(h, number, &[arrival(3, "c")], None).await, Fed::Ended);
    assert_eq!(numbers(&due_one(&inbox).await), [9], "what is of no replay stays");
    assert_eq!(handle(h, &inbox, &[arrival(4, "a")]).await, [Entered::New]);
}

/// A running handler is not interrupted.
pub async fn a_stopped_replay_leaves_what_was_begun(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert_eq!(feed(h, number, &[arrival(1, "a")], Some("1")).await, Fed::Kept);
    let claimed = due_one(&inbox).await;
    assert!(ok(operator.stop_replay(BILLING, number).await));
    work(h, &inbox, &claimed).await;
    assert_eq!(newest(h).await.done, 1);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A replay with too many dead letters stops without an operator.
pub async fn a_replay_stops_by_itself_after_too_many_dead_letters(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    // Dead letters of other messages do not count.
    bury(&inbox, &arrival(8, "8"), Stop::DeadContinue).await;
    bury(&inbox, &arrival(9, "9"), Stop::DeadContinue).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    for message in [1, 2] {
        let fed = [arrival(message, &message.to_string())];
        assert_eq!(feed(h, number, &fed, Some("more")).await, Fed::Kept, "{message}");
        let claimed = due_one(&inbox).await;
        ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadContinue, 1)).await);
        ok(inbox.release(&claimed).await);
    }
    assert_eq!(feed(h, number, &[arrival(3, "3")], Some("more")).await, Fed::Ended);
    let replay = newest(h).await;
    assert_eq!((replay.state, replay.fed, replay.dead), (ReplayState::Stopped, 2, 2));
    assert!(due(&inbox).await.is_empty());

    assert!(ok(operator.resume_replay(BILLING, number, 1).await));
    assert_eq!(newest(h).await.plan.dead_max, 3, "one more than there are");
    assert_eq!(feed(h, number, &[arrival(3, "3")], None).await, Fed::Kept);
}

/// A reader that was suspended or started twice cannot move a replay that another reader has moved.
pub async fn of_two_readers_at_one_place_one_feeds(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    let (first, second) = ([arrival(1, "a")], [arrival(2, "a")]);
    let early = Portion { messages: &first, from: None, to: Some("1") };
    assert_eq!(ok(operator.feed(BILLING, number, early).await), Fed::Kept);
    assert_eq!(ok(operator.feed(BILLING, number, early).await), Fed::Moved);
    let late = Portion { messages: &second, from: None, to: None };
    assert_eq!(ok(operator.feed(BILLING, number, late).await), Fed::Moved);
    let replay = newest(h).await;
    assert_eq!((replay.state, replay.fed, replay.cursor.as_deref()), (ReplayState::Running, 1, Some("1")));
    assert_eq!(numbers(&due_one(&inbox).await), [1]);
}

/// No message is skipped: the cursor returns to before the first removed message. None is enqueued twice: messages
/// handled before are known.
pub async fn a_resumed_replay_feeds_what_was_taken_out(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&plan(BILLING)).await);
    assert!(!ok(operator.resume_replay(BILLING, number, 1).await), "it runs");
    for (message, to) in [(1, "1"), (2, "2"), (3, "3")] {
        assert_eq!(feed(h, number, &[arrival(message, &message.to_string())], Some(to)).await, Fed::Kept);
    }
    let claimed = due(&inbox).await;
    for claimed in claimed.iter().filter(|claimed| numbers(claimed) != [2]) {
        work(h, &inbox, claimed).await;
    }
    for claimed in claimed.iter().filter(|claimed| numbers(claimed) == [2]) {
        ok(inbox.release(claimed).await);
    }
    assert!(ok(operator.stop_replay(BILLING, number).await));
    let replay = newest(h).await;
    assert_eq!((replay.fed, replay.done, replay.cursor.as_deref()), (2, 2, Some("1")), "the second was taken out");
    assert!(ok(operator.resume_replay(BILLING, number, 1).await));
    assert!(!ok(operator.resume_replay(BILLING, number, 1).await));
    assert_eq!(feed(h, number, &[arrival(2, "2"), arrival(3, "3")], None).await, Fed::Kept);
    work(h, &inbox, &due_one(&inbox).await).await;
    let replay = newest(h).await;
    assert_eq!((replay.state, replay.fed, replay.done), (ReplayState::Finished, 3, 3));
    let mut effects = h.effects().await;
    effects.sort();
    assert_eq!(effects, lines(&[1, 2, 3]));
}

/// Messages that wait for a retry or for an operator are not ready to be handled.
pub async fn what_could_be_handled_now_is_counted(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let number = ok(operator.begin_replay(&Plan { dead_max: 9, ..plan(BILLING) }).await);
    let fed = [arrival(1, "a"), arrival(2, "a"), arrival(3, "b"), arrival(4, "b"), arrival(5, "c")];
    assert_eq!(feed(h, number, &fed, Some("5")).await, Fed::Kept);
    let replay = newest(h).await;
    assert_eq!((replay.ready, replay.waiting()), (5, 5));
    for claimed in due(&inbox).await {
        let first = claimed.messages[0].number;
        match &*claimed.queue {
            "a" => ok(inbox.set_back_due(&claimed, first, &setback(Stop::DeadHold, 1)).await),
            "b" => ok(inbox.set_back_due(&claimed, first, &retry(Duration::from_mins(1), 1)).await),
            _ => continue,
        };
    }
    let replay = newest(h).await;
    assert_eq!((replay.ready, replay.waiting(), replay.dead), (1, 4, 1));
}
