//! Emitting from the command line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::support::{Cli, objects};

const ID: &str = "5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10";

#[tokio::test]
async fn a_payload_comes_from_the_argument_a_file_or_stdin() {
    let cli = Cli::with_destination().await;
    let file = std::env::temp_dir().join(format!("{}.txt", cli.database.name()));
    std::fs::write(&file, "from a file").unwrap();
    let at = format!("@{}", file.display());
    cli.emit("argument", "1");
    cli.succeeds(&["emit", "orders", "file", "T", &at, "--content-type", "text/plain"]);
    let (code, stdout, stderr) = cli.run(&["emit", "orders", "stdin", "T", "-", "-o", "json"], r#"{"from": "stdin"}"#);
    assert_eq!(code, 0, "{stderr}");
    assert!(objects(&stdout)[0]["id"].is_string());
    std::fs::remove_file(&file).unwrap();
    for (key, payload) in [("argument", "1"), ("file", "from a file"), ("stdin", r#"{"from": "stdin"}"#)] {
        let sql = format!("SELECT count(*) FROM relevo.message WHERE key = '{key}' AND payload = '{payload}'::bytea");
        assert_eq!(cli.number(&sql).await, 1, "{key}");
    }
    let error = cli.fails(1, &["emit", "orders", "file", "T", &at]);
    assert!(error.contains("cannot be read"), "{error}");
}

#[tokio::test]
async fn an_own_id_is_emitted_once() {
    let cli = Cli::with_destination().await;
    let emit = ["emit", "orders", "o-1", "T", "1", "--id", ID, "--serialize"];
    assert_eq!(cli.succeeds(&emit).0, format!("{ID}\n"));
    let stderr = cli.fails(1, &emit);
    assert_eq!(stderr, format!("error: message id {ID} was emitted before\n"));
    assert_eq!(cli.succeeds(&[&emit[..], &["--ignore-duplicate"]].concat()).0, format!("{ID}\n"));
    assert_eq!(cli.number("SELECT count(*) FROM relevo.message").await, 1);
}

#[tokio::test]
async fn a_message_may_wait_for_its_time() {
    let cli = Cli::with_destination().await;
    let later = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(3)).to_string();
    cli.succeeds(&["emit", "orders", "o-1", "T", "1", "--deliver-at", "2h"]);
    cli.succeeds(&["emit", "orders", "o-1", "T", "1", "--deliver-at", &later]);
    assert_eq!(cli.number("SELECT count(*) FROM relevo.scheduled WHERE due_at > now() + interval '1 h'").await, 2);
}

#[tokio::test]
async fn many_messages_are_emitted_a_batch_a_transaction() {
    let cli = Cli::with_destination().await;
    let line = |n: u32| format!("{{\"topic\":\"t\",\"key\":\"k{n}\",\"type\":\"T\",\"payload\":{n}}}");
    let lines = (0..7).map(line).collect::<Vec<_>>().join("\n");
    let (code, stdout, stderr) = cli.run(&["emit", "--jsonl", "-", "--batch", "3"], &lines);
    assert_eq!((code, stderr.as_str()), (0, "7 messages emitted\n"));
    assert_eq!(stdout.lines().count(), 7, "an id for each");
    assert_eq!(cli.number("SELECT count(DISTINCT xid::text) FROM relevo.message").await, 3, "three transactions");
    assert_eq!(
        cli.number("SELECT count(*) FROM relevo.message WHERE key = 'k' || convert_from(payload, 'UTF8')").await,
        7
    );
}

#[tokio::test]
async fn a_wrong_line_rolls_its_batch_back_and_the_error_hints_how_to_continue() {
    let cli = Cli::with_destination().await;
    let good = r#"{"topic":"t","key":"k","type":"T","payload":1}"#;
    let repeated = format!(r#"{{"topic":"t","key":"k","type":"T","payload":1,"id":"{ID}"}}"#);
    let lines = [good, good, good, r#"{"topic":"t","key":"k","payload":1}"#].join("\n");
    let (code, _, stderr) = cli.run(&["emit", "--jsonl", "-", "--batch", "2"], &lines);
    assert_eq!(code, 2);
    assert_eq!(
        stderr,
        "error: line 4: `type` is missing\nhint: lines up to 2 are committed: continue with `--skip 2`\n"
    );
    assert_eq!(cli.number("SELECT count(*) FROM relevo.message").await, 2);
    // An error that only the database finds names its line too.
    let lines = [good, good, good, &repeated, &repeated].join("\n");
    let (code, stdout, stderr) = cli.run(&["emit", "--jsonl", "-", "--skip", "2", "-o", "json"], &lines);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert_eq!(
        stderr,
        format!(
            "error: line 5: message id {ID} was emitted before\nhint: lines up to 2 are committed: continue with `--skip 2`\n"
        )
    );
    assert_eq!(cli.number("SELECT count(*) FROM relevo.message").await, 2);
}

#[tokio::test]
async fn an_interrupt_ends_a_command_that_waits_for_stdin() {
    let cli = Cli::with_destination().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(["emit", "--jsonl", "-", "--batch", "1", "--database", &cli.database.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`relevo` runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    let mut ids = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    for n in 1..=2 {
        writeln!(stdin, r#"{{"topic":"t","key":"k","type":"T","payload":{n}}}"#).expect("it reads");
        ids.next().expect("an id").expect("UTF-8");
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("`kill` runs");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(stderr, "error: interrupted\nhint: lines up to 2 are committed: continue with `--skip 2`\n");
    drop(stdin);
}

#[tokio::test]
async fn no_outbox_gives_the_hint_to_migrate() {
    let stderr = Cli::new().await.fails(1, &["emit", "orders", "o-1", "T", "1"]);
    assert!(stderr.contains("schema `relevo` holds no outbox\nhint: run `relevo migrate`\n"), "{stderr}");
}
