//! The same commands on a SQLite file.

#[path = "consumers/cases.rs"]
mod cases;
#[path = "sqlite/consumers.rs"]
mod consumers;
#[path = "consumers/fixture.rs"]
mod fixture;
#[path = "sqlite/replay.rs"]
mod replay;
#[path = "replay/cases.rs"]
mod replays;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sqlx::{ConnectOptions as _, Connection as _};

const RELEVO: &str = env!("CARGO_BIN_EXE_relevo");
const LINE: &str = r#"{"topic":"orders","key":"o-1","type":"OrderPlaced","payload":1}"#;

/// A file of one test. It is deleted at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("relevo-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory of its own");
        Self(folder)
    }

    /// One with an outbox and the destination `main`.
    fn with_destination(name: &str) -> Self {
        let file = Self::new(name);
        file.succeeds(&["migrate"]);
        file.succeeds(&["destination", "add", "main", "--shards", "2", "--start", "oldest"]);
        file
    }

    fn path(&self) -> PathBuf {
        self.0.join("shop.db")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("RELEVO_DATABASE_URL", format!("sqlite:{}", self.path().display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        code_and_text(self.command(RELEVO).args(args).output().expect("`relevo` runs"))
    }

    /// Runs a script that may mount file systems. They are private to it and end with it. `$0` is the program, `$1` the
    /// file's directory.
    fn with_mounts(&self, script: &str) -> (i32, String, String) {
        let mut command = self.command("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, RELEVO]).arg(&self.0);
        code_and_text(command.output().expect("`unshare` runs"))
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn code_and_text(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
}

/// One error that contains this, one hint or more, and nothing else.
fn assert_one_error(stderr: &str, part: &str, hint: &str) {
    let mut lines = stderr.lines();
    let error = lines.next().unwrap_or_default();
    assert!(error.starts_with("error: ") && error.contains(part), "{stderr}");
    assert!(lines.clone().all(|line| line.starts_with("hint: ")), "{stderr}");
    assert!(lines.any(|line| line.contains(hint)), "{stderr}");
}

fn objects(output: &str) -> Vec<serde_json::Value> {
    output.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn every_read_command_works_on_a_file() {
    let file = File::new("reads");
    let versions = file.succeeds(&["migrate", "--dry-run"]);
    assert!(versions.starts_with("1  baseline\n"), "{versions}");
    let versions = objects(&file.succeeds(&["migrate", "--dry-run", "-o", "json"]));
    assert_eq!(versions[0], serde_json::json!({ "version": 1, "name": "baseline" }));
    assert!(!file.0.join("shop.db").exists(), "a dry run makes no file");
    file.succeeds(&["migrate"]);
    file.succeeds(&["destination", "add", "main", "--shards", "2", "--start", "oldest"]);
    let id = file.succeeds(&["emit", "orders", "o-1", "OrderPlaced", r#"{"n":1}"#]);
    let id = id.trim_end();
    let listed = objects(&file.succeeds(&["message", "list", "-o", "json"]));
    assert_eq!((listed[0]["id"].as_str(), listed[0]["status"].as_str()), (Some(id), Some("pending")));
    let fields: Vec<&str> = listed[0].as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        "attempts created_at destination id key last_error next_attempt_at published_at seq status topic type";
    assert_eq!(fields.join(" "), expected, "the same as on PostgreSQL");
    assert_eq!(file.succeeds(&["message", "show", id, "--raw"]), r#"{"n":1}"#);
    assert_eq!(objects(&file.succeeds(&["why", "o-1", "-o", "json"]))[0]["cause"], "no_relay");
    let shown = &objects(&file.succeeds(&["destination", "show", "-o", "json"]))[0];
    assert_eq!((shown["shards"].as_array().map(Vec::len), &shown["pending"]), (Some(2), &1.into()));
    assert_eq!(objects(&file.succeeds(&["verify", "-o", "json"]))[0]["committed"], 1);
    assert_eq!(file.succeeds(&["dead-letter", "list"]), "");
    let (code, findings, _) = file.run(&["doctor", "-o", "json"]);
    assert!(matches!(code, 0 | 3) && objects(&findings).len() > 3, "{code}: {findings}");
    assert_eq!(file.run(&["message", "show", "00000000-0000-4000-8000-000000000000"]).0, 4);
}

#[test]
fn a_command_finds_its_outbox_in_the_configuration_and_options_win() {
    let file = File::with_destination("found");
    let other = File::new("found-other");
    let section = |name: &str, file: &File| {
        format!(
            "[outboxes.{name}]\ndatabase = \"sqlite:{}\"\n[outboxes.{name}.destinations.main]\n\
             broker = {{ kind = \"embedded\", path = \"{}\" }}\n",
            file.path().display(),
            file.0.join("broker.db").display()
        )
    };
    std::fs::write(file.0.join("relevo.toml"), section("shop", &file)).unwrap();
    let both = file.0.join("both.toml");
    std::fs::write(&both, section("shop", &file) + &section("other", &other)).unwrap();
    let both = both.to_str().unwrap();
    let run = |variable: Option<&str>, args: &[&str]| {
        let mut command = Command::new(RELEVO);
        command.args(["destination", "list"]).args(args).current_dir(&file.0);
        command.env_remove("RELEVO_DATABASE_URL").env_remove("RELEVO_CONFIG");
        if let Some(url) = variable {
            command.env("RELEVO_DATABASE_URL", url);
        }
        code_and_text(command.output().expect("`relevo` runs"))
    };
    let other_url = format!("sqlite:{}", other.path().display());
    for (variable, args) in
        [(None, &[][..]), (None, &["-c", both, "--outbox", "shop"]), (Some(&*other_url), &["-c", "relevo.toml"])]
    {
        let (code, stdout, stderr) = run(variable, args);
        assert!(code == 0 && stdout.contains("main"), "{args:?}: {stderr}");
    }
    let (code, _, stderr) = run(None, &["-c", both]);
    assert_eq!(code, 2);
    assert!(stderr.contains("has several outboxes\nhint: select one with `--outbox`: `other`, `shop`"), "{stderr}");
    let (code, _, stderr) = run(None, &["-c", both, "--outbox", "shp"]);
    assert_eq!((code, stderr.as_str()), (4, "error: outbox `shp` is not known\nhint: there are `other`, `shop`\n"));
    for (variable, args, origin) in [
        (None, &["--database", &*other_url][..], "`--database`"),
        (Some(&*other_url), &[], "`RELEVO_DATABASE_URL`"),
        (None, &["-c", both, "--outbox", "other"], "outbox `other` of `"),
    ] {
        let (code, _, stderr) = run(variable, args);
        assert!(code != 0 && stderr.contains(origin), "{args:?}: {stderr}");
    }
}

#[test]
fn a_file_that_is_not_there_gives_the_hint_to_migrate() {
    let file = File::new("missing");
    for args in [&["destination", "show"][..], &["emit", "orders", "o-1", "T", "1"], &["doctor"]] {
        let (code, stdout, stderr) = file.run(args);
        assert!(matches!(code, 1 | 5) && stdout.is_empty(), "{args:?}: {code} {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains("relevo migrate"), "{args:?}: {stderr}");
    }
}

#[tokio::test]
async fn a_locked_file_is_one_error_that_names_the_cause() {
    let file = File::with_destination("locked");
    let lines = file.0.join("lines");
    std::fs::write(&lines, LINE).unwrap();
    let mut writer = relevo_store_sqlite::connect_options(file.path()).connect().await.unwrap();
    let tx = relevo_store_sqlite::begin(&mut writer).await.unwrap();
    let many = ["emit", "--jsonl", lines.to_str().unwrap()];
    let commands = [&["emit", "orders", "o-1", "T", "1"][..], &many, &["destination", "disable", "main"]];
    // Each waits for the lock; together they wait once.
    let started = commands.map(|args| file.command(RELEVO).args(args).spawn().expect("`relevo` runs"));
    let read = file.command(RELEVO).args(["message", "list"]).spawn().expect("`relevo` runs");
    for (child, args) in started.into_iter().zip(commands) {
        let (code, stdout, stderr) = code_and_text(child.wait_with_output().unwrap());
        assert_eq!((code, stdout.as_str()), (5, ""), "{args:?}: {stderr}");
        assert_one_error(&stderr, "shop.db` is locked by another connection", "keeps a write transaction open");
    }
    let read = code_and_text(read.wait_with_output().unwrap());
    assert_eq!(read, (0, String::new(), "0 messages\n".to_owned()), "readers do not wait for writers");
    tx.rollback().await.unwrap();
    file.succeeds(&["emit", "orders", "o-1", "T", "1"]);
}

#[test]
fn a_full_disk_is_one_error_and_nothing_is_written() {
    let file = File::new("full");
    std::fs::write(file.0.with_extension("lines"), LINE).unwrap();
    // A log that a command left behind has room for one more message. The next command that closes in time deletes it.
    let script = r#"mount -t tmpfs -o size=1m none "$1" && "$0" migrate && "$0" destination add main --start oldest && \
        while [ -e "$1/shop.db-wal" ]; do "$0" message list 2>/dev/null; done; \
        head -c 2000000 /dev/zero >"$1/ballast"; exec 2>&1; \
        "$0" emit orders o-1 T 1; echo "code $?"; echo; "$0" emit --jsonl "$1.lines"; echo "code $?"; echo; \
        rm "$1/ballast"; "$0" emit orders o-1 T 1 --id 5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10; "$0" message list -o json"#;
    let (code, stdout, stderr) = file.with_mounts(script);
    std::fs::remove_file(file.0.with_extension("lines")).unwrap();
    assert_eq!(code, 0, "{stderr}");
    let [one, many, after] = stdout.split("\n\n").collect::<Vec<_>>()[..] else { panic!("three parts: {stdout}") };
    for part in [one, many] {
        let stderr = part.strip_suffix("\ncode 5").unwrap_or_else(|| panic!("{part}"));
        assert_one_error(stderr, "shop.db` cannot grow, the disk is full", "free space");
    }
    let mut after = after.lines();
    assert_eq!(after.next(), Some("5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10"));
    assert!(after.next().is_some_and(|line| line.contains("5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10")));
    assert_eq!(after.collect::<Vec<_>>(), ["1 message"], "nothing else was written");
}

#[test]
fn a_read_only_file_is_an_error_with_the_requirements_of_reading() {
    let file = File::with_destination("readonly");
    let script = r#"mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && "$0" message list"#;
    let (code, stdout, stderr) = file.with_mounts(script);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert_one_error(&stderr, "shop.db` cannot be ", "directory");
    let script =
        r#"mount --bind "$1/shop.db" "$1/shop.db" && mount -o remount,ro,bind "$1/shop.db" && "$0" message list"#;
    let (code, stdout, stderr) = file.with_mounts(script);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert_one_error(&stderr, "shop.db` cannot be written", "for reading too: that needs the files `-wal` and `-shm`");
}

#[tokio::test]
async fn a_file_that_is_no_database_or_is_damaged_is_one_error_with_advice() {
    let file = File::with_destination("damaged");
    // The last connection that closes writes the log into the file and deletes the log.
    let connection = relevo_store_sqlite::connect_options(file.path()).connect().await.unwrap();
    connection.close().await.unwrap();
    assert!(!file.0.join("shop.db-wal").exists());
    let whole = std::fs::read(file.path()).unwrap();
    for (bytes, part, hint) in [
        (
            "some text, and long enough to be a header".repeat(9).into_bytes(),
            "is no SQLite database",
            "name another file",
        ),
        (whole[..2 * 4096].to_vec(), "is damaged", "restore a backup"),
    ] {
        std::fs::write(file.path(), bytes).unwrap();
        for args in
            [&["emit", "orders", "o-1", "T", "1"][..], &["message", "list"], &["dead-letter", "list"], &["migrate"]]
        {
            let (code, stdout, stderr) = file.run(args);
            assert_eq!((code, stdout.as_str()), (1, ""), "{args:?}: {stderr}");
            assert_one_error(&stderr, part, hint);
        }
    }
}

#[test]
fn a_list_hints_at_more_only_if_there_is_more_and_every_hint_works() {
    let file = File::with_destination("pages");
    let mut expected = Vec::new();
    for later in [&[][..], &[], &["--deliver-at", "1h"], &["--deliver-at", "1h"]] {
        let id = file.succeeds(&[&["emit", "orders", "o-1", "T", "1"], later].concat());
        expected.push(id.trim_end().to_owned());
    }
    expected.reverse();
    assert_eq!(file.run(&["message", "list", "--limit", "4"]).2, "4 messages\n");
    assert_eq!(file.run(&["message", "list", "--limit", "2", "--status", "scheduled"]).2, "2 messages\n");
    let (mut seen, mut before) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["message", "list", "--limit", "1", "-o", "json"];
        args.extend(before.iter().flat_map(|before| ["--before-seq", before]));
        let (code, page, stderr) = file.run(&args);
        assert_eq!(code, 0, "{stderr}");
        seen.extend(objects(&page).iter().map(|message| message["id"].as_str().unwrap().to_owned()));
        let Some((_, hint)) = stderr.split_once("--before-seq ") else { break };
        before = Some(hint.split('`').next().unwrap().to_owned());
    }
    assert_eq!(seen, expected);
    let verified = &objects(&file.succeeds(&["verify", "-o", "json"]))[0];
    assert_eq!((&verified["committed"], &verified["by_status"]["scheduled"]), (&2.into(), &2.into()));
}

#[test]
fn a_scheduled_message_is_cancelled_and_the_log_is_followed() {
    let file = File::with_destination("cancel");
    let id = file.succeeds(&["emit", "orders", "o-1", "T", "1", "--deliver-at", "1h"]);
    let id = id.trim_end();
    assert_eq!(file.run(&["cancel", id]), (0, String::new(), format!("message {id} is cancelled\n")));
    assert_eq!(file.run(&["cancel", id]).0, 4);
    let pending = file.succeeds(&["emit", "orders", "o-2", "T", "1"]);
    let (code, _, stderr) = file.run(&["cancel", pending.trim_end()]);
    assert!(code == 1 && stderr.contains("it is `pending` at destination `main`"), "{stderr}");
    let tail = objects(&file.succeeds(&["message", "tail", "-o", "json"]));
    assert_eq!((tail.len(), &tail[0]["key"]), (1, &"o-2".into()));
    file.succeeds(&["settings", "set", "--id-retention", "10d"]);
    assert_eq!(objects(&file.succeeds(&["settings", "get", "-o", "json"]))[0]["id_retention_ms"], 864_000_000);
    let (code, _, stderr) = file.run(&["grant", "writer", "shop"]);
    assert_eq!(code, 1);
    assert_one_error(&stderr, "a SQLite file has no roles", "permissions of the file");
}

#[test]
fn migrations_are_one_line_and_a_script_for_another_tool() {
    let file = File::new("migrate");
    let at = file.path().display().to_string();
    assert_eq!(file.run(&["migrate"]).2, format!("{at}: created, version 1\n"));
    assert_eq!(file.run(&["migrate"]).2, format!("{at}: nothing to do\n"));
    let script = file.succeeds(&["migrate", "--print", "--from", "0", "--to", "1"]);
    assert!(script.contains("CREATE TABLE relevo_message") && !script.contains("BEGIN IMMEDIATE"), "{script}");
}
