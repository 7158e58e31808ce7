//! Operator queries on an outbox: lists, one message, why a key is blocked, shards.

use std::time::Duration;

use crate::relay_support::{MAIN, RunningRelay, TestDatabase, config, fast_retry_route, wait_until};
use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::outbox::OutboxOperator as _;
use relevo_core::outbox::inspect::{self, DestinationInfo, MessageStatus};
use relevo_core::outbox::sample;
use relevo_core::outbox::search::{MessageFilter, SearchPage};
use relevo_core::outbox::why::{KeyReport, WaitCause};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Class, MessageId, RetryPolicy, Route, Routes};
use relevo_relay::Config;
use relevo_store_postgres::Operator;

const LARGE_LIMIT: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// The first retry is an hour later, so that parked messages stay parked during the test.
fn long_retry_config() -> Config {
    let policy = RetryPolicy { base: HOUR, max: HOUR, ..fast_retry_route().policy };
    Config { routes: Routes::new(vec![Route { policy, ..fast_retry_route() }]), ..config() }
}

async fn search(store: &Operator, search: MessageFilter) -> SearchPage {
    store.search(&search, 100, LARGE_LIMIT).await.expect("an answer")
}

async fn status(store: &Operator, id: MessageId) -> MessageStatus {
    store.message(id).await.expect("an answer").expect("it is there").summary.status
}

async fn why(store: &Operator, key: &str) -> KeyReport {
    store.key_report(key).await.expect("an answer")
}

fn ids(found: &SearchPage) -> Vec<MessageId> {
    found.messages.iter().map(|message| message.id).collect()
}

fn only(id: MessageId) -> DeadLetterFilter {
    DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of_destination(MAIN) }
}

#[tokio::test]
async fn a_search_is_newest_first_and_resumes_where_it_stopped() {
    let world = TestDatabase::new().await;
    let emitted = world.emit(&["a", "b", "a", "c", "a"]).await;
    let store = world.operator().await;
    let newest: Vec<MessageId> = emitted.iter().rev().copied().collect();
    let first = store.search(&MessageFilter::default(), 2, LARGE_LIMIT).await.expect("an answer");
    assert_eq!(ids(&first), newest[..2]);
    assert_eq!(first.searched_back_to, None);
    let rest = search(&store, MessageFilter { before_seq: first.next, ..MessageFilter::default() }).await;
    assert_eq!(ids(&rest), newest[2..]);
    assert_eq!(rest.next, None, "everything was seen");
    let all = store.search(&MessageFilter::default(), 5, LARGE_LIMIT).await.expect("an answer");
    assert_eq!((ids(&all), all.next), (newest, None), "a list that is full and whole has no next page");
    let of_key = search(&store, MessageFilter { key: Some("a".to_owned()), ..MessageFilter::default() }).await;
    assert_eq!(ids(&of_key), [emitted[4], emitted[2], emitted[0]]);
    let none = search(&store, MessageFilter { topic: Some("invoices".to_owned()), ..MessageFilter::default() }).await;
    assert_eq!((none.messages.len(), none.next), (0, None));
}

#[tokio::test]
async fn a_search_that_runs_out_of_time_reports_its_progress_and_resumes() {
    let world = TestDatabase::new().await;
    let ledger = world.emit_many(20_000, 10).await;
    let first = world.emit(&["needle"]).await[0];
    world.emit_many(20_000, 10).await;
    let store = world.operator().await;
    let wanted = MessageFilter { key: Some("needle".to_owned()), ..MessageFilter::default() };
    let mut found = store.search(&wanted, 10, Duration::ZERO).await.expect("an answer");
    assert!(found.messages.is_empty() && found.searched_back_to.is_some() && found.next.is_some(), "{found:?}");
    let mut pages = 0;
    while let Some(before) = found.next.filter(|_| found.messages.is_empty()) {
        let go_on = MessageFilter { before_seq: Some(before), ..wanted.clone() };
        found = store.search(&go_on, 1, Duration::from_millis(5)).await.expect("an answer");
        pages += 1;
        assert!(pages < 1000, "every page gets further");
    }
    assert_eq!(ids(&found), [first]);
    assert_eq!(ledger.len(), 20_000);
}

