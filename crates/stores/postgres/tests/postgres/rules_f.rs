//! Rules F: publications, large tables, concurrent releases, paused writers.

use crate::inbox_plans::pages;
use crate::migrated_database;
use crate::sql_support::{Session, SqlTest};
use relevo_testkit::PgVersion;
use serde_json::{Value, json};
use sqlx::Row as _;

const A: &str = "00000000-0000-4000-8000-00000000000a";
const B: &str = "00000000-0000-4000-8000-00000000000b";

/// F4: with a publication of all tables, PostgreSQL rejects updates and deletes in a table without a replica identity.
#[tokio::test]
async fn f4_every_table_that_changes_has_a_replica_identity() {
    for version in PgVersion::ALL {
        let database = migrated_database::database(version).await;
        let sql = "SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = 'relevo'::regnamespace \
                   AND c.relkind = 'r' AND c.relreplident = 'd' AND NOT EXISTS (\
                   SELECT 1 FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1";
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database.connect().await).await.expect("a catalogue");
        let without: Vec<String> = rows.iter().map(|row| row.try_get(0).expect("a name")).collect();
        assert_eq!(without, ["data_loss"], "rows are only inserted there");
    }
}

/// Leases both shards, one for each owner.
async fn lease_shards(bed: &SqlTest, owners: [&str; 2]) {
    for (shard, owner) in owners.into_iter().enumerate() {
        bed.run(&format!(
            "UPDATE relevo.lease SET owner = '{owner}', epoch = 1, expires_at = 'infinity', \
             timeline = relevo.current_timeline() WHERE shard = {shard}"
        ))
        .await;
    }
}

/// F5: `<= clock_timestamp()` in a WHERE clause is evaluated for each row, and no index is used.
#[tokio::test]
async fn f5_rows_that_are_not_due_cost_nothing() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, A]).await;
    let request = json!({ "leases": [[0, 1, A], [1, 1, A]], "shards": 2, "keys": 100, "messages": 10 });
    let calls = [
        "SELECT * FROM relevo.make_tick()".to_owned(),
        "SELECT relevo.move_due_scheduled(10)".to_owned(),
        format!("SELECT * FROM relevo.read_parked('main', '{request}')"),
    ];
    let mut early = bed.session().await;
    for call in &calls {
        pages(&mut early, call).await;
    }
    let mut loading = bed.session().await;
    for rows in [
        "INSERT INTO relevo.scheduled (id, due_at, slot, created_at, topic, key, type, content_type, payload) \
         SELECT gen_random_uuid(), now() + interval '1 hour' + n * interval '1 ms', 0, now(), 't', 'k', 'T', 'c', '' \
         FROM generate_series(1, 100000) AS n",
        "INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, next_at, route, class, error) \
         SELECT 'main', 'k' || n, n % 256, 'retrying', 1, now() + interval '1 hour' + n * interval '1 ms', 'r', 'transient', 'no' \
         FROM generate_series(1, 100000) AS n",
    ] {
        loading.run_slow(rows).await;
    }
    for when in ["not analysed", "analysed"] {
        for call in &calls {
            for (session, planned) in [(&mut early, "early"), (&mut bed.session().await, "now")] {
                let pages = pages(session, call).await;
                assert!(pages <= 150, "{when}, planned {planned}: {pages} pages: {call}");
            }
        }
        loading.run_slow("ANALYZE").await;
    }
}

