//! Operator queries on an outbox: lists, one message, why a key is blocked, shards.

use std::time::Duration;

use crate::e2e_support::{MAIN, Running, World, config, quick_route, until};
use relevo_broker_memory::{Match, MemoryBroker, Rule, Settings};
use relevo_core::operate::{Cause, Destination, Found, Inspect as _, Search, Status, Why};
use relevo_core::store::{DeadFilter, DeadLetters as _, Mark, StoreError};
use relevo_core::{AfterDead, Class, MessageId, Policy, Route, Routes};
use relevo_relay::Config;
use relevo_store_postgres::Store;

const PLENTY: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// The first retry is an hour later, so that parked messages stay parked during the test.
fn patient() -> Config {
    let policy = Policy { base: HOUR, ceiling: HOUR, ..quick_route().policy };
    Config { routes: Routes::new(vec![Route { policy, ..quick_route() }]), ..config() }
}

async fn search(store: &Store, search: Search) -> Found {
    store.search(&search, 100, PLENTY).await.expect("an answer")
}

async fn status(store: &Store, id: MessageId) -> Status {
    store.show(id).await.expect("an answer").expect("it is there").listed.status
}

async fn why(store: &Store, key: &str) -> Why {
    store.why(key).await.expect("an answer")
}

fn ids(found: &Found) -> Vec<MessageId> {
    found.messages.iter().map(|message| message.id).collect()
}

fn mark(id: MessageId) -> Mark {
    let filter = DeadFilter { ids: vec![id], ..DeadFilter::default() };
    Mark { filter, dry_run: false, by: "ana".to_owned(), reason: "mended".to_owned() }
}

#[tokio::test]
async fn a_list_is_newest_first_and_goes_on_where_it_stopped() {
    let world = World::new().await;
    let emitted = world.emit(&["a", "b", "a", "c", "a"]).await;
    let store = world.store().await;
    let newest: Vec<MessageId> = emitted.iter().rev().copied().collect();
    let first = store.search(&Search::default(), 2, PLENTY).await.expect("an answer");
    assert_eq!(ids(&first), newest[..2]);
    assert_eq!(first.ran_out_at, None);
    let rest = search(&store, Search { before: first.next, ..Search::default() }).await;
    assert_eq!(ids(&rest), newest[2..]);
    assert_eq!(rest.next, None, "everything was seen");
    let all = store.search(&Search::default(), 5, PLENTY).await.expect("an answer");
    assert_eq!((ids(&all), all.next), (newest, None), "a list that is full and whole has no next page");
    let of_key = search(&store, Search { key: Some("a".to_owned()), ..Search::default() }).await;
    assert_eq!(ids(&of_key), [emitted[4], emitted[2], emitted[0]]);
    let none = search(&store, Search { topic: Some("invoices".to_owned()), ..Search::default() }).await;
    assert_eq!((none.messages.len(), none.next), (0, None));
}

#[tokio::test]
async fn a_search_that_runs_out_of_time_says_how_far_it_got_and_goes_on() {
    let world = World::new().await;
    let ledger = world.emit_some(20_000, 10).await;
    let first = world.emit(&["needle"]).await[0];
    world.emit_some(20_000, 10).await;
    let store = world.store().await;
    let wanted = Search { key: Some("needle".to_owned()), ..Search::default() };
    let mut found = store.search(&wanted, 10, Duration::ZERO).await.expect("an answer");
    assert!(found.messages.is_empty() && found.ran_out_at.is_some() && found.next.is_some(), "{found:?}");
    let mut pages = 0;
    while let Some(before) = found.next.filter(|_| found.messages.is_empty()) {
        let go_on = Search { before: Some(before), ..wanted.clone() };
        found = store.search(&go_on, 1, Duration::from_millis(5)).await.expect("an answer");
        pages += 1;
        assert!(pages < 1000, "every page gets further");
    }
    assert_eq!(ids(&found), [first]);
    assert_eq!(ledger.len(), 20_000);
}

#[tokio::test]
async fn a_search_keeps_to_times_and_gaps_cost_nothing() {
    let world = World::new().await;
    let old = world.emit(&["a"]).await[0];
    world.run("UPDATE relevo.message SET created_at = created_at - interval '1 hour'").await;
    // A gap as large as a day of rollbacks could cause.
    world.run("SELECT setval('relevo.message_seq', 900000000000)").await;
    let new = world.emit(&["a"]).await[0];
    let store = world.store().await;
    assert_eq!(ids(&search(&store, Search::default()).await), [new, old]);
    let middle = store.show(new).await.expect("an answer").expect("it is there").listed.created_at;
    let middle = middle - jiff::SignedDuration::from_mins(30);
    assert_eq!(ids(&search(&store, Search { since: Some(middle), ..Search::default() }).await), [new]);
    assert_eq!(ids(&search(&store, Search { until: Some(middle), ..Search::default() }).await), [old]);
}

