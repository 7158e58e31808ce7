//! `relevo check`: the preflight of a configuration.

use std::path::PathBuf;

use lapin::types::AMQPValue;
use relevo_testkit::PgVersion;
use relevo_testkit::postgres;
use relevo_testkit::rabbitmq::{Server, Vhost};
use serde_json::Value;

use crate::broker_messages::declare_queue;
use crate::command::relevo;
use crate::test_outbox::Directory;

/// A file with this database and this broker.
fn file(directory: &Directory, database: &str, broker: &str) -> PathBuf {
    let text = format!(
        "[outboxes.shop]\ndatabase = \"{database}\"\n[outboxes.shop.destinations.main.broker]\n{}\n",
        broker.replace("BROKER", "outboxes.shop.destinations.main.broker")
    );
    directory.write("relevo.toml", &text)
}

fn sqlite(directory: &Directory) -> String {
    format!("sqlite:{}", directory.path().join("shop.db").display())
}

fn embedded(directory: &Directory) -> String {
    format!("kind = \"embedded\"\npath = \"{}\"", directory.path().join("broker.db").display())
}

fn rabbit(vhost: &Vhost) -> String {
    format!(
        "kind = \"rabbitmq\"\nurl = \"{}\"\nmanagement_url = \"{}\"\nexchange = \"shop\"\n\
         queues.billing = {{ max_length = 1000, bind = [\"shop/orders.#\"] }}",
        vhost.amqp_url(),
        vhost.management_url()
    )
}

/// The exit code and all rows.
fn check(file: &std::path::Path) -> (i32, Vec<Value>) {
    let (code, stdout, stderr) = relevo(file, &["check", "-o", "json"]);
    assert_eq!(stderr, "");
    (code, stdout.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect())
}

/// The result, the observation and the fix of the first row of a check.
fn row<'a>(rows: &'a [Value], check: &str) -> (&'a str, &'a str, Option<&'a str>) {
    let row = rows.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no `{check}` in {rows:#?}"));
    let text = |key: &str| row[key].as_str();
    (text("result").expect("a word"), text("observed").expect("a text"), text("fix"))
}

fn errors(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["result"] == "error").collect()
}

#[tokio::test]
async fn a_database_without_an_outbox_is_a_finding_and_then_all_is_well() {
    let directory = Directory::new();
    let file = file(&directory, &sqlite(&directory), &embedded(&directory));
    assert!(check(&file).0 > 0);
    assert_eq!(relevo(&file, &["migrate"]).0, 0);
    let (code, rows) = check(&file);
    assert_eq!((code, errors(&rows).len()), (0, 0), "{rows:#?}");
    assert_eq!(row(&rows, "configuration").0, "ok");
    assert_eq!(row(&rows, "database").0, "ok");
    assert_eq!(row(&rows, "destination"), ("info", "missing; `relevo run` adds it", None));
    let (code, table, stderr) = relevo(&file, &["check"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let table = table.replace(&directory.path().display().to_string(), "<directory>");
    let of_the_machine = |line: &&str| line.contains("free space") || line.contains("file system");
    let lines = table.lines().filter(|line| !of_the_machine(line));
    let lines: Vec<String> = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    insta::assert_snapshot!("check", lines.join("\n"));
}

#[tokio::test]
async fn a_postgresql_database_that_is_not_migrated_is_a_finding_with_its_fix() {
    let (directory, database) = (Directory::new(), postgres::Server::shared(PgVersion::V15).database().await);
    let (code, rows) = check(&file(&directory, &database.url(), &embedded(&directory)));
    assert_eq!(code, 3, "{rows:#?}");
    assert_eq!(row(&rows, "database").0, "ok");
    let expected = ("error", "not migrated: 1 migration to apply", Some("run `relevo migrate --outbox shop`"));
    assert_eq!(row(&rows, "schema"), expected);
}

#[tokio::test]
async fn an_unreachable_database_does_not_hide_the_broker() {
    let directory = Directory::new();
    // Nothing listens on port 1 of loopback.
    let file = file(&directory, "postgres://me:sesame@127.0.0.1:1/shop", &embedded(&directory));
    let (code, rows) = check(&file);
    assert_eq!(code, 5, "{rows:#?}");
    let (result, observed, fix) = row(&rows, "database");
    assert!(result == "error" && observed.contains("refused") && fix.is_some(), "{rows:#?}");
    assert_eq!(row(&rows, "topology").0, "ok");
    assert!(!format!("{rows:?}").contains("sesame"), "{rows:?}");
}

#[test]
fn every_problem_of_the_configuration_is_a_row() {
    let directory = Directory::new();
    let file = file(&directory, "sqlite:shop.db", "kind = \"embedded\"\npath = \"a.db\"\nretenton = \"1s\"");
    let (code, rows) = check(&file);
    assert_eq!((code, rows.len()), (2, 1), "{rows:#?}");
    let (result, observed, fix) = row(&rows, "configuration");
    assert!(result == "error" && observed.contains("retenton"), "{rows:#?}");
    assert_eq!(fix, Some("did you mean `retention`?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_is_information_and_a_different_queue_an_error() {
    let (directory, vhost) = (Directory::new(), Server::shared().vhost().await);
    let file = file(&directory, &sqlite(&directory), &rabbit(&vhost));
    assert_eq!(relevo(&file, &["migrate"]).0, 0);
    let (_, rows) = check(&file);
    assert_eq!(row(&rows, "exchange `shop`"), ("info", "missing; `relevo run` creates it", None));
    assert_eq!(row(&rows, "queue `billing`").0, "info");
    let quorum = ("x-queue-type", AMQPValue::LongString("quorum".into()));
    declare_queue(&vhost.amqp_url(), "billing", &[quorum, ("x-max-length", AMQPValue::LongInt(7))]).await;
    let (code, rows) = check(&file);
    let (result, observed, fix) = row(&rows, "queue `billing`");
    assert_eq!((code, result), (3, "error"));
    assert!(observed.starts_with("different: ") && observed.contains("`x-max-length` is 7, wanted 1000"), "{observed}");
    assert!(fix.is_some());
}
