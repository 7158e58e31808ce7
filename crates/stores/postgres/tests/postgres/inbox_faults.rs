//! The inbox while sessions are killed, the network is cut and rows are pruned, and with many messages at once.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::attempts::InboxAttempts as _;
use relevo_core::inbox::members::Heartbeat;
use relevo_core::inbox::members::InboxMembers as _;
use relevo_core::inbox::retries::InboxRetries as _;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction};
use relevo_core::inbox::transactions::InboxTransactions as _;
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome};
use relevo_core::inbox::{DedupId, Fence, InboxMessage, InboxRetention, InboxState};
use relevo_core::store::StoreError;
use relevo_store_postgres::inbox::{Config, Inbox, Transaction};
use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Server;
use relevo_testkit::proxy::CutProxy;
use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::relay_support::{TestDatabase, wait_until};

const DAY: Duration = Duration::from_hours(24);

async fn test_database() -> TestDatabase {
    let world = TestDatabase::new().await;
    world.run("CREATE TABLE ledger (id uuid PRIMARY KEY)").await;
    world
}

async fn inbox(options: PgConnectOptions) -> Inbox {
    Inbox::open(&Config::new(options), "billing", InboxRetention::default()).await.expect("a migrated database")
}

fn arrival(number: u64) -> InboxMessage {
    let id = MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)));
    InboxMessage {
        dedup_id: DedupId { id, replay: 0 },
        queue: number.to_string().into(),
        raw: RawMessage { headers: Vec::new(), payload: Bytes::from_static(b"{}") },
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: Some(number),
        attempts: 0,
    }
}

async fn effect(tx: &mut Transaction, arrival: &InboxMessage) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("INSERT INTO ledger VALUES ($1)").bind(arrival.dedup_id.id.as_uuid());
    insert.execute(&mut **tx).await.map(|_| ())
}

/// Handles one message, unless it was already handled.
async fn handle(inbox: &Inbox, arrival: &InboxMessage) -> Result<(), StoreError> {
    let arrivals = std::slice::from_ref(arrival);
    match inbox.begin(arrivals, Fence::Live { lane: None }).await? {
        BeginOutcome::Open(mut tx, entered) if entered == [EnterOutcome::New] => {
            effect(&mut tx, arrival).await.map_err(|error| StoreError::Unavailable(Box::new(error)))?;
            match inbox.commit(tx, &[]).await? {
                CommitOutcome::Committed => Ok(()),
                CommitOutcome::Rejected { error, .. } => Err(StoreError::Unexpected(error)),
                CommitOutcome::Stale | CommitOutcome::Fenced => Err(StoreError::Unavailable("stale".into())),
            }
        }
        BeginOutcome::Open(tx, _) => inbox.rollback(tx).await,
        BeginOutcome::Busy => Err(StoreError::Unavailable("busy".into())),
        BeginOutcome::Fenced => panic!("there is no lane to lose"),
    }
}

async fn must_begin(inbox: &Inbox, arrivals: &[InboxMessage]) -> (Transaction, Vec<EnterOutcome>) {
    match inbox.begin(arrivals, Fence::Live { lane: None }).await.expect("a database") {
        BeginOutcome::Open(tx, entered) => (tx, entered),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_handler_that_hides_a_database_error_is_not_committed() {
    let world = test_database().await;
    let (inbox, arrival) = (inbox(world.database.options()).await, arrival(1));
    let (mut tx, entered) = must_begin(&inbox, std::slice::from_ref(&arrival)).await;
    assert_eq!(entered, [EnterOutcome::New]);
    effect(&mut tx, &arrival).await.expect("a ledger");
    effect(&mut tx, &arrival).await.expect_err("it is there already");
    let committed = inbox.commit(tx, &[]).await;
    assert!(matches!(committed, Ok(CommitOutcome::Rejected { permanent: false, .. })), "{committed:?}");
    handle(&inbox, &arrival).await.expect("it is new, and so is its effect");
    let (_, entered) = must_begin(&inbox, &[arrival]).await;
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Done)]);
}

#[tokio::test]
async fn a_session_of_a_handler_has_keepalives() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let (mut tx, _) = must_begin(&inbox, &[arrival(1)]).await;
    for (name, expected) in [("tcp_keepalives_idle", "2"), ("tcp_keepalives_count", "3"), ("tcp_user_timeout", "5000")]
    {
        let show = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(format!("SHOW {name}")));
        assert_eq!(show.fetch_one(&mut *tx).await.expect("a setting"), expected, "{name}");
    }
}

