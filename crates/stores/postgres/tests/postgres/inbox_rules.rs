//! Rules E1 to E4 and C3 for the inbox, each with the interleaving that fails without the rule.

use crate::sql_support::{Session, SqlTest, code};

const OLD: &str = "00000000-0000-4000-8000-00000000000a";
const NEW: &str = "00000000-0000-4000-8000-00000000000b";
/// The lane as its owner holds it at epoch 1.
const LANE_OF_OLD: &str = "'lane', 1, '00000000-0000-4000-8000-00000000000a'";
const LANE_OF_NEW: &str = "'lane', 2, '00000000-0000-4000-8000-00000000000b'";
const NO_LANE: &str = "NULL, NULL, NULL";
const EFFECTS: &str = "SELECT line FROM ledger ORDER BY no";
const NONE: [&str; 0] = [];

async fn sql_test() -> SqlTest {
    let bed = SqlTest::on_shared_server(1).await;
    bed.run("CREATE TABLE ledger (no bigint GENERATED ALWAYS AS IDENTITY, line text NOT NULL)").await;
    bed
}

fn id(number: u32) -> String {
    format!("00000000-0000-7000-8000-{number:012}")
}

fn begin(number: u32) -> String {
    format!("SELECT relevo.inbox_insert('billing', '{}')", id(number))
}

/// Whether a message is inserted alone or with others.
#[derive(Clone, Copy)]
enum Form {
    One,
    Several,
}

impl Form {
    const ALL: [Self; 2] = [Self::One, Self::Several];

    fn enter(self, number: u32, lane: &str) -> String {
        let id = id(number);
        match self {
            Self::One => format!("SELECT relevo.inbox_insert_one('billing', '{id}', 0, 'k', {lane}, 100, 0)"),
            Self::Several => {
                format!("SELECT relevo.inbox_insert_many('billing', '{{{id}}}', '{{0}}', '{{k}}', {lane}, 100, 0)")
            }
        }
    }

    fn function(self) -> &'static str {
        match self {
            Self::One => "inbox_insert_one",
            Self::Several => "inbox_insert_many",
        }
    }

    /// The end of the statement that checks the queue.
    fn lane_check_phrase(self) -> &'static str {
        match self {
            Self::One => "p_queue",
            Self::Several => "(p_queues)",
        }
    }
}

fn enter(number: u32, lane: &str) -> String {
    Form::One.enter(number, lane)
}

fn arrival(number: u32) -> String {
    format!(
        "ROW('{}', 0, 'k', '{{}}', '{{}}', 'm{number}', 'orders', 'lane', {number}, 0)::relevo.inbox_arrival",
        id(number)
    )
}

fn append(number: u32) -> String {
    format!("SELECT relevo.inbox_append('billing', ARRAY[{}])", arrival(number))
}

fn claim(number: u32) -> String {
    format!("SELECT claim::text FROM relevo.inbox_claim_call('billing', {}, {NO_LANE}, 60000, 100)", arrival(number))
}

fn begin_claimed(number: u32, token: &str) -> String {
    let arrival = arrival(number);
    format!("SELECT relevo.inbox_complete_call('billing', {arrival}, {NO_LANE}, '{token}', 100, 0)")
}

fn set_back(number: u32, lane: &str, stop: &str) -> String {
    let arrival = arrival(number);
    format!("SELECT relevo.inbox_fail('billing', {arrival}, {lane}, NULL, '{stop}', 0, 1, 'refused', 'no', NULL, 100)")
}

fn effect(line: &str) -> String {
    format!("INSERT INTO ledger (line) VALUES ('{line}')")
}

async fn first_value(session: &mut Session, sql: &str) -> Option<String> {
    session.scalar(sql).await
}

