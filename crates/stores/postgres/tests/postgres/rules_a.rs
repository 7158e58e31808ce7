//! Rules A1 to A5: how ticks are created, and what a window contains. Each test shows what fails without the rule.

use crate::sql_support::{Reader, SqlTest, code, emit};
use relevo_core::outbox::Position;

/// The pause that tests insert into functions: they wait for the session that holds this lock.
const PAUSE: &str = "PERFORM pg_advisory_xact_lock(7);";
const NONE: [&str; 0] = [];
const TICK: &str = "SELECT tick FROM relevo.make_tick()";

/// The newest transaction is open. The snapshot ends before it and does not list it.
async fn with_the_youngest_writer_open(bed: &SqlTest) -> Vec<String> {
    let mut reader = Reader::start(bed).await;
    let mut writer = bed.session().await;
    writer.run("BEGIN").await;
    writer.run(&emit("k", "late")).await;
    assert_eq!(reader.drain().await, NONE);
    let quirk = "SELECT snapshot::text || ' ' || max_seq FROM relevo.tick WHERE tick = 1";
    let xid: String = writer.scalar("SELECT pg_current_xact_id()::text").await;
    assert_eq!(writer.scalar::<String>(quirk).await, format!("{xid}:{xid}: 1"), "neither listed as open nor above");
    writer.run("COMMIT").await;
    bed.emit("k", "next").await;
    reader.drain().await
}

#[tokio::test]
async fn a1_a_writer_that_no_snapshot_lists_is_read_when_it_commits() {
    let bed = SqlTest::on_private_server(&[]).await;
    assert_eq!(with_the_youngest_writer_open(&bed).await, ["late", "next"]);

    let naive = SqlTest::on_private_server(&[]).await;
    // The mutation treats only listed transactions as late, not all up to the tick's own id.
    naive.mutate("make_tick", "b::text::bigint - 1", "-1").await;
    assert_eq!(with_the_youngest_writer_open(&naive).await, ["next"]);
}

/// A message is written while the creation of a tick is paused.
async fn with_a_message_during_the_tick(bed: &SqlTest) -> Vec<String> {
    let mut reader = Reader::start(bed).await;
    bed.emit("k", "before").await;
    let mut pause = bed.session().await;
    pause.run("SELECT pg_advisory_lock(7)").await;
    let tick = bed.session().await.start("SELECT relevo.make_tick()");
    bed.wait_until_blocked(&tick).await;
    bed.emit("k", "during").await;
    pause.run("SELECT pg_advisory_unlock(7)").await;
    tick.finish().await;
    let mut labels = reader.read_to_tick(1).await;
    labels.extend(reader.drain().await);
    labels
}

#[tokio::test]
async fn a1_the_sequence_is_read_after_the_snapshot() {
    const SNAPSHOT: &str = "SELECT pg_current_snapshot() INTO s;";
    const HIGH: &str = "SELECT last_seq() INTO h;";
    let bed = SqlTest::on_shared_server(8).await;
    bed.mutate("make_tick", SNAPSHOT, &format!("{SNAPSHOT} {PAUSE}")).await;
    assert_eq!(with_a_message_during_the_tick(&bed).await, ["before", "during"]);

    let naive = SqlTest::on_shared_server(8).await;
    naive.mutate("make_tick", HIGH, "").await;
    naive.mutate("make_tick", SNAPSHOT, &format!("{HIGH} {PAUSE} {SNAPSHOT}")).await;
    assert_eq!(with_a_message_during_the_tick(&naive).await, ["before"], "above the first tick and seen by it");
}

#[tokio::test]
async fn a1_a_message_between_the_tick_s_sequence_and_its_own_id_is_read_once() {
    const OWN: &str = "b := pg_current_xact_id();";
    let bed = SqlTest::on_shared_server(8).await;
    bed.mutate("make_tick", OWN, &format!("{PAUSE} {OWN}")).await;
    assert_eq!(with_a_message_during_the_tick(&bed).await, ["before", "during"]);
}

