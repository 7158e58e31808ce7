//! Lists of messages, and one message.

use std::process::Command;

use super::support::{Cli, objects, stable};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

#[tokio::test]
async fn messages_are_listed_newest_first() {
    let cli = Cli::with_destination().await;
    let first = cli.emit("o-1", r#"{"n":1}"#);
    cli.settle().await;
    let dead = cli.emit("o-2", r#"{"n":2}"#);
    cli.settle().await;
    cli.dead_letter(&dead).await;
    cli.emit("o-3", r#"{"n":3}"#);
    cli.succeeds(&["emit", "orders", "o-4", "OrderPlaced", "{}", "--deliver-at", "1h"]);
    let (list, stderr) = cli.succeeds(&["message", "list"]);
    insta::assert_snapshot!("list", stable(&list, &cli));
    assert_eq!(stderr, "4 messages\n");

    let (json, _) = cli.succeeds(&["message", "list", "--key", "o-1", "-o", "json"]);
    let [message] = &objects(&json)[..] else { panic!("one line: {json}") };
    let fields: Vec<&str> = message.as_object().unwrap().keys().map(String::as_str).collect();
    insta::assert_snapshot!("list_fields", fields.join("\n"));
    assert_eq!((message["id"].as_str(), message["status"].as_str()), (Some(&*first), Some("published")));
    assert!(message["published_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{message}");
}

#[tokio::test]
async fn lists_are_filtered() {
    let cli = Cli::with_destination().await;
    let old = cli.emit("o-1", "1");
    cli.sql("UPDATE relevo.message SET created_at = created_at - interval '1 hour'").await;
    let new = cli.emit("o-1", "2");
    let other = cli.succeeds(&["emit", "invoices", "o-2", "InvoiceSent", "3"]).0.trim_end().to_owned();
    let ids = |args: &[&str]| -> Vec<String> {
        let (json, _) = cli.succeeds(&[&["message", "list", "-o", "json"], args].concat());
        objects(&json).iter().map(|message| message["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), [&*other, &*new, &*old]);
    assert_eq!(ids(&["--topic", "invoices"]), [&*other]);
    assert_eq!(ids(&["--type", "OrderPlaced"]), [&*new, &*old]);
    assert_eq!(ids(&["--key", "o-1", "--since", "10m"]), [&*new]);
    assert_eq!(ids(&["--until", "10m"]), [&*old]);
    assert_eq!(ids(&["--status", "published"]), [""; 0]);
    assert_eq!(ids(&["--status", "pending", "--limit", "1"]), [&*other]);
}

#[tokio::test]
async fn a_list_hints_how_to_continue_and_all_continues_by_itself() {
    let cli = Cli::with_destination().await;
    cli.sql("SELECT relevo.emit('orders', 'k-' || n, 'T', '{}') FROM generate_series(1, 1203) AS n").await;
    let (page, stderr) = cli.succeeds(&["message", "list", "--limit", "2"]);
    assert_eq!(page.lines().count(), 3, "a head and two messages: {page}");
    assert_eq!(stderr, "2 messages, and more\nhint: continue with `--before-seq 1202`, or list all with `--all`\n");
    let (rest, stderr) = cli.succeeds(&["message", "list", "--before-seq", "3", "-o", "json"]);
    assert_eq!((objects(&rest).len(), stderr.as_str()), (2, "2 messages\n"));
    let (all, stderr) = cli.succeeds(&["message", "list", "--all", "-o", "json"]);
    assert_eq!((objects(&all).len(), stderr.as_str()), (1203, "1203 messages\n"));
    let (all, _) = cli.succeeds(&["message", "list", "--all"]);
    assert_eq!(all.lines().count(), 1204, "the head once");
}

#[tokio::test]
async fn a_list_hints_at_more_only_if_there_is_more_and_every_hint_works() {
    let cli = Cli::with_destination().await;
    let mut expected: Vec<String> = (1..=3).map(|n| cli.emit("o-1", &n.to_string())).collect();
    for _ in 0..2 {
        let later = cli.succeeds(&["emit", "orders", "o-2", "T", "1", "--deliver-at", "1h"]).0;
        expected.push(later.trim_end().to_owned());
    }
    expected.reverse();
    assert_eq!(cli.succeeds(&["message", "list", "--limit", "5"]).1, "5 messages\n");
    assert_eq!(cli.succeeds(&["message", "list", "--limit", "2", "--key", "o-2"]).1, "2 messages\n");
    assert_eq!(cli.succeeds(&["message", "list", "--limit", "3", "--key", "o-1"]).1, "3 messages\n");
    assert_eq!(cli.succeeds(&["message", "list", "--limit", "2", "--status", "scheduled"]).1, "2 messages\n");
    let (mut seen, mut before) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["message", "list", "--limit", "1", "-o", "json"];
        args.extend(before.iter().flat_map(|before| ["--before-seq", before]));
        let (page, stderr) = cli.succeeds(&args);
        seen.extend(objects(&page).iter().map(|message| message["id"].as_str().unwrap().to_owned()));
        let Some((_, hint)) = stderr.split_once("--before-seq ") else { break };
        before = Some(hint.split('`').next().unwrap().to_owned());
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_search_that_times_out_reports_how_far_it_got() {
    let cli = Cli::with_destination().await;
    cli.sql("SELECT relevo.emit('orders', 'k', 'T', '{}') FROM generate_series(1, 10000) AS n").await;
    let (page, stderr) = cli.succeeds(&["message", "list", "--key", "needle", "--timeout", "0s"]);
    assert_eq!(page, "");
    assert!(stderr.starts_with("0 messages; timed out after searching back to 20"), "{stderr}");
    assert!(stderr.contains("hint: continue with `--before-seq 59"), "{stderr}");
}

#[tokio::test]
async fn a_message_is_shown_with_its_payload() {
    let cli = Cli::with_destination().await;
    let json = cli.succeeds(&["emit", "orders", "o-1", "OrderPlaced", r#"{"n": [1, 2]}"#, "--header", "traceparent=x"]);
    let id = json.0.trim_end();
    let (shown, stderr) = cli.succeeds(&["message", "show", id]);
    assert_eq!(stderr, "");
    insta::assert_snapshot!("show", stable(&shown, &cli));
    let (json, _) = cli.succeeds(&["message", "show", id, "-o", "json"]);
    let [message] = &objects(&json)[..] else { panic!("one line: {json}") };
    assert_eq!(message["payload"], serde_json::json!({ "n": [1, 2] }));
    assert_eq!(message["headers"], serde_json::json!({ "traceparent": "x" }));

    cli.sql("SELECT relevo.emit_bytes('orders', 'raw', 'T', '\\x00ff0a1b', 'application/octet-stream')").await;
    let (list, _) = cli.succeeds(&["message", "list", "--key", "raw", "-o", "json"]);
    let raw = objects(&list)[0]["id"].as_str().unwrap().to_owned();
    assert!(cli.succeeds(&["message", "show", &raw]).0.contains("00000000  00 ff 0a 1b"));
    assert_eq!(objects(&cli.succeeds(&["message", "show", &raw, "-o", "json"]).0)[0]["payload_base64"], "AP8KGw==");
    let mut exact = Command::new(env!("CARGO_BIN_EXE_relevo"));
    exact.args(["message", "show", &raw, "--raw", "--database", &cli.database.url()]);
    assert_eq!(exact.output().unwrap().stdout, [0, 0xff, 0x0a, 0x1b]);
}

#[tokio::test]
async fn an_unknown_message_is_not_found() {
    let cli = Cli::with_destination().await;
    cli.emit("o-1", "1");
    let stderr = cli.fails(4, &["message", "show", UNKNOWN]);
    insta::assert_snapshot!("show_unknown", stable(&stderr, &cli));
}

#[tokio::test]
async fn with_several_destinations_one_must_be_selected() {
    let cli = Cli::with_destination().await;
    cli.succeeds(&["destination", "add", "audit", "--shards", "1"]);
    let id = cli.emit("o-1", "1");
    let stderr = cli.fails(2, &["message", "list"]);
    assert_eq!(
        stderr,
        "error: there is more than one destination\nhint: choose with `--destination`: `audit`, `main`\n"
    );
    let (list, _) = cli.succeeds(&["message", "list", "--destination", "audit", "-o", "json"]);
    assert_eq!(objects(&list)[0]["id"], *id);
    let (destinations, _) = cli.succeeds(&["destination", "list"]);
    insta::assert_snapshot!("destinations", destinations);
    let (json, _) = cli.succeeds(&["destination", "list", "-o", "json"]);
    let audit = serde_json::json!({ "name": "audit", "shards": 1, "target_shards": null, "enabled": true });
    assert_eq!(objects(&json)[0], audit);
}

#[tokio::test]
async fn without_a_destination_the_hint_is_to_add_one() {
    let cli = Cli::migrated().await;
    for args in [&["message", "list"][..], &["why", "k"], &["destination", "show"], &["verify"]] {
        let stderr = cli.fails(4, args);
        let hint = "hint: `relevo run` adds those of its configuration, and `relevo destination add NAME` adds one";
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
    assert_eq!(cli.succeeds(&["destination", "list", "-o", "json"]).0, "");
}
