//! History does not slow down the inbox: handlers and pruning find their rows by index among a million.

use crate::sql_support::{Session, SqlTest};

/// A million handled messages, a hundred thousand queues that are not due, and as many unmarked dead letters.
const HISTORY: &str = "
    INSERT INTO relevo.inbox (consumer, message_id, entered_at)
    SELECT 'billing', md5(n::text)::uuid, now() - interval '20 days' + n * interval '1 second'
    FROM generate_series(1, 1000000) AS n;
    INSERT INTO relevo.inbox (consumer, message_id, state, entered_at)
    SELECT 'billing', md5('dead' || n)::uuid, 'dead', 'infinity' FROM generate_series(1, 100000) AS n;
    INSERT INTO relevo.inbox_retry_queue (consumer, queue, next_at)
    SELECT 'billing', 'q' || n, now() + interval '1 hour' FROM generate_series(1, 100000) AS n;
    INSERT INTO relevo.inbox_retry_message
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane)
    SELECT 'billing', 'q' || n, md5('waits' || n)::uuid, 0, '{}', '{}', '', 'orders', '0'
    FROM generate_series(1, 100000) AS n;";

/// Returns the number of pages that a call reads, including the statements of its functions, with warm caches.
pub(crate) async fn pages(session: &mut Session, call: &str) -> i64 {
    for _ in 0..7 {
        // PostgreSQL switches to a generic plan after some runs. These runs make sure that it has.
        session.run(&format!("BEGIN; {call}; ROLLBACK")).await;
    }
    session.run("BEGIN").await;
    let plan = session.list(&format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {call}")).await;
    session.run("ROLLBACK").await;
    let buffers = plan.iter().find(|line| line.contains("Buffers:")).unwrap_or_else(|| panic!("{plan:?}"));
    let counts = buffers.split([' ', '=']).filter_map(|word| word.parse::<i64>().ok());
    counts.sum()
}

const CALLS: [(&str, i64); 7] = [
    ("SELECT relevo.inbox_insert('billing', gen_random_uuid())", 60),
    (
        "SELECT relevo.inbox_insert_many('billing', ARRAY[gen_random_uuid(), gen_random_uuid()], '{0,0}', '{a,b}', \
         NULL, NULL, NULL, 100, 0)",
        120,
    ),
    ("SELECT relevo.inbox_insert_one('billing', gen_random_uuid(), 0, 'a', NULL, NULL, NULL, 100, 0)", 60),
    ("SELECT relevo.inbox_insert('billing', md5('77')::uuid)", 60),
    ("SELECT count(*) FROM relevo.inbox_claim_due_queues('billing', 10, 10, 1000)", 60),
    ("SELECT relevo.inbox_prune('billing', row_limit => 100)", 60),
    ("SELECT relevo.inbox_prune('billing', interval '15 days', row_limit => 100)", 2500),
];

async fn check(session: &mut Session, when: &str) {
    for (call, most) in CALLS {
        let pages = pages(session, call).await;
        assert!(pages <= most, "{when}: {pages} pages, more than {most}: {call}");
    }
}

#[tokio::test]
async fn a_million_rows_are_passed_by_index() {
    let bed = SqlTest::on_shared_server(1).await;
    let mut early = bed.session().await;
    check(&mut early, "empty").await;
    let mut loading = bed.session().await;
    for statement in HISTORY.split(';').filter(|statement| !statement.trim().is_empty()) {
        // Loading takes longer than the usual statement timeout of a test.
        loading.run_slow(statement).await;
    }
    check(&mut early, "planned while the tables were empty").await;
    check(&mut bed.session().await, "not analysed").await;
    loading.run_slow("ANALYZE").await;
    check(&mut bed.session().await, "analysed").await;
    check(&mut early, "planned long ago").await;
}
