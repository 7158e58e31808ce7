//! Setting an outbox up: migrations, destinations, takeover.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::support::{Cli, objects, run};

#[tokio::test]
async fn migrating_twice_applies_every_version_once() {
    let cli = Cli::new().await;
    let (stdout, first) = cli.succeeds(&["migrate", "--schema", "shop"]);
    assert_eq!(stdout, "");
    let newest = relevo_store_postgres::migrate::VERSION;
    assert!(first.contains("schema `shop`") && first.lines().count() == 1, "{first}");
    assert!(
        first.ends_with(&format!(
            ": created, version {newest}
"
        )),
        "{first}"
    );
    let (_, second) = cli.succeeds(&["migrate", "--schema", "shop"]);
    assert!(second.contains("schema `shop`") && second.ends_with(": nothing to do\n"), "{second}");
}

#[tokio::test]
async fn a_dry_run_prints_the_versions_as_text_and_json() {
    let cli = Cli::new().await;
    let (versions, _) = cli.succeeds(&["migrate", "--dry-run", "-o", "json"]);
    let versions = objects(&versions);
    assert_eq!(versions.len(), usize::try_from(relevo_store_postgres::migrate::VERSION).unwrap());
    assert_eq!(versions[0]["version"], 1);
    assert!(versions.iter().all(|version| version["name"].is_string()), "{versions:?}");
    cli.succeeds(&["migrate"]);
    assert_eq!(cli.succeeds(&["migrate", "--dry-run", "-o", "json"]).0, "");
}

