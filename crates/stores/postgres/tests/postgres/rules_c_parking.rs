//! Rules C3, C6 and C7: parked keys.

use std::time::Duration;

use crate::sql_support::{Reader, Session, SqlTest};
use relevo_core::outbox::leases::{LeaseRequest, ShardLeases as _};
use relevo_core::outbox::log::{
    OutboxReader as _, ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement, WindowLimit,
};
use relevo_core::outbox::parked::ParkedReader as _;
use relevo_core::outbox::{LogEntry, Position};
use serde_json::{Value, json};

const OWNER: &str = "00000000-0000-4000-8000-00000000000a";
const NONE: [&str; 0] = [];
const KEYS: &str = "SELECT key FROM relevo.parked_key";
const QUEUE: &str = "SELECT type FROM relevo.parked_message ORDER BY ordinal";

/// Key `k` is parked with m1, and m2 has been read.
async fn with_a_parked_key() -> SqlTest {
    let bed = SqlTest::on_shared_server(1).await;
    let mut session = bed.session().await;
    let request = json!({ "owner": OWNER, "name": "relay", "lease_ms": 600_000, "release": [] });
    session.run(&format!("SELECT relevo.acquire_leases('main', '{request}')")).await;
    bed.emit("k", "m1").await;
    bed.emit("k", "m2").await;
    session.run("SELECT relevo.make_tick()").await;
    let head = json!({
        "seq": 1, "slot": 0, "key": "k", "stop": "retrying", "after_ms": 0, "attempts": 1, "class": "transient",
        "error": "it was refused", "route": "r",
    });
    assert_eq!(answer(&mut session, &settle(&[0, 1, 1], &head)).await, json!({ "lost": [], "passed": [] }));
    bed
}

/// Settles up to a position in the window from tick 0 to 1, or at tick 1.
fn settle(progress: &[i64; 3], park: &Value) -> String {
    let [from, to, place] = progress;
    let doc = json!({
        "leases": [[0, 1, OWNER]], "shards": 1, "progress": [[0, from, to, place]], "parks": [park],
    });
    format!("SELECT relevo.settle('main', '{doc}')::text")
}

/// The window task queues m2 behind its key.
fn append() -> String {
    settle(&[1, 1, 0], &json!({ "seq": 2, "slot": 0, "key": "k" }))
}

/// The retry task has delivered m1.
fn unpark() -> String {
    let run = json!({ "key": "k", "shard": 0, "delivered": [1], "ordinal": null, "park": null, "released": null });
    format!("SELECT relevo.settle_parked('main', '{}')::text", json!({ "leases": [[0, 1, OWNER]], "runs": [run] }))
}

async fn answer(session: &mut Session, call: &str) -> Value {
    serde_json::from_str(&session.scalar::<String>(call).await).expect("JSON")
}

