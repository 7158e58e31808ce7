//! Helpers that many cases share.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterOwner, MarkAction, MarkRequest};
use relevo_core::inbox::members::Heartbeat;
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, CommitAndBegin, CommitOutcome, EnterOutcome};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
use uuid::Uuid;

use super::harness::ports::*;
use super::harness::{HandlerTransaction, Harness};

/// The consumer of most cases.
pub(crate) const BILLING: &str = "billing";
/// A claim or a heartbeat that outlasts every case.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A claim, a heartbeat or a pause that a case lets pass explicitly; it does not pass on its own.
pub(crate) const SHORT: Duration = Duration::from_mins(1);
/// Like `SHORT`, but in real time: stored times cannot change while an open transaction holds the rows.
pub(crate) const REAL_WAIT: Duration = Duration::from_secs(4);
/// How often a worker retries a busy message before the case fails.
const ATTEMPTS_MAX: usize = 100;

/// Unwraps a store result; an error fails the case.
pub(crate) fn must<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

/// The message with this number, and the queue in which it waits after a failure.
pub(crate) fn inbox_message(number: u64, queue: &str) -> InboxMessage {
    InboxMessage {
        dedup_id: DedupId { id: id(number), replay: 0 },
        queue: queue.into(),
        raw: RawMessage {
            headers: vec![("x-number".to_owned(), number.to_string().into())],
            payload: Bytes::from_static(b"{}"),
        },
        address: "orders".into(),
        lane: lane(),
        offset: Some(number),
        attempts: 0,
    }
}

/// The id of the message with this number; ids sort like numbers.
pub(crate) fn id(number: u64) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)))
}

/// The lane of most cases.
pub(crate) fn lane() -> Lane {
    Lane::new("orders.0")
}

/// The ledger line of this message.
pub(crate) fn line(message: &InboxMessage) -> String {
    message.offset.unwrap_or_default().to_string()
}

/// The ledger lines of these messages.
pub(crate) fn lines(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

/// Returns the transaction and the outcome of each message; any other result fails the case.
pub(crate) fn must_open<T>(outcome: Result<BeginOutcome<T>, StoreError>) -> (T, Vec<EnterOutcome>) {
    match must(outcome) {
        BeginOutcome::Open(transaction, entered) => (transaction, entered),
        BeginOutcome::Fenced => panic!("the lane or the claim was lost"),
        BeginOutcome::Busy => panic!("another transaction has the message"),
    }
}

/// Checks that a transaction was committed.
pub(crate) fn must_commit(outcome: Result<CommitOutcome, StoreError>) {
    let outcome = must(outcome);
    assert!(matches!(outcome, CommitOutcome::Committed), "{outcome:?}");
}

/// Checks that a transaction was committed. Returns the next one, and the outcome of each of its messages.
pub(crate) fn must_commit_and_open<T>(outcome: Result<CommitAndBegin<T>, StoreError>) -> (T, Vec<EnterOutcome>) {
    let (committed, begun) = must(outcome);
    assert!(matches!(committed, CommitOutcome::Committed), "{committed:?}");
    must_open(begun.expect("the next transaction follows a commit"))
}

/// The message at this index of a claimed queue.
pub(crate) fn queued(claimed: &ClaimedQueue, index: usize) -> &[InboxMessage] {
    std::slice::from_ref(&claimed.messages[index].message)
}

/// The right to write for the message at this index of a claimed queue.
pub(crate) fn in_queue(claimed: &ClaimedQueue, index: usize) -> Fence<'_> {
    Fence::Queue { claim: &claimed.claim, ordinal: claimed.messages[index].ordinal }
}

/// Checks that another worker has the lane or the claim.
pub(crate) fn assert_fenced<T>(outcome: Result<BeginOutcome<T>, StoreError>) {
    assert!(matches!(must(outcome), BeginOutcome::Fenced), "the lane or the claim should be lost");
}

/// Checks that another open transaction has the message.
pub(crate) fn assert_busy<T>(outcome: Result<BeginOutcome<T>, StoreError>) {
    assert!(matches!(must(outcome), BeginOutcome::Busy), "another transaction should hold the message");
}

/// Unwraps the result of a call made while a transaction was open. `None` if the store allows one writer and reported
/// an error.
pub(crate) fn during_write<H: Harness, T>(harness: &H, result: Result<T, StoreError>) -> Option<T> {
    if harness.capabilities().single_writer { result.ok() } else { Some(must(result)) }
}

/// Enters messages of a consumer without order.
pub(crate) async fn begin<I: Inbox>(inbox: &I, messages: &[InboxMessage]) -> (I::Transaction, Vec<EnterOutcome>) {
    must_open(inbox.begin(messages, Fence::Live { lane: None }).await)
}

/// Handles messages in one transaction, with one effect per new message.
pub(crate) async fn handle<H: Harness>(harness: &H, inbox: &H::Inbox, messages: &[InboxMessage]) -> Vec<EnterOutcome> {
    let (transaction, entered) = begin(inbox, messages).await;
    finish(harness, inbox, transaction, messages, &entered).await;
    entered
}

