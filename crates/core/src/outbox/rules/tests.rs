use std::time::Duration;

use super::*;

fn lease(shard: u16) -> Lease {
    Lease { shard, shard_count: 8, epoch: 1, owner: Uuid::nil() }
}

#[test]
fn the_shards_at_the_oldest_position_are_read_first() {
    let positions = [Position::at(5), Position::at(3), Position::in_window(5, 9, 40), Position::at(3), Position::at(9)];
    let mut shards: Vec<_> = (0..).map(lease).zip(positions).collect();
    let read = |shards: &[(Lease, Position)]| oldest_group(shards).map(|(at, leases)| (at.clone(), leases));
    assert_eq!(read(&shards), Some((Position::in_window(5, 9, 40), vec![lease(2)])), "an open window is finished");
    shards[2].1 = Position::at(9);
    assert_eq!(read(&shards), Some((Position::at(3), vec![lease(1), lease(3)])));
    assert_eq!(read(&[]), None);
}

#[test]
fn the_fair_share_is_rounded_up_and_one_relay_takes_all() {
    assert_eq!([1, 2, 3, 5, 9].map(|relays| fair_share(8, relays)), [8, 4, 3, 2, 1]);
    assert_eq!(fair_share(8, 0), 8, "the relay that asks counts");
}

#[test]
fn a_relay_renews_its_leases_and_takes_free_shards_up_to_its_share() {
    let (mine, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let stored = |owner, expires_at| StoredLease { epoch: 7, owner, expires_at };
    let mut leases = [
        stored(Some(other), 150),
        stored(Some(mine), 190),
        stored(Some(mine), 90),
        stored(Some(other), 99),
        stored(Some(other), 100),
        stored(None, 0),
    ];
    let claim = LeaseClaim { owner: mine, fair_share: 3, now: 100, expires_at: 200, renew_before: 167 };
    assert_eq!(assign_leases(&mut leases, claim), [2, 3]);
    assert_eq!(leases[1], stored(Some(mine), 190), "two thirds are left: it is not written again");
    assert_eq!(leases[2], stored(Some(mine), 200), "an expired lease that no other relay took has the same epoch");
    assert_eq!(leases[3], StoredLease { epoch: 8, owner: Some(mine), expires_at: 200 });
    assert_eq!(leases[4], stored(Some(other), 100), "a lease is valid until its last moment");
    assert_eq!(leases[5], stored(None, 0), "the share is reached");
    assert_eq!(assign_leases(&mut leases, LeaseClaim { fair_share: 0, ..claim }), [0; 0], "nothing changes");
}

#[test]
fn resharding_waits_for_open_windows_and_then_for_the_furthest_shard() {
    let mut shards = vec![Position::at(5), Position::in_window(3, 6, 40), Position::at(9)];
    assert_eq!(reshard_step(None, &shards), ReshardStep::FinishWindows);
    shards[1] = Position::at(6);
    assert_eq!(reshard_step(None, &shards), ReshardStep::AdvanceTo(9));
    shards[0] = Position::in_window(5, 12, 0);
    assert_eq!(reshard_step(Some(9), &shards), ReshardStep::AdvanceTo(12), "a shard advanced further");
    assert_eq!(reshard_step(Some(12), &[Position::at(12), Position::in_window(9, 12, 30)]), ReshardStep::AdvanceTo(12));
    assert_eq!(reshard_step(Some(12), &[Position::at(12), Position::at(12)]), ReshardStep::Replace(12));
}

fn message(seq: i64, key: &'static str, action: Option<ParkAction>) -> ParkedMessage {
    let failure = action.map(|action| PublishFailure {
        action,
        attempts: 1,
        class: "transient",
        error: "refused".to_owned(),
        route: "all".into(),
    });
    ParkedMessage { seq, slot: 1, key: key.into(), failure }
}

#[test]
fn a_failed_message_parks_its_key_unless_the_key_is_parked_or_continues() {
    let retry = message(1, "a", Some(ParkAction::Retry { after: Duration::ZERO }));
    assert!(matches!(park_step(&retry, false), ParkStep::ParkKey(_)));
    assert_eq!(park_step(&retry, true), ParkStep::Queue);
    let hold = message(2, "a", Some(ParkAction::DeadLetter(AfterDead::Hold)));
    assert!(matches!(park_step(&hold, false), ParkStep::ParkKeyBehindDeadLetter(_)));
    assert_eq!(park_step(&hold, true), ParkStep::Queue, "it waits its turn");
    let dead = message(3, "a", Some(ParkAction::DeadLetter(AfterDead::Continue)));
    for is_parked in [false, true] {
        assert!(matches!(park_step(&dead, is_parked), ParkStep::DeadLetter(_)));
    }
    assert_eq!(park_step(&message(4, "a", None), true), ParkStep::Queue);
}

#[test]
fn a_message_is_read_again_if_no_head_of_its_key_is_parked() {
    let retry = || Some(ParkAction::Retry { after: Duration::ZERO });
    let dead = || Some(ParkAction::DeadLetter(AfterDead::Continue));
    let parked = [
        message(1, "parked", None),
        message(2, "freed", None),
        message(3, "new", retry()),
        message(4, "new", None),
        message(5, "dead", dead()),
        message(6, "dead", None),
    ];
    assert_eq!(reread(&parked, |message| message.key == "parked"), [2, 6]);
}

#[test]
fn a_parked_message_of_a_shard_that_is_not_settled_is_found() {
    let lease = |shard| Lease { shard, shard_count: 2, epoch: 1, owner: Uuid::nil() };
    let shard = u16::from(!lease(0).has_slot(1));
    let settlement =
        |shard| Settlement { progress: vec![(lease(shard), Position::at(1))], parked: vec![message(1, "a", None)] };
    assert!(message_of_another_shard(&settlement(shard)).is_none());
    assert_eq!(message_of_another_shard(&settlement(1 - shard)).map(|message| message.seq), Some(1));
}