#[tokio::test]
async fn every_status_is_listed_searched_and_shown() {
    let world = World::new().await;
    let broker = MemoryBroker::new(Settings::default());
    let emitted = world.emit(&["plain", "retry", "retry", "dead", "dead", "gone"]).await;
    let [plain, retrying, behind, dead, behind_dead, gone] = emitted[..] else { panic!("six ids") };
    let one = async |sql: &str| world.texts(sql).await[0].parse::<MessageId>().expect("an id");
    let held = one("SELECT relevo.emit('wall', 'held', 'T', '{}')::text").await;
    let scheduled =
        one("SELECT relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 hour')::text").await;
    for id in [dead, gone] {
        broker.fail(Rule::new(Match::Id(id), Class::Poison));
    }
    broker.fail(Rule::new(Match::Id(retrying), Class::Transient));
    broker.fail(Rule::new(Match::Address("wall".to_owned()), Class::Blocked));
    let store = world.store().await;
    let relay = Running::start(world.store().await, &broker, patient());
    until("two are dead", async || store.backlog().await.expect("a backlog").dead == 2).await;
    assert_eq!(store.discard(&mark(gone)).await.expect("a mark"), 1);
    until("it is discarded", async || status(&store, gone).await == Status::Discarded).await;
    until("the address is held", async || status(&store, held).await == Status::Held).await;
    until("the plain one is out", async || status(&store, plain).await == Status::Published).await;
    until("one waits", async || status(&store, retrying).await == Status::Retrying).await;
    relay.stop().await;
    let pending = world.emit(&["plain"]).await[0];
    world.run("UPDATE relevo.parked_key SET state = 'quarantined', address = NULL WHERE key = 'held'").await;

    for (status, expected) in [
        (Status::Scheduled, vec![scheduled]),
        (Status::Pending, vec![pending]),
        (Status::Retrying, vec![retrying]),
        (Status::Held, vec![]),
        (Status::Quarantined, vec![held]),
        (Status::Behind, vec![behind_dead, behind]),
        (Status::Dead, vec![dead]),
        (Status::Discarded, vec![gone]),
        (Status::Published, vec![plain]),
    ] {
        let found = search(&store, Search { status: Some(status), ..Search::default() }).await;
        assert_eq!(ids(&found), expected, "{status:?}");
        for id in expected {
            let shown = store.show(id).await.expect("an answer").expect("it is there");
            assert_eq!((shown.listed.status, shown.message.id), (status, id));
            assert_eq!(Some(&shown.listed), found.messages.iter().find(|it| it.id == id), "{status:?}");
        }
    }
    assert_eq!(search(&store, Search::default()).await.messages.len(), 9);
    let listed = async |id| store.show(id).await.expect("an answer").expect("it is there").listed;
    let retrying = listed(retrying).await;
    assert_eq!(retrying.attempts, 1);
    assert!(retrying.next_attempt_at.is_some() && retrying.last_error.is_some());
    let dead = listed(dead).await;
    assert!(dead.next_attempt_at.is_none() && dead.last_error.is_some() && dead.attempts == 1);
    assert!(listed(plain).await.published_at.is_some());
    assert_eq!(listed(scheduled).await.seq, None);
}

#[tokio::test]
async fn what_retention_dropped_from_the_log_is_still_found_where_it_waits() {
    let world = World::new().await;
    let broker = MemoryBroker::new(Settings::default());
    let emitted = world.emit(&["dead", "retry"]).await;
    broker.fail(Rule::new(Match::Id(emitted[0]), Class::Poison));
    broker.fail(Rule::new(Match::Id(emitted[1]), Class::Transient));
    let relay = Running::start(world.store().await, &broker, patient());
    let store = world.store().await;
    until("both wait", async || {
        let backlog = store.backlog().await.expect("a backlog");
        (backlog.dead, backlog.parked) == (1, 1)
    })
    .await;
    relay.stop().await;
    world.run("DELETE FROM relevo.message").await;
    let found = search(&store, Search::default()).await;
    assert_eq!(ids(&found), [emitted[1], emitted[0]]);
    assert_eq!(status(&store, emitted[0]).await, Status::Dead);
    assert_eq!(status(&store, emitted[1]).await, Status::Retrying);
    let shown = store.show(emitted[1]).await.expect("an answer").expect("it is there");
    assert_eq!(&shown.message.payload[..], b"{}");
}

