//! RULES.md F: publications, large tables, concurrent releases, paused writers.

use crate::inbox_plans::pages;
use crate::migrated;
use crate::rules_support::Bed;
use relevo_testkit::PgVersion;
use serde_json::json;
use sqlx::Row as _;

const A: &str = "00000000-0000-4000-8000-00000000000a";

/// F4: a publication of all tables makes PostgreSQL refuse updates and deletes in a table without a replica identity.
#[tokio::test]
async fn f4_every_table_that_changes_has_a_replica_identity() {
    for version in PgVersion::ALL {
        let database = migrated::database(version).await;
        let sql = "SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = 'relevo'::regnamespace \
                   AND c.relkind = 'r' AND c.relreplident = 'd' AND NOT EXISTS (\
                   SELECT 1 FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1";
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database.connect().await).await.expect("a catalogue");
        let without: Vec<String> = rows.iter().map(|row| row.try_get(0).expect("a name")).collect();
        assert_eq!(without, ["data_loss"], "rows are only inserted there");
    }
}

/// Leases both shards, one for each owner.
async fn lease_shards(bed: &Bed, owners: [&str; 2]) {
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
    let bed = Bed::shared(2).await;
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
        loading.slowly(rows).await;
    }
    for when in ["not analysed", "analysed"] {
        for call in &calls {
            for (session, planned) in [(&mut early, "early"), (&mut bed.session().await, "now")] {
                let pages = pages(session, call).await;
                assert!(pages <= 150, "{when}, planned {planned}: {pages} pages: {call}");
            }
        }
        loading.slowly("ANALYZE").await;
    }
}
