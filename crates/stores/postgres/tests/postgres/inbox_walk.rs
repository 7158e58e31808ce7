//! Calls every method of the inbox ports once, in the order of a message's life cycle.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::operate::{DeadFilter, Fed, Forgotten, Mark, Operate, Order, Plan, Portion};
use relevo_core::inbox::{Arrival, Beat, Begun, Claimed, Enter, Entry, Inbox, Kept, Setback, Stop};
use uuid::Uuid;

const LASTS: Duration = Duration::from_mins(1);

fn arrival(number: u128) -> Arrival {
    Arrival {
        entry: Entry { id: MessageId::from_uuid(Uuid::from_u128(number)), replay: 0 },
        queue: number.to_string().into(),
        raw: Raw::default(),
        address: "orders".into(),
        lane: Lane::new("0"),
        place: None,
        correlation: None,
    }
}

fn setback(stop: Stop) -> Setback {
    Setback { stop, attempts: 1, class: "refused", error: "no".to_owned(), backtrace: None }
}

/// All calls of a member. Leaves message 4 as a dead letter.
pub(crate) async fn everything(inbox: &relevo_store_postgres::inbox::Inbox) {
    let owner = Uuid::from_u128(1);
    let beat = Beat {
        owner,
        name: "member".to_owned(),
        lasts: LASTS,
        marks: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    inbox.beat(&beat).await.expect("beat");
    let held = inbox.take(owner, &[Lane::new("0")]).await.expect("take").remove(0);
    let [inside, called, failed, buried] = [1, 2, 3, 4].map(arrival);
    inbox.start(&inside).await.expect("start");
    let Begun::Open(mut tx, _) =
        inbox.begin(Enter { held: Some(&held), arrivals: std::slice::from_ref(&inside) }).await.expect("begin")
    else {
        panic!("nobody is in the way")
    };
    inbox.skip(&mut tx, inside.entry).await.expect("skip");
    inbox.commit(tx).await.expect("commit");
    let Claimed::Mine(claim) = inbox.claim(&called, Some(&held), LASTS).await.expect("claim") else {
        panic!("nobody is in the way")
    };
    let Begun::Open(tx, _) = inbox.begin_claimed(&called, Some(&held), claim).await.expect("begin_claimed") else {
        panic!("nobody is in the way")
    };
    inbox.roll_back(tx).await.expect("roll_back");
    inbox.ended(called.entry, Some(claim)).await.expect("ended");
    let retry = setback(Stop::Retry { after: Duration::ZERO });
    assert_eq!(inbox.set_back(&failed, Some(&held), None, &retry).await.expect("set_back"), Kept::Kept);
    let behind = Arrival { queue: failed.queue.clone(), ..arrival(5) };
    let Begun::Open(tx, _) = inbox.begin(Enter { held: None, arrivals: &[behind] }).await.expect("begin") else {
        panic!("nobody is in the way")
    };
    inbox.commit(tx).await.expect("commit");
    let due = inbox.due(1, 10, LASTS).await.expect("due").remove(0);
    let Begun::Open(tx, _) = inbox.begin_due(&due, due.messages[0].number).await.expect("begin_due") else {
        panic!("it is claimed")
    };
    inbox.commit(tx).await.expect("commit");
    let gone = setback(Stop::DeadContinue);
    assert_eq!(inbox.set_back_due(&due, due.messages[1].number, &gone).await.expect("set_back_due"), Kept::Kept);
    inbox.release(&due).await.expect("release");
    assert_eq!(inbox.set_back(&buried, None, None, &gone).await.expect("set_back"), Kept::Kept);
    inbox.prune(10).await.expect("prune");
    inbox.give_back(owner, &[Lane::new("0")]).await.expect("give_back");
    inbox.leave(owner).await.expect("leave");
}

/// All calls of an operator.
pub(crate) async fn operate(operator: &impl Operate) {
    assert_eq!(operator.consumers().await.expect("consumers").len(), 1);
    assert!(operator.consumer("billing", 10).await.expect("consumer").is_some());
    assert!(operator.order("billing", None, Order::Pause).await.expect("order"));
    let letters = operator.dead(&DeadFilter::default(), 10).await.expect("dead");
    assert_eq!(letters.len(), 2);
    let one = DeadFilter { ids: vec![letters[0].arrival.entry.id], ..DeadFilter::default() };
    let mark = Mark { filter: one, dry_run: false, rate: None, by: "ana".to_owned(), note: "mended".to_owned() };
    assert_eq!(operator.redrive(&mark).await.expect("redrive"), 1);
    assert_eq!(operator.archive(&Mark { filter: DeadFilter::default(), ..mark }).await.expect("archive"), 1);
    operator.trace(letters[0].arrival.entry.id).await.expect("trace");
    let plan = Plan {
        consumer: "billing".to_owned(),
        source: "log".to_owned(),
        count: 1,
        rate: 1,
        dead_max: 1,
        by: "ana".to_owned(),
        reason: "wrong".to_owned(),
    };
    let number = operator.begin_replay(&plan).await.expect("begin_replay");
    let portion = Portion { messages: &[arrival(9)], from: None, to: Some("9") };
    assert_eq!(operator.feed("billing", number, portion).await.expect("feed"), Fed::Kept);
    assert!(operator.stop_replay("billing", number).await.expect("stop_replay"));
    assert!(operator.resume_replay("billing", number, 1).await.expect("resume_replay"));
    assert_eq!(operator.replays("billing").await.expect("replays").len(), 1);
    assert_eq!(operator.forget("billing").await.expect("forget"), Forgotten::Gone);
}