/// Writes the effect of each new message and commits.
pub(crate) async fn finish<H: Harness>(
    harness: &H,
    inbox: &H::Inbox,
    mut transaction: HandlerTransaction<H>,
    messages: &[InboxMessage],
    entered: &[EnterOutcome],
) {
    for (message, entered) in messages.iter().zip(entered) {
        if *entered == EnterOutcome::New {
            harness.effect(&mut transaction, &line(message)).await;
        }
    }
    must_commit(inbox.commit(transaction, &[]).await);
}

/// Handles messages; retries while another worker has one of them.
pub(crate) async fn handle_with_retries<H: Harness>(
    harness: &H,
    inbox: &H::Inbox,
    messages: &[InboxMessage],
) -> Vec<EnterOutcome> {
    for _ in 0..ATTEMPTS_MAX {
        if let BeginOutcome::Open(transaction, entered) = must(inbox.begin(messages, Fence::Live { lane: None }).await)
        {
            finish(harness, inbox, transaction, messages, &entered).await;
            return entered;
        }
    }
    panic!("the message stays busy");
}

/// A failure with this action.
pub(crate) fn failure(action: InboxFailureAction, attempts: u32) -> InboxFailure {
    InboxFailure {
        action,
        attempts,
        class: "refused",
        error: "the external service refused it".to_owned(),
        backtrace: None,
    }
}

/// A failure after which the message is retried.
pub(crate) fn retry(after: Duration, attempts: u32) -> InboxFailure {
    failure(InboxFailureAction::Retry { after }, attempts)
}

/// Records the failure of a message of a consumer without order; it must succeed.
pub(crate) async fn fail(inbox: &impl Inbox, message: &InboxMessage, failure: &InboxFailure) {
    assert_eq!(must(inbox.record_failure(message, Fence::Live { lane: None }, failure).await), RecordOutcome::Recorded);
}

/// Dead-letters a message; `action` decides whether its queue continues or is held.
pub(crate) async fn dead_letter(inbox: &impl Inbox, message: &InboxMessage, action: InboxFailureAction) {
    fail(inbox, message, &failure(action, 3)).await;
}

/// Claims all due queues for a long time.
pub(crate) async fn claim_due(inbox: &impl Inbox) -> Vec<ClaimedQueue> {
    must(inbox.claim_due(100, 100, LONG).await)
}

/// Claims the only due queue.
pub(crate) async fn claim_one(inbox: &impl Inbox) -> ClaimedQueue {
    let mut claimed = claim_due(inbox).await;
    assert_eq!(claimed.len(), 1, "one queue is due: {claimed:?}");
    claimed.remove(0)
}

/// The numbers of the messages in a claimed queue.
pub(crate) fn numbers(claimed: &ClaimedQueue) -> Vec<u64> {
    claimed.messages.iter().filter_map(|waiting| waiting.message.offset).collect()
}

/// Handles the message at this index of a claimed queue.
pub(crate) async fn handle_at<H: Harness>(harness: &H, inbox: &H::Inbox, claimed: &ClaimedQueue, index: usize) {
    let waiting = &claimed.messages[index];
    let (mut transaction, entered) = must_open(inbox.begin(queued(claimed, index), in_queue(claimed, index)).await);
    assert_eq!(entered, [EnterOutcome::New]);
    harness.effect(&mut transaction, &line(&waiting.message)).await;
    must_commit(inbox.commit(transaction, &[]).await);
}

/// Handles all messages of a claimed queue and releases it.
pub(crate) async fn handle_queue<H: Harness>(harness: &H, inbox: &H::Inbox, claimed: &ClaimedQueue) {
    for index in 0..claimed.messages.len() {
        handle_at(harness, inbox, claimed, index).await;
    }
    must(inbox.release_queue(&claimed.claim).await);
}

/// An operator's request about these dead letters.
pub(crate) fn mark(filter: DeadLetterFilter) -> MarkRequest {
    MarkRequest {
        filter,
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "ana".to_owned(),
        reason: "fixed".to_owned(),
    }
}

/// Selects all dead letters of all consumers.
pub(crate) const fn all_dead_letters() -> DeadLetterFilter {
    DeadLetterFilter::of(DeadLetterOwner::AnyConsumer)
}

/// Selects the dead letters of these messages.
pub(crate) fn ids_filter(numbers: &[u64]) -> DeadLetterFilter {
    DeadLetterFilter { ids: numbers.iter().map(|number| id(*number)).collect(), ..all_dead_letters() }
}

/// A heartbeat of the member with this number, which holds no lanes.
pub(crate) fn heartbeat(number: u64, ttl: Duration) -> Heartbeat {
    Heartbeat {
        owner: member(number),
        name: format!("member {number}"),
        ttl,
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    }
}

/// The owner token of the member with this number.
pub(crate) fn member(number: u64) -> Uuid {
    Uuid::from_u128(u128::from(number) << 64 | 0x0bad_cafe)
}

/// Sends a heartbeat and acquires the lane of most cases, which must be free.
pub(crate) async fn acquire_lane(inbox: &impl Inbox, number: u64, ttl: Duration) -> LaneLease {
    must(inbox.heartbeat(&heartbeat(number, ttl)).await);
    let mut leases = must(inbox.acquire_lanes(member(number), &[lane()]).await);
    assert_eq!(leases.len(), 1, "the lane is free");
    leases.remove(0)
}