/// Runs a script with `psql` in one transaction, as a migration tool does.
fn psql(cli: &Cli, script: &str, args: &[&str]) {
    let mut child = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null", &cli.database.url()])
        .args(args)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`psql` is installed");
    child.stdin.take().expect("it is piped").write_all(script.as_bytes()).expect("it reads the script");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The definitions of everything in the database.
fn dump(cli: &Cli) -> String {
    let dump = Command::new("pg_dump").args(["--schema-only", &cli.database.url()]).output().expect("it is installed");
    let dump = String::from_utf8(dump.stdout).expect("it writes UTF-8");
    assert!(dump.contains("CREATE FUNCTION relevo.emit("), "{dump}");
    // Each dump has a random key.
    dump.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_printed_scripts_make_the_same_outbox() {
    let (migrated, whole, steps) = (Cli::migrated().await, Cli::new().await, Cli::new().await);
    psql(&whole, &whole.succeeds(&["migrate", "--print"]).0, &[]);
    let newest = relevo_store_postgres::migrate::VERSION;
    for to in 1..=newest {
        let (from, to) = ((to - 1).to_string(), to.to_string());
        let (script, _) = steps.succeeds(&["migrate", "--print", "--from", &from, "--to", &to]);
        psql(&steps, &script, &["--single-transaction"]);
    }
    for cli in [&whole, &steps] {
        assert!(dump(cli) == dump(&migrated), "the schemas differ");
        let (_, report) = cli.succeeds(&["migrate"]);
        assert!(report.ends_with(": nothing to do\n"), "{report}");
    }
    let next = (newest + 1).to_string();
    for args in [&["--from", "1", "--to", "1"][..], &["--from", "0", "--to", &next], &["--from", &next]] {
        let error = steps.fails(2, &[&["migrate", "--print"], args].concat());
        assert!(error.contains("there is no script from version"), "{error}");
    }
}

#[tokio::test]
async fn a_refused_login_is_one_error_without_the_password() {
    // The shared server trusts every password, but not every name.
    let url = Cli::new().await.database.url().replacen("postgres@", "unknown_role:sesame@", 1);
    for args in [&["migrate"][..], &["destination", "show", "main"]] {
        let (code, _, stderr) = run(&url, args, "");
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        assert_eq!(stderr.matches("\"unknown_role\" does not exist").count(), 1, "{stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
}

#[tokio::test]
async fn a_database_without_an_outbox_gives_the_hint_to_migrate() {
    let stderr = Cli::new().await.fails(1, &["destination", "show", "main"]);
    assert!(stderr.contains("schema `relevo` holds no outbox\nhint: run `relevo migrate`\n"), "{stderr}");
}

#[tokio::test]
async fn a_destination_is_added_once() {
    let cli = Cli::migrated().await;
    let (_, first) = cli.succeeds(&["destination", "add", "main", "--shards", "4", "--start", "oldest"]);
    assert!(first.contains("`main` is added with 4 shards; it starts with the oldest retained message"), "{first}");
    let (_, second) = cli.succeeds(&["destination", "add", "main"]);
    assert_eq!(second, "destination `main` exists, nothing was changed\n");
}

#[tokio::test]
async fn a_destination_starts_with_the_oldest_message_by_default() {
    let cli = Cli::migrated().await;
    cli.emit("o-1", "{}");
    let (_, added) = cli.succeeds(&["destination", "add", "main"]);
    assert!(added.ends_with("it starts with the oldest retained message\n"), "{added}");
    cli.succeeds(&["destination", "add", "audit", "--start", "now"]);
    for (destination, pending) in [("main", 1), ("audit", 0)] {
        let (json, _) = cli.succeeds(&["destination", "show", destination, "-o", "json"]);
        assert_eq!(objects(&json)[0]["pending"], pending, "{destination}");
    }
}

#[tokio::test]
async fn an_unknown_destination_is_an_error_that_lists_the_known_ones() {
    let cli = Cli::migrated().await;
    cli.succeeds(&["destination", "add", "main"]);
    for args in [
        &["destination", "show", "mian"][..],
        &["destination", "remove", "mian", "--yes"],
        &["destination", "disable", "mian"],
        &["destination", "reshard", "mian", "4"],
    ] {
        assert_eq!(cli.fails(4, args), "error: destination `mian` is not known\nhint: there is `main`\n", "{args:?}");
    }
}

#[tokio::test]
async fn a_backlog_is_lines_for_people_and_json_for_programs() {
    let cli = Cli::migrated().await;
    cli.succeeds(&["destination", "add", "main"]);
    let emit = "SELECT relevo.emit('orders', 'order-1', 'OrderPlaced', '{}')";
    sqlx::raw_sql(emit).execute(&mut cli.database.connect().await).await.unwrap();
    let (text, _) = cli.succeeds(&["destination", "show", "main"]);
    assert!(
        text.starts_with("name     main\nstate    enabled\npending  1\nparked   0\ndead     0\nshards   8\n"),
        "{text}"
    );
    let (json, stderr) = cli.succeeds(&["destination", "show", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["name"], &json["enabled"], &json["pending"]), (&"main".into(), &true.into(), &1.into()));
    assert_eq!((json["shards"].as_array().map(Vec::len), stderr.as_str()), (Some(8), ""));
}

#[tokio::test]
async fn removing_requires_a_confirmation() {
    let cli = Cli::migrated().await;
    cli.succeeds(&["destination", "add", "main"]);
    for answer in ["n\n", "\n", ""] {
        let (code, _, stderr) = cli.run(&["destination", "remove", "main"], answer);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.starts_with("remove destination `main` at ") && stderr.contains("[y/N]"), "{stderr}");
        assert!(stderr.contains("nothing was changed"), "{stderr}");
    }
    cli.succeeds(&["destination", "show", "main"]);
    let (code, _, stderr) = cli.run(&["destination", "remove", "main"], "y\n");
    assert_eq!(code, 0, "{stderr}");
    assert!(cli.fails(4, &["destination", "show", "main"]).contains("`main` is not known"));
}

#[tokio::test]
async fn a_destination_is_disabled_enabled_and_resharded() {
    let cli = Cli::migrated().await;
    cli.succeeds(&["destination", "add", "main"]);
    assert!(cli.succeeds(&["destination", "disable", "main"]).1.contains("is disabled"));
    assert!(cli.succeeds(&["destination", "enable", "main"]).1.contains("is enabled"));
    assert!(cli.succeeds(&["destination", "reshard", "main", "16"]).1.contains("will have 16 shards"));
}

#[tokio::test]
async fn adopting_and_rebasing_require_a_confirmation() {
    let cli = Cli::migrated().await;
    for (command, done) in [("adopt", "is adopted"), ("rebase", "is rebased")] {
        let refused = cli.fails(1, &["outbox", command]);
        assert!(refused.contains("nothing was changed\nhint: `--yes`"), "{refused}");
        assert!(cli.succeeds(&["outbox", command, "--yes"]).1.contains(done));
    }
}

#[tokio::test]
async fn a_dry_run_names_the_versions_and_applies_none() {
    let cli = Cli::new().await;
    let (versions, stderr) = cli.succeeds(&["migrate", "--dry-run"]);
    assert_eq!(versions, "1  baseline\n");
    assert!(stderr.ends_with(": 1 version would be applied, nothing was changed\n"), "{stderr}");
    assert_eq!(cli.number("SELECT count(*) FROM pg_namespace WHERE nspname = 'relevo'").await, 0);
    cli.succeeds(&["migrate"]);
    let (versions, stderr) = cli.succeeds(&["migrate", "--dry-run"]);
    assert_eq!((versions.as_str(), stderr.ends_with(": nothing to do\n")), ("", true), "{stderr}");
}
