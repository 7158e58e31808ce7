//! Dead letters: seen, redriven, discarded, and every mark recorded.

use super::support::{Cli, objects, stable};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";
const NOTHING: &str = "no matching dead letter is in state `dead`, nothing was changed\n";

/// Two dead letters, of the keys `o-1` and `o-2`.
async fn two_dead() -> (Cli, String, String) {
    let cli = Cli::with_destination().await;
    let (first, second) = (cli.emit("o-1", r#"{"n":1}"#), cli.emit("o-2", r#"{"n":2}"#));
    cli.settle().await;
    cli.dead_letter(&first).await;
    cli.dead_letter(&second).await;
    (cli, first, second)
}

async fn marked(cli: &Cli, state: &str) -> i64 {
    cli.number(&format!("SELECT count(*) FROM relevo.dead_letter WHERE state = '{state}'")).await
}

#[tokio::test]
async fn dead_letters_are_listed_and_shown() {
    let (cli, first, _) = two_dead().await;
    let (list, stderr) = cli.succeeds(&["dead-letter", "list"]);
    insta::assert_snapshot!("dead_list", stable(&list, &cli));
    assert_eq!(stderr, "2 dead letters\n");
    let (one, stderr) = cli.succeeds(&["dead-letter", "list", "--limit", "1", "-o", "json"]);
    assert_eq!(
        (objects(&one).len(), stderr.as_str()),
        (1, "1 dead letter, and more\nhint: see more with `--limit`, or all with `--all`\n")
    );
    assert_eq!(objects(&cli.succeeds(&["dead", "list", "--key", "o-2", "-o", "json"]).0)[0]["key"], "o-2");
    assert_eq!(cli.succeeds(&["dead-letter", "list", "--route", "other"]).0, "");
    let (shown, _) = cli.succeeds(&["dead-letter", "show", &first]);
    insta::assert_snapshot!("dead_show", stable(&shown, &cli));
    assert_eq!(cli.succeeds(&["dead-letter", "show", &first, "--raw"]).0, r#"{"n":1}"#);
    let (json, _) = cli.succeeds(&["dead-letter", "show", &first, "-o", "json"]);
    let fields: Vec<String> = objects(&json)[0].as_object().unwrap().keys().cloned().collect();
    insta::assert_snapshot!("dead_fields", fields.join("\n"));
}

#[tokio::test]
async fn finished_dead_letters_are_listed_with_history() {
    let (cli, first, second) = two_dead().await;
    cli.sql(&format!("UPDATE relevo.dead_letter SET state = 'redriven' WHERE id = '{first}'")).await;
    let ids = |args: &[&str]| -> Vec<String> {
        let list = cli.succeeds(&[&["dead-letter", "list", "-o", "json", "--limit", "1"], args].concat()).0;
        objects(&list).iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), [&*second], "the finished one takes no place of the list");
    assert_eq!(ids(&["--history"]), [&*first]);
}

#[tokio::test]
async fn a_redrive_is_confirmed_recorded_and_done_once() {
    let (cli, first, _) = two_dead().await;
    let redrive = ["dead-letter", "redrive", &first, "--reason", "the schema is known now", "--by", "ana"];
    let (code, stdout, stderr) = cli.run(&redrive, "n\n");
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.starts_with("redrive 1 dead letter of destination `main`? "), "{stderr}");
    assert!(stderr.ends_with("error: not confirmed, nothing was changed\n"), "{stderr}");
    let (code, _, stderr) = cli.run(&redrive, "");
    assert_eq!(code, 1);
    assert!(stderr.ends_with("nothing was changed\nhint: `--yes` confirms in advance\n"), "{stderr}");
    assert_eq!(marked(&cli, "redriving").await, 0);

    let (code, _, stderr) = cli.run(&redrive, "y\n");
    assert_eq!(code, 0);
    assert!(
        stderr.ends_with("1 dead letter marked `redriving`; the relay that holds the shard applies the mark\n"),
        "{stderr}"
    );
    let recorded = "SELECT count(*) FROM relevo.dead_letter WHERE state = 'redriving' AND marked_by = 'ana' \
                    AND reason = 'the schema is known now' AND marked_at IS NOT NULL";
    assert_eq!(cli.number(recorded).await, 1);
    let (_, again) = cli.succeeds(&redrive);
    assert_eq!(again, format!("{first} is already `redriving`\n{NOTHING}"));
    assert_eq!(marked(&cli, "redriving").await, 1);
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_needs_no_reason() {
    let (cli, ..) = two_dead().await;
    let (_, stderr) = cli.succeeds(&["dead-letter", "discard", "--destination", "main", "--all", "--dry-run"]);
    assert_eq!(stderr, "2 dead letters would be discarded, nothing was changed\n");
    let (json, _) = cli.succeeds(&["dead-letter", "redrive", "-d", "main", "--key", "o-1", "--dry-run", "-o", "json"]);
    assert_eq!(
        objects(&json)[0],
        serde_json::json!({
            "destination": "main", "consumer": null, "action": "redrive", "dry_run": true, "count": 1, "unmatched": [],
        })
    );
    assert_eq!(marked(&cli, "dead").await, 2);
}

#[tokio::test]
async fn dead_letters_are_chosen_by_id_key_route_or_all() {
    let (cli, first, second) = two_dead().await;
    let count = |args: &[&str]| {
        let json =
            cli.succeeds(&[&["dead-letter", "redrive", "-d", "main", "--dry-run", "-o", "json"], args].concat()).0;
        objects(&json)[0]["count"].as_u64().unwrap()
    };
    assert_eq!(count(&[&first]), 1);
    assert_eq!(count(&[&first, &second]), 2);
    assert_eq!(count(&["--key", "o-2"]), 1);
    assert_eq!(count(&["--route", "everything"]), 2);
    assert_eq!(count(&["--route", "everything", "--key", "o-1"]), 1);
    assert_eq!(count(&["--all"]), 2);
    let (json, _) = cli.succeeds(&[
        "dead-letter",
        "discard",
        "-d",
        "main",
        "--key",
        "o-1",
        "--reason",
        "test",
        "--yes",
        "-o",
        "json",
    ]);
    assert_eq!(
        objects(&json)[0],
        serde_json::json!({
            "destination": "main", "consumer": null, "action": "discard", "dry_run": false, "count": 1, "unmatched": [],
        })
    );
    assert_eq!((marked(&cli, "discarding").await, marked(&cli, "dead").await), (1, 1));
    let by = "SELECT count(*) FROM relevo.dead_letter WHERE state = 'discarding' AND marked_by <> ''";
    assert_eq!(cli.number(by).await, 1, "the operator is recorded");
}

#[tokio::test]
async fn an_unknown_dead_letter_is_not_found() {
    let (cli, ..) = two_dead().await;
    for args in [
        &["dead-letter", "show", UNKNOWN][..],
        &["dead-letter", "redrive", UNKNOWN, "--reason", "test", "--yes"],
        &["dead-letter", "discard", "-d", "main", "--key", "o-9", "--reason", "test", "--yes"],
        &["dead-letter", "redrive", "-d", "main", "--route", "other", "--dry-run"],
    ] {
        let stderr = cli.fails(4, args);
        assert!(stderr.contains("dead letter") && stderr.contains("\nhint: "), "{args:?}: {stderr}");
    }
    let (_, nothing) = Cli::with_destination().await.succeeds(&[
        "dead-letter",
        "redrive",
        "-d",
        "main",
        "--all",
        "--reason",
        "test",
        "--yes",
    ]);
    assert_eq!(nothing, NOTHING, "all of nothing is nothing");
}

#[tokio::test]
async fn dead_letters_are_filtered_by_their_contents() {
    let (cli, first, second) = two_dead().await;
    let invoice = cli.succeeds(&["emit", "invoices", "i-1", "InvoiceSent", "3"]).0.trim_end().to_owned();
    cli.settle().await;
    cli.dead_letter(&invoice).await;
    cli.sql(&format!(
        "UPDATE relevo.dead_letter SET dead_at = dead_at - interval '1 hour', class = 'transient', error = 'Timed Out' \
         WHERE id = '{second}'"
    ))
    .await;
    let ids = |args: &[&str]| -> Vec<String> {
        let list = cli.succeeds(&[&["dead-letter", "list", "-o", "json"], args].concat()).0;
        objects(&list).iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
    };
    for (args, expected) in [
        (&["--all"][..], vec![&first, &second, &invoice]),
        (&["--topic", "invoices"], vec![&invoice]),
        (&["--type", "OrderPlaced"], vec![&first, &second]),
        (&["--class", "transient"], vec![&second]),
        (&["--error", "timed out"], vec![&second]),
        (&["--since", "10m"], vec![&first, &invoice]),
        (&["--until", "10m"], vec![&second]),
        (&["--since", "10m", "--topic", "orders"], vec![&first]),
        (&["--key", "o-1", "--class", "transient"], vec![]),
    ] {
        assert_eq!(ids(args).iter().collect::<Vec<_>>(), expected, "{args:?}");
        let redrive = [&["dead-letter", "redrive", "-d", "main", "--dry-run", "-o", "json"], args].concat();
        if expected.is_empty() {
            cli.fails(4, &redrive);
        } else {
            assert_eq!(objects(&cli.succeeds(&redrive).0)[0]["count"], expected.len(), "{args:?}");
        }
    }
    cli.fails(2, &["dead-letter", "discard", "--topic", "orders", "--dry-run"]);
    let discard =
        ["dead-letter", "discard", "-d", "main", "--error", "SCHEMA", "--topic", "orders", "--reason", "test"];
    let (code, _, question) = cli.run(&discard, "y\n");
    assert_eq!(code, 0);
    assert!(question.starts_with("discard 1 dead letter of destination `main`? "), "{question}");
    assert_eq!((marked(&cli, "discarding").await, marked(&cli, "dead").await), (1, 2));
    let (_, again) = cli.succeeds(&[&discard[..], &["--yes"]].concat());
    assert_eq!(again, NOTHING);
}

#[tokio::test]
async fn the_database_filters_dead_letters_before_the_limit() {
    let cli = Cli::with_destination().await;
    cli.sql(
        "INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, \
         route, class, error, attempts) SELECT 'main', gen_random_uuid(), n, 0, now(), \
         CASE WHEN n > 10000 THEN 'late' ELSE 'early' END, 'k' || n, 'T', 'text/plain', '', 'r', 'poison', 'no', 1 \
         FROM generate_series(1, 11500) AS n",
    )
    .await;
    let (list, stderr) = cli.succeeds(&["dead-letter", "list", "--topic", "late", "-o", "json"]);
    assert_eq!(list.lines().count(), 50);
    assert_eq!(stderr, "50 dead letters, and more\nhint: see more with `--limit`, or all with `--all`\n");
    let (list, stderr) = cli.succeeds(&["dead-letter", "list", "--topic", "late", "-o", "json", "--all"]);
    assert_eq!((list.lines().count(), stderr.as_str()), (1500, "1500 dead letters\n"));
    let (json, _) = cli.succeeds(&[
        "dead-letter",
        "redrive",
        "-d",
        "main",
        "--topic",
        "late",
        "--reason",
        "test",
        "--yes",
        "-o",
        "json",
    ]);
    assert_eq!((objects(&json)[0]["count"].as_u64(), marked(&cli, "redriving").await), (Some(1500), 1500));
}

#[tokio::test]
async fn an_id_that_is_no_dead_letter_is_named() {
    let (cli, first, second) = two_dead().await;
    let redrive = ["dead-letter", "redrive", &first, UNKNOWN, "--reason", "test", "--yes"];
    let (_, stderr) = cli.succeeds(&redrive);
    let unknown = format!("{UNKNOWN} is no such dead letter of destination `main`\n");
    assert_eq!(
        stderr,
        format!("{unknown}1 dead letter marked `redriving`; the relay that holds the shard applies the mark\n")
    );
    let (json, stderr) = cli.succeeds(&["dead-letter", "discard", &first, &second, UNKNOWN, "--dry-run", "-o", "json"]);
    assert_eq!(stderr, format!("{unknown}{first} is already `redriving`\n"));
    let expected = serde_json::json!({
        "destination": "main", "consumer": null, "action": "discard", "dry_run": true, "count": 1, "unmatched": [UNKNOWN],
    });
    assert_eq!(objects(&json)[0], expected);
}