#[tokio::test]
async fn a_search_respects_times_and_skips_gaps() {
    let world = TestDatabase::new().await;
    let old = world.emit(&["a"]).await[0];
    world.run("UPDATE relevo.message SET created_at = created_at - interval '1 hour'").await;
    // A gap as large as a day of rollbacks could cause.
    world.run("SELECT setval('relevo.message_seq', 900000000000)").await;
    let new = world.emit(&["a"]).await[0];
    let store = world.operator().await;
    assert_eq!(ids(&search(&store, MessageFilter::default()).await), [new, old]);
    let middle = store.message(new).await.expect("an answer").expect("it is there").summary.created_at;
    let middle = middle - jiff::SignedDuration::from_mins(30);
    assert_eq!(ids(&search(&store, MessageFilter { since: Some(middle), ..MessageFilter::default() }).await), [new]);
    assert_eq!(ids(&search(&store, MessageFilter { until: Some(middle), ..MessageFilter::default() }).await), [old]);
}

#[tokio::test]
async fn every_status_is_listed_searched_and_shown() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let emitted = world.emit(&["plain", "retry", "retry", "dead", "dead", "discarded"]).await;
    let [plain, retrying, behind, dead, behind_dead, discarded] = emitted[..] else { panic!("six ids") };
    let one = async |sql: &str| world.texts(sql).await[0].parse::<MessageId>().expect("an id");
    let held = one("SELECT relevo.emit('wall', 'held', 'T', '{}')::text").await;
    let scheduled =
        one("SELECT relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 hour')::text").await;
    for id in [dead, discarded] {
        broker.add_failure(FailureRule::new(RuleTarget::Id(id), Class::Poison));
    }
    broker.add_failure(FailureRule::new(RuleTarget::Id(retrying), Class::Transient));
    broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
    let store = world.operator().await;
    let relay = RunningRelay::start(world.store().await, &broker, long_retry_config());
    wait_until("two are dead", async || store.backlog().await.expect("a backlog").dead == 2).await;
    assert_eq!(store.mark(MarkAction::Discard, only(discarded)).await.expect("a mark"), 1);
    wait_until("it is discarded", async || status(&store, discarded).await == MessageStatus::Discarded).await;
    wait_until("the address is held", async || status(&store, held).await == MessageStatus::Held).await;
    wait_until("the plain one is out", async || status(&store, plain).await == MessageStatus::Published).await;
    wait_until("one waits", async || status(&store, retrying).await == MessageStatus::Retrying).await;
    relay.stop().await;
    let pending = world.emit(&["plain"]).await[0];
    world.run("UPDATE relevo.parked_key SET state = 'quarantined', address = NULL WHERE key = 'held'").await;

    for (status, expected) in [
        (MessageStatus::Scheduled, vec![scheduled]),
        (MessageStatus::Pending, vec![pending]),
        (MessageStatus::Retrying, vec![retrying]),
        (MessageStatus::Held, vec![]),
        (MessageStatus::Quarantined, vec![held]),
        (MessageStatus::Waiting, vec![behind_dead, behind]),
        (MessageStatus::Dead, vec![dead]),
        (MessageStatus::Discarded, vec![discarded]),
        (MessageStatus::Published, vec![plain]),
    ] {
        let found = search(&store, MessageFilter { status: Some(status), ..MessageFilter::default() }).await;
        assert_eq!(ids(&found), expected, "{status:?}");
        for id in expected {
            let shown = store.message(id).await.expect("an answer").expect("it is there");
            assert_eq!((shown.summary.status, shown.message.id), (status, id));
            assert_eq!(Some(&shown.summary), found.messages.iter().find(|it| it.id == id), "{status:?}");
        }
    }
    assert_eq!(search(&store, MessageFilter::default()).await.messages.len(), 9);
    let listed = async |id| store.message(id).await.expect("an answer").expect("it is there").summary;
    let retrying = listed(retrying).await;
    assert_eq!(retrying.attempts, 1);
    assert!(retrying.next_attempt_at.is_some() && retrying.last_error.is_some());
    let dead = listed(dead).await;
    assert!(dead.next_attempt_at.is_none() && dead.last_error.is_some() && dead.attempts == 1);
    assert!(listed(plain).await.published_at.is_some());
    assert_eq!(listed(scheduled).await.seq, None);
}

