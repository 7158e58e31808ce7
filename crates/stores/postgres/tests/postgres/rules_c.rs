//! Rules C1, C2 and P8: which relay may settle, and what a takeover sees.

use crate::sql_support::{Session, SqlTest};
use serde_json::{Value, json};

const OLD: &str = "00000000-0000-4000-8000-00000000000a";
const NEW: &str = "00000000-0000-4000-8000-00000000000b";
const PARKED: &str = "SELECT key FROM relevo.parked_key";
const PROGRESS: &str = "SELECT count(*) FROM relevo.progress WHERE from_tick > 0";
const NONE: [&str; 0] = [];

/// Acquires free leases. Returns the shards and epochs of all leases of this owner.
async fn acquire_leases(session: &mut Session, owner: &str) -> Value {
    let request = json!({ "owner": owner, "name": "relay", "lease_ms": 600_000, "release": [] });
    let answer: String = session.scalar(&format!("SELECT relevo.acquire_leases('main', '{request}')::text")).await;
    serde_json::from_str::<Value>(&answer).expect("JSON")["leases"].clone()
}

/// Parks message 1 of key `k`, and settles the shard at tick 1.
fn settle(shard: u16, epoch: i64, owner: &str) -> String {
    let park = json!({
        "seq": 1, "slot": shard, "key": "k", "stop": "retrying", "after_ms": 0, "attempts": 1, "class": "transient",
        "error": "it was refused", "route": "r",
    });
    let doc = json!({
        "leases": [[shard, epoch, owner]], "shards": 2, "progress": [[shard, 1, 1, 0]], "parks": [park],
    });
    format!("SELECT relevo.settle('main', '{doc}')::text")
}

/// One message that the old owner has read. Its leases have expired, so any relay may acquire them.
async fn with_an_expired_owner() -> SqlTest {
    let bed = SqlTest::on_shared_server(2).await;
    bed.emit("k", "m").await;
    bed.run("SELECT relevo.make_tick()").await;
    assert_eq!(acquire_leases(&mut bed.session().await, OLD).await, json!([[0, 1], [1, 1]]));
    bed.run("UPDATE relevo.lease SET expires_at = '-infinity'; UPDATE relevo.relay SET expires_at = '-infinity'").await;
    bed
}

#[tokio::test]
async fn c1_a_takeover_skips_a_shard_that_is_being_settled() {
    let bed = with_an_expired_owner().await;
    let (mut old, mut new) = (bed.session().await, bed.session().await);
    old.run("BEGIN").await;
    assert_eq!(old.scalar::<String>(&settle(0, 1, OLD)).await, r#"{"lost": [], "passed": []}"#);
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[1, 2]]), "only the other shard");
    old.run("COMMIT").await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[0, 2], [1, 2]]));
    assert_eq!(new.list(PARKED).await, ["k"], "it knows what the old owner parked");
    assert_eq!(new.scalar::<i64>("SELECT from_tick FROM relevo.shard_positions('main') WHERE shard = 0").await, 1);
    assert_eq!(old.scalar::<String>(&settle(0, 1, OLD)).await, r#"{"lost": [0], "passed": []}"#);
}

#[tokio::test]
async fn c1_an_epoch_check_without_a_lock_lets_the_new_owner_miss_a_parked_key() {
    let bed = with_an_expired_owner().await;
    bed.mutate("lock_held_leases", "FOR SHARE OF l", "").await;
    let (mut old, mut new) = (bed.session().await, bed.session().await);
    old.run("BEGIN").await;
    assert_eq!(old.scalar::<String>(&settle(0, 1, OLD)).await, r#"{"lost": [], "passed": []}"#);
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[0, 2], [1, 2]]));
    assert_eq!(new.list(PARKED).await, NONE, "what it loads");
    old.run("COMMIT").await;
    assert_eq!(new.list(PARKED).await, ["k"], "what it publishes past");
}

#[tokio::test]
async fn c1_a_key_share_lock_does_not_stop_a_takeover_and_a_share_lock_does() {
    let takeover = format!("UPDATE relevo.lease SET epoch = epoch + 1, owner = '{NEW}' WHERE shard = 0");
    let bed = with_an_expired_owner().await;
    let mut old = bed.session().await;
    old.run(&format!("BEGIN; {}", settle(0, 1, OLD))).await;
    let new = bed.session().await.start(&takeover);
    bed.wait_until_blocked(&new).await;
    old.run("COMMIT").await;
    assert_eq!(new.finish().await.list(PARKED).await, ["k"]);

    let naive = with_an_expired_owner().await;
    naive.mutate("lock_held_leases", "FOR SHARE OF l", "FOR KEY SHARE OF l").await;
    let (mut old, mut new) = (naive.session().await, naive.session().await);
    old.run(&format!("BEGIN; {}", settle(0, 1, OLD))).await;
    new.run(&takeover).await;
    assert_eq!(new.list(PARKED).await, NONE, "it did not wait");
    old.run("COMMIT").await;
    assert_eq!(new.list(PARKED).await, ["k"]);
}