#[tokio::test]
async fn a1_emit_has_its_transaction_id_before_it_draws_a_number() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.emit("k", "warm").await;
    // The fast path, the full path, and the batch.
    for call in [
        "relevo.emit('topic', 'k', 'paused', '{}')",
        "relevo.emit('topic', 'k', 'paused', '{}', headers => '{\"a\": \"b\"}')",
        "relevo.emit_many('[{\"topic\": \"t\", \"key\": \"k\", \"type\": \"paused\", \"payload\": {}}]')",
    ] {
        let mut reader = Reader::start(&bed).await;
        reader.drain().await;
        let drawn: i64 = bed.session().await.scalar("SELECT last_value FROM relevo.message_seq").await;
        // The number is drawn before the row is routed to its partition.
        let mut pause = bed.session().await;
        pause.run("BEGIN; LOCK TABLE relevo.message_1 IN ACCESS EXCLUSIVE MODE").await;
        let writer = bed.session().await.start(&format!("SELECT {call}"));
        bed.wait_until_blocked(&writer).await;
        assert!(drawn < bed.session().await.scalar("SELECT last_value FROM relevo.message_seq").await);
        let has_id = format!(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = {} AND locktype = 'transactionid' AND granted)",
            writer.pid
        );
        assert!(bed.session().await.scalar::<bool>(&has_id).await, "{call}");
        let tick: i64 = bed.session().await.scalar(TICK).await;
        reader.settle(Position::at(tick)).await;
        pause.run("COMMIT").await;
        writer.finish().await;
        assert_eq!(reader.drain().await, ["paused"], "{call}");
        reader.leave().await;
    }
}

#[tokio::test]
async fn a1_a_number_drawn_before_the_transaction_id_is_lost() {
    let bed = SqlTest::on_private_server(&[]).await;
    bed.run(
        "CREATE FUNCTION naive_emit(label text) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE
            n bigint := nextval('relevo.message_seq');
        BEGIN
            PERFORM pg_advisory_xact_lock(7);
            INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
            VALUES (n, pg_current_xact_id(), relevo.slot_of('k'), relevo.new_id(), clock_timestamp(), 'topic', 'k',
                label, 'application/json', '{}');
        END $$",
    )
    .await;
    let mut reader = Reader::start(&bed).await;
    // PostgreSQL logs the first number after a checkpoint, and otherwise one of 32. Only a logged number assigns a
    // transaction id.
    bed.emit("k", "warm").await;
    assert_eq!(reader.drain().await, ["warm"]);
    let mut pause = bed.session().await;
    pause.run("SELECT pg_advisory_lock(7)").await;
    let writer = bed.session().await.start("SELECT naive_emit('paused')");
    bed.wait_until_blocked(&writer).await;
    assert_eq!(reader.drain().await, NONE, "a tick whose id is older than the writer's");
    pause.run("SELECT pg_advisory_unlock(7)").await;
    writer.finish().await;
    bed.emit("k", "next").await;
    assert_eq!(reader.drain().await, ["next"]);
}

#[tokio::test]
async fn a2_a_tick_is_refused_where_its_snapshot_would_be_old() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.emit("k", "m").await;
    let mut session = bed.session().await;
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        assert_eq!(session.expect_error_in(begin, "SELECT relevo.make_tick()").await, "RV001", "{begin}");
    }
    assert_eq!(session.scalar::<i64>("SELECT max(tick) FROM relevo.tick").await, 0);
    assert_eq!(session.scalar::<i64>(TICK).await, 1);
}

#[tokio::test]
async fn a2_a_snapshot_from_before_the_lock_reads_a_message_twice() {
    // Under REPEATABLE READ the function uses the snapshot of the transaction. In one statement it uses the snapshot of
    // the statement.
    for naive in [
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT naive_make_tick(); COMMIT",
        "INSERT INTO naive_tick (snapshot, high, late)
        SELECT pg_current_snapshot(), q.last_value, naive_late(pg_current_snapshot(), pg_current_xact_id())
        FROM (SELECT pg_advisory_xact_lock(7) OFFSET 0) AS l, relevo.message_seq AS q",
    ] {
        let bed = SqlTest::on_shared_server(8).await;
        bed.run(NAIVE_TICKS).await;
        let mut winner = bed.session().await;
        winner.run("BEGIN; SELECT pg_advisory_xact_lock(7)").await;
        let loser = bed.session().await.start(naive);
        bed.wait_until_blocked(&loser).await;
        bed.emit("k", "m").await;
        winner.run("SELECT naive_make_tick(); COMMIT").await;
        let mut session = loser.finish().await;
        session.run("SELECT naive_make_tick()").await;
        let older =
            "SELECT b.xmax < a.xmax FROM (SELECT pg_snapshot_xmax(snapshot) AS xmax FROM naive_tick WHERE no = 2) AS a,
            (SELECT pg_snapshot_xmax(snapshot) AS xmax FROM naive_tick WHERE no = 3) AS b";
        assert!(session.scalar::<bool>(older).await, "the second tick is older than the first: {naive}");
        let mut read = Vec::new();
        for window in ["1, 2", "2, 3", "3, 4"] {
            read.extend(session.list(&format!("SELECT naive_window({window})")).await);
        }
        assert_eq!(read, ["m", "m"], "{naive}");
    }
}

