//! Rule B: which ways of writing keep the order of a key. The tests assert the table in the documentation, so that it
//! stays true.

use crate::sql_support::{Reader, Session, SqlTest, code, emit};

const LOCK: &str = "SELECT 1 FROM agg WHERE id = 'k' FOR UPDATE";
const UPDATE: &str = "UPDATE agg SET n = n + 1 WHERE id = 'k'";
const IN_ORDER: [&str; 2] = ["first", "second"];
const REORDERED: [&str; 2] = ["second", "first"];
/// After waiting for a changed row, PostgreSQL evaluates the row again and emits again.
const REORDERED_AND_DUPLICATED: [&str; 3] = ["second", "first", "second"];

/// Two writers of one aggregate. The first holds the row of the aggregate and has not emitted yet. The second begins
/// with `shape` and waits. The first then emits and commits, and the second continues. Returns what is read, in order.
async fn second_writer(first_has: &str, setup: &str, shape: &str) -> Vec<String> {
    let bed = SqlTest::on_shared_server(8).await;
    bed.run(
        "CREATE TABLE agg (id text PRIMARY KEY, n int NOT NULL DEFAULT 0, last uuid); INSERT INTO agg VALUES ('k')",
    )
    .await;
    bed.run(setup).await;
    let mut reader = Reader::start(&bed).await;
    let (mut first, mut second) = (bed.session().await, bed.session().await);
    first.run(&format!("SET session_replication_role = replica; BEGIN; {first_has}")).await;
    second.run("BEGIN").await;
    let second = second.start(shape);
    bed.wait_until_blocked(&second).await;
    first.run(&format!("{}; COMMIT", emit("k", "first"))).await;
    second.finish().await.run("COMMIT").await;
    reader.drain().await
}

/// The shape keeps the order, whether the first writer locked or changed the row.
async fn assert_keeps_order(setup: &str, shape: &str) {
    for first_has in [LOCK, UPDATE] {
        assert_eq!(second_writer(first_has, setup, shape).await, IN_ORDER, "{first_has}; {shape}");
    }
}

/// The shape inverts the order in both cases.
async fn assert_reorders(setup: &str, shape: &str, where_it_changed: &[&str]) {
    assert_eq!(second_writer(LOCK, setup, shape).await, REORDERED, "{shape}");
    assert_eq!(second_writer(UPDATE, setup, shape).await, where_it_changed, "{shape}");
}

/// The emit of the second writer.
fn second() -> String {
    emit("k", "second").replace("SELECT ", "")
}

/// A trigger on the aggregate that emits. The session of the first writer does not fire it.
fn trigger(when: &str, each: &str) -> String {
    format!(
        "CREATE FUNCTION emit_on_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM {}; RETURN NEW; END $$;
        CREATE TRIGGER emit_on_change {when} ON agg FOR EACH {each} EXECUTE FUNCTION emit_on_change()",
        second()
    )
}

#[tokio::test]
async fn a_lock_in_an_earlier_statement_keeps_the_order() {
    for lock in [LOCK, UPDATE] {
        assert_keeps_order("", &format!("{lock}; SELECT {}", second())).await;
    }
}

#[tokio::test]
async fn an_update_that_returns_the_emit_keeps_the_order() {
    assert_keeps_order("", &format!("{UPDATE} RETURNING {}", second())).await;
}

#[tokio::test]
async fn an_emit_that_consumes_the_locked_rows_keeps_the_order() {
    assert_keeps_order("", &format!("WITH u AS ({UPDATE} RETURNING id) SELECT {} FROM u", second())).await;
}

#[tokio::test]
async fn row_triggers_of_an_update_keep_the_order() {
    for when in ["BEFORE UPDATE", "AFTER UPDATE"] {
        assert_keeps_order(&trigger(when, "ROW"), UPDATE).await;
    }
}

#[tokio::test]
async fn an_emit_beside_an_unreferenced_update_reorders() {
    assert_reorders("", &format!("WITH u AS ({UPDATE} RETURNING id) SELECT {}", second()), &REORDERED).await;
}

#[tokio::test]
async fn an_emit_in_the_set_list_reorders() {
    assert_reorders("", &format!("UPDATE agg SET last = {} WHERE id = 'k'", second()), &REORDERED_AND_DUPLICATED).await;
}

#[tokio::test]
async fn an_emit_in_the_same_select_as_the_lock_reorders() {
    assert_reorders("", &format!("SELECT {} FROM agg WHERE id = 'k' FOR UPDATE", second()), &REORDERED_AND_DUPLICATED)
        .await;
}