#[tokio::test]
async fn a_failed_commit_begins_no_next_transaction() {
    let world = test_database().await;
    let (inbox, messages) = (inbox(world.database.options()).await, [arrival(1), arrival(2)]);
    let (mut tx, _) = must_begin(&inbox, &messages[..1]).await;
    effect(&mut tx, &messages[0]).await.expect("a ledger");
    effect(&mut tx, &messages[0]).await.expect_err("it is there already");
    let refused = inbox.commit_and_begin(tx, &[], &messages[1..], Fence::Live { lane: None }).await;
    assert!(matches!(refused, Ok((CommitOutcome::Rejected { permanent: false, .. }, None))), "{refused:?}");
    for message in &messages {
        handle(&inbox, message).await.expect("neither was entered");
    }
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 2);
}

#[tokio::test]
async fn contention_at_a_commit_is_stale_and_other_errors_reject_it() {
    let world = test_database().await;
    let (inbox, message) = (inbox(world.database.options()).await, arrival(1));
    world
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 RAISE EXCEPTION 'refused' USING ERRCODE = current_setting('test.code'); END $$; \
             CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED \
                 FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    for (code, is_stale) in [("40001", true), ("40P01", true), ("55P03", true), ("57014", false), ("23514", false)] {
        let (mut tx, entered) = must_begin(&inbox, std::slice::from_ref(&message)).await;
        assert_eq!(entered, [EnterOutcome::New], "nothing of the last transaction happened");
        let set = sqlx::query(sqlx::AssertSqlSafe(format!("SET LOCAL test.code = '{code}'")));
        set.execute(&mut *tx).await.expect("a setting");
        effect(&mut tx, &message).await.expect("a ledger");
        let outcome = inbox.commit(tx, &[]).await.expect("the server answers");
        match outcome {
            CommitOutcome::Stale => assert!(is_stale, "{code}"),
            CommitOutcome::Rejected { permanent, .. } => assert!(!is_stale && !permanent, "{code}"),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 0);
}

#[tokio::test]
async fn a_commit_stays_if_the_next_transaction_cannot_begin() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let messages: Vec<InboxMessage> = (1..=3).map(arrival).collect();
    let (other, _) = must_begin(&inbox, &messages[1..2]).await;
    let (mut tx, _) = must_begin(&inbox, &messages[..1]).await;
    effect(&mut tx, &messages[0]).await.expect("a ledger");
    let fence = Fence::Live { lane: None };
    let (outcome, begun) = inbox.commit_and_begin(tx, &[], &messages[1..2], fence).await.expect("a database");
    assert!(matches!(outcome, CommitOutcome::Committed), "{outcome:?}");
    let begun = begun.expect("it is committed").expect("a database");
    assert!(matches!(begun, BeginOutcome::Busy), "another has the second in an open transaction: {begun:?}");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 1);
    inbox.rollback(other).await.expect("a database");
    handle(&inbox, &messages[2]).await.expect("the connections go on");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 2);
}

#[tokio::test]
async fn a_transaction_begun_by_a_handler_is_a_savepoint() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let messages: Vec<InboxMessage> = (1..=3).map(arrival).collect();
    let (mut tx, _) = must_begin(&inbox, &messages).await;
    effect(&mut tx, &messages[0]).await.expect("a ledger");
    let mut inner = tx.begin().await.expect("a savepoint");
    let id = messages[0].dedup_id.id;
    sqlx::query("INSERT INTO ledger VALUES ($1)").bind(id.as_uuid()).execute(&mut *inner).await.expect_err("a repeat");
    drop(inner);
    let mut inner = tx.begin().await.expect("a savepoint");
    let id = messages[1].dedup_id.id;
    sqlx::query("INSERT INTO ledger VALUES ($1)").bind(id.as_uuid()).execute(&mut *inner).await.expect("a ledger");
    inner.commit().await.expect("it is released");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 0, "nothing is committed yet");
    inbox.commit(tx, &[]).await.expect("what failed was undone");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 2);
    handle(&inbox, &arrival(4)).await.expect("the same connection goes on");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 3);
}

