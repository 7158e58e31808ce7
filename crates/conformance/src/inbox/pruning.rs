//! Pruning: deletes finished rows after their retention, and no others.

use std::time::Duration;

use relevo_core::inbox::operate::{DeadFilter, Operate};
use relevo_core::inbox::{Arrival, Begun, Claimed, Enter, Entered, Inbox, Keeping, State, Stop};

use super::harness::{Harness, KEEPING};
use super::stage::{
    BILLING, LONG, SHORT, arrival, beat, begin, bury, handle, id, keep, lane, mark, of, ok, retry, take,
};

/// Longer than any retention.
const AGE: Duration = Duration::from_hours(100);

/// Prunes until no expired rows are left.
async fn prune(inbox: &impl Inbox) {
    for _ in 0..100 {
        if !ok(inbox.prune(10).await) {
            return;
        }
    }
    panic!("there is always more");
}

/// Messages that wait, run or are dead must be known when a duplicate arrives, however old they are.
pub async fn only_what_is_done_or_skipped_is_forgotten(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, skipped, open, calling, waiting, dead, reopened, behind] =
        [1, 2, 3, 4, 5, 6, 7, 8].map(|number| arrival(number, &number.to_string()));
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    let (mut transaction, _) = begin(&inbox, std::slice::from_ref(&skipped)).await;
    ok(inbox.skip(&mut transaction, skipped.entry).await);
    ok(inbox.commit(transaction).await);
    ok(inbox.start(&open).await);
    ok(inbox.claim(&calling, None, LONG).await);
    keep(&inbox, &waiting, &retry(LONG, 1)).await;
    let behind = Arrival { queue: waiting.queue.clone(), ..behind };
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&behind)).await, [Entered::Behind]);
    bury(&inbox, &dead, Stop::DeadContinue).await;
    bury(&inbox, &reopened, Stop::DeadContinue).await;
    ok(h.operator().await.redrive(&mark(of(&[7]))).await);
    h.age(AGE).await;
    prune(&inbox).await;
    let known = handle(h, &inbox, &[waiting, dead, reopened, behind]).await;
    assert_eq!(known, [State::Waiting, State::Dead, State::Reopened, State::Waiting].map(Entered::Repeat));
    assert_eq!(ok(inbox.start(&open).await), 2);
    assert!(matches!(ok(inbox.claim(&calling, None, LONG).await), Claimed::Busy(_)));
    assert_eq!(handle(h, &inbox, &[done, skipped]).await, [Entered::New; 2]);
}

/// Rows are deleted no earlier than their retention, and only those of the consumer with that retention.
pub async fn what_is_young_is_kept(h: &mut impl Harness) {
    let brief = Keeping { done: Duration::from_hours(1), ..KEEPING };
    let (billing, shipping) = (h.inbox_keeping(BILLING, brief).await, h.inbox("shipping").await);
    handle(h, &billing, &[arrival(1, "a")]).await;
    handle(h, &shipping, &[arrival(1, "a")]).await;
    h.age(Duration::from_hours(2)).await;
    handle(h, &billing, &[arrival(2, "a")]).await;
    prune(&billing).await;
    prune(&shipping).await;
    assert_eq!(handle(h, &billing, &[arrival(2, "a")]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(handle(h, &shipping, &[arrival(1, "a")]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(handle(h, &billing, &[arrival(1, "a")]).await, [Entered::New]);
}

/// Each call deletes a limited number of rows, so that no other transaction waits long.
pub async fn pruning_goes_in_batches(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let messages: Vec<_> = (0..7).map(|number| arrival(number, "a")).collect();
    handle(h, &inbox, &messages).await;
    h.age(AGE).await;
    assert!(ok(inbox.prune(3).await), "there is more");
    let Begun::Open(transaction, entered) = ok(inbox.begin(Enter { held: None, arrivals: &messages }).await) else {
        panic!("nobody is in the way")
    };
    assert_eq!(entered.iter().filter(|entered| **entered == Entered::New).count(), 3);
    ok(inbox.roll_back(transaction).await);
    assert!(ok(inbox.prune(3).await), "there is more");
    while ok(inbox.prune(3).await) {}
    assert_eq!(handle(h, &inbox, &messages).await, [Entered::New; 7]);
}

/// Dead letters without an operator's decision are kept for ever.
pub async fn only_letters_that_were_dealt_with_are_forgotten(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        bury(&inbox, &arrival(number, &number.to_string()), Stop::DeadContinue).await;
    }
    let operator = h.operator().await;
    ok(operator.archive(&mark(of(&[1]))).await);
    ok(operator.redrive(&mark(of(&[2]))).await);
    prune(&inbox).await;
    assert_eq!(ok(operator.dead(&DeadFilter::default(), 10).await).len(), 3, "they are young");
    h.age(AGE).await;
    prune(&inbox).await;
    let left = ok(operator.dead(&DeadFilter::default(), 10).await);
    assert_eq!(left.iter().map(|letter| letter.arrival.entry.id).collect::<Vec<_>>(), [id(3)]);
}

/// Traces have their own retention.
pub async fn old_traces_are_forgotten(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, Keeping { trace: Some(Duration::from_hours(1)), ..KEEPING }).await;
    handle(h, &inbox, &[arrival(1, "a")]).await;
    h.age(Duration::from_hours(2)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    prune(&inbox).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.trace(id(1)).await), []);
    assert_eq!(ok(operator.trace(id(2)).await).len(), 1);
    assert_eq!(handle(h, &inbox, &[arrival(1, "a")]).await, [Entered::Repeat(State::Done)], "its row is young");
}

/// A member that expired long ago is deleted. If it returns, the heartbeat reply reports that it had expired.
pub async fn members_that_are_long_dead_are_forgotten(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, SHORT).await;
    prune(&inbox).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.consumer(BILLING, 10).await).expect("a consumer").members.len(), 1);
    h.age(AGE).await;
    ok(inbox.beat(&beat(2, LONG)).await);
    prune(&inbox).await;
    let shown = ok(operator.consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!(shown.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["member 2"]);
    let mut back = beat(1, LONG);
    back.marks = vec![(lane(), None)];
    assert!(ok(inbox.beat(&back).await).was_dead);
}

/// After the first prune, operators can see the retention of a consumer's inbox.
pub async fn how_long_it_remembers_is_shown(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[arrival(1, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.consumers().await)[0].remembers, None, "nobody has forgotten anything");
    ok(inbox.prune(10).await);
    assert_eq!(ok(operator.consumers().await)[0].remembers, Some(KEEPING.done));
    let days = Duration::from_hours(45 * 24) + Duration::from_millis(7);
    ok(h.inbox_keeping(BILLING, Keeping { done: days, ..KEEPING }).await.prune(10).await);
    assert_eq!(ok(operator.consumer(BILLING, 1).await).expect("a consumer").consumer.remembers, Some(days));
}
