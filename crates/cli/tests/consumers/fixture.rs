//! Writes the data of a consumer through the inbox port, as its members do.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::broker::Publication;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage};
use relevo_core::message::{Headers, MessageId};
use relevo_core::{AfterDead, Draft, wire};

/// Long enough for any test.
const LASTS: Duration = Duration::from_mins(10);
/// A little more than three hours, so that output still rounds it to three.
pub(crate) const LATER: Duration = Duration::from_mins(185);

pub(crate) fn id(number: u64) -> MessageId {
    MessageId::v7(number, [7; 10])
}

/// A message as a broker delivers it.
pub(crate) fn arrival(id: MessageId, key: &str, payload: &'static str) -> InboxMessage {
    let headers = Headers::from([("correlation-id".to_owned(), "c-1".to_owned())]);
    let draft = Draft { headers, ..Draft::json("orders", key, "OrderPlaced", payload) };
    let message = draft.into_message(id, "2026-01-31T12:00:00Z".parse().expect("a time"));
    let publication =
        Publication { message: Arc::new(message), address: "orders".into(), headers: Arc::default(), seq: 7, epoch: 1 };
    InboxMessage {
        dedup_id: DedupId { id, replay: 0 },
        queue: key.to_owned().into(),
        raw: RawMessage::new(wire::headers(&publication, "/shop"), payload.into()),
        address: "orders".into(),
        lane: Lane::new("orders.0"),
        offset: Some(41),
        attempts: 0,
    }
}

/// A message that is not a `CloudEvents` message: payload and one header are not UTF-8.
pub(crate) fn garbage(id: MessageId) -> InboxMessage {
    let headers = vec![("x-origin".to_owned(), vec![0xff, b'a'].into()), ("note".to_owned(), "old".into())];
    InboxMessage {
        raw: RawMessage { headers, payload: vec![0, 0xff, b'!'].into() },
        offset: None,
        attempts: 0,
        ..arrival(id, "o-9", "")
    }
}

fn beat() -> Heartbeat {
    Heartbeat {
        owner: *id(99).as_uuid(),
        name: "worker-1".to_owned(),
        ttl: LASTS,
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    }
}

/// Sends a heartbeat of the one member, and returns the reply.
pub(crate) async fn heartbeat(inbox: &impl Inbox) -> HeartbeatReply {
    inbox.heartbeat(&beat()).await.expect("a heartbeat is taken")
}

/// One member with one lane, whose breaker is open.
pub(crate) async fn member(inbox: &impl Inbox) {
    heartbeat(inbox).await;
    let lane = Lane::new("orders.0");
    inbox.acquire_lanes(beat().owner, std::slice::from_ref(&lane)).await.expect("it is free");
    let breakers = vec![(lane.clone(), "503 from the post".to_owned())];
    let update = Heartbeat { settled_offsets: vec![(lane, Some(41))], breakers, ..beat() };
    inbox.heartbeat(&update).await.expect("a heartbeat is taken");
}

/// The one member leaves.
pub(crate) async fn leave(inbox: &impl Inbox) {
    inbox.leave(beat().owner).await.expect("it may always leave");
}

/// Handles a message, or finds that it came before.
pub(crate) async fn handle(inbox: &impl Inbox, arrival: &InboxMessage) -> EnterOutcome {
    let BeginOutcome::Open(transaction, entered) =
        inbox.begin(std::slice::from_ref(arrival), Fence::Live { lane: None }).await.expect("it can be begun")
    else {
        panic!("no other member holds it")
    };
    inbox.commit(transaction, &[]).await.expect("it commits");
    entered[0]
}

pub(crate) async fn set_back(
    inbox: &impl Inbox,
    arrival: &InboxMessage,
    stop: InboxFailureAction,
    class: &'static str,
    error: &str,
) {
    let backtrace = (class == "panic").then(|| "0: ship::pack\n1: ship::\u{1b}run".to_owned());
    let setback = InboxFailure { action: stop, attempts: 3, class, error: error.to_owned(), backtrace };
    assert_eq!(
        inbox.record_failure(arrival, Fence::Live { lane: None }, &setback).await.expect("it is recorded"),
        RecordOutcome::Recorded
    );
}

/// The message that is due fails again and becomes a dead letter.
pub(crate) async fn fail_again(inbox: &impl Inbox) {
    let due = inbox.claim_due(10, 10, LASTS).await.expect("queues are claimed").remove(0);
    let setback = InboxFailure {
        action: InboxFailureAction::DeadLetter(AfterDead::Hold),
        attempts: 4,
        class: "poison",
        error: "still no such street".to_owned(),
        backtrace: None,
    };
    let outcome = inbox
        .record_failure(
            &due.messages[0].message,
            Fence::Queue { claim: &due.claim, ordinal: due.messages[0].ordinal },
            &setback,
        )
        .await
        .expect("it is recorded");
    assert_eq!(outcome, RecordOutcome::Recorded);
}

/// A consumer whose message 1 is handled, 2 waits for a retry, 3 and 4 are dead letters.
pub(crate) async fn billing(inbox: &impl Inbox) {
    member(inbox).await;
    handle(inbox, &arrival(id(1), "o-1", "{}")).await;
    set_back(
        inbox,
        &arrival(id(2), "o-2", "{}"),
        InboxFailureAction::Retry { after: LATER },
        "retry",
        "the post is slow",
    )
    .await;
    set_back(
        inbox,
        &arrival(id(3), "o-3", r#"{"n":3}"#),
        InboxFailureAction::DeadLetter(AfterDead::Hold),
        "panic",
        "no such street",
    )
    .await;
    set_back(
        inbox,
        &garbage(id(4)),
        InboxFailureAction::DeadLetter(AfterDead::Continue),
        "undecodable",
        "no CloudEvent",
    )
    .await;
}
