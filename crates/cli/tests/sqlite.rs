//! The same commands on a SQLite file.

use std::path::PathBuf;
use std::process::Command;

/// A file of the test's own, gone with it.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("relevo-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory of its own");
        Self(folder)
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let url = format!("sqlite:{}", self.0.join("shop.db").display());
        let output = Command::new(env!("CARGO_BIN_EXE_relevo")).args(args).env("RELEVO_DATABASE_URL", url).output();
        let output = output.expect("`relevo` runs");
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
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

fn objects(output: &str) -> Vec<serde_json::Value> {
    output.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn every_command_that_looks_works_on_a_file() {
    let file = File::new("looks");
    let versions = file.succeeds(&["migrate", "--dry-run"]);
    assert!(versions.starts_with("1\n"), "{versions}");
    assert!(!file.0.join("shop.db").exists(), "a dry run makes no file");
    file.succeeds(&["migrate"]);
    file.succeeds(&["destination", "add", "main", "--shards", "2", "--start", "oldest"]);
    let id = file.succeeds(&["emit", "orders", "o-1", "OrderPlaced", r#"{"n":1}"#]);
    let id = id.trim_end();
    let listed = objects(&file.succeeds(&["outbox", "list", "--json"]));
    assert_eq!((listed[0]["id"].as_str(), listed[0]["status"].as_str()), (Some(id), Some("pending")));
    let fields: Vec<&str> = listed[0].as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        "attempts created_at destination id key last_error next_attempt_at published_at seq status topic type";
    assert_eq!(fields.join(" "), expected, "the same as on PostgreSQL");
    assert_eq!(file.succeeds(&["outbox", "show", id, "--raw"]), r#"{"n":1}"#);
    assert_eq!(objects(&file.succeeds(&["why", "o-1", "--json"]))[0]["cause"], "no_relay");
    assert_eq!(objects(&file.succeeds(&["shards", "--json"])).len(), 2);
    assert_eq!(objects(&file.succeeds(&["backlog", "--json"]))[0]["pending"], 1);
    assert_eq!(objects(&file.succeeds(&["verify", "--json"]))[0]["committed"], 1);
    assert_eq!(file.succeeds(&["dead", "list"]), "");
    let (code, findings, _) = file.run(&["doctor", "--json"]);
    assert!(matches!(code, 0 | 3) && objects(&findings).len() > 3, "{code}: {findings}");
    assert_eq!(file.run(&["outbox", "show", "00000000-0000-4000-8000-000000000000"]).0, 4);
}

#[test]
fn a_file_that_is_not_there_gives_the_hint_to_migrate() {
    let file = File::new("missing");
    for args in [&["backlog"][..], &["emit", "orders", "o-1", "T", "1"], &["doctor"]] {
        let (code, stdout, stderr) = file.run(args);
        assert!(matches!(code, 1 | 5) && stdout.is_empty(), "{args:?}: {code} {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains("relevo migrate"), "{args:?}: {stderr}");
    }
}
