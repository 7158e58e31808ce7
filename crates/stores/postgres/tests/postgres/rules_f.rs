//! RULES.md F: publications, large tables, concurrent releases, paused writers.

use crate::inbox_plans::pages;
use crate::migrated_database;
use crate::sql_support::SqlTest;
use relevo_testkit::PgVersion;
use serde_json::json;
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
