//! What needs no database.

use std::process::{Command, Output};

fn relevo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_relevo")).args(args).env_remove("RELEVO_DATABASE_URL").output().expect("it runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it writes UTF-8")
}

#[test]
fn the_version_goes_to_stdout() {
    let output = relevo(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let facts = text(&output.stdout);
    assert!(facts.starts_with(concat!("relevo ", env!("CARGO_PKG_VERSION"), "\ncommit ")), "{facts}");
    for fact in ["built by rustc ", "target ", "profile ", "schema "] {
        assert!(facts.lines().any(|line| line.starts_with(fact)), "{facts}");
    }
    assert_eq!(text(&relevo(&["-V"]).stdout), concat!("relevo ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn the_script_names_every_version_and_the_schema() {
    let output = relevo(&["migrate", "--print", "--schema", "shop_outbox"]);
    let script = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
    assert!(script.starts_with("BEGIN;\n") && script.ends_with("COMMIT;\n"));
    assert!(script.contains("CREATE SCHEMA IF NOT EXISTS \"shop_outbox\";"));
    for version in 1..=relevo_store_postgres::migrate::VERSION {
        assert!(script.contains(&format!("-- Version {version}: ")), "version {version} is missing");
    }
    assert!(!script.contains("@schema@"));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        &["migrate", "--schema", "no such name"][..],
        &["dev", "--rate", "0"],
        &["destination", "add", ""],
        &["destination", "add", "main", "--shards", "257"],
        &["destination", "reshard", "main", "0"],
        &["nonsense"],
        &["emit", "orders", "o-1"],
        &["emit", "orders", "o-1", "OrderPlaced", "{}", "--ignore-duplicate"],
        &["emit", "orders", "o-1", "OrderPlaced", "{}", "--header", "no-value"],
        &["emit", "orders", "o-1", "OrderPlaced", "{}", "--jsonl", "-"],
        &["emit", "orders", "o-1", "OrderPlaced", "{}", "--deliver-at", "tomorrow"],
        &["message", "list", "--status", "lost"],
        &["message", "list", "--since", "yesterday"],
        &["message", "list", "--limit", "0"],
        &["message", "show", "no-id"],
        &["dead-letter", "redrive", "--reason", "fixed"],
        &["dead-letter", "redrive", "--all"],
        &["dead-letter", "redrive", "--all", "--key", "o-1", "--reason", "fixed"],
        &["dead-letter", "discard", "--all", "--reason", " "],
        &["dead-letter", "redrive", "--all", "--topic", "orders", "--reason", "fixed"],
        &["consumer", "breaker", "billing", "open"],
        &["consumer", "breaker", "billing", "--lane", "orders.0", "ajar"],
        &["consumer", "remove"],
        &["dead-letter", "list", "--destination", "main", "--consumer", "billing"],
        &["dead-letter", "redrive", "--consumer", "billing", "--topic", "orders", "--reason", "fixed"],
        &["dead-letter", "redrive", "--key", "o-1", "--reason", "fixed", "--database", "sqlite:shop.db"],
        &["dead-letter", "redrive", "--all", "--rate", "0", "--reason", "fixed"],
        &["dead-letter", "discard", "--all", "--rate", "5", "--reason", "fixed"],
        &["dead-letter", "list", "--since", "1h", "--until", "2h", "--database", "sqlite:shop.db"],
        &["trace", "no-id"],
        &["destination", "add", "no spaces"],
        &["destination", "add", "two__lines"],
        &["completions", "cobol"],
        // What clap cannot know: the URL, the payload.
        &["destination", "show"],
        &["destination", "show", "--database", "sqlite:"],
        &["destination", "show", "--database", "mysql://db/shop"],
        &["emit", "orders", "o-1", "OrderPlaced", "{broken", "--database", "postgres://127.0.0.1:1/shop"],
        &["emit", "", "o-1", "OrderPlaced", "{}", "--database", "postgres://127.0.0.1:1/shop"],
        &["destination", "show", "--database", "postgres://me:sesame@"],
        &["destination", "show", "--database", "postgres://me@db:port/shop"],
        &["destination", "show", "--database", "sqlite:shop.db", "--schema", "relevo"],
        &["migrate", "--print", "--database", "sqlite:shop.db", "--schema", "relevo"],
        &["emit", "orders", "o-1", "T", "1", "--header", "a=1", "--header", "a=2", "--database", "sqlite:shop.db"],
        &["message", "list", "--since", "1h", "--until", "2h", "--database", "sqlite:shop.db"],
        &["dead-letter", "redrive", "--since", "1h", "--until", "2h", "--dry-run", "--database", "sqlite:shop.db"],
        &["verify", "--since", "1h", "--until", "2h", "--database", "sqlite:shop.db"],
        &["outbox", "adopt", "--yes", "--database", "sqlite:shop.db"],
    ] {
        assert_eq!(relevo(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_missing_database_is_one_error_with_a_hint() {
    let output = relevo(&["migrate"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "error: no outbox is named\nhint: `--database postgres://user@host/name` or `--database sqlite:FILE`, set `RELEVO_DATABASE_URL`, or run \
         this in the directory of `relevo.toml`\n"
    );
}

#[test]
fn an_unreachable_host_is_one_error_and_no_password_is_shown() {
    // No process listens on port 1 of loopback.
    let url = "postgres://me:sesame@127.0.0.1:1/shop";
    for args in
        [&["migrate"][..], &["destination", "show"], &["doctor"], &["emit", "orders", "o-1", "OrderPlaced", "{}"]]
    {
        let output = relevo(&[args, &["--database", url]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{stderr}");
        assert!(stderr.contains("127.0.0.1:1/shop") && stderr.contains("refused"), "{stderr}");
        assert!(stderr.contains("\nhint: check host and port"), "{stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
}

#[test]
fn wrong_usage_that_clap_cannot_detect_has_a_hint() {
    for (args, expected) in [
        (
            &["destination", "show", "--database", "postgres://me:sesame@"][..],
            "the database URL is invalid: empty host\nhint: ",
        ),
        (
            &["destination", "show", "--database", "postgres://me:ses/ame@db/shop"],
            "the database URL is invalid: invalid port",
        ),
        (
            &["destination", "show", "--database", "sqlite:a.db", "--schema", "x"],
            "a SQLite file has no schemas\nhint: ",
        ),
        (
            &["emit", "t", "k", "T", "1", "--header", "a=1", "--header", "a=2", "--database", "sqlite:a.db"],
            "header `a` is given twice\nhint: ",
        ),
        (&["emit", "t", "k", "T", "1", "--id", "abc"], "an id is a UUID"),
        (&["message", "show", "abc"], "an id is a UUID"),
        (&["dead-letter", "redrive", "abc", "--dry-run"], "an id is a UUID"),
        (&["verify", "--since", "1h", "--until", "2h", "--database", "sqlite:a.db"], "and so after `--until`"),
    ] {
        let output = relevo(args);
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("sesame"), "{args:?}: {stderr}");
    }
}

#[test]
fn an_unknown_database_scheme_is_an_error_without_the_password() {
    let output = relevo(&["migrate", "--database", "mysql://me:sesame@127.0.0.1/shop?pasword=sesame"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.starts_with("error: the database URL has an unknown scheme"), "{stderr}");
    assert!(!stderr.contains("sesame"), "{stderr}");
}

#[test]
fn completions_are_scripts_for_each_shell() {
    for (shell, part) in [("bash", "_relevo()"), ("zsh", "#compdef relevo"), ("fish", "complete -c relevo")] {
        let output = relevo(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(part), "{shell}");
    }
}