#[tokio::test]
async fn a_session_that_is_killed_in_mid_transaction_leaves_nothing() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let message = arrival(1);
    let (mut tx, _) = must_begin(&inbox, std::slice::from_ref(&message)).await;
    effect(&mut tx, &message).await.expect("a table");
    let open = "FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()";
    world.run(&format!("SELECT pg_terminate_backend(pid) {open}")).await;
    let error = inbox.commit(tx, &[]).await.expect_err("its session was ended");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 0);
    handle(&inbox, &message).await.expect("the next one has a session that lives");
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 1);
}

#[tokio::test]
async fn dead_idle_connections_are_replaced() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let first: Vec<InboxMessage> = (0..5).map(arrival).collect();
    let mut open = Vec::new();
    for message in &first {
        open.push(must_begin(&inbox, std::slice::from_ref(message)).await.0);
    }
    for tx in open {
        inbox.commit(tx, &[]).await.expect("a database");
    }
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    world.run(&format!("SELECT pg_terminate_backend(pid) {others}")).await;
    for number in 10..15 {
        handle(&inbox, &arrival(number)).await.expect("a connection that lives");
    }
    assert_eq!(inbox.record_start(&arrival(20)).await.expect("here too"), 1);
}

#[tokio::test]
async fn a_stalled_transaction_is_ended_by_the_server() {
    let world = test_database().await;
    let config = Config { stall_timeout: Duration::from_secs(3), ..Config::new(world.database.options()) };
    let inbox = Inbox::open(&config, "billing", InboxRetention::default()).await.expect("a migrated database");
    let message = arrival(1);
    let (tx, _) = must_begin(&inbox, std::slice::from_ref(&message)).await;
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()";
    wait_until("the server ends it", async || world.number(open).await == 0).await;
    let error = inbox.commit(tx, &[]).await.expect_err("it was ended");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let (mut tx, entered) = must_begin(&inbox, std::slice::from_ref(&message)).await;
    assert_eq!(entered, [EnterOutcome::New]);
    let slow = sqlx::query("SELECT pg_sleep(10)").execute(&mut *tx).await;
    assert!(slow.is_err(), "a statement that runs for too long is ended too");
}

/// The network breaks at random while messages are handled. Each message still has exactly one effect.
#[tokio::test]
async fn every_message_has_one_effect_over_a_broken_network() {
    let world = test_database().await;
    let options = world.database.options();
    let upstream: SocketAddr = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
    let proxy = CutProxy::start(upstream).await;
    let options = options.host("127.0.0.1").port(proxy.addr().port());
    let mut workers = JoinSet::new();
    for worker in 0..4_u64 {
        let inbox = inbox(options.clone()).await;
        workers.spawn(async move {
            // Each message is delivered to two workers.
            for number in (0..200).filter(|number| number % 4 == worker || (number + 1) % 4 == worker) {
                let mut tries = 0;
                while let Err(error) = handle(&inbox, &arrival(number)).await {
                    assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Busy { .. }), "{error:?}");
                    tries += 1;
                    assert!(tries < 1000, "{error:?}");
                }
            }
        });
    }
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        proxy.cut().await;
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("no message has two effects");
    }
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 200);
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox WHERE state = 'done'").await, 200);
}