#[tokio::test]
async fn a_before_insert_trigger_of_an_upsert_reorders() {
    let shape = "INSERT INTO agg (id) VALUES ('k') ON CONFLICT (id) DO UPDATE SET n = agg.n + 1";
    assert_reorders(&trigger("BEFORE INSERT", "ROW"), shape, &REORDERED).await;
}

#[tokio::test]
async fn a_before_statement_trigger_reorders() {
    assert_reorders(&trigger("BEFORE UPDATE", "STATEMENT"), UPDATE, &REORDERED).await;
}

fn emit_with_lock_key(key: &str, label: &str) -> String {
    format!("SELECT relevo.emit('topic', '{key}', '{label}', '{{}}', lock_key => true)")
}

#[tokio::test]
async fn writers_that_lock_nothing_are_not_ordered() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut reader = Reader::start(&bed).await;
    let mut early = bed.session().await;
    early.run(&format!("BEGIN; {}", emit("k", "commits second"))).await;
    bed.emit("k", "commits first").await;
    early.run("COMMIT").await;
    assert_eq!(reader.drain().await, ["commits second", "commits first"]);
}

#[tokio::test]
async fn lock_key_orders_writers_that_lock_nothing() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut reader = Reader::start(&bed).await;
    let mut first = bed.session().await;
    first.run(&format!("BEGIN; {}", emit_with_lock_key("k", "first"))).await;
    let second = bed.session().await.start(&emit_with_lock_key("k", "second"));
    bed.wait_until_blocked(&second).await;
    bed.run(&emit_with_lock_key("another", "free")).await;
    first.run(&format!("{}; COMMIT", emit_with_lock_key("k", "first again"))).await;
    second.finish().await;
    assert_eq!(reader.drain().await, ["first", "free", "first again", "second"]);
}

/// The first writer holds the lock of the key and has not emitted. The second writer's emit waits for the lock.
async fn second_waits_for_the_lock(bed: &SqlTest, lock: &str, first: &str, second: &str) -> Vec<String> {
    let mut reader = Reader::start(bed).await;
    let mut holder = bed.session().await;
    holder.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({lock})")).await;
    let waits = bed.session().await.start(second);
    bed.wait_until_blocked(&waits).await;
    holder.run(&format!("{first}; COMMIT")).await;
    waits.finish().await;
    reader.drain().await
}

#[tokio::test]
async fn emit_draws_its_number_after_it_waited_for_the_key() {
    let bed = SqlTest::on_shared_server(8).await;
    let lock = "relevo.advisory_lock_key('key/k')";
    let read =
        second_waits_for_the_lock(&bed, lock, &emit_with_lock_key("k", "first"), &emit_with_lock_key("k", "second"))
            .await;
    assert_eq!(read, IN_ORDER);
}

#[tokio::test]
async fn a_number_drawn_in_the_statement_that_waits_for_the_key_reorders() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.run(
        "CREATE FUNCTION lock() RETURNS bytea LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock(7); RETURN '{}'; END $$",
    )
    .await;
    let naive = |label: &str| {
        format!(
            "INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
            VALUES (nextval('relevo.message_seq'), pg_current_xact_id(), relevo.slot_of('k'), relevo.new_id(),
                clock_timestamp(), 'topic', 'k', '{label}', 'application/json', lock())"
        )
    };
    assert_eq!(second_waits_for_the_lock(&bed, "7", &naive("first"), &naive("second")).await, REORDERED);
}

#[tokio::test]
async fn emit_draws_its_number_after_it_waited_for_its_id() {
    let bed = SqlTest::on_shared_server(8).await;
    let id = "00000000-0000-7000-8000-000000000001";
    let mut first = bed.session().await;
    first.run(&format!("BEGIN; SELECT relevo.emit('topic', 'k', 'undone', '{{}}', id => '{id}')")).await;
    let second =
        bed.session().await.start(&format!("SELECT relevo.emit('topic', 'k', 'second', '{{}}', id => '{id}')"));
    bed.wait_until_blocked(&second).await;
    bed.emit("k", "meanwhile").await;
    first.run("ROLLBACK").await;
    second.finish().await;
    let order = bed.session().await.list("SELECT type FROM relevo.message ORDER BY seq").await;
    assert_eq!(order, ["meanwhile", "second"]);
}

/// Returns two keys in the order in which their locks are acquired.
async fn keys_in_lock_order(bed: &SqlTest) -> [String; 2] {
    let keys = "SELECT k FROM unnest(ARRAY['a', 'b']) AS k ORDER BY relevo.advisory_lock_key('key/' || k)";
    bed.session().await.list(keys).await.try_into().expect("two keys")
}

