//! Why a key waits, which relay holds which shard, which settings break a guarantee.

use super::support::{Cli, objects, stable};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;

/// Every shard is held by a relay that is no process.
const HELD: &str = "UPDATE relevo.lease SET owner = '5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10', epoch = 3, \
    expires_at = now() + interval '1 day'; INSERT INTO relevo.relay SELECT 'main', \
    '5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10', 'porter', now() + interval '1 day'";

#[tokio::test]
async fn why_explains_each_cause_with_the_command_to_type() {
    let cli = Cli::with_destination().await;
    let mut answers = Vec::new();
    let mut record = |what: &str| {
        let (prose, stderr) = cli.succeeds(&["why", "o-1"]);
        assert_eq!(stderr, "");
        answers.push(format!("# {what}\n{}", stable(&prose, &cli)));
    };
    record("idle");
    let scheduled = cli.succeeds(&["emit", "orders", "o-1", "OrderPlaced", "0", "--deliver-at", "3h"]);
    record("scheduled");
    cli.sql(&format!("SELECT relevo.cancel('{}')", scheduled.0.trim_end())).await;
    let id = cli.emit("o-1", "1");
    record("no relay");
    cli.sql(HELD).await;
    record("unread");
    cli.succeeds(&["destination", "disable", "main"]);
    record("disabled");
    cli.succeeds(&["destination", "enable", "main"]);
    cli.settle().await;
    cli.dead_letter(&id).await;
    record("dead");
    cli.succeeds(&["dead-letter", "discard", &id, "--reason", "test", "--yes"]);
    record("marked");
    cli.sql(
        "DELETE FROM relevo.dead_letter; UPDATE relevo.parked_key SET state = 'retrying', dead_id = NULL, \
         next_at = now() + interval '3 h'; INSERT INTO relevo.parked_message (destination, key, seq, slot, id, created_at, \
         topic, type, content_type, payload) SELECT 'main', key, seq, slot, id, created_at, topic, type, content_type, payload \
         FROM relevo.message",
    )
    .await;
    record("retrying");
    cli.sql("UPDATE relevo.parked_key SET state = 'quarantined'").await;
    record("quarantined");
    cli.sql(
        "UPDATE relevo.parked_key SET state = 'held', next_at = NULL, address = 'orders.eu'; INSERT INTO relevo.address_hold \
         (destination, address, class, error, next_at) VALUES ('main', 'orders.eu', 'blocked', 'no queue', now() + interval '3 h')",
    )
    .await;
    record("held");
    insta::assert_snapshot!("why", answers.join("\n\n"));
    let (json, _) = cli.succeeds(&["why", "o-1", "-o", "json"]);
    let why = &objects(&json)[0];
    assert_eq!((why["cause"].as_str(), why["address"].as_str()), (Some("address_held"), Some("orders.eu")));
    assert_eq!((why["waiting"].as_u64(), why["head"]["id"].as_str()), (Some(1), Some(&*id)));
    assert_eq!(why["shard"]["owner"], "porter");
}