#[tokio::test]
async fn a_parked_message_is_found_after_retention_dropped_it_from_the_log() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let emitted = world.emit(&["dead", "retry"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(emitted[0]), Class::Poison));
    broker.add_failure(FailureRule::new(RuleTarget::Id(emitted[1]), Class::Transient));
    let relay = RunningRelay::start(world.store().await, &broker, long_retry_config());
    let store = world.operator().await;
    wait_until("both wait", async || {
        let backlog = store.backlog().await.expect("a backlog");
        (backlog.dead, backlog.parked) == (1, 1)
    })
    .await;
    relay.stop().await;
    world.run("DELETE FROM relevo.message").await;
    let found = search(&store, MessageFilter::default()).await;
    assert_eq!(ids(&found), [emitted[1], emitted[0]]);
    assert_eq!(status(&store, emitted[0]).await, MessageStatus::Dead);
    assert_eq!(status(&store, emitted[1]).await, MessageStatus::Retrying);
    let shown = store.message(emitted[1]).await.expect("an answer").expect("it is there");
    assert_eq!(&shown.message.payload[..], b"{}");
}

#[tokio::test]
async fn a_message_is_found_for_every_kind_of_id() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    world.emit_many(5000, 10).await;
    let one = async |sql: &str| world.texts(sql).await[0].parse::<MessageId>().expect("an id");
    let brought = one("SELECT relevo.emit('orders', 'k', 'T', '1', id => gen_random_uuid())::text").await;
    // Its random id contains no time, and its row in `dedup_id` is deleted.
    let moved = one("SELECT relevo.emit('orders', 'k', 'T', '2', id => gen_random_uuid())::text").await;
    world.run(&format!("DELETE FROM relevo.dedup_id WHERE id = '{moved}'")).await;
    world.emit_many(5000, 10).await;
    for (id, payload) in [(brought, "1"), (moved, "2")] {
        let shown = store.message(id).await.expect("an answer").expect("it is there");
        assert_eq!((shown.message.id, &shown.message.payload[..]), (id, payload.as_bytes()));
    }
    let unknown = "00000000-0000-4000-8000-000000000000".parse().expect("an id");
    assert_eq!(store.message(unknown).await.expect("an answer"), None);
}

#[tokio::test]
async fn scheduled_messages_are_paged_before_the_log() {
    let world = TestDatabase::new().await;
    world.emit(&["a", "b"]).await;
    for _ in 0..3 {
        world.run("SELECT relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 hour')").await;
    }
    let store = world.operator().await;
    let mut seen = Vec::new();
    let mut before_seq = None;
    loop {
        let page = store
            .search(&MessageFilter { before_seq, ..MessageFilter::default() }, 2, LARGE_LIMIT)
            .await
            .expect("an answer");
        seen.extend(page.messages.iter().map(|message| message.status));
        before_seq = page.next;
        if before_seq.is_none() {
            break;
        }
    }
    let waits = [MessageStatus::Scheduled; 3].into_iter().chain([MessageStatus::Pending; 2]);
    assert_eq!(seen, waits.collect::<Vec<_>>());
}

