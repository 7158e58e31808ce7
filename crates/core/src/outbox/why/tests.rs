use std::time::Duration;

use super::*;
use crate::outbox::inspect::MessageStatus;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn id(number: u64) -> MessageId {
    MessageId::v7(number, [0; 10])
}

fn message(number: u64) -> MessageSummary {
    MessageSummary {
        seq: None,
        id: id(number),
        topic: "orders".to_owned(),
        key: "k".to_owned(),
        kind: "Placed".to_owned(),
        created_at: at(5),
        status: MessageStatus::Pending,
        attempts: 0,
        next_attempt_at: None,
        last_error: None,
        published_at: None,
    }
}

fn idle() -> KeyFacts {
    let shard = ShardInfo {
        shard: 3,
        owner: Some("relay".to_owned()),
        epoch: 1,
        lease_remaining: Duration::from_secs(10),
        settled_at: None,
        parked_keys: 0,
    };
    KeyFacts { enabled: true, shard, parked: None, unapplied_mark: None, unread: None, scheduled: None }
}

fn without_relay(facts: &KeyFacts) -> KeyFacts {
    let shard = ShardInfo { owner: None, lease_remaining: Duration::ZERO, ..facts.shard.clone() };
    KeyFacts { shard, ..facts.clone() }
}

fn parked(state: ParkedState, is_due: bool) -> KeyFacts {
    let parked = ParkedFacts { state, next_at: Some(at(20)), is_due, since: at(10), head: Some(message(1)), queued: 2 };
    KeyFacts { parked: Some(parked), ..idle() }
}

fn dead(unapplied_mark: Option<MarkAction>) -> KeyFacts {
    parked(ParkedState::Dead { id: id(1), unapplied_mark }, false)
}

fn hold() -> HeldAddress {
    HeldAddress { address: "wall".to_owned(), error: "no route".to_owned() }
}

/// The key has another dead letter, with an unapplied mark.
fn with_mark(facts: KeyFacts) -> KeyFacts {
    let marked = MarkedDeadLetter { id: id(9), mark: MarkAction::Discard, message: Some(message(9)) };
    KeyFacts { unapplied_mark: Some(marked), ..facts }
}

fn with_unread(facts: KeyFacts) -> KeyFacts {
    let unread = WaitingMessages { head: Some(message(4)), count: 7, since: Some(at(5)) };
    KeyFacts { unread: Some(unread), ..facts }
}

fn with_scheduled(facts: KeyFacts) -> KeyFacts {
    let scheduled = ScheduledMessages { head: message(6), count: 3, due_at: at(60) };
    KeyFacts { scheduled: Some(scheduled), ..facts }
}

fn cause(facts: &KeyFacts) -> WaitCause {
    explain(facts.clone()).cause
}

/// Each line: the facts, and the cause with a relay, without one, and on a disabled destination.
#[test]
fn the_first_cause_that_holds_is_reported() {
    use WaitCause::{AddressHeld, DeadLetter, Disabled, Idle, MarkNotApplied, NoRelay, NotReadYet, Quarantined};
    use WaitCause::{Retrying, Scheduled};
    let held = AddressHeld { held_address: hold(), probe_at: Some(at(20)) };
    let redriving = MarkNotApplied { id: id(1), mark: MarkAction::Redrive };
    let discarding = MarkNotApplied { id: id(9), mark: MarkAction::Discard };
    let letter = DeadLetter { id: id(1) };
    let later = Scheduled { at: at(60) };
    let (retry, alone) = (Retrying { at: at(20) }, Quarantined { at: at(20) });
    let table = vec![
        ("a marked dead letter", dead(Some(MarkAction::Redrive)), redriving.clone(), NoRelay, Disabled),
        ("two marks", with_mark(dead(Some(MarkAction::Redrive))), redriving, NoRelay, Disabled),
        ("a dead letter", dead(None), letter.clone(), letter.clone(), letter.clone()),
        ("the mark of another dead letter", with_mark(dead(None)), letter.clone(), letter.clone(), letter),
        ("a hold", parked(ParkedState::Held(hold()), false), held.clone(), held.clone(), Disabled),
        ("a due probe", parked(ParkedState::Held(hold()), true), held, NoRelay, Disabled),
        ("a hold, marked", with_mark(parked(ParkedState::Held(hold()), false)), discarding.clone(), NoRelay, Disabled),
        ("a quarantine", parked(ParkedState::Quarantined, false), alone.clone(), alone.clone(), Disabled),
        ("a due quarantine", parked(ParkedState::Quarantined, true), alone, NoRelay, Disabled),
        ("a retry", parked(ParkedState::Retrying, false), retry.clone(), retry.clone(), Disabled),
        ("a due retry", parked(ParkedState::Retrying, true), retry, NoRelay, Disabled),
        ("a retry, marked", with_mark(parked(ParkedState::Retrying, false)), discarding.clone(), NoRelay, Disabled),
        ("unread", with_unread(with_mark(with_scheduled(idle()))), NotReadYet, NoRelay, Disabled),
        ("a mark", with_mark(with_scheduled(idle())), discarding, NoRelay, Disabled),
        ("scheduled", with_scheduled(idle()), later.clone(), later.clone(), later),
        ("nothing", idle(), Idle, Idle, Idle),
    ];
    for (name, facts, with_relay, relay_missing, disabled) in table {
        assert_eq!(cause(&facts), with_relay, "{name}");
        assert_eq!(cause(&without_relay(&facts)), relay_missing, "{name}, without a relay");
        let off = KeyFacts { enabled: false, ..facts };
        assert_eq!(cause(&off), disabled, "{name}, disabled");
        assert_eq!(cause(&without_relay(&off)), disabled, "{name}, disabled and without a relay");
    }
}

#[test]
fn a_report_has_the_messages_of_its_cause() {
    let table = [
        (dead(None), Some(1), 3, Some(at(10))),
        (parked(ParkedState::Retrying, false), Some(1), 2, Some(at(10))),
        (with_mark(parked(ParkedState::Retrying, false)), Some(1), 2, Some(at(10))),
        (with_unread(with_scheduled(idle())), Some(4), 7, Some(at(5))),
        (with_mark(idle()), Some(9), 1, None),
        (with_scheduled(idle()), Some(6), 3, Some(at(5))),
        (idle(), None, 0, None),
    ];
    for (facts, head, waiting, since) in table {
        let shard = facts.shard.clone();
        let report = explain(facts);
        assert_eq!(report.head.as_ref().map(|head| head.id), head.map(id));
        assert_eq!((report.waiting, report.since, report.shard), (waiting, since, shard));
    }
}

#[test]
fn a_retry_without_a_time_is_expected_since_the_key_was_parked() {
    let mut facts = parked(ParkedState::Retrying, false);
    if let Some(parked) = &mut facts.parked {
        parked.next_at = None;
    }
    assert_eq!(cause(&facts), WaitCause::Retrying { at: at(10) });
}