#[tokio::test]
async fn e1_a_duplicate_waits_briefly_and_keeps_the_lock_timeout_of_its_session() {
    let bed = sql_test().await;
    let (mut first, mut second) = (bed.session().await, bed.session().await);
    first.run("BEGIN").await;
    assert!(first.scalar::<bool>(&begin(1)).await);
    second.run("SET lock_timeout = '7s'; SET statement_timeout = '30s'").await;
    assert_eq!(second.expect_error(&begin(1)).await, "55P03", "it does not hang with the first");
    first.run("COMMIT").await;
    second.run("BEGIN").await;
    assert!(!second.scalar::<bool>(&begin(1)).await);
    assert!(second.scalar::<bool>(&begin(2)).await);
    assert_eq!(second.scalar::<String>("SHOW lock_timeout").await, "7s", "the handler's statements wait as before");
    assert_eq!(second.scalar::<String>("SHOW statement_timeout").await, "30s");
    second.run("COMMIT").await;
}

#[tokio::test]
async fn e1_without_a_limit_the_duplicate_hangs_with_the_first() {
    let bed = sql_test().await;
    bed.mutate(
        "inbox_insert_many",
        "pg_catalog.set_config('lock_timeout', p_lock_timeout_ms::pg_catalog.text, true)",
        "''",
    )
    .await;
    let mut first = bed.session().await;
    first.run(&format!("BEGIN; {}", begin(1))).await;
    let second = bed.session().await.start(&begin(1));
    bed.wait_until_blocked(&second).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    bed.wait_until_blocked(&second).await;
    first.run("COMMIT").await;
    second.finish().await;
}

#[tokio::test]
async fn e1_a_single_insert_waits_briefly_and_keeps_the_lock_timeout_of_its_session() {
    let bed = sql_test().await;
    let (mut first, mut second) = (bed.session().await, bed.session().await);
    first.run("BEGIN").await;
    assert_eq!(first_value(&mut first, &enter(1, NO_LANE)).await, None);
    second.run("SET lock_timeout = '7s'").await;
    assert_eq!(second.expect_error(&enter(1, NO_LANE)).await, "55P03", "it does not hang with the first");
    first.run("COMMIT").await;
    second.run("BEGIN").await;
    assert_eq!(first_value(&mut second, &enter(1, NO_LANE)).await, Some(format!("{} 0 done", id(1))));
    assert_eq!(second.scalar::<String>("SHOW lock_timeout").await, "7s");
    assert_eq!(first_value(&mut second, &enter(2, NO_LANE)).await, None);
    assert_eq!(second.scalar::<String>("SHOW lock_timeout").await, "7s", "the handler's statements wait as before");
    second.run("COMMIT").await;
}

#[tokio::test]
async fn e1_an_old_snapshot_is_retried() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let bed = sql_test().await;
        let (mut first, mut second) = (bed.session().await, bed.session().await);
        second.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM ledger")).await;
        assert!(first.scalar::<bool>(&begin(1)).await);
        assert_eq!(second.expect_error(&begin(1)).await, "40001", "{level}");
        second.run("ROLLBACK").await;
        assert!(!second.scalar::<bool>(&begin(1)).await);
    }
}

/// A worker whose claim has expired, and another that claimed after it. Both have made the call.
async fn two_callers(bed: &SqlTest) -> (String, String) {
    let mut session = bed.session().await;
    let late: String = session.scalar(&claim(1)).await;
    session.run("UPDATE relevo.inbox SET claim_expires_at = '-infinity'").await;
    (late, session.scalar(&claim(1)).await)
}

#[tokio::test]
async fn e2_only_the_last_claim_commits_its_result() {
    let bed = sql_test().await;
    let (late, mine) = two_callers(&bed).await;
    let (mut slow, mut quick) = (bed.session().await, bed.session().await);
    assert!(!slow.scalar::<bool>(&begin_claimed(1, &late)).await);
    quick.run("BEGIN").await;
    assert!(quick.scalar::<bool>(&begin_claimed(1, &mine)).await);
    quick.run(&format!("{}; COMMIT", effect("quick"))).await;
    assert!(!slow.scalar::<bool>(&begin_claimed(1, &late)).await);
    assert_eq!(quick.list(EFFECTS).await, ["quick"]);
}

#[tokio::test]
async fn e2_without_the_token_both_results_are_committed() {
    let bed = sql_test().await;
    bed.mutate("inbox_complete_call", "AND i.state = 'calling' AND i.claim_token = p_token", "").await;
    let (late, mine) = two_callers(&bed).await;
    let mut session = bed.session().await;
    for (token, line) in [(&mine, "quick"), (&late, "slow")] {
        session.run("BEGIN").await;
        assert!(session.scalar::<bool>(&begin_claimed(1, token)).await);
        session.run(&format!("{}; COMMIT", effect(line))).await;
    }
    assert_eq!(session.list(EFFECTS).await, ["quick", "slow"]);
}

