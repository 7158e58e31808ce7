//! `relevo config`, run as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A file that is deleted when its value is dropped.
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
fn a_valid_file_is_reported_as_valid() {
    let file = File::new("good", GOOD);
    let (code, stdout, stderr) = file.run(&["check"], &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert_eq!(stderr, format!("`{}` is valid: 1 outbox, 1 destination\n", file.0.display()));
}

#[test]
fn every_problem_is_an_error_with_its_hint() {
    let file = File::new("bad", &GOOD.replace("database =", "databse ="));
    let (code, stdout, stderr) = file.run(&["check"], &[("RELEVO__LOG__FORMAT", "xml")]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    let at = file.0.display();
    let expected = format!(
        "error: `outboxes.shop` has no `database` at {at}:1\nhint: set `database`, `database_file` or `database_env`\n\
         error: unknown key `databse` in `outboxes.shop` at {at}:2\nhint: did you mean `database`?\n\
         error: `format` must be one of `auto`, `text`, `json` at variable `RELEVO__LOG__FORMAT`\n\
         error: the configuration has 3 problems\n"
    );
    assert_eq!(stderr, expected);
}

#[test]
fn one_problem_is_one_error() {
    let file = File::new("one", &format!("{GOOD}[relay]\nlease_duraton = 1\n"));
    let (code, _, stderr) = file.run(&["check"], &[]);
    let at = file.0.display();
    assert_eq!(code, Some(2));
    assert_eq!(
        stderr,
        format!("error: unknown key `lease_duraton` in `relay` at {at}:6\nhint: did you mean `lease_duration`?\n")
    );
}

#[test]
fn a_secret_in_the_wrong_place_is_in_no_output() {
    for key in ["database_env", "database_file", "schema"] {
        let file = File::new(key, &GOOD.replace("database =", &format!("{key} =")));
        for args in [&["check"][..], &["check", "-o", "json"], &["show"], &["show", "-o", "json"]] {
            let (code, stdout, stderr) = file.run(args, &[]);
            assert_eq!(code, Some(2), "{key} {args:?}");
            assert!(!stdout.contains("sesame") && !stderr.contains("sesame"), "{key} {args:?}: {stdout}{stderr}");
        }
    }
}

#[test]
fn a_variable_that_sets_nothing_is_a_warning_with_the_right_name() {
    let file = File::new("stranger", GOOD);
    let variables = [("RELEVO_RELAY_LEASE_DURATION", "20s")];
    let warning = "warning: variable `RELEVO_RELAY_LEASE_DURATION` sets nothing\nhint: did you mean `RELEVO__RELAY__LEASE_DURATION`?\n";
    let (code, _, stderr) = file.run(&["check"], &variables);
    assert!(code == Some(0) && stderr.starts_with(warning), "{stderr}");
    let (code, _, stderr) = file.run(&["show"], &variables);
    assert_eq!((code, stderr.as_str()), (Some(0), warning));
}

#[test]
fn json_output_has_all_problems_in_one_object_on_one_line() {
    let good = File::new("json-good", GOOD);
    let (code, stdout, stderr) = good.run(&["check", "-o", "json"], &[("RELEVO_RELAY_LEASE_DURATION", "1")]);
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (Some(0), "", 1));
    let expected = serde_json::json!({
        "ok": true, "file": good.0, "outboxes": 1, "destinations": 1, "warnings": [{
            "problem": "variable `RELEVO_RELAY_LEASE_DURATION` sets nothing", "place": null,
            "hint": "did you mean `RELEVO__RELAY__LEASE_DURATION`?",
        }],
    });
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), expected);
    let bad = File::new("json-bad", &format!("{GOOD}[relay]\nlease_duraton = 1\n[log]\nlevel = \"blah\"\n"));
    let (code, stdout, stderr) = bad.run(&["check", "-o", "json"], &[]);
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (Some(2), "", 1));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["ok"], report["problems"].as_array().map(Vec::len)), (&false.into(), Some(2)));
    let first = serde_json::json!({
        "problem": "unknown key `lease_duraton` in `relay`", "place": format!("{}:6", bad.0.display()),
        "hint": "did you mean `lease_duration`?",
    });
    assert_eq!(report["problems"][0], first);
}

