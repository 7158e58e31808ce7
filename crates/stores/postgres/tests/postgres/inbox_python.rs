//! Runs the Python example of the guide, as a user would run it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::relay_support::TestDatabase;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/how-to/examples/inbox.py");
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/how-to/consume-from-any-language.md");

/// Returns a Python with psycopg. The test fails on a machine without one.
fn python() -> String {
    std::env::var("RELEVO_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}

async fn test_database() -> TestDatabase {
    let world = TestDatabase::new().await;
    world.run("CREATE TABLE invoices (order_id text NOT NULL, cents bigint NOT NULL CHECK (cents > 0))").await;
    world
}

/// Returns the example's output for these deliveries, one line each, and whether it succeeded.
fn run(world: &TestDatabase, deliveries: &[String]) -> (Vec<String>, bool) {
    let options = world.database.options();
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", options.get_port(), world.database.name());
    let mut child = Command::new(python())
        .arg(EXAMPLE)
        .env("DATABASE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python is installed; `cargo xtask services up` does it");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(deliveries.join("\n").as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("ModuleNotFoundError"), "apt-get install python3-psycopg: {errors}");
    let said = String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect();
    (said, output.status.success())
}

fn id(number: u32) -> String {
    format!("00000000-0000-7000-8000-{number:012}")
}

fn delivery(number: u32, cents: i64) -> String {
    format!(r#"{{"id": "{}", "order": "o-{number}", "cents": {cents}}}"#, id(number))
}

fn expected_line(number: u32, word: &str) -> String {
    format!("{} {word}", id(number))
}

#[tokio::test]
async fn a_duplicate_has_no_second_effect() {
    let world = test_database().await;
    let deliveries = [delivery(1, 100), delivery(2, 200), delivery(1, 100)];
    let (lines, ended_well) = run(&world, &deliveries);
    assert!(ended_well);
    assert_eq!(lines, [expected_line(1, "handled"), expected_line(2, "handled"), expected_line(1, "repeat")]);
    // A later run in another process.
    assert_eq!(run(&world, &deliveries[..1]).0, [expected_line(1, "repeat")]);
    assert_eq!(world.texts("SELECT order_id FROM invoices ORDER BY order_id").await, ["o-1", "o-2"]);
    assert_eq!(world.texts("SELECT key FROM relevo.message ORDER BY seq").await, ["o-1", "o-2"]);
}

#[tokio::test]
async fn a_handler_that_fails_leaves_nothing_and_is_tried_again() {
    let world = test_database().await;
    let (lines, ended_well) = run(&world, &[delivery(1, -1)]);
    assert!(lines.is_empty() && !ended_well, "the table refuses it: {lines:?}");
    assert_eq!(world.number("SELECT count(*) FROM relevo.inbox").await, 0);
    assert_eq!(run(&world, &[delivery(1, 100)]).0, [expected_line(1, "handled")]);
}

#[tokio::test]
async fn a_message_that_another_worker_has_is_busy() {
    let world = test_database().await;
    let mut other = world.connect().await;
    let begin = format!("BEGIN; SELECT relevo.inbox_insert('invoicing', '{}')", id(1));
    crate::relay_support::execute(&mut other, &begin).await.expect("a new message");
    let (lines, _) = run(&world, &[delivery(1, 100), delivery(2, 200)]);
    assert_eq!(lines, [expected_line(1, "busy"), expected_line(2, "handled")]);
    crate::relay_support::execute(&mut other, "ROLLBACK").await.expect("an open transaction");
    assert_eq!(run(&world, &[delivery(1, 100)]).0, [expected_line(1, "handled")]);
}

#[test]
fn the_guide_shows_the_file_that_runs() {
    let (guide, example) = (std::fs::read_to_string(GUIDE), std::fs::read_to_string(EXAMPLE));
    assert!(guide.expect("the guide").contains(example.expect("the example").trim_end()));
}
