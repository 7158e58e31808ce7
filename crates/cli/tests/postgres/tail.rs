//! `message tail` prints every committed message once.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::support::{Cli, objects, stable};

/// A tail that runs.
struct Tail {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Tail {
    fn start(cli: &Cli, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_relevo"))
            .args(["message", "tail", "-f", "--interval", "20ms", "-o", "json"])
            .args(args)
            .env("RELEVO_DATABASE_URL", cli.database.url())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    /// Waits for the next message, and returns its key.
    fn next(&mut self) -> String {
        let line = self.lines.next().expect("one more line").expect("UTF-8");
        objects(&line)[0]["key"].as_str().expect("a key").to_owned()
    }

    fn interrupt(mut self) -> Option<i32> {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().expect("`kill` runs");
        assert!(sent.success());
        self.child.wait().expect("it ends").code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_printed_once_they_commit_and_no_late_one_is_missed() {
    let cli = Cli::migrated().await;
    cli.emit("before", "{}");
    let mut late = cli.database.connect().await;
    let emit = |key: &str| sqlx::AssertSqlSafe(format!("SELECT relevo.emit('orders', '{key}', 'T', '{{}}')"));
    sqlx::raw_sql("BEGIN").execute(&mut late).await.expect("a transaction");
    sqlx::raw_sql(emit("late")).execute(&mut late).await.expect("a message");
    let mut tail = Tail::start(&cli, &[]);
    assert_eq!(tail.next(), "before");
    cli.emit("after", "{}");
    assert_eq!(tail.next(), "after");
    sqlx::raw_sql("COMMIT").execute(&mut late).await.expect("it commits");
    assert_eq!(tail.next(), "late");
    assert_eq!(tail.interrupt(), Some(0));
}

#[tokio::test]
async fn a_tail_without_follow_prints_the_newest_messages_without_payloads() {
    let cli = Cli::migrated().await;
    for key in ["o-1", "o-2", "o-3"] {
        cli.emit(key, r#"{"secret":"sesame"}"#);
    }
    let (table, _) = cli.succeeds(&["message", "tail", "-n", "2"]);
    insta::assert_snapshot!("tail", stable(&table, &cli));
    let (json, _) = cli.succeeds(&["message", "tail", "--key", "o-1", "-o", "json"]);
    let objects = objects(&json);
    let fields: Vec<&str> = objects[0].as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["created_at", "id", "key", "seq", "topic", "type"]);
}