#[tokio::test]
async fn a_destination_is_shown_with_its_backlog_and_shards() {
    let cli = Cli::with_destination().await;
    cli.sql(HELD).await;
    cli.sql("UPDATE relevo.lease SET owner = NULL, expires_at = '-infinity' WHERE shard = 1").await;
    cli.sql("UPDATE relevo.lease SET expires_at = now() - interval '1 s' WHERE shard = 2").await;
    let (table, _) = cli.succeeds(&["destination", "show"]);
    insta::assert_snapshot!(
        "destination_show",
        stable(&table, &cli).replace("24 h", "<lasts>").replace("23 h", "<lasts>")
    );
    let shards = objects(&cli.succeeds(&["destination", "show", "-o", "json"]).0);
    let shards = shards[0]["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4);
    assert_eq!((&shards[1]["owner"], &shards[1]["lease_expires_in_ms"]), (&serde_json::Value::Null, &0.into()));
    assert_eq!((&shards[3]["owner"], &shards[3]["epoch"]), (&"porter".into(), &3.into()));
}

#[tokio::test]
async fn verify_counts_and_an_inconsistency_is_exit_code_3() {
    let cli = Cli::with_destination().await;
    cli.emit("o-1", "1");
    cli.settle().await;
    cli.emit("o-2", "2");
    cli.succeeds(&["emit", "orders", "o-4", "T", "4", "--deliver-at", "1h"]);
    let (counts, _) = cli.succeeds(&["verify"]);
    insta::assert_snapshot!("verify", stable(&counts, &cli));
    assert!(cli.succeeds(&["verify", "--until", "1h"]).0.starts_with("committed  0\n"));
    cli.sql(
        "INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, next_at, route, class, error) \
         VALUES ('main', 'o-3', 1, 'retrying', 1, now(), 'r', 'transient', 'no')",
    )
    .await;
    let (code, stdout, stderr) = cli.run(&["verify"], "");
    assert_eq!((code, stderr.as_str()), (3, ""));
    assert!(stdout.ends_with("inconsistency: parked keys with an empty queue: 1 (`o-3`)\n"), "{stdout}");
    let (code, stdout, _) = cli.run(&["verify", "--since", "1h", "-o", "json"], "");
    let verified = &objects(&stdout)[0];
    assert_eq!(
        (code, verified["committed"].as_u64(), verified["inconsistencies"].as_array().unwrap().len()),
        (3, Some(2), 1)
    );
    assert_eq!(
        (verified["by_status"]["published"].as_u64(), verified["by_status"]["pending"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(verified["by_status"]["scheduled"], 1, "reported, but not counted as committed");
}

#[tokio::test]
async fn a_healthy_outbox_is_exit_code_0_and_a_sick_one_3() {
    // A private server flushes its log. The shared one does not.
    let server = Private::start(PgVersion::V15).await;
    let cli = Cli { database: server.database().await };
    cli.succeeds(&["migrate"]);
    cli.succeeds(&["destination", "add", "main", "--shards", "4"]);
    cli.sql(HELD).await;
    let (healthy, stderr) = cli.succeeds(&["doctor"]);
    assert_eq!(stderr, "");
    let healthy = stable(&healthy, &cli);
    let clock =
        healthy.lines().find(|line| line.contains("this machine is")).expect("the clocks are compared").to_owned();
    let version = format!("schema version  version {}", relevo_store_postgres::migrate::VERSION);
    let healthy = healthy.replace(&clock, "ok  clock  <difference>").replace(&version, "schema version  <version>");
    insta::assert_snapshot!("doctor", healthy);
    cli.succeeds(&["destination", "disable", "main"]);
    let (code, sick, _) = cli.run(&["doctor"], "");
    assert_eq!(code, 3);
    assert!(sick.contains("fix: `relevo destination enable main`"), "{sick}");
    assert!(sick.ends_with("0 errors, 1 warning, 1 info\n"), "{sick}");
    let (code, json, _) = cli.run(&["doctor", "-o", "json"], "");
    assert_eq!(code, 3);
    let findings = objects(&json);
    let off = findings.iter().find(|finding| finding["severity"] == "warning").expect("a warning");
    assert_eq!(off["subject"], "destinations");
    assert!(findings.iter().all(|finding| finding["observed"].is_string()));
}

#[tokio::test]
async fn a_lost_database_is_exit_code_5() {
    let server = Private::start(PgVersion::V15).await;
    let cli = Cli { database: server.database().await };
    cli.succeeds(&["migrate"]);
    server.stop().await;
    for args in [&["message", "list"][..], &["doctor"], &["migrate", "--dry-run"], &["emit", "t", "k", "T", "1"]] {
        let stderr = cli.fails(5, args);
        assert!(stderr.contains("127.0.0.1:"), "{args:?}: {stderr}");
    }
}