#[tokio::test]
async fn c1_a_read_in_the_statement_that_waits_for_the_lease_is_stale() {
    let bed = with_an_expired_owner().await;
    let mut old = bed.session().await;
    old.run(&format!("BEGIN; {}", settle(0, 1, OLD))).await;
    let new = bed.session().await.start(
        "WITH l AS MATERIALIZED (SELECT shard FROM relevo.lease WHERE shard = 0 FOR UPDATE)
        SELECT k.key FROM l CROSS JOIN relevo.parked_key AS k",
    );
    bed.wait_until_blocked(&new).await;
    old.run("COMMIT").await;
    let (mut new, read) = new.result().await;
    assert_eq!(read.expect("an answer").len(), 0, "the same statement");
    assert_eq!(new.list(PARKED).await, ["k"], "a later statement");
}

#[tokio::test]
async fn c1_a_settlement_waits_for_a_takeover_and_then_changes_nothing() {
    let bed = with_an_expired_owner().await;
    let mut new = bed.session().await;
    new.run("BEGIN").await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[0, 2], [1, 2]]));
    let old = bed.session().await.start(&settle(0, 1, OLD));
    bed.wait_until_blocked(&old).await;
    new.run("COMMIT").await;
    let (mut session, answer) = old.result().await;
    let answer: String = sqlx::Row::try_get(&answer.expect("an answer")[0], 0).expect("text");
    assert_eq!(answer, r#"{"lost": [0], "passed": []}"#);
    assert_eq!(session.list(PARKED).await, NONE);
    assert_eq!(session.scalar::<i64>(PROGRESS).await, 0);
}

#[tokio::test]
async fn c2_an_owner_that_hangs_while_it_settles_is_ended_by_the_server() {
    let bed = with_an_expired_owner().await;
    let (mut naive, mut hanging, mut new) = (bed.session().await, bed.session().await, bed.session().await);
    naive.run("BEGIN; SELECT 1 FROM relevo.lease WHERE shard = 0 FOR SHARE").await;
    hanging.run(&format!("BEGIN; {}", settle(1, 1, OLD))).await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([]), "both are skipped");
    let ended = format!("SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = {})", hanging.pid);
    bed.wait_until("the server ends it", &ended).await;
    assert_eq!(
        acquire_leases(&mut new, NEW).await,
        json!([[1, 2]]),
        "without the timeout the other is skipped for ever"
    );
    assert_eq!(new.list(PARKED).await, NONE, "what hung is undone");
    naive.run("ROLLBACK").await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[0, 2], [1, 2]]));
}

#[tokio::test]
async fn c2_an_owner_that_hangs_while_it_takes_leases_is_ended_by_the_server() {
    let bed = with_an_expired_owner().await;
    let (mut hanging, mut new) = (bed.session().await, bed.session().await);
    let request = json!({ "owner": OLD, "name": "relay", "lease_ms": 1000, "release": [] });
    hanging.run(&format!("BEGIN; SELECT relevo.acquire_leases('main', '{request}')")).await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([]));
    let ended = format!("SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = {})", hanging.pid);
    bed.wait_until("the server ends it", &ended).await;
    assert_eq!(acquire_leases(&mut new, NEW).await, json!([[0, 2], [1, 2]]));
}

/// After a failover two owners may hold the same epoch. Returns the result of the old owner's settlement and the stored
/// progress.
async fn with_equal_epochs(bed: &SqlTest) -> (String, i64) {
    bed.emit("k", "m").await;
    let mut session = bed.session().await;
    session.run("SELECT relevo.make_tick()").await;
    assert_eq!(acquire_leases(&mut session, NEW).await, json!([[0, 1], [1, 1]]));
    let answer = session.scalar(&settle(0, 1, OLD)).await;
    (answer, session.scalar(PROGRESS).await)
}

#[tokio::test]
async fn p8_an_equal_epoch_of_another_owner_settles_nothing() {
    let bed = SqlTest::on_shared_server(2).await;
    assert_eq!(with_equal_epochs(&bed).await, (r#"{"lost": [0], "passed": []}"#.to_owned(), 0));
    let mut session = bed.session().await;
    assert_eq!(session.list(PARKED).await, NONE);
    // The old owner also cannot settle or process messages that the real owner parked.
    session.run(&settle(0, 1, NEW)).await;
    let due = |owner: &str| {
        let doc = json!({ "leases": [[0, 1, owner]], "shards": 2, "keys": 9, "messages": 9 });
        format!("SELECT key FROM relevo.read_parked('main', '{doc}')")
    };
    assert_eq!(session.list(&due(OLD)).await, NONE);
    assert_eq!(session.list(&due(NEW)).await, ["k"]);
    let advance = |owner: &str| {
        let run = json!({ "key": "k", "shard": 0, "delivered": [1], "ordinal": null, "park": null, "released": null });
        let doc = json!({ "leases": [[0, 1, owner]], "runs": [run] });
        format!("SELECT relevo.settle_parked('main', '{doc}')::text")
    };
    assert_eq!(session.scalar::<String>(&advance(OLD)).await, r#"["lost"]"#);
    assert_eq!(session.scalar::<String>(&advance(NEW)).await, r#"["unparked"]"#);

    let naive = SqlTest::on_shared_server(2).await;
    naive.mutate("lock_held_leases", "AND l.owner = (w ->> 2)::uuid", "").await;
    assert_eq!(with_equal_epochs(&naive).await, (r#"{"lost": [], "passed": []}"#.to_owned(), 1));
}