#[tokio::test]
async fn a_message_is_found_whatever_its_id_tells() {
    let world = World::new().await;
    let store = world.store().await;
    world.emit_some(5000, 10).await;
    let one = async |sql: &str| world.texts(sql).await[0].parse::<MessageId>().expect("an id");
    let brought = one("SELECT relevo.emit('orders', 'k', 'T', '1', id => gen_random_uuid())::text").await;
    // Its random id contains no time, and its row in `dedup_id` is deleted.
    let moved = one("SELECT relevo.emit('orders', 'k', 'T', '2', id => gen_random_uuid())::text").await;
    world.run(&format!("DELETE FROM relevo.dedup_id WHERE id = '{moved}'")).await;
    world.emit_some(5000, 10).await;
    for (id, payload) in [(brought, "1"), (moved, "2")] {
        let shown = store.show(id).await.expect("an answer").expect("it is there");
        assert_eq!((shown.message.id, &shown.message.payload[..]), (id, payload.as_bytes()));
    }
    let unknown = "00000000-0000-4000-8000-000000000000".parse().expect("an id");
    assert_eq!(store.show(unknown).await.expect("an answer"), None);
}

#[tokio::test]
async fn scheduled_messages_are_paged_before_the_log() {
    let world = World::new().await;
    world.emit(&["a", "b"]).await;
    for _ in 0..3 {
        world.run("SELECT relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 hour')").await;
    }
    let store = world.store().await;
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = store.search(&Search { before, ..Search::default() }, 2, PLENTY).await.expect("an answer");
        seen.extend(page.messages.iter().map(|message| message.status));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    let waits = [Status::Scheduled; 3].into_iter().chain([Status::Pending; 2]);
    assert_eq!(seen, waits.collect::<Vec<_>>());
}

#[tokio::test]
async fn every_cause_is_told() {
    let world = World::new().await;
    let broker = MemoryBroker::new(Settings::default());
    let store = world.store().await;
    world.emit(&["unread"]).await;
    assert_eq!(why(&store, "idle").await.cause, Cause::Nothing);
    let unread = why(&store, "unread").await;
    assert_eq!((unread.cause, unread.waiting), (Cause::NoRelay, 1), "nobody holds the shard");
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    assert_eq!(why(&store, "unread").await.cause, Cause::Unread);
    world.run("SELECT relevo.disable_destination('main')").await;
    assert_eq!(why(&store, "unread").await.cause, Cause::SwitchedOff);
    world.run("SELECT relevo.enable_destination('main')").await;
    world.run("UPDATE relevo.lease SET owner = NULL, expires_at = '-infinity'").await;

    let emitted = world.emit(&["retry", "retry", "dead", "dead", "marked", "odd"]).await;
    world.run("SELECT relevo.emit('wall', 'held', 'T', '{}')").await;
    world.run("SELECT relevo.emit('orders', 'later', 'T', '{}', deliver_at => now() + interval '1 hour')").await;
    broker.fail(Rule::new(Match::Key("retry".to_owned()), Class::Transient));
    for id in [emitted[2], emitted[4]] {
        broker.fail(Rule::new(Match::Id(id), Class::Poison));
    }
    broker.fail(Rule::new(Match::Address("wall".to_owned()), Class::Blocked));
    broker.fail(Rule::new(Match::Key("odd".to_owned()), Class::Transient));
    let relay = Running::start(world.store().await, &broker, patient());
    until("two are dead, the others wait", async || {
        let backlog = store.backlog().await.expect("a backlog");
        (backlog.dead, backlog.parked) == (2, 5)
    })
    .await;
    let retry = why(&store, "retry").await;
    assert!(matches!(retry.cause, Cause::Retry { .. }), "{retry:?}");
    assert_eq!((retry.waiting, retry.head.map(|head| head.id)), (2, Some(emitted[0])));
    assert!(retry.since.is_some() && retry.shard.owner.is_some());
    let held = why(&store, "held").await.cause;
    assert!(matches!(&held, Cause::Held { hold, probe_at: Some(_) } if hold.address == "wall"), "{held:?}");
    let dead = why(&store, "dead").await;
    assert_eq!((dead.cause, dead.waiting), (Cause::Dead { id: emitted[2] }, 2));
    assert_eq!(dead.head.map(|head| head.status), Some(Status::Dead));
    assert!(matches!(why(&store, "later").await.cause, Cause::Scheduled { .. }));
    world.run("UPDATE relevo.parked_key SET state = 'quarantined' WHERE key = 'odd'").await;
    assert!(matches!(why(&store, "odd").await.cause, Cause::Quarantined { .. }));
    relay.stop().await;

    // The shard has an owner, so the mark itself is the cause. Without an owner the cause is the missing relay.
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    assert_eq!(store.redrive(&mark(emitted[4])).await.expect("a mark"), 1);
    let marked = Cause::Marked { id: emitted[4], mark: "redriving".to_owned() };
    assert_eq!(why(&store, "marked").await.cause, marked);
    world.run("UPDATE relevo.lease SET owner = NULL, expires_at = '-infinity'").await;
    assert_eq!(why(&store, "marked").await.cause, Cause::NoRelay);
    world.run("UPDATE relevo.parked_key SET next_at = clock_timestamp() WHERE key = 'retry'").await;
    assert_eq!(why(&store, "retry").await.cause, Cause::NoRelay);
    assert_eq!(why(&store, "dead").await.cause, Cause::Dead { id: emitted[2] }, "a person is needed first");
}