#[tokio::test]
async fn e2_a_running_call_is_not_repeated() {
    let word = format!("SELECT word FROM relevo.inbox_claim_call('billing', {}, {NO_LANE}, 60000, 100)", arrival(1));
    let ours = sql_test().await;
    let mut session = ours.session().await;
    assert_eq!(
        (session.scalar::<String>(&word).await, session.scalar::<String>(&word).await),
        ("mine".into(), "busy".into())
    );

    let naive = sql_test().await;
    let condition = "WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at < clock_timestamp())";
    naive.mutate("inbox_claim_call", condition, "").await;
    let mut session = naive.session().await;
    assert_eq!(
        (session.scalar::<String>(&word).await, session.scalar::<String>(&word).await),
        ("mine".into(), "mine".into())
    );
}

const REDRIVE: &str = "SELECT relevo.inbox_redrive('{\"ids\": []}', 'ana', 'fixed')";

#[tokio::test]
async fn e3_a_broker_duplicate_of_a_redriven_message_is_recognised() {
    let bed = sql_test().await;
    let mut session = bed.session().await;
    session.run(&set_back(1, NO_LANE, "dead_continue")).await;
    assert!(!session.scalar::<bool>(&begin(1)).await);
    assert_eq!(session.scalar::<i64>(REDRIVE).await, 1);
    assert!(!session.scalar::<bool>(&begin(1)).await, "it waits in the retry table, and is known");
    assert_eq!(session.scalar::<i64>(REDRIVE).await, 0, "a double click");
    assert_eq!(session.scalar::<i64>("SELECT count(*) FROM relevo.inbox_retry_message").await, 1);
}

#[tokio::test]
async fn e3_a_redrive_that_deletes_the_row_lets_the_duplicate_through() {
    let bed = sql_test().await;
    let set_state = "UPDATE inbox AS i SET state = 'redriven', unfinished_starts = 0\n    WHERE";
    bed.mutate("inbox_redrive_one", set_state, "DELETE FROM inbox AS i WHERE").await;
    let mut session = bed.session().await;
    session.run(&set_back(1, NO_LANE, "dead_continue")).await;
    session.run(REDRIVE).await;
    assert!(session.scalar::<bool>(&begin(1)).await, "handled, and still waiting to be handled again");
    assert_eq!(session.scalar::<i64>("SELECT count(*) FROM relevo.inbox_retry_message").await, 1);
}

