//! Scheduled messages that are cancelled, roles, settings.

use relevo_core::inbox::InboxRetention;
use relevo_store_postgres::inbox::{Config, Inbox};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnection;

use super::fixture::{billing, id};
use super::support::{Cli, objects, run};

#[tokio::test]
async fn a_scheduled_message_is_cancelled_once_and_a_published_one_never() {
    let cli = Cli::with_destination().await;
    let (id, _) = cli.succeeds(&["emit", "orders", "o-1", "OrderPlaced", "{}", "--deliver-at", "1h"]);
    let id = id.trim_end();
    assert_eq!(cli.succeeds(&["cancel", id]), (String::new(), format!("message {id} is cancelled\n")));
    assert_eq!(cli.number("SELECT count(*) FROM relevo.scheduled").await, 0);
    let unknown = cli.fails(4, &["cancel", id]);
    assert!(unknown.starts_with(&format!("error: message {id} is not scheduled in the outbox at ")), "{unknown}");
    let published = cli.emit("o-1", "{}");
    cli.settle().await;
    assert_eq!(
        cli.fails(1, &["cancel", &published]),
        format!("error: message {published} is no longer scheduled: it is `published` at destination `main`\n")
    );
}

const EMIT: &str = "SELECT relevo.emit('orders', 'o-1', 'OrderPlaced', '{}')";
const TICK: &str = "SELECT * FROM relevo.make_tick()";
const PRUNE: &str = "SELECT relevo.inbox_prune('billing')";
const READ: &str = "SELECT count(*) FROM relevo.message";

/// Runs a statement as a role, and returns the code of its error.
async fn code(role: &mut PgConnection, sql: &str) -> Option<String> {
    match sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(role).await {
        Ok(_) => None,
        Err(sqlx::Error::Database(error)) => error.code().map(Into::into),
        Err(error) => panic!("{sql}: {error}"),
    }
}

/// On a private server, because roles belong to the whole server.
#[tokio::test]
async fn a_granted_role_can_do_its_work_and_nothing_else() {
    let server = Private::start(PgVersion::V15).await;
    let cli = Cli { database: server.database().await };
    cli.succeeds(&["migrate"]);
    for (kind, may) in [("writer", EMIT), ("relay", TICK), ("consumer", PRUNE), ("operator", READ)] {
        let role = format!("my {kind}");
        cli.sql(&format!("CREATE ROLE \"{role}\" LOGIN")).await;
        let mut session = cli.database.options().username(&role).connect().await.expect("a role that may log in");
        assert_eq!(code(&mut session, may).await.as_deref(), Some("42501"), "before the grant");
        let (_, granted) = cli.succeeds(&["grant", kind, &role]);
        assert!(granted.starts_with(&format!("role `{role}` may ")), "{granted}");
        for sql in [EMIT, TICK, PRUNE, "DELETE FROM relevo.message", "SELECT relevo.grant_writer('my writer')"] {
            let expected = if sql == may { None } else { Some("42501") };
            assert_eq!(code(&mut session, sql).await.as_deref(), expected, "{kind}: {sql}");
        }
        assert_eq!(code(&mut session, may).await, None, "{kind}");
    }
    let unknown = cli.fails(4, &["grant", "writer", "no one"]);
    assert_eq!(unknown, "error: role `no one` does not exist\nhint: create it with `CREATE ROLE`\n");
    assert_eq!(cli.run(&["grant", "owner", "my writer"], "").0, 2);
}

/// An outbox and an inbox with dead letters, and a role with the grant of an operator. Returns its URL and a dead letter.
async fn database_with_operator(cli: &Cli) -> (String, String) {
    cli.succeeds(&["migrate"]);
    cli.succeeds(&["destination", "add", "main", "--shards", "4"]);
    let dead = cli.emit("o-1", "{}");
    cli.settle().await;
    cli.dead_letter(&dead).await;
    let inbox = Inbox::open(&Config::new(cli.database.options()), "billing", InboxRetention::default()).await;
    billing(&inbox.expect("a migrated database")).await;
    cli.sql("CREATE ROLE ana LOGIN").await;
    cli.succeeds(&["grant", "operator", "ana"]);
    (cli.database.url().replace("postgres@", "ana@"), dead)
}

#[tokio::test]
async fn an_operator_may_run_every_command_that_reads() {
    let server = Private::start(PgVersion::V15).await;
    let cli = Cli { database: server.database().await };
    let (url, dead) = database_with_operator(&cli).await;
    let handled = id(1).to_string();
    for args in [
        &["status"][..],
        &["destination", "list"],
        &["destination", "show", "main"],
        &["message", "list"],
        &["message", "show", &dead],
        &["message", "tail"],
        &["why", "o-1"],
        &["verify"],
        &["trace", &dead],
        &["trace", &handled],
        &["dead-letter", "list"],
        &["dead-letter", "show", &dead],
        &["consumer", "list"],
        &["consumer", "show", "billing"],
        &["replay", "plan", "billing"],
        &["replay", "list", "billing", "-o", "json"],
        &["settings", "get"],
    ] {
        let (code, stdout, stderr) = run(&url, args, "");
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
    }
    let (_, stdout, stderr) = run(&url, &["doctor"], "");
    assert!(!format!("{stdout}{stderr}").contains("permission denied"), "{stdout}{stderr}");
}

#[tokio::test]
async fn a_missing_right_is_an_error_that_names_the_grant() {
    let server = Private::start(PgVersion::V15).await;
    let cli = Cli { database: server.database().await };
    let (url, dead) = database_with_operator(&cli).await;
    cli.sql("REVOKE EXECUTE ON FUNCTION relevo.shard_positions FROM ana").await;
    for args in [&["trace", &dead][..], &["message", "show", &dead]] {
        let (code, stdout, stderr) = run(&url, args, "");
        assert_eq!((code, stdout.as_str()), (1, ""), "{args:?}: {stderr}");
        assert!(stderr.contains("permission denied for function shard_positions"), "{stderr}");
        assert!(stderr.contains("\nhint: grant the role its rights with `relevo grant`"), "{stderr}");
    }
    cli.sql(&format!("SELECT relevo.inbox_insert('billing', '{dead}')")).await;
    let (code, stdout, stderr) = run(&url, &["trace", &dead], "");
    assert!(code == 0 && stdout.contains("billing"), "consumers are searched all the same: {stderr}");
    assert!(stderr.starts_with("destination `main`: permission denied"), "{stderr}");
}

#[tokio::test]
async fn settings_are_printed_and_changed_one_by_one() {
    let cli = Cli::migrated().await;
    let (settings, _) = cli.succeeds(&["settings", "get"]);
    assert_eq!(
        settings,
        "retention              7 days\nid_retention           30 days\ndead_letter_retention  90 days\n"
    );
    let (_, changed) = cli.succeeds(&["settings", "set", "--retention", "3d"]);
    assert!(
        changed.ends_with(": retention 3 days, id_retention 30 days, dead_letter_retention 90 days\n"),
        "{changed}"
    );
    let (json, _) = cli.succeeds(&["settings", "get", "-o", "json"]);
    assert_eq!(objects(&json)[0]["retention_ms"], 259_200_000);
    assert_eq!(cli.run(&["settings", "set"], "").0, 2);
    assert!(cli.fails(2, &["settings", "set", "--retention", "0s"]).contains("longer than zero"));
}