#[tokio::test]
async fn every_wait_cause_is_reported() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let store = world.operator().await;
    world.emit(&["unread"]).await;
    assert_eq!(why(&store, "idle").await.cause, WaitCause::Idle);
    let unread = why(&store, "unread").await;
    assert_eq!((unread.cause, unread.waiting), (WaitCause::NoRelay, 1), "no relay holds the shard");
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    assert_eq!(why(&store, "unread").await.cause, WaitCause::NotReadYet);
    world.run("SELECT relevo.disable_destination('main')").await;
    assert_eq!(why(&store, "unread").await.cause, WaitCause::Disabled);
    world.run("SELECT relevo.enable_destination('main')").await;
    world.run("UPDATE relevo.lease SET owner = NULL, expires_at = '-infinity'").await;

    let emitted = world.emit(&["retry", "retry", "dead", "dead", "marked", "odd"]).await;
    world.run("SELECT relevo.emit('wall', 'held', 'T', '{}')").await;
    world.run("SELECT relevo.emit('orders', 'later', 'T', '{}', deliver_at => now() + interval '1 hour')").await;
    broker.add_failure(FailureRule::new(RuleTarget::Key("retry".to_owned()), Class::Transient));
    for id in [emitted[2], emitted[4]] {
        broker.add_failure(FailureRule::new(RuleTarget::Id(id), Class::Poison));
    }
    broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
    broker.add_failure(FailureRule::new(RuleTarget::Key("odd".to_owned()), Class::Transient));
    let relay = RunningRelay::start(world.store().await, &broker, long_retry_config());
    wait_until("two are dead, the others wait", async || {
        let backlog = store.backlog().await.expect("a backlog");
        (backlog.dead, backlog.parked) == (2, 5)
    })
    .await;
    let retry = why(&store, "retry").await;
    assert!(matches!(retry.cause, WaitCause::Retrying { .. }), "{retry:?}");
    assert_eq!((retry.waiting, retry.head.map(|head| head.id)), (2, Some(emitted[0])));
    assert!(retry.since.is_some() && retry.shard.owner.is_some());
    let held = why(&store, "held").await.cause;
    assert!(
        matches!(&held, WaitCause::AddressHeld { held_address, probe_at: Some(_) } if held_address.address == "wall"),
        "{held:?}"
    );
    let dead = why(&store, "dead").await;
    assert_eq!((dead.cause, dead.waiting), (WaitCause::DeadLetter { id: emitted[2] }, 2));
    assert_eq!(dead.head.map(|head| head.status), Some(MessageStatus::Dead));
    assert!(matches!(why(&store, "later").await.cause, WaitCause::Scheduled { .. }));
    world.run("UPDATE relevo.parked_key SET state = 'quarantined' WHERE key = 'odd'").await;
    assert!(matches!(why(&store, "odd").await.cause, WaitCause::Quarantined { .. }));
    relay.stop().await;

    // The shard has an owner, so the mark itself is the cause. Without an owner the cause is the missing relay.
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    assert_eq!(store.mark(MarkAction::Redrive, only(emitted[4])).await.expect("a mark"), 1);
    let marked = WaitCause::MarkNotApplied { id: emitted[4], mark: MarkAction::Redrive };
    assert_eq!(why(&store, "marked").await.cause, marked);
    world.run("UPDATE relevo.lease SET owner = NULL, expires_at = '-infinity'").await;
    assert_eq!(why(&store, "marked").await.cause, WaitCause::NoRelay);
    world.run("UPDATE relevo.parked_key SET next_at = clock_timestamp() WHERE key = 'retry'").await;
    assert_eq!(why(&store, "retry").await.cause, WaitCause::NoRelay);
    let dead = WaitCause::DeadLetter { id: emitted[2] };
    assert_eq!(why(&store, "dead").await.cause, dead, "an operator is needed first");
    world.run("SELECT relevo.disable_destination('main')").await;
    assert_eq!(why(&store, "dead").await.cause, dead, "an operator is needed first");
    assert_eq!(why(&store, "retry").await.cause, WaitCause::Disabled);
}

