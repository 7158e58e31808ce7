//! What a reader makes of its sources, and every problem that it reports.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_config::{DurationText, KeyPath, Layers, Problem, Reader, Secret, Section, SizeText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Server {
    urls: Vec<String>,
    password: Option<Secret>,
    keys: Vec<Secret>,
    #[serde(with = "DurationText")]
    timeout: Duration,
    #[serde(with = "SizeText")]
    size: u64,
    retries: u8,
    mode: Mode,
    labels: BTreeMap<String, String>,
    limits: Limits,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Limits {
    open: bool,
    share: f64,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Fast,
    Safe,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            password: None,
            keys: Vec::new(),
            timeout: Duration::from_secs(5),
            size: 1024,
            retries: 3,
            mode: Mode::Fast,
            labels: BTreeMap::new(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { open: true, share: 0.5 }
    }
}

impl Section for Server {}

/// Another part of the same table.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Extra {
    comment: String,
}

impl Section for Extra {}

fn at() -> KeyPath {
    KeyPath::of(&["server"])
}

fn reader(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> Reader {
    let mut layers = Layers::default();
    layers.file("app.toml", text);
    layers.variables("APP__", variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    for flag in flags {
        layers.flag("--set", flag);
    }
    layers.reader()
}

fn read(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Server, Vec<String>> {
    let mut reader = reader(text, variables, flags);
    let server = reader.read::<Server>(&at());
    match reader.finish() {
        Ok(_) => Ok(server.expect("a section without a problem")),
        Err(problems) => Err(problems.iter().map(Problem::to_string).collect()),
    }
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(read("", &[], &[]), Ok(Server::default()));
}

#[test]
fn values_of_a_file_are_read_by_their_types() {
    let text = "[server]\nurls = ['a', 'b']\npassword = 'hush'\ntimeout = '90s'\nsize = '2MiB'\nretries = 0x10\n\
                mode = 'safe'\nlabels = { x-y = 'z' }\nlimits.share = 1\n";
    let server = read(text, &[], &[]).unwrap();
    assert_eq!(
        (server.urls, server.timeout, server.size),
        (vec!["a".into(), "b".into()], Duration::from_secs(90), 2 << 20)
    );
    assert_eq!((server.password, server.retries, server.mode), (Some(Secret::new("hush")), 16, Mode::Safe));
    assert_eq!(server.labels, [("x-y".to_owned(), "z".to_owned())].into());
    assert_eq!(server.limits, Limits { open: true, share: 1.0 });
}

#[test]
fn variables_and_flags_are_parsed_as_the_type_of_their_field() {
    let variables = [
        ("APP__SERVER__URLS", "a, b"),
        ("APP__SERVER__KEYS", "k,l"),
        ("APP__SERVER__RETRIES", "7"),
        ("APP__SERVER__LIMITS__OPEN", "false"),
        ("APP__SERVER__LABELS", "a=1,b=true"),
        ("OTHER", "x"),
    ];
    let server = read("[server]\nretries = 1\nsize = '1KiB'\n", &variables, &["server.retries=8"]).unwrap();
    assert_eq!((server.urls.len(), server.keys.len(), server.retries), (2, 2, 8));
    assert!(!server.limits.open);
    assert_eq!(server.size, 1024);
}

#[test]
fn every_problem_of_a_table_is_reported_in_the_order_of_the_file() {
    let text = "[server]\ntimeout = 30\nsize = '10 megs'\nretries = 300\nmode = 'saef'\nurls = 'a'\nlabels = 1\ntimout = '1s'\n\
                [server.limits]\nopen = 'yes'\nshare = true\nopne = 1\n[sevrer]\n";
    let variables = [("APP__SERVER__PASSWORD__X", "1"), ("APP__SERVER__NOTHING", "1")];
    let mut reader = reader(text, &variables, &["server", "server.retires=1"]);
    reader.read::<Server>(&at());
    let found: Vec<String> = reader.finish().unwrap_err().iter().map(Problem::to_string).collect();
    assert_eq!(
        found,
        [
            "`timeout` must be a duration such as `\"30s\"`, with the unit `ms`, `s`, `m`, `h` or `d` at app.toml:2",
            "`size` must be a size such as `\"10MiB\"`, with the unit `B`, `KiB`, `MiB` or `GiB` at app.toml:3",
            "`retries` must be from 0 to 255, is 300 at app.toml:4",
            "`mode` must be one of `fast`, `safe` at app.toml:5; hint: did you mean `safe`?",
            "`urls` must be a list at app.toml:6",
            "`labels` must be a table at app.toml:7",
            "unknown key `timout` in `server` at app.toml:8; hint: did you mean `timeout`?",
            "`open` must be `true` or `false` at app.toml:10",
            "`share` must be a number at app.toml:11",
            "unknown key `opne` in `server.limits` at app.toml:12; hint: did you mean `open`?",
            "unknown key `sevrer` at app.toml:13; hint: did you mean `server`?",
            "unknown key `nothing` in `server` at variable `APP__SERVER__NOTHING`",
            "`password` must be a text at variable `APP__SERVER__PASSWORD__X`",
            "the assignment has no `=` at flag `--set`; hint: `--set log.level=debug`",
            "unknown key `retires` in `server` at flag `--set`; hint: did you mean `retries`?",
        ]
    );
}

#[test]
fn one_value_of_a_list_can_be_set_in_the_singular() {
    assert_eq!(read("[server]\nurl = 'a'\n", &[], &[]).unwrap().urls, ["a"]);
    assert_eq!(read("", &[("APP__SERVER__URL", "a,b")], &[]).unwrap().urls, ["a,b"]);
    let both = "[server]\nurl = 'a'\nurls = ['b']\n";
    assert_eq!(
        read(both, &[], &[]),
        Err(vec!["`url` and `urls` are both set, only one is allowed at app.toml:3".to_owned()])
    );
    let list = read("[server]\nurl = ['a']\n", &[], &[]).unwrap_err();
    assert_eq!(list, ["`url` must be one value, not a list at app.toml:2"]);
    let none = read("[server]\nretrie = 1\n", &[], &[]).unwrap_err();
    assert_eq!(none, ["unknown key `retrie` in `server` at app.toml:2; hint: did you mean `retries`?"]);
}

#[test]
fn a_secret_comes_from_a_file_or_a_variable() {
    let path = std::env::temp_dir().join(format!("relevo-config-secret-{}", std::process::id()));
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let text = format!("[server]\nkeys_file = {path:?}\npassword_env = 'PATH'\n");
    let server = read(&text, &[], &[]).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(server.keys, [Secret::new("one"), Secret::new("two")]);
    assert_eq!(server.password.unwrap().reveal(), std::env::var("PATH").unwrap().trim());
    for (text, expected) in [
        (
            "password_file = '/nowhere'",
            "the file of `password_file` cannot be read: No such file or directory (os error 2) at app.toml:2",
        ),
        ("password_file = 'https://hush'", "`password_file` must be the path of a file, and is a URL at app.toml:2"),
        ("password_env = 'not-a-name'", "`password_env` must be the name of a variable at app.toml:2"),
        ("password_env = 'hush'", "`password_env`: variable `…` is not set at app.toml:2"),
        ("urls_file = '/proc/version'", "unknown key `urls_file` in `server` at app.toml:2"),
        ("timeout_env = 'PATH'", "unknown key `timeout_env` in `server` at app.toml:2; hint: did you mean `timeout`?"),
    ] {
        assert_eq!(read(&format!("[server]\n{text}\n"), &[], &[]).unwrap_err(), [expected]);
    }
}

#[test]
fn several_sections_can_read_one_table() {
    let mut both = reader("[server]\ncomment = 'c'\nretries = 1\n", &[], &[]);
    assert_eq!(both.read::<Server>(&at()).unwrap().retries, 1);
    assert_eq!(both.read::<Extra>(&at()).unwrap().comment, "c");
    let settings = both.finish().unwrap();
    let comment = settings.iter().find(|setting| setting.path.to_string() == "server.comment").unwrap();
    assert_eq!((comment.value.as_str(), comment.origin.to_string()), (Some("c"), "app.toml:2".to_owned()));
}

#[test]
fn a_table_overrides_single_keys_of_another() {
    let text = "[base]\nretries = 1\nlimits = { open = false, share = 0.1 }\n[server]\nlimits = { share = 0.2 }\n";
    let mut reader = reader(text, &[], &[]);
    let server = reader.read_over::<Server>(&KeyPath::of(&["base"]), &at()).unwrap();
    assert_eq!((server.retries, server.limits), (1, Limits { open: false, share: 0.2 }));
}

#[test]
fn a_file_with_syntax_errors_is_reported_by_line_alone() {
    let found = read("a = \n[server]\npassword = \"hush\" x\n", &[], &[]).unwrap_err().join("\n");
    assert!(found.contains("app.toml:1") && found.contains("app.toml:3") && !found.contains("hush"), "{found}");
}

#[test]
fn lists_of_tables_are_set_in_the_file_only() {
    let mut reader =
        reader("[[server]]\nretries = 1\n[[server]]\nretries = 'x'\n", &[("APP__SERVER__RETRIES", "2")], &[]);
    assert_eq!(reader.list::<Server>(&at()).len(), 1);
    let found: Vec<String> = reader.finish().unwrap_err().iter().map(Problem::to_string).collect();
    let variable = "`server` can be set in the file only at variable `APP__SERVER__RETRIES`";
    assert_eq!(found, ["`retries` must be a whole number at app.toml:4", variable]);
}