/// A filter without ids selects by its other fields.
#[tokio::test]
async fn e3_dead_letters_are_selected_without_ids() {
    let bed = sql_test().await;
    let mut session = bed.session().await;
    for number in 1..=6 {
        session.run(&set_back(number, NO_LANE, "dead_continue")).await;
    }
    session.run("UPDATE relevo.inbox_dead_letter SET class = 'other' WHERE ordinal % 2 = 0").await;
    let count = "SELECT count(*) FROM relevo.inbox_dead_letter WHERE class = 'other'";
    let expected = session.scalar::<i64>(count).await;
    assert!((1..6).contains(&expected), "{expected}");
    for function in ["inbox_redrive", "inbox_discard"] {
        for (filter, matching) in [
            (r#"{"class": "other"}"#, expected),
            (r#"{"class": "other", "ids": null}"#, expected),
            (r#"{"class": "other", "ids": []}"#, expected),
            (r#"{"consumer": "shipping"}"#, 0),
            ("{}", 6),
        ] {
            let call = format!("SELECT relevo.{function}('{filter}', 'ana', 'fixed', true)");
            assert_eq!(session.scalar::<i64>(&call).await, matching, "{call}");
        }
    }
    let call = r#"SELECT relevo.inbox_discard('{"class": "other"}', 'ana', 'fixed')"#;
    assert_eq!(session.scalar::<i64>(call).await, expected);
    assert_eq!(session.scalar::<i64>(call).await, 0, "they are discarded");
}

/// A lane whose owner is dead.
async fn with_a_dead_owner() -> SqlTest {
    let bed = sql_test().await;
    let mut session = bed.session().await;
    for owner in [OLD, NEW] {
        session.run(&beat(owner)).await;
    }
    assert_eq!(session.scalar::<i64>(&take(OLD)).await, 1);
    session.run(&format!("UPDATE relevo.inbox_member SET expires_at = '-infinity' WHERE owner = '{OLD}'")).await;
    bed
}

fn beat(owner: &str) -> String {
    format!("SELECT relevo.inbox_heartbeat('billing', '{owner}', 'm', 60000, NULL, '[]', '[]', 100)")
}

fn take(owner: &str) -> String {
    format!("SELECT sum(epoch)::bigint FROM relevo.inbox_acquire_lanes('billing', '{owner}', '{{lane}}', 100)")
}

#[tokio::test]
async fn e4_a_worker_resumed_after_its_lane_moved_handles_nothing() {
    for form in Form::ALL {
        let bed = with_a_dead_owner().await;
        let (mut old, mut new) = (bed.session().await, bed.session().await);
        assert_eq!(new.scalar::<i64>(&take(NEW)).await, 2);
        assert_eq!(new.scalar::<String>(&set_back(2, LANE_OF_NEW, "retry")).await, "kept");
        assert_eq!(first_value(&mut old, &form.enter(3, LANE_OF_OLD)).await.as_deref(), Some("lost"));
        assert_eq!(old.scalar::<String>(&set_back(3, LANE_OF_OLD, "dead_continue")).await, "lost");
        assert_eq!(new.scalar::<i64>("SELECT count(*) FROM relevo.inbox").await, 1, "nothing but the second message");
    }
}

#[tokio::test]
async fn e4_a_lane_does_not_move_while_a_handler_has_it() {
    for form in Form::ALL {
        let bed = with_a_dead_owner().await;
        let (mut old, mut new) = (bed.session().await, bed.session().await);
        old.run("BEGIN").await;
        assert_eq!(first_value(&mut old, &form.enter(1, LANE_OF_OLD)).await, None);
        assert_eq!(new.scalar::<Option<i64>>(&take(NEW)).await, None, "it is left out");
        old.run(&format!("{}; COMMIT", effect("m1"))).await;
        assert_eq!(new.scalar::<i64>(&take(NEW)).await, 2);
        // A takeover waits for no session, but the old owner waits for it and then finds that the lane is lost.
        let mut new_takes = bed.session().await;
        new_takes.run("BEGIN; UPDATE relevo.inbox_lane SET epoch = epoch + 1").await;
        assert_eq!(old.expect_error(&form.enter(2, LANE_OF_NEW)).await, "55P03");
        new_takes.run("COMMIT").await;
        assert_eq!(first_value(&mut old, &form.enter(2, LANE_OF_NEW)).await.as_deref(), Some("lost"));
    }
}

#[tokio::test]
async fn e4_a_lane_check_without_a_lock_reorders_a_key() {
    for form in Form::ALL {
        let bed = with_a_dead_owner().await;
        bed.mutate(form.function(), "p_lane_owner FOR SHARE", "p_lane_owner").await;
        let (mut old, mut new) = (bed.session().await, bed.session().await);
        // The old owner has not handled m2. It begins m3, which was delivered to it too, and its process pauses there.
        old.run("BEGIN").await;
        assert_eq!(first_value(&mut old, &form.enter(3, LANE_OF_OLD)).await, None);
        assert_eq!(new.scalar::<i64>(&take(NEW)).await, 2);
        assert_eq!(new.scalar::<String>(&set_back(2, LANE_OF_NEW, "retry")).await, "kept");
        old.run(&format!("{}; COMMIT", effect("m3"))).await;
        assert_eq!(new.list(EFFECTS).await, ["m3"], "m2 of the same key still waits");
    }
}

/// A consumer whose only member is dead, and a new member whose first heartbeat is not committed yet.
async fn with_a_first_heartbeat(bed: &SqlTest) -> Session {
    let mut session = bed.session().await;
    session.run(&beat(OLD)).await;
    session.run("UPDATE relevo.inbox_member SET expires_at = '-infinity'").await;
    session.run(&format!("BEGIN; {}", beat(NEW))).await;
    session
}

const REMOVE_CONSUMER: &str = "SELECT relevo.inbox_remove_consumer('billing')";
const IS_REMOVED: &str = "SELECT removed_at IS NOT NULL FROM relevo.inbox_consumer";

#[tokio::test]
async fn e4_a_consumer_is_not_removed_during_a_first_heartbeat() {
    let bed = sql_test().await;
    let mut member = with_a_first_heartbeat(&bed).await;
    let forgetting = bed.session().await.start(REMOVE_CONSUMER);
    bed.wait_until_blocked(&forgetting).await;
    member.run("COMMIT").await;
    let mut session = forgetting.finish().await;
    assert!(!session.scalar::<bool>(IS_REMOVED).await, "it has seen the heartbeat");
    assert_eq!(session.scalar::<i64>("SELECT count(*) FROM relevo.inbox_member").await, 2);
    assert_eq!(session.scalar::<String>(REMOVE_CONSUMER).await, "alive");
}

#[tokio::test]
async fn e4_without_a_common_lock_a_live_consumer_is_removed() {
    let bed = sql_test().await;
    let lock = "PERFORM pg_advisory_xact_lock_shared(advisory_lock_key('consumer/' || p_consumer));";
    bed.mutate("inbox_heartbeat", lock, "").await;
    let mut member = with_a_first_heartbeat(&bed).await;
    let mut session = bed.session().await;
    assert_eq!(session.scalar::<String>(REMOVE_CONSUMER).await, "gone");
    member.run("COMMIT").await;
    assert!(session.scalar::<bool>(IS_REMOVED).await, "and it lives");
    assert_eq!(session.scalar::<i64>("SELECT count(*) FROM relevo.inbox_member").await, 1);
}

/// A queue whose only message was just handled. Returns the token of its claim.
async fn with_an_emptied_queue(bed: &SqlTest) -> String {
    let mut session = bed.session().await;
    assert_eq!(session.scalar::<String>(&set_back(1, NO_LANE, "retry")).await, "kept");
    let row = session
        .rows("SELECT claim_token::text, ordinal FROM relevo.inbox_claim_due_queues('billing', 1, 1, 60000)")
        .await;
    let token: String = sqlx::Row::try_get(&row[0], 0).expect("a token");
    let no: i64 = sqlx::Row::try_get(&row[0], 1).expect("a number");
    let first = format!("SELECT relevo.inbox_complete_queued('billing', 'k', '{token}', {no}, 100, 0)");
    assert!(session.scalar::<bool>(&first).await);
    token
}

fn release(token: &str) -> String {
    format!("SELECT relevo.inbox_release_queue('billing', 'k', '{token}', 5000)")
}

const QUEUES: &str = "SELECT queue FROM relevo.inbox_retry_queue";
const WAITING: &str = "SELECT convert_from(payload, 'UTF8') FROM relevo.inbox_retry_message ORDER BY ordinal";

#[tokio::test]
async fn c3_a_message_appended_while_the_queue_ends_is_not_stranded() {
    for form in Form::ALL {
        let bed = sql_test().await;
        let token = with_an_emptied_queue(&bed).await;
        let mut worker = bed.session().await;
        worker.run("BEGIN").await;
        let behind = first_value(&mut worker, &form.enter(3, NO_LANE)).await.expect("it is not plainly new");
        assert!(behind.ends_with(" behind"), "{behind}");
        worker.run(&append(3)).await;
        let releasing = bed.session().await.start(&release(&token));
        bed.wait_until_blocked(&releasing).await;
        worker.run("COMMIT").await;
        let mut session = releasing.finish().await;
        assert_eq!((session.list(QUEUES).await, session.list(WAITING).await), (vec!["k".into()], vec!["m3".into()]));
        let fourth = first_value(&mut session, &form.enter(4, NO_LANE)).await.expect("it is not plainly new");
        assert!(fourth.ends_with(" behind"), "{fourth}");
    }
}

#[tokio::test]
async fn c3_an_append_without_a_lock_is_stranded_and_overtaken() {
    for form in Form::ALL {
        let bed = sql_test().await;
        let check = form.lane_check_phrase();
        bed.mutate(form.function(), &format!("{check} FOR SHARE"), check).await;
        bed.mutate("inbox_classify_known", "ORDER BY q.queue FOR SHARE", "ORDER BY q.queue").await;
        let token = with_an_emptied_queue(&bed).await;
        let (mut worker, mut session) = (bed.session().await, bed.session().await);
        worker.run(&format!("BEGIN; {}; {}", form.enter(3, NO_LANE), append(3))).await;
        session.run(&release(&token)).await;
        worker.run("COMMIT").await;
        assert_eq!((session.list(QUEUES).await, session.list(WAITING).await), (vec![], vec!["m3".into()]), "stranded");
        assert_eq!(first_value(&mut session, &form.enter(4, NO_LANE)).await, None, "m4 passes m3");
    }
}

#[tokio::test]
async fn c3_a_read_in_the_statement_that_waits_for_the_queue_is_stale() {
    let bed = sql_test().await;
    with_an_emptied_queue(&bed).await;
    let mut worker = bed.session().await;
    worker.run(&format!("BEGIN; {}; {}", enter(3, NO_LANE), append(3))).await;
    let releasing = bed.session().await.start(
        "DELETE FROM relevo.inbox_retry_queue AS q WHERE NOT EXISTS \
         (SELECT 1 FROM relevo.inbox_retry_message AS w WHERE w.consumer = q.consumer AND w.queue = q.queue)",
    );
    bed.wait_until_blocked(&releasing).await;
    worker.run("COMMIT").await;
    let mut session = releasing.finish().await;
    assert_eq!((session.list(QUEUES).await, session.list(WAITING).await), (vec![], vec!["m3".into()]), "stranded");
}

#[tokio::test]
async fn c3_an_old_snapshot_may_not_end_a_queue() {
    let ours = sql_test().await;
    let token = with_an_emptied_queue(&ours).await;
    let mut session = ours.session().await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    assert_eq!(session.expect_error_in(begin, &release(&token)).await, "RV001");

    let naive = sql_test().await;
    naive.mutate("inbox_begin_call", "PERFORM require_read_committed();", "").await;
    let token = with_an_emptied_queue(&naive).await;
    let mut worker = naive.session().await;
    worker.run(&format!("BEGIN; {}; {}", enter(3, NO_LANE), append(3))).await;
    let mut session = naive.session().await;
    session.run(&format!("{begin}; SELECT 1 FROM ledger")).await;
    let releasing = session.start(&release(&token));
    naive.wait_until_blocked(&releasing).await;
    worker.run("COMMIT").await;
    let mut session = releasing.finish().await;
    session.run("COMMIT").await;
    assert_eq!((session.list(QUEUES).await, session.list(WAITING).await), (vec![], vec!["m3".into()]), "stranded");
}

#[tokio::test]
async fn an_acknowledged_message_survives_a_crash_whatever_the_session_sets() {
    let bed = sql_test().await;
    let mut session = bed.session().await;
    for level in ["off", "local"] {
        session.run(&format!("SET synchronous_commit = {level}; BEGIN; {}", begin(1))).await;
        assert_eq!(session.scalar::<String>("SHOW synchronous_commit").await, "on");
        session.run("ROLLBACK").await;
    }
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
    let bed = sql_test().await;
    let mut session = bed.session().await;
    for (arguments, expected) in [
        (format!("NULL, '{}'", id(1)), "22004"),
        ("'billing', NULL".to_owned(), "22004"),
        (format!("'billing', '{}', NULL", id(1)), "22004"),
        (format!("'', '{}'", id(1)), "22023"),
        (format!("repeat('a', 256), '{}'", id(1)), "22023"),
        (format!("E'a\\nb', '{}'", id(1)), "22023"),
        (format!("'billing', '{}', -1", id(1)), "22023"),
        (format!("'billing', '{}', 0, 0", id(1)), "22023"),
    ] {
        let error = session.try_rows(&format!("SELECT relevo.inbox_insert({arguments})")).await;
        assert_eq!(code(&error.expect_err("it is refused")), expected, "{arguments}");
    }
    assert_eq!(session.list("SELECT message_id::text FROM relevo.inbox").await, NONE);
}