/// Ticks like the real ones, but created after waiting for the lock. Tick 1 is the initial tick.
const NAIVE_TICKS: &str = "
    CREATE TABLE naive_tick (no int GENERATED ALWAYS AS IDENTITY, snapshot pg_snapshot, high bigint, late xid8[]);
    INSERT INTO naive_tick (snapshot, high, late) VALUES ('3:3:', 0, '{}');
    CREATE FUNCTION naive_late(s pg_snapshot, b xid8) RETURNS xid8[] LANGUAGE sql AS $$
        SELECT ARRAY(SELECT pg_snapshot_xip(s) UNION ALL SELECT x::text::xid8
            FROM generate_series(pg_snapshot_xmax(s)::text::bigint, b::text::bigint - 1) AS x) $$;
    CREATE FUNCTION naive_make_tick() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        s pg_snapshot;
        h bigint;
    BEGIN
        PERFORM pg_advisory_xact_lock(7);
        SELECT pg_current_snapshot() INTO s;
        SELECT last_value INTO h FROM relevo.message_seq;
        INSERT INTO naive_tick (snapshot, high, late) VALUES (s, h, naive_late(s, pg_current_xact_id()));
    END $$;
    CREATE FUNCTION naive_window(a int, b int) RETURNS SETOF text LANGUAGE sql AS $$
        SELECT m.type FROM relevo.message AS m, naive_tick AS f, naive_tick AS t
        WHERE f.no = a AND t.no = b
            AND pg_visible_in_snapshot(m.xid, t.snapshot) AND NOT pg_visible_in_snapshot(m.xid, f.snapshot)
            AND ((m.seq > f.high AND m.seq <= t.high) OR (m.seq <= f.high AND m.xid = ANY (f.late)))
        ORDER BY m.seq $$";

#[tokio::test]
async fn a2_a_concurrent_tick_does_not_wait_and_uses_the_winner_s_tick() {
    let bed = SqlTest::on_shared_server(8).await;
    let (mut winner, mut loser) = (bed.session().await, bed.session().await);
    bed.emit("k", "m").await;
    winner.run("BEGIN").await;
    assert_eq!(winner.scalar::<i64>(TICK).await, 1);
    assert_eq!(loser.scalar::<i64>(TICK).await, 0, "the newest that is committed");
    winner.run("COMMIT; BEGIN; SELECT pg_advisory_xact_lock(relevo.advisory_lock_key('tick'))").await;
    bed.emit("k", "n").await;
    assert_eq!(loser.scalar::<i64>(TICK).await, 1, "the winner's");
    winner.run("COMMIT").await;
    assert_eq!(loser.scalar::<i64>(TICK).await, 2);
}

#[tokio::test]
async fn a3_a_position_with_the_last_tick_only_loses_two_messages() {
    let bed = SqlTest::on_shared_server(8).await;
    // Without the lock: the second tick draws its number, but the third tick commits first.
    bed.run(&NAIVE_TICKS.replace(PAUSE, "")).await;
    let mut slow = bed.session().await;
    for label in ["m1", "m2", "m3"] {
        bed.emit("k", label).await;
    }
    slow.run("BEGIN; SELECT naive_make_tick()").await;
    for label in ["m4", "m5"] {
        bed.emit("k", label).await;
    }
    let mut quick = bed.session().await;
    quick.run("SELECT naive_make_tick()").await;
    let newest = "SELECT no::text FROM naive_tick ORDER BY no";
    assert_eq!(quick.list(newest).await, ["1", "3"]);
    assert_eq!(quick.list("SELECT naive_window(1, 3) LIMIT 1").await, ["m1"]);
    // It settles `tick 3, place 1` and dies. The next relay assumes that the window begins at the tick before the
    // third.
    slow.run("COMMIT").await;
    assert_eq!(quick.list(newest).await, ["1", "2", "3"]);
    assert_eq!(quick.list("SELECT naive_window(2, 3)").await, ["m4", "m5"], "m2 and m3 are lost");
}