#[test]
fn a_missing_file_is_an_error() {
    let file = File::new("missing", "");
    std::fs::remove_file(&file.0).unwrap();
    let (code, _, stderr) = file.run(&["check"], &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("cannot be read: No such file or directory") && stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn every_value_is_shown_with_its_origin_and_no_secret() {
    let file = File::new("show", GOOD);
    let set = ["show", "--set", "relay.advanced.pages_max=7"];
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
    assert_eq!(line("relay.advanced.pages_max"), expect("relay.advanced.pages_max = 7", "flag `--set`"));
    assert_eq!(line("relay.lease_duration"), expect("relay.lease_duration = \"10s\"", "default"));
    let place = format!("{}:2", file.0.display());
    assert_eq!(line("outboxes.shop.database"), expect("outboxes.shop.database = \"<secret>\"", &place));
    assert!(!stdout.contains("sesame"));
}

#[test]
fn programs_get_one_object() {
    let file = File::new("json", GOOD);
    let (code, stdout, _) = file.run(&["show", "-o", "json"], &[("RELEVO__RELAY__LEASE_DURATION", "20s")]);
    assert_eq!(code, Some(0));
    assert!(!stdout.contains("sesame"));
    assert_eq!(stdout.lines().count(), 1);
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(object["file"], file.0.to_str().unwrap());
    let of = |key: &str| object["settings"].as_array().unwrap().iter().find(|it| it["key"] == key).unwrap();
    let lease = serde_json::json!({
        "key": "relay.lease_duration", "value": "20s", "origin": "variable", "name": "RELEVO__RELAY__LEASE_DURATION"
    });
    assert_eq!(*of("relay.lease_duration"), lease);
    let database = of("outboxes.shop.database");
    assert_eq!(
        (&database["value"], &database["origin"], &database["line"]),
        (&"<secret>".into(), &"file".into(), &2.into())
    );
}

#[test]
fn relevo_toml_of_the_current_directory_is_read() {
    let directory = std::env::temp_dir().join(format!("relevo-config-{}-here", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("relevo.toml"), GOOD).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    let output =
        command.args(["config", "check"]).env_remove("RELEVO_CONFIG").current_dir(&directory).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "`relevo.toml` is valid: 1 outbox, 1 destination\n");
}

#[test]
fn the_schema_knows_every_table_and_rejects_other_keys() {
    let schema = Command::new(env!("CARGO_BIN_EXE_relevo")).args(["config", "schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    let relay = &schema["properties"]["relay"];
    assert_eq!(
        (&relay["properties"]["lease_duration"]["default"], &relay["additionalProperties"]),
        (&"10s".into(), &false.into())
    );
    let destination =
        &schema["properties"]["outboxes"]["additionalProperties"]["properties"]["destinations"]["additionalProperties"];
    let kinds = destination["properties"]["broker"]["oneOf"].as_array().unwrap();
    let rabbitmq = kinds.iter().find(|kind| kind["title"] == "rabbitmq").unwrap();
    for key in ["url", "urls", "url_file", "password_env", "management_url", "queues"] {
        assert!(rabbitmq["properties"][key].is_object(), "{key}");
    }
}

#[test]
fn the_example_that_is_written_is_good() {
    let example = Command::new(env!("CARGO_BIN_EXE_relevo")).args(["config", "example"]).output().unwrap();
    let file = File::new("example", std::str::from_utf8(&example.stdout).unwrap());
    let (code, _, stderr) = file.run(&["check"], &[]);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn the_image_is_built_with_the_workspace_s_toolchain() {
    let toolchain = include_str!("../../../rust-toolchain.toml");
    let version = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    let image = include_str!("../../../ops/container/Containerfile");
    assert!(image.contains(&format!("/rust:{version}-slim-")), "rust-toolchain.toml names {version}");
}

/// Runs `relevo init` in this directory.
fn init(directory: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.arg("init").args(args).current_dir(directory).output().expect("it runs")
}

#[test]
fn init_writes_a_valid_file_for_every_kind_of_broker_and_overwrites_none() {
    for kind in relevo_host::registry::BROKERS {
        for database in ["postgres://me:se\"same@db/shop", "sqlite:shop.db"] {
            let directory = std::env::temp_dir().join(format!("relevo-init-{}-{}", std::process::id(), kind.name));
            std::fs::create_dir(&directory).expect("the directory for temporary files can be written");
            let args = ["--broker", kind.name, "--database", database];
            let output = init(&directory, &args);
            let written = std::fs::read_to_string(directory.join("relevo.toml")).expect("it was written");
            let file = File::new(kind.name, &written);
            let (code, stdout, stderr) = file.run(&["check"], &[]);
            let again = init(&directory, &args);
            let printed = init(&directory, &[&args[..], &["--stdout"]].concat());
            std::fs::remove_dir_all(&directory).expect("it exists");
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
            assert_eq!(stderr, format!("`{}` is valid: 1 outbox, 1 destination\n", file.0.display()));
            assert_eq!(String::from_utf8(printed.stdout).expect("it writes UTF-8"), written);
            let refusal = String::from_utf8(again.stderr).expect("it writes UTF-8");
            assert_eq!(again.status.code(), Some(1), "{refusal}");
            assert!(refusal.starts_with("error: `relevo.toml` exists, and is not overwritten\nhint: "), "{refusal}");
        }
    }
}

#[test]
fn init_refuses_an_unknown_broker_and_an_unknown_database() {
    let directory = std::env::temp_dir();
    for (broker, database) in [("carrier-pigeon", "sqlite:shop.db"), ("embedded", "mysql://me:sesame@db/shop")] {
        let output = init(&directory, &["--broker", broker, "--database", database, "--stdout"]);
        let stderr = String::from_utf8(output.stderr).expect("it writes UTF-8");
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
}