#[tokio::test]
async fn c3_unparking_waits_for_a_message_that_is_being_appended() {
    let bed = with_a_parked_key().await;
    let mut window = bed.session().await;
    window.run("BEGIN").await;
    assert_eq!(answer(&mut window, &append()).await, json!({ "lost": [], "passed": [] }));
    let retry = bed.session().await.start(&unpark());
    bed.wait_until_blocked(&retry).await;
    window.run("COMMIT").await;
    let (mut session, end) = retry.result().await;
    let end: String = sqlx::Row::try_get(&end.expect("an answer")[0], 0).expect("text");
    assert_eq!(end, r#"["waits"]"#);
    assert_eq!(session.list(KEYS).await, ["k"]);
    assert_eq!(session.list(QUEUE).await, ["m2"]);
}

#[tokio::test]
async fn c3_a_message_appended_while_its_key_is_freed_goes_back_to_the_live_path() {
    let bed = with_a_parked_key().await;
    let mut retry = bed.session().await;
    retry.run("BEGIN").await;
    assert_eq!(answer(&mut retry, &unpark()).await, json!(["unparked"]));
    let window = bed.session().await.start(&append());
    bed.wait_until_blocked(&window).await;
    retry.run("COMMIT").await;
    let (mut session, end) = window.result().await;
    let end: String = sqlx::Row::try_get(&end.expect("an answer")[0], 0).expect("text");
    assert_eq!(end, r#"{"lost": [], "passed": [2]}"#);
    assert_eq!(session.list(QUEUE).await, NONE);
    assert_eq!(
        session.scalar::<i64>("SELECT settled_seq FROM relevo.shard_positions('main')").await,
        1,
        "m2 is not passed by"
    );
}

/// The window task, if it only checks whether its key is parked.
fn naive_append(keys: &str, queue: &str) -> String {
    format!(
        "INSERT INTO {queue} (destination, key, ordinal, seq, slot, id, created_at, topic, type, content_type, payload)
        SELECT 'main', key, nextval('relevo.parked_seq'), seq, slot, id, created_at, topic, type, content_type, payload
        FROM relevo.message WHERE seq = 2 AND EXISTS (SELECT 1 FROM {keys} WHERE key = 'k')"
    )
}

/// The retry task, if one statement both checks and deletes.
fn naive_unpark(keys: &str, queue: &str) -> String {
    format!("DELETE FROM {keys} WHERE key = 'k' AND NOT EXISTS (SELECT 1 FROM {queue} WHERE key = 'k')")
}

#[tokio::test]
async fn c3_without_locks_a_message_is_stranded_behind_a_removed_key() {
    let bed = with_a_parked_key().await;
    bed.run(
        "CREATE TABLE keys AS SELECT * FROM relevo.parked_key;
        CREATE TABLE queue AS SELECT * FROM relevo.parked_message;
        DELETE FROM queue WHERE seq = 1",
    )
    .await;
    let (mut window, mut retry) = (bed.session().await, bed.session().await);
    window.run(&format!("BEGIN; {}", naive_append("keys", "queue"))).await;
    retry.run(&naive_unpark("keys", "queue")).await;
    window.run("COMMIT").await;
    assert_eq!(retry.list("SELECT key FROM keys").await, NONE, "no relay will read it");
    assert_eq!(retry.list("SELECT type FROM queue").await, ["m2"]);
}

#[tokio::test]
async fn c3_a_delete_that_checks_in_the_same_statement_deletes_the_message() {
    let bed = with_a_parked_key().await;
    let mut window = bed.session().await;
    bed.run("DELETE FROM relevo.parked_message WHERE seq = 1").await;
    window.run(&format!("BEGIN; {}", naive_append("relevo.parked_key", "relevo.parked_message"))).await;
    // The foreign key makes it wait, but the rows that it saw before the wait still decide.
    let retry = bed.session().await.start(&naive_unpark("relevo.parked_key", "relevo.parked_message"));
    bed.wait_until_blocked(&retry).await;
    window.run("COMMIT").await;
    let mut session = retry.finish().await;
    assert_eq!(session.list(KEYS).await, NONE);
    assert_eq!(session.list(QUEUE).await, NONE, "m2 is neither parked nor on the live path");
}

fn park(entry: &LogEntry, stop: Option<ParkAction>) -> ParkedMessage {
    let stopped = stop.map(|stop| PublishFailure {
        action: stop,
        attempts: 0,
        class: "blocked",
        error: "nothing passes".to_owned(),
        route: "r".into(),
    });
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: stopped }
}

async fn settle_with(reader: &mut Reader, end: Position, parks: Vec<ParkedMessage>) {
    let progress = reader.leases.iter().map(|lease| (*lease, end.clone())).collect();
    let settled = reader.store.settle(Settlement { progress, parked: parks }).await.expect("an answer");
    assert_eq!(settled, SettleResult::default());
    reader.position = end;
}

#[tokio::test]
async fn c6_a_held_address_and_a_third_unknown_park_their_keys_uncounted_and_progress_continues() {
    let bed = SqlTest::on_shared_server(1).await;
    let mut reader = Reader::start(&bed).await;
    for (key, label) in [("blocked", "m1"), ("unknown", "m2"), ("free", "m3"), ("blocked", "m4")] {
        bed.emit(key, label).await;
    }
    let page = reader.page(100, WindowLimit::Unlimited).await;
    // Naive: m1 is not settled while its address is blocked, and the shard stays before it.
    reader.settle(Position::in_window(0, page.end.to_tick(), page.entries[0].seq - 1)).await;
    let again = reader.page(100, WindowLimit::Unlimited).await;
    assert_eq!(again.entries.len(), 4, "m3 went out and is read again for as long as that lasts");

    let after = Duration::from_mins(5);
    let held = ParkAction::HoldAddress { address: "x".into(), after };
    let parks = vec![
        park(&page.entries[0], Some(held)),
        park(&page.entries[1], Some(ParkAction::Quarantine { after })),
        park(&page.entries[3], None),
    ];
    settle_with(&mut reader, page.end, parks).await;
    bed.emit("free", "m5").await;
    assert_eq!(reader.drain().await, ["m5"], "the shard goes on");
    let mut session = bed.session().await;
    let keys =
        "SELECT concat_ws(' ', key, state, attempts, next_at > clock_timestamp()) FROM relevo.parked_key ORDER BY key";
    assert_eq!(session.list(keys).await, ["blocked held 0", "unknown quarantined 0 t"]);
    assert_eq!(session.list(QUEUE).await, ["m1", "m2", "m4"]);
    assert_eq!(session.list("SELECT address FROM relevo.address_hold").await, ["x"]);
    // Days later there are still no attempts.
    session
        .run(
            "UPDATE relevo.address_hold SET next_at = now();
            UPDATE relevo.parked_key SET next_at = now() WHERE next_at IS NOT NULL",
        )
        .await;
    let runs = reader.store.read_parked(&reader.leases, 10, 10).await.expect("runs");
    let seen: Vec<_> = runs.iter().map(|run| (&*run.key, run.attempts, run.messages.len())).collect();
    assert_eq!(seen, [("unknown", 0, 1), ("blocked", 0, 1)], "one message each, to try");
}

#[tokio::test]
async fn c7_a_parked_key_is_found_by_its_slot_for_any_shard_count() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut session = bed.session().await;
    let columns = "SELECT table_name || '.' || column_name FROM information_schema.columns
        WHERE table_schema = 'relevo' AND table_name IN ('parked_key', 'parked_message') AND column_name LIKE 'shard%'";
    assert_eq!(session.list(columns).await, NONE);

    let mut reader = Reader::start(&bed).await;
    bed.emit("o-1", "m1").await; // Slot 92: shard 4 of 8, shard 2 of 3.
    let page = reader.page(100, WindowLimit::Unlimited).await;
    settle_with(
        &mut reader,
        page.end.clone(),
        vec![park(&page.entries[0], Some(ParkAction::Retry { after: Duration::ZERO }))],
    )
    .await;
    session.run("CREATE TABLE naive_key AS SELECT key, slot % 8 AS shard FROM relevo.parked_key").await;
    reader.leave().await;
    session.run("SELECT relevo.reshard_destination('main', 3)").await;
    // The first reader advances to the common tick, the second reshards, and the last acquires the new shards.
    for _ in 0..2 {
        Reader::start(&bed).await.leave().await;
    }
    let next = Reader::start(&bed).await;
    assert_eq!(
        next.leases.iter().map(|lease| (lease.shard, lease.shard_count)).collect::<Vec<_>>(),
        [(0, 3), (1, 3), (2, 3)]
    );
    assert_eq!(
        session.list("SELECT key FROM naive_key WHERE shard = 2").await,
        NONE,
        "the key's new owner does not find it"
    );
    let (owner, name) = (next.leases[0].owner, "reader".to_owned());
    let request = LeaseRequest { owner, name, duration: Duration::from_mins(1), held: Vec::new(), release: Vec::new() };
    let taken = next.store.acquire_leases(request).await.expect("leases").taken;
    let mut found: Vec<_> = taken.iter().map(|shard| (shard.lease.shard, shard.parked_keys.len())).collect();
    found.sort_unstable();
    assert_eq!(found, [(0, 0), (1, 0), (2, 1)]);
}