/// Transactions that fail with a serialization error are tried again.
#[tokio::test]
async fn every_message_has_one_effect_under_serializable() {
    let world = test_database().await;
    let name = world.database.name();
    world.run(&format!("ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")).await;
    let mut workers = JoinSet::new();
    for worker in 0..4_u64 {
        let inbox = inbox(world.database.options()).await;
        workers.spawn(async move {
            for number in (0..100).map(|number| if worker % 2 == 0 { number } else { 99 - number }) {
                let message = arrival(number);
                assert!(inbox.record_start(&message).await.is_ok());
                for tries in 0.. {
                    match handle(&inbox, &message).await {
                        Ok(()) => break,
                        Err(StoreError::Unavailable(_) | StoreError::Busy { .. }) => assert!(tries < 1000),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("no message has two effects");
    }
    assert_eq!(world.number("SELECT count(*) FROM ledger").await, 100);
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox WHERE state = 'done'").await, 100);
}

#[tokio::test]
async fn a_batch_of_five_hundred_is_one_transaction() {
    let world = test_database().await;
    let inbox = inbox(world.database.options()).await;
    let early: Vec<InboxMessage> = (0..500).step_by(5).map(arrival).collect();
    let (tx, entered) = must_begin(&inbox, &early).await;
    assert_eq!(entered, vec![EnterOutcome::New; 100]);
    inbox.commit(tx, &[]).await.expect("a database");
    let setback = InboxFailure {
        action: InboxFailureAction::Retry { after: DAY },
        attempts: 1,
        class: "refused",
        error: "no".to_owned(),
        backtrace: None,
    };
    // Another message of queue `7` is waiting, so the seventh of the batch queues behind it.
    let waiting = InboxMessage { queue: "7".into(), ..arrival(1000) };
    inbox.record_failure(&waiting, Fence::Live { lane: None }, &setback).await.expect("a database");
    let batch: Vec<InboxMessage> = (0..500).rev().map(arrival).collect();
    let (tx, entered) = must_begin(&inbox, &batch).await;
    for (arrival, entered) in batch.iter().zip(&entered) {
        let expected = match arrival.offset {
            Some(7) => EnterOutcome::QueuedBehind,
            Some(number) if number % 5 == 0 => EnterOutcome::Duplicate(InboxState::Done),
            _ => EnterOutcome::New,
        };
        assert_eq!(*entered, expected, "{:?}", arrival.offset);
    }
    inbox.commit(tx, &[]).await.expect("a database");
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox WHERE state = 'done'").await, 499);
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox_retry_message WHERE queue = '7'").await, 2);
}

/// Deletes old rows in batches while new ones arrive. Rows that are young, waiting or dead stay.
#[tokio::test]
async fn pruning_under_load_deletes_only_old_rows() {
    let world = test_database().await;
    world
        .run(
            "INSERT INTO relevo.inbox (consumer, message_id, state, entered_at) \
             SELECT 'billing', gen_random_uuid(), CASE n % 10 WHEN 0 THEN 'dead' WHEN 1 THEN 'waiting' ELSE 'done' END, \
             CASE WHEN n % 10 < 2 THEN 'infinity' ELSE now() - interval '40 days' END FROM generate_series(1, 20000) AS n",
        )
        .await;
    let options = world.database.options();
    let mut tasks = JoinSet::new();
    for worker in 0..3_u64 {
        let inbox = inbox(options.clone()).await;
        tasks.spawn(async move {
            for number in 0..150 {
                handle(&inbox, &arrival(worker * 1000 + number)).await.expect("no other session has a lock");
            }
        });
    }
    for _ in 0..2 {
        let inbox = inbox(options.clone()).await;
        tasks.spawn(async move { while inbox.prune(500).await.expect("no other session has a lock") {} });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("it goes well");
    }
    let inbox = inbox(options).await;
    while inbox.prune(500).await.expect("a database") {}
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox WHERE entered_at = 'infinity'").await, 4000);
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox WHERE entered_at < 'infinity'").await, 450);
}

#[tokio::test]
async fn an_inbox_needs_a_migrated_schema() {
    let world = TestDatabase { database: Server::shared(PgVersion::V15).database().await, server: None };
    let config = Config::new(world.database.options());
    let Err(StoreError::SchemaMismatch { reason }) = Inbox::open(&config, "billing", InboxRetention::default()).await
    else {
        panic!("there is no inbox yet")
    };
    assert!(reason.contains("`relevo migrate`"), "{reason}");
    migrate::migrate(&mut world.connect().await, &Schema::default()).await.expect("an empty database");
    let inbox = Inbox::open(&config, "billing", InboxRetention::default()).await.expect("a migrated schema");
    // Consumers share connections.
    let other = inbox.for_consumer("shipping", InboxRetention::default());
    let beat = |number: u128| Heartbeat {
        owner: Uuid::from_u128(number),
        name: number.to_string(),
        ttl: DAY,
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    let mut names = BTreeSet::new();
    for (inbox, number) in [(&inbox, 1), (&other, 2)] {
        inbox.heartbeat(&beat(number)).await.expect("a database");
    }
    names.extend(world.texts("SELECT consumer FROM relevo.inbox_member").await);
    assert_eq!(names, ["billing", "shipping"].map(str::to_owned).into());
}