/// F6: one relay releases an address while another parks a message for it, behind a key that waits for the same
/// address.
#[tokio::test]
async fn f6_releasing_an_address_and_parking_for_it_do_not_deadlock() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, B]).await;
    bed.emit("a", "m1").await;
    bed.emit("c", "m2").await;
    bed.run(
        "INSERT INTO relevo.address_hold (destination, address, class, error, next_at) VALUES ('main', 'x', 'blocked', 'no', now()); \
         INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, address, route, class, error) \
         VALUES ('main', 'a', 0, 'held', 0, 'x', 'r', 'blocked', 'no'), ('main', 'b', 1, 'held', 0, 'x', 'r', 'blocked', 'no'); \
         INSERT INTO relevo.parked_message (destination, key, ordinal, seq, slot, id, created_at, topic, type, content_type, payload) \
         VALUES ('main', 'a', -1, 900, 0, gen_random_uuid(), now(), 't', 'T', 'c', ''), \
         ('main', 'b', -2, 901, 1, gen_random_uuid(), now(), 't', 'T', 'c', '')",
    )
    .await;
    let held = json!({
        "seq": 2, "slot": 0, "key": "c", "stop": "held", "address": "x", "after_ms": 60_000, "attempts": 0,
        "class": "blocked", "error": "no", "route": "r",
    });
    let behind = json!({ "seq": 1, "slot": 0, "key": "a" });
    let settle = json!({ "leases": [[0, 1, A]], "shards": 2, "progress": [], "parks": [behind, held] });
    let run = json!({ "key": "b", "shard": 1, "delivered": [-2], "ordinal": null, "park": null, "released": "x" });
    let release = json!({ "leases": [[1, 1, B]], "shards": 2, "runs": [run] });

    let mut holder = bed.session().await;
    holder.run("BEGIN; SELECT 1 FROM relevo.address_hold FOR UPDATE").await;
    let release = bed.session().await.start(&format!("SELECT relevo.settle_parked('main', '{release}')"));
    bed.wait_until_blocked(&release).await;
    let settle = bed.session().await.start(&format!("SELECT relevo.settle('main', '{settle}')"));
    bed.wait_until_blocked(&settle).await;
    holder.run("COMMIT").await;
    release.finish().await;
    let mut session = settle.finish().await;
    let keys = "SELECT concat_ws(' ', k.key, k.state, h.address) FROM relevo.parked_key AS k \
                LEFT JOIN relevo.address_hold AS h ON h.address = k.address ORDER BY k.key";
    assert_eq!(session.list(keys).await, ["a retrying", "c held x"]);
}

/// Parks keys of both shards for held addresses: (key, slot, address). The ordinal of each message is the negative
/// position of its key, starting at -1.
async fn park_for_addresses(bed: &SqlTest, keys: &[(&str, u16, &str)]) {
    for (position, (key, slot, address)) in keys.iter().enumerate() {
        let number = position + 1;
        bed.run(&format!(
            "INSERT INTO relevo.address_hold (destination, address, class, error, next_at) \
             VALUES ('main', '{address}', 'blocked', 'no', now()) ON CONFLICT DO NOTHING; \
             INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, address, route, class, error) \
             VALUES ('main', '{key}', {slot}, 'held', 0, '{address}', 'r', 'blocked', 'no'); \
             INSERT INTO relevo.parked_message \
             (destination, key, ordinal, seq, slot, id, created_at, topic, type, content_type, payload) \
             VALUES ('main', '{key}', -{number}, 900 + {number}, {slot}, gen_random_uuid(), now(), 't', 'T', 'c', '')"
        ))
        .await;
    }
}

/// A delivered probe of an address.
fn probe(key: &str, shard: u16, ordinal: i64, address: &str) -> Value {
    json!({ "key": key, "shard": shard, "delivered": [ordinal], "ordinal": null, "park": null, "released": address })
}

fn held(seq: i64, slot: u16, key: &str, address: &str) -> Value {
    json!({
        "seq": seq, "slot": slot, "key": key, "stop": "held", "address": address, "after_ms": 60_000, "attempts": 0,
        "class": "blocked", "error": "no", "route": "r",
    })
}

fn settle(shard: u16, owner: &str, parks: &[Value]) -> String {
    let request = json!({ "leases": [[shard, 1, owner]], "shards": 2, "progress": [], "parks": parks });
    format!("SELECT relevo.settle('main', '{request}')")
}

fn settle_parked(shard: u16, owner: &str, runs: &[Value]) -> String {
    let request = json!({ "leases": [[shard, 1, owner]], "shards": 2, "runs": runs });
    format!("SELECT relevo.settle_parked('main', '{request}')")
}

/// Runs two calls at the same time: `first` waits for key `pause` until `second` waits too. Both must succeed.
async fn run_concurrently(bed: &SqlTest, pause: &str, first: &str, second: &str) -> Session {
    let mut holder = bed.session().await;
    holder.run(&format!("BEGIN; SELECT 1 FROM relevo.parked_key WHERE key = '{pause}' FOR UPDATE")).await;
    let first = bed.session().await.start(first);
    bed.wait_until_blocked(&first).await;
    let second = bed.session().await.start(second);
    bed.wait_until_blocked(&second).await;
    holder.run("COMMIT").await;
    first.finish().await;
    second.finish().await
}

const KEYS: &str = "SELECT concat_ws(' ', key, state, address) FROM relevo.parked_key ORDER BY key";
const HOLDS: &str = "SELECT address FROM relevo.address_hold ORDER BY address";