#[tokio::test]
async fn a_key_that_continues_after_a_dead_letter_is_idle() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let emitted = world.emit(&["k", "k"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(emitted[0]), Class::Poison));
    let routes = Routes::new(vec![Route { after_dead: AfterDead::Continue, ..fast_retry_route() }]);
    let relay = RunningRelay::start(world.store().await, &broker, Config { routes, ..config() });
    let store = world.operator().await;
    wait_until("it goes on", async || status(&store, emitted[1]).await == MessageStatus::Published).await;
    assert_eq!(why(&store, "k").await.cause, WaitCause::Idle);
    relay.stop().await;
    assert_eq!(store.mark(MarkAction::Redrive, only(emitted[0])).await.expect("a mark"), 1);
    assert_eq!(why(&store, "k").await.cause, WaitCause::NoRelay);
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    let marked = WaitCause::MarkNotApplied { id: emitted[0], mark: MarkAction::Redrive };
    assert_eq!(why(&store, "k").await.cause, marked);
}

#[tokio::test]
async fn a_late_transaction_counts_as_waiting_and_an_open_one_does_not() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let mut writer = world.connect().await;
    crate::relay_support::execute(&mut writer, "BEGIN; SELECT relevo.emit('orders', 'late', 'T', '{}')")
        .await
        .expect("an emit");
    world.emit(&["other"]).await;
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("the other is out", async || broker.received() == 1).await;
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(why(&store, "late").await.cause, WaitCause::Idle, "it is not committed");
    crate::relay_support::execute(&mut writer, "COMMIT").await.expect("a commit");
    let late = why(&store, "late").await;
    assert_eq!((late.cause, late.waiting), (WaitCause::NoRelay, 1));
}

#[tokio::test]
async fn shards_are_shown_with_their_relays() {
    let world = TestDatabase::with_shards(4).await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let store = world.operator().await;
    let free = store.shards().await.expect("an answer");
    assert_eq!(free.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(
        free.iter().all(|shard| shard.owner.is_none() && shard.lease_remaining.is_zero() && shard.settled_at.is_none())
    );
    world.emit(&["a"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Key("a".to_owned()), Class::Transient));
    let relay =
        RunningRelay::start(world.store().await, &broker, Config { name: "porter".to_owned(), ..long_retry_config() });
    wait_until("one waits", async || store.backlog().await.expect("a backlog").parked == 1).await;
    let held = store.shards().await.expect("an answer");
    assert!(
        held.iter().all(|shard| shard.owner.as_deref() == Some("porter")
            && !shard.lease_remaining.is_zero()
            && shard.epoch > 0)
    );
    assert_eq!(held.iter().map(|shard| shard.parked_keys).sum::<u64>(), 1);
    assert!(held.iter().any(|shard| shard.settled_at.is_some()));
    relay.stop().await;
}

#[tokio::test]
async fn destinations_are_listed_and_an_unknown_one_is_rejected() {
    let world = TestDatabase::with_shards(4).await;
    world.run("SELECT relevo.add_destination('audit', 2); SELECT relevo.disable_destination('audit')").await;
    world.run("SELECT relevo.reshard_destination('main', 16)").await;
    let expected = [
        DestinationInfo { name: "audit".to_owned(), shards: 2, resharding_to: None, enabled: false },
        DestinationInfo { name: MAIN.to_owned(), shards: 4, resharding_to: Some(16), enabled: true },
    ];
    assert_eq!(world.operator().await.destinations().await.expect("an answer"), expected);
    let operator = world.operator().await;
    let search = operator.as_search().expect("a search");
    for refused in [
        search.search("unknown", &MessageFilter::default(), 1, LARGE_LIMIT).await.map(|_| ()),
        inspect::OutboxInspector::key_facts(&operator, "unknown", "k").await.map(|_| ()),
        inspect::OutboxInspector::shards(&operator, "unknown").await.map(|_| ()),
        sample::OutboxMonitor::sample_destination(&operator, "unknown").await.map(|_| ()),
    ] {
        assert!(
            matches!(&refused, Err(StoreError::Refused { reason }) if reason.contains("\"unknown\" is not known")),
            "{refused:?}"
        );
    }
}