#[tokio::test]
async fn a3_a_position_within_a_window_is_resumed_exactly_after_newer_ticks() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut slow = bed.session().await;
    for label in ["m1", "m2", "m3"] {
        bed.emit("k", label).await;
    }
    let mut reader = Reader::start(&bed).await;
    slow.run("BEGIN; SELECT relevo.make_tick()").await;
    for label in ["m4", "m5"] {
        bed.emit("k", label).await;
    }
    assert_eq!(reader.next(1).await, NONE, "no tick can overtake one that is being made");
    slow.run("COMMIT").await;
    assert_eq!(reader.next(1).await, ["m1"]);
    let place = reader.position.clone();
    assert!(!place.is_exhausted());
    reader.leave().await;
    for label in ["m6", "m7"] {
        bed.emit("k", label).await;
        slow.run("SELECT relevo.make_tick()").await;
    }
    let mut next = Reader::start(&bed).await;
    assert_eq!(next.position, place);
    assert_eq!(next.next(100).await, ["m2", "m3", "m4", "m5"], "the old window to its end and no further");
    assert_eq!(next.drain().await, ["m6", "m7"]);
}

#[tokio::test]
async fn a4_a_transaction_that_wrote_makes_no_tick() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.emit("k", "m").await;
    let mut session = bed.session().await;
    for write in [
        emit("k", "own"),
        "SELECT relevo.move_due_scheduled(10)".to_owned(),
        "CREATE TABLE t ()".to_owned(),
        "SELECT pg_current_xact_id()".to_owned(),
    ] {
        let begin = format!("BEGIN; {write}");
        assert_eq!(session.expect_error_in(&begin, "SELECT relevo.make_tick()").await, "RV001", "{write}");
    }
}

/// A transaction that moves due messages is open, and another message commits first.
async fn with_a_commit_before_the_mover_s(bed: &SqlTest) -> Vec<String> {
    let mut reader = Reader::start(bed).await;
    bed.run("SELECT relevo.emit('topic', 'k', 'due', '{}', deliver_at => clock_timestamp() + interval '1 hour')").await;
    bed.run("UPDATE relevo.scheduled SET due_at = clock_timestamp()").await;
    let (mut mover, mut writer) = (bed.session().await, bed.session().await);
    writer.run(&format!("BEGIN; {}", emit("k", "first"))).await;
    mover.run("BEGIN; SELECT relevo.move_due_scheduled(10)").await;
    bed.emit("other", "other").await;
    let refused = mover.try_rows("SAVEPOINT s; SELECT relevo.make_tick()").await.err().map(|error| code(&error));
    if refused.is_some() {
        mover.run("ROLLBACK TO s").await;
    }
    writer.run("COMMIT").await;
    mover.run("COMMIT").await;
    if refused.is_none() {
        return reader.read_to_tick(1).await.into_iter().chain(reader.drain().await).collect();
    }
    assert_eq!(refused.as_deref(), Some("RV001"));
    reader.drain().await
}

#[tokio::test]
async fn a4_due_messages_enter_in_a_transaction_that_makes_no_tick() {
    let bed = SqlTest::on_shared_server(8).await;
    assert_eq!(with_a_commit_before_the_mover_s(&bed).await, ["first", "due", "other"]);

    let naive = SqlTest::on_shared_server(8).await;
    naive.mutate("make_tick", "pg_current_xact_id_if_assigned() IS NOT NULL", "false").await;
    // The tick sees its own message, but not the one that committed before it.
    assert_eq!(with_a_commit_before_the_mover_s(&naive).await, ["due", "other", "first"]);
}

#[tokio::test]
async fn a5_an_idle_outbox_still_sees_a_late_commit() {
    for naive in [false, true] {
        let bed = SqlTest::on_private_server(&[]).await;
        if naive {
            // The mutation reports nothing new unless a number was drawn.
            bed.mutate("make_tick", "unnest(last_tick.late_xids)", "unnest('{}'::xid8[])").await;
        }
        let mut reader = Reader::start(&bed).await;
        let mut writer = bed.session().await;
        writer.run(&format!("BEGIN; {}", emit("k", "late"))).await;
        assert_eq!(reader.drain().await, NONE);
        let stand = reader.position.clone();
        assert_eq!(reader.drain().await, NONE);
        assert_eq!(reader.position, stand, "while the writer is open there is nothing new");
        writer.run("COMMIT").await;
        let read = reader.drain().await;
        if naive {
            assert_eq!(read, NONE, "stranded until a number is drawn");
        } else {
            assert_eq!(read, ["late"]);
            let stand = reader.position.clone();
            assert_eq!(reader.drain().await, NONE);
            assert_eq!(reader.position, stand, "idle again: no tick is made");
        }
    }
}