/// F6: the keys of two addresses that one call releases are locked in one order, not address by address.
#[tokio::test]
async fn f6_releasing_two_addresses_locks_their_keys_in_one_order() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, B]).await;
    for (key, label) in [("a", "m1"), ("b", "m2"), ("z", "m3")] {
        bed.emit(key, label).await;
    }
    let keys = [("m", 0, "x"), ("n", 0, "y"), ("z", 1, "x"), ("a", 1, "y"), ("b", 1, "w")];
    park_for_addresses(&bed, &keys).await;
    let behind = [("a", 1), ("b", 2), ("z", 3)].map(|(key, seq)| json!({ "seq": seq, "slot": 1, "key": key }));
    let release = settle_parked(0, A, &[probe("m", 0, -1, "x"), probe("n", 0, -2, "y")]);
    let mut session = run_concurrently(&bed, "b", &settle(1, B, &behind), &release).await;
    assert_eq!(session.list(KEYS).await, ["a retrying", "b held w", "z retrying"]);
    assert_eq!(session.list(HOLDS).await, ["w"]);
}

/// F6: marks of operators are applied key by key, not from the newest message to the oldest.
#[tokio::test]
async fn f6_redriving_and_releasing_an_address_lock_keys_in_one_order() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, B]).await;
    park_for_addresses(&bed, &[("q", 1, "x"), ("a", 0, "x"), ("b", 0, "x"), ("z", 0, "x")]).await;
    bed.run(
        "INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, \
         route, class, error, attempts, state) \
         SELECT 'main', gen_random_uuid(), d.seq, 0, now(), 't', d.key, d.type, 'c', '', 'r', 'poison', 'no', 1, 'redriving' \
         FROM (VALUES (10, 'a', 'A1'), (15, 'a', 'A2'), (20, 'z', 'Z')) AS d (seq, key, type)",
    )
    .await;
    let request = json!({ "leases": [[0, 1, A]], "shards": 2, "keys": 100, "messages": 10 });
    let redrive = format!("SELECT * FROM relevo.read_parked('main', '{request}')");
    let release = settle_parked(1, B, &[probe("q", 1, -1, "x")]);
    let mut session = run_concurrently(&bed, "b", &release, &redrive).await;
    assert_eq!(session.list(KEYS).await, ["a retrying", "b retrying", "z retrying"]);
    let queue = "SELECT type FROM relevo.parked_message ORDER BY key, ordinal";
    assert_eq!(
        session.list(queue).await,
        ["A1", "A2", "T", "T", "Z", "T"],
        "redriven messages go first, in their order"
    );
}

/// F6: a new hold is inserted before any key is locked.
#[tokio::test]
async fn f6_holding_a_new_address_and_releasing_another_do_not_deadlock() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, B]).await;
    bed.emit("a", "m1").await;
    bed.emit("c", "m2").await;
    park_for_addresses(&bed, &[("n", 1, "y"), ("p", 1, "w"), ("a", 0, "y"), ("0", 1, "y")]).await;
    let failed = json!({
        "key": "p", "shard": 1, "delivered": [], "ordinal": -2, "park": held(0, 1, "p", "x"), "released": null,
    });
    let release = settle_parked(1, B, &[probe("0", 1, -4, "y"), failed]);
    let park = settle(0, A, &[json!({ "seq": 1, "slot": 0, "key": "a" }), held(2, 0, "c", "x")]);
    let mut session = run_concurrently(&bed, "0", &release, &park).await;
    assert_eq!(session.list(KEYS).await, ["a retrying", "c held x", "n retrying", "p held x"]);
    assert_eq!(session.list(HOLDS).await, ["w", "x"]);
}

/// F6: a hold is inserted before the keys are checked, so a shard that must be read again must leave none behind.
#[tokio::test]
async fn f6_a_shard_that_is_read_again_leaves_no_hold() {
    let bed = SqlTest::on_shared_server(2).await;
    lease_shards(&bed, [A, B]).await;
    bed.emit("a", "m1").await;
    bed.emit("c", "m2").await;
    park_for_addresses(&bed, &[("n", 1, "y")]).await;
    let parks = [json!({ "seq": 1, "slot": 0, "key": "a" }), held(2, 0, "c", "x"), held(2, 0, "d", "y")];
    let mut session = bed.session().await;
    let answer: String = session.scalar(&format!("{}::text", settle(0, A, &parks))).await;
    assert_eq!(answer, r#"{"lost": [], "passed": [1]}"#);
    assert_eq!(session.list(KEYS).await, ["n held y"]);
    assert_eq!(session.list(HOLDS).await, ["y"]);
}
