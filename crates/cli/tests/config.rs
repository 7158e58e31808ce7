//! `relevo config`, run as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A file that goes with its value.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("relevo-config-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).expect("the directory for temporary files can be written");
        Self(path)
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
        command.arg("config").args(args).arg("-c").arg(&self.0);
        command.env_remove("RELEVO_LOG").envs(variables.iter().copied());
        let Output { status, stdout, stderr } = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
        (status.code(), text(stdout), text(stderr))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

const GOOD: &str = "\
[outboxes.shop]
database = \"postgres://me:sesame@db/shop\"
[outboxes.shop.destinations.main]
broker = { kind = \"embedded\", path = \"broker.db\" }
";

#[test]
fn a_good_file_is_called_good() {
    let file = File::new("good", GOOD);
    let (code, stdout, stderr) = file.run(&["check"], &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert_eq!(stderr, format!("`{}` is good: 1 outboxes, 1 destinations\n", file.0.display()));
}

#[test]
fn every_problem_is_an_error_with_its_hint() {
    let file = File::new("bad", &GOOD.replace("database =", "databse ="));
    let (code, stdout, stderr) = file.run(&["check"], &[("RELEVO__LOG__FORMAT", "xml")]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let at = file.0.display();
    let expected = format!(
        "error: unknown key `databse` in `outboxes.shop` at {at}:2\nhint: did you mean `database`?\n\
         error: `format` is one of `auto`, `text`, `json`, not `xml` at variable `RELEVO__LOG__FORMAT`\n\
         error: `outboxes.shop` names no database at {at}:1\nhint: set `database`, `database_file` or `database_env`\n\
         error: the configuration has 3 problems\n"
    );
    assert_eq!(stderr, expected);
}

#[test]
fn one_problem_is_one_error() {
    let file = File::new("one", &format!("{GOOD}[relay]\nlease_sm = 1\n"));
    let (code, _, stderr) = file.run(&["check"], &[]);
    let at = file.0.display();
    assert_eq!(code, Some(1));
    assert_eq!(stderr, format!("error: unknown key `lease_sm` in `relay` at {at}:6\nhint: did you mean `lease_ms`?\n"));
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let file = File::new("gone", "");
    std::fs::remove_file(&file.0).unwrap();
    let (code, _, stderr) = file.run(&["check"], &[]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot be read: No such file or directory") && stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn every_value_is_printed_with_its_origin_and_no_secret() {
    let file = File::new("print", GOOD);
    let set = ["print", "--set", "relay.pages_max=7"];
    let variables = [("RELEVO_LOG", "debug"), ("RELEVO__SERVICE", "shop-relay")];
    let (code, stdout, stderr) = file.run(&set, &variables);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let line = |begins: &str| {
        let line = stdout.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("{begins}: {stdout}"));
        line.split_once('#').map(|(value, origin)| (value.trim().to_owned(), origin.trim().to_owned())).unwrap()
    };
    let expect = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(line("log.level"), expect("log.level = \"debug\"", "variable `RELEVO_LOG`"));
    assert_eq!(line("service"), expect("service = \"shop-relay\"", "variable `RELEVO__SERVICE`"));
    assert_eq!(line("relay.pages_max"), expect("relay.pages_max = 7", "flag `--set`"));
    assert_eq!(line("relay.lease_ms"), expect("relay.lease_ms = 10000", "default"));
    let place = format!("{}:2", file.0.display());
    assert_eq!(line("outboxes.shop.database"), expect("outboxes.shop.database = \"<secret>\"", &place));
    assert!(!stdout.contains("sesame"));
}

#[test]
fn programs_get_one_object() {
    let file = File::new("json", GOOD);
    let (code, stdout, _) = file.run(&["print", "--json"], &[("RELEVO__RELAY__LEASE_MS", "20000")]);
    assert_eq!(code, Some(0));
    assert!(!stdout.contains("sesame"));
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(object["file"], file.0.to_str().unwrap());
    let of = |key: &str| object["settings"].as_array().unwrap().iter().find(|it| it["key"] == key).unwrap();
    let lease = serde_json::json!({
        "key": "relay.lease_ms", "value": 20000, "origin": "variable", "name": "RELEVO__RELAY__LEASE_MS"
    });
    assert_eq!(*of("relay.lease_ms"), lease);
    let database = of("outboxes.shop.database");
    assert_eq!(
        (&database["value"], &database["origin"], &database["line"]),
        (&"<secret>".into(), &"file".into(), &2.into())
    );
}

#[test]
fn the_example_that_is_written_is_good() {
    let example = Command::new(env!("CARGO_BIN_EXE_relevo")).args(["config", "example"]).output().unwrap();
    let file = File::new("example", std::str::from_utf8(&example.stdout).unwrap());
    let (code, _, stderr) = file.run(&["check"], &[]);
    assert_eq!(code, Some(0), "{stderr}");
}