fn drafts(fields: [String; 2]) -> String {
    let drafts = fields.map(|field| format!("{{\"topic\": \"t\", \"type\": \"m\", \"payload\": {{}}, {field}}}"));
    format!("'[{}]'", drafts.join(", "))
}

/// A third session holds the higher lock. One call names that key first, the other names it last.
async fn opposite_calls(bed: &SqlTest, function: &str) -> Vec<Result<(), String>> {
    let [low, high] = keys_in_lock_order(bed).await;
    let of = |key: &String| format!("\"key\": \"{key}\", \"lock_key\": true");
    let mut holder = bed.session().await;
    holder.run(&format!("BEGIN; SELECT pg_advisory_xact_lock(relevo.advisory_lock_key('key/{high}'))")).await;
    let down = bed.session().await.start(&format!("SELECT {function}({})", drafts([of(&high), of(&low)])));
    bed.wait_until_blocked(&down).await;
    let up = bed.session().await.start(&format!("SELECT {function}({})", drafts([of(&low), of(&high)])));
    bed.wait_until_blocked(&up).await;
    holder.run("COMMIT").await;
    let mut ends = Vec::new();
    for call in [down, up] {
        ends.push(call.result().await.1.map(|_| ()).map_err(|error| code(&error)));
    }
    ends
}

#[tokio::test]
async fn two_emit_many_calls_in_opposite_orders_do_not_deadlock() {
    let bed = SqlTest::on_shared_server(8).await;
    assert_eq!(opposite_calls(&bed, "relevo.emit_many").await, [Ok(()), Ok(())]);

    bed.run(
        "CREATE FUNCTION naive_many(messages jsonb) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE
            m jsonb;
        BEGIN
            FOR m IN SELECT jsonb_array_elements(messages) LOOP
                PERFORM relevo.emit(m ->> 'topic', m ->> 'key', m ->> 'type', m -> 'payload', lock_key => true);
            END LOOP;
        END $$",
    )
    .await;
    let mut ends = opposite_calls(&bed, "naive_many").await;
    ends.sort();
    assert_eq!(ends, [Ok(()), Err("40P01".to_owned())], "one of them is the deadlock's victim");
}

const LOW: &str = "00000000-0000-7000-8000-000000000001";
const HIGH: &str = "00000000-0000-7000-8000-000000000002";

fn with_id(session: &str) -> String {
    format!("SELECT relevo.emit('t', 'k', 'm', '{{}}', id => '{session}', on_duplicate => 'ignore')")
}

#[tokio::test]
async fn emit_many_claims_ids_in_sorted_order() {
    let bed = SqlTest::on_shared_server(8).await;
    let of = |id: &str| format!("\"key\": \"k\", \"id\": \"{id}\", \"on_duplicate\": \"ignore\"");
    let mut holder = bed.session().await;
    holder.run(&format!("BEGIN; {}", with_id(HIGH))).await;
    let down = bed.session().await.start(&format!("SELECT relevo.emit_many({})", drafts([of(HIGH), of(LOW)])));
    bed.wait_until_blocked(&down).await;
    let up = bed.session().await.start(&format!("SELECT relevo.emit_many({})", drafts([of(LOW), of(HIGH)])));
    // The first call has already claimed the lower id, although it was named last. The second call waits for it, not
    // for the holder.
    bed.wait_until(
        "the second waits for the first",
        &format!("SELECT pg_blocking_pids({}) = ARRAY[{}]", up.pid, down.pid),
    )
    .await;
    holder.run("ROLLBACK").await;
    down.finish().await;
    up.finish().await;
    assert_eq!(bed.session().await.scalar::<i64>("SELECT count(*) FROM relevo.message").await, 2, "each id once");
}

#[tokio::test]
async fn single_emits_of_ids_in_opposite_orders_deadlock() {
    let bed = SqlTest::on_shared_server(8).await;
    let (mut up, mut down): (Session, Session) = (bed.session().await, bed.session().await);
    up.run(&format!("BEGIN; {}", with_id(LOW))).await;
    down.run(&format!("BEGIN; {}", with_id(HIGH))).await;
    let up = up.start(&with_id(HIGH));
    bed.wait_until_blocked(&up).await;
    let down = down.start(&with_id(LOW));
    // The other transaction continues when the victim's transaction has ended.
    let mut ends =
        [up.result().await.1.map(|_| ()), down.result().await.1.map(|_| ())].map(|end| end.map_err(|e| code(&e)));
    ends.sort();
    assert_eq!(ends, [Ok(()), Err("40P01".to_owned())]);
}