#[tokio::test]
async fn a_key_that_goes_on_without_its_dead_letter_waits_for_nothing() {
    let world = World::new().await;
    let broker = MemoryBroker::new(Settings::default());
    let emitted = world.emit(&["k", "k"]).await;
    broker.fail(Rule::new(Match::Id(emitted[0]), Class::Poison));
    let routes = Routes::new(vec![Route { after_dead: AfterDead::Continue, ..quick_route() }]);
    let relay = Running::start(world.store().await, &broker, Config { routes, ..config() });
    let store = world.store().await;
    until("it goes on", async || status(&store, emitted[1]).await == Status::Published).await;
    assert_eq!(why(&store, "k").await.cause, Cause::Nothing);
    relay.stop().await;
    assert_eq!(store.redrive(&mark(emitted[0])).await.expect("a mark"), 1);
    assert!(matches!(why(&store, "k").await.cause, Cause::Marked { .. }));
}

#[tokio::test]
async fn an_open_transaction_is_not_waiting_and_a_late_one_is() {
    let world = World::new().await;
    let store = world.store().await;
    let broker = MemoryBroker::new(Settings::default());
    let mut writer = world.connect().await;
    crate::e2e_support::execute(&mut writer, "BEGIN; SELECT relevo.emit('orders', 'late', 'T', '{}')")
        .await
        .expect("an emit");
    world.emit(&["other"]).await;
    let relay = Running::start(world.store().await, &broker, config());
    until("the other is out", async || broker.received() == 1).await;
    world.drained().await;
    relay.stop().await;
    assert_eq!(why(&store, "late").await.cause, Cause::Nothing, "it is not committed");
    crate::e2e_support::execute(&mut writer, "COMMIT").await.expect("a commit");
    let late = why(&store, "late").await;
    assert_eq!((late.cause, late.waiting), (Cause::NoRelay, 1));
}

#[tokio::test]
async fn shards_are_shown_with_their_relays() {
    let world = World::with_shards(4).await;
    let broker = MemoryBroker::new(Settings::default());
    let store = world.store().await;
    let free = store.shards().await.expect("an answer");
    assert_eq!(free.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(free.iter().all(|shard| shard.owner.is_none() && shard.lasts.is_zero() && shard.settled_at.is_none()));
    world.emit(&["a"]).await;
    broker.fail(Rule::new(Match::Key("a".to_owned()), Class::Transient));
    let relay = Running::start(world.store().await, &broker, Config { name: "porter".to_owned(), ..patient() });
    until("one waits", async || store.backlog().await.expect("a backlog").parked == 1).await;
    let held = store.shards().await.expect("an answer");
    assert!(
        held.iter().all(|shard| shard.owner.as_deref() == Some("porter") && !shard.lasts.is_zero() && shard.epoch > 0)
    );
    assert_eq!(held.iter().map(|shard| shard.parked_keys).sum::<u64>(), 1);
    assert!(held.iter().any(|shard| shard.settled_at.is_some()));
    relay.stop().await;
}

#[tokio::test]
async fn destinations_are_listed_and_an_unknown_one_is_refused() {
    let world = World::with_shards(4).await;
    world.run("SELECT relevo.add_destination('audit', 2); SELECT relevo.disable_destination('audit')").await;
    world.run("SELECT relevo.reshard_destination('main', 16)").await;
    let expected = [
        Destination { name: "audit".to_owned(), shards: 2, regrouping_to: None, on: false },
        Destination { name: MAIN.to_owned(), shards: 4, regrouping_to: Some(16), on: true },
    ];
    assert_eq!(world.store().await.destinations().await.expect("an answer"), expected);
    let nobody = world.store_for("nobody").await;
    for refused in [
        nobody.search(&Search::default(), 1, PLENTY).await.map(|_| ()),
        nobody.why("k").await.map(|_| ()),
        nobody.shards().await.map(|_| ()),
        nobody.backlog().await.map(|_| ()),
    ] {
        assert!(
            matches!(&refused, Err(StoreError::Refused { what }) if what.contains("\"nobody\" is not known")),
            "{refused:?}"
        );
    }
}
