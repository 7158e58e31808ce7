use std::any::Any;
use std::io::Write as _;
use std::time::Duration;

use relevo_core::HeaderRules;
use relevo_core::outbox::admin::StartFrom;
use relevo_core::retry::Backoff;
use relevo_host::registry::BrokerConfig;

use super::keys::{INDEX, NAME, SECTIONS, Section};
use super::settings::{Origin, Path};
use super::value::Value;
use super::*;

const SMALL: &str = "\
[outboxes.shop]
database = \"postgres://me:sesame@db/shop\"
[outboxes.shop.destinations.main]
broker = { kind = \"embedded\", path = \"broker.db\" }
";

pub(super) fn load(text: &str, variables: &[(&str, &str)], set: &[&str]) -> Result<Loaded, Problems> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let sources = Sources { config: None, set: set.iter().map(|it| (*it).to_owned()).collect() };
    read("relevo.toml".to_owned(), text, variables, &sources.flags())
}

pub(super) fn problems(text: &str) -> Vec<String> {
    match load(text, &[], &[]) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn embedded(broker: &BrokerConfig) -> &relevo_broker_embedded::Adapter {
    let adapter: &dyn Any = &*broker.adapter;
    adapter.downcast_ref().expect("an embedded broker")
}

#[test]
fn the_smallest_file_has_the_defaults() {
    let loaded = load(SMALL, &[], &[]).unwrap();
    let config = &loaded.config;
    assert_eq!((config.service.as_str(), config.outboxes.len()), ("relevo", 1));
    assert_eq!(config.admin.listen, Some(([127, 0, 0, 1], 9464).into()));
    let outbox = &config.outboxes[0];
    assert_eq!((outbox.name.as_str(), outbox.store_config.schema.as_deref()), ("shop", None));
    assert_eq!(outbox.store.call_timeout(), Duration::from_secs(5));
    let main = &outbox.destinations[0];
    assert_eq!((main.create, main.shards, main.start), (false, 8, StartFrom::Now));
    assert_eq!(*embedded(&main.broker).config(), relevo_broker_embedded::Config::new("broker.db"));
    assert_eq!(format!("{:?}", main.relay), format!("{:?}", relevo_relay::Config::default()));
}

#[test]
fn an_outbox_and_an_embedded_broker_may_be_on_a_network_file_system() {
    let broker = "outboxes.shop.destinations.main.broker.allow_network_file_system=true";
    let set = ["outboxes.shop.allow_network_file_system=true", broker];
    let outbox = load(SMALL, &[], &set).unwrap().config.outboxes.remove(0);
    assert!(outbox.store_config.allow_network_file_system);
    assert!(embedded(&outbox.destinations[0].broker).config().allow_network_file_system);
}

#[test]
fn flags_replace_variables_which_replace_the_file() {
    let text = format!("{SMALL}[relay]\nlease_ms = 11000\npages_max = 5\nbatch_max = 6\n");
    let variables = [("RELEVO__RELAY__PAGES_MAX", "7"), ("RELEVO__RELAY__BATCH_MAX", "8")];
    let loaded = load(&text, &variables, &["relay.batch_max=9"]).unwrap();
    let relay = &loaded.config.outboxes[0].destinations[0].relay;
    assert_eq!((relay.lease_duration, relay.pages_max, relay.batch_messages_max), (Duration::from_secs(11), 7, 9));
    let origin = |key| loaded.settings.get(&Path::of(&["relay", key])).unwrap().origin.to_string();
    assert_eq!(origin("lease_ms"), "relevo.toml:6");
    assert_eq!(origin("pages_max"), "variable `RELEVO__RELAY__PAGES_MAX`");
    assert_eq!(origin("batch_max"), "flag `--set`");
    assert_eq!(origin("idle_max_ms"), "default");
}

#[test]
fn a_destination_may_differ_from_the_rest() {
    let text = format!("{SMALL}[relay]\nlease_ms = 11000\n[outboxes.shop.destinations.main.relay]\nlease_ms = 12000\n");
    let loaded = load(&text, &[], &[]).unwrap();
    assert_eq!(loaded.config.outboxes[0].destinations[0].relay.lease_duration, Duration::from_secs(12));
}

#[test]
fn routes_are_taken_in_their_order_with_their_policies() {
    let text = format!(
        "{SMALL}[[outboxes.shop.destinations.main.routes]]\nname = \"a\"\ntopic = \"orders.*\"\nbackoff = \"linear\"\n\
         base_ms = 500\nafter_dead = \"continue\"\n[[outboxes.shop.destinations.main.routes]]\n"
    );
    let loaded = load(&text, &[], &[]).unwrap();
    let routes = format!("{:?}", loaded.config.outboxes[0].destinations[0].relay.routes);
    let (first, second) = (routes.find("\"a\"").unwrap(), routes.find("\"everything\"").unwrap());
    assert!(first < second, "{routes}");
    assert!(routes.contains(&format!("{:?}", Backoff::Linear)) && routes.contains("Continue"), "{routes}");
}

#[test]
fn a_route_of_nothing_but_defaults_is_the_core_s() {
    let text = format!("{SMALL}[[outboxes.shop.destinations.main.routes]]\n");
    let loaded = load(&text, &[], &[]).unwrap();
    let relay = &loaded.config.outboxes[0].destinations[0].relay;
    assert_eq!(relay.routes, relevo_core::Routes::new(vec![relevo_core::Route::catch_all()]));
}

#[test]
fn contradictions_are_told_all_at_once_with_their_places() {
    let text = "\
[admin]
listen = \"0.0.0.0:80\"
[log]
level = \"loud=very\"
[relay]
publish_deadline_ms = 9000
idle_min_ms = 50
[outboxes.empty]
database = \"mysql://me:sesame@db/shop\"
[outboxes.shop]
database_env = \"NOT_SET_ANYWHERE\"
database_file = \"/nowhere\"
schema = \"no such\"
[outboxes.shop.destinations.main]
broker = { kind = \"embeded\" }
[[outboxes.shop.destinations.main.routes]]
topic = \"ord*\"
backoff = \"linear\"
factor = 3
base_ms = 600000
[[outboxes.shop.destinations.main.routes]]
";
    let told = problems(text);
    let expected = [
        "`kind` is one of `embedded`, `rabbitmq`, `nats`, not `embeded` at relevo.toml:15; hint: did you mean `embedded`?",
        "`lease_ms` is not longer than `publish_deadline_ms` and `lease_margin_ms` together: a message could go out after \
         another relay took over at relevo.toml:6",
        "`idle_max_ms` is less than `idle_min_ms` at relevo.toml:7",
        "the database URL has an unknown scheme at relevo.toml:9; \
         hint: `postgres://user@host:5432/name` or `sqlite:FILE`",
        "outbox `empty` has no destination at relevo.toml:8; hint: add `[outboxes.empty.destinations.NAME]`",
        "more than one of `database`, `database_file` and `database_env` is set at relevo.toml:11",
        "`no such` cannot name a schema at relevo.toml:13; \
         hint: a schema's name has 1 to 63 ASCII letters, digits, `_` and `-`",
        "`ord*` is no pattern of `topic` at relevo.toml:17; \
         hint: words between dots, `*` for any one word, `**` at the end for any rest",
        "`factor` says nothing about linear pauses at relevo.toml:19",
        "`base_ms` is more than `ceiling_ms` at relevo.toml:20",
        "two routes of one destination are named `everything` at relevo.toml:21; hint: each has a `name` of its own",
        "`loud=very` is no `level` that is known at relevo.toml:4; \
         hint: `error`, `warn`, `info`, `debug` or `trace`, or `info,relevo_relay=debug`",
        "`listen` is `0.0.0.0:80`, which others can reach, and there is no token at relevo.toml:2; \
         hint: listen on `127.0.0.1`, or set `token_file` or `token_env`",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_secret_in_place_of_its_name_is_not_shown() {
    for (key, told) in [
        (
            "database_env",
            "what `outboxes.shop.database_env` says is no name of a variable at relevo.toml:2; \
                          hint: `database_env` takes the name of a variable; the URL itself belongs into `database`",
        ),
        (
            "database_file",
            "what `outboxes.shop.database_file` says is no path at relevo.toml:2; \
                           hint: `database_file` takes a path; the URL itself belongs into `database`",
        ),
    ] {
        assert_eq!(problems(&SMALL.replace("database =", &format!("{key} ="))), [told]);
    }
    for (key, value) in [("token_env", "sesame"), ("token_env", "sesame-open"), ("token_file", "https://sesame")] {
        let told = problems(&format!("{SMALL}[admin]\n{key} = \"{value}\"\n")).join("\n");
        assert!(told.ends_with("at relevo.toml:6") || told.contains("at relevo.toml:6; hint: "), "{told}");
        assert!(!told.contains("sesame"), "{told}");
    }
    let told = problems(&SMALL.replace("database = \"postgres://me:sesame@db/shop\"", "database_env = \"NOT_SET\""));
    assert_eq!(told, ["variable `NOT_SET` is not set at relevo.toml:2"]);
}

#[test]
fn a_url_in_the_wrong_place_is_not_shown() {
    let url = "postgres://me:sesame@db/shop";
    for text in [
        format!("{SMALL}[log]\nlevel = \"{url}\"\nformat = \"{url}\"\n[admin]\nlisten = \"{url}\"\n"),
        format!("\"{url}\" = 1\n[outboxes.\"{url}\"]\n"),
        SMALL.replace("database = ", "schema = "),
    ] {
        let told = problems(&text).join("\n");
        assert!(!told.is_empty() && !told.contains("sesame"), "{told}");
    }
    let flags = [url, "postgres://me:sesame@db/shop?sslmode=disable"];
    for problem in load(SMALL, &[], &flags).unwrap_err().iter() {
        assert!(!problem.to_string().contains("sesame"), "{problem}");
    }
}

#[test]
fn a_level_that_nothing_would_be_logged_with_is_refused() {
    for level in ["blah", "info,zork", "relevo_relay=loud", "", "info,", "=debug"] {
        let told = problems(&format!("{SMALL}[log]\nlevel = \"{level}\"\n")).join("\n");
        assert!(told.contains("is no `level` that is known at relevo.toml:6; hint: "), "`{level}`: {told}");
    }
    for level in ["info", "WARN", "info,relevo_relay=debug", "off, relevo_relay::publish = trace"] {
        assert_eq!(problems(&format!("{SMALL}[log]\nlevel = \"{level}\"\n")), [""; 0], "`{level}`");
    }
    let told = load(SMALL, &[("RELEVO_LOG", "zork")], &[]).unwrap_err();
    assert!(
        told.iter().all(|it| it.to_string().contains("`zork` is no `level` that is known at variable `RELEVO_LOG`"))
    );
}

/// `RelevoSamplingStopped` looks for samples that are older than a minute, and an answer may take its time.
#[test]
fn a_pace_at_which_every_sample_would_seem_old_is_refused() {
    let told = |every: u32| problems(&format!("{SMALL}[admin]\nbacklog_every_ms = {every}\n"));
    assert_eq!(told(30_000), [""; 0]);
    let wrong = "`backlog_every_ms` is a whole number from 100 to 30000, not 30001 at relevo.toml:6";
    assert_eq!(told(30_001), [wrong]);
}

#[test]
fn a_destination_that_is_carried_twice_is_told_without_its_url() {
    let other = SMALL.replace("shop]", "copy]").replace("shop.", "copy.");
    let told = problems(&format!("{SMALL}{}", other.replace("me:sesame@db/", "you:sesame@db:5432/")));
    let expected = "outboxes `copy` and `shop` are the same database and schema, and both are carried to `main` at \
                    relevo.toml:3; hint: one relay carries an outbox to a destination: remove one";
    assert_eq!(told, [expected]);
    for differs in [other.replace("/shop\"", "/bill\""), other.replace("shop\"\n", "shop\"\nschema = \"b\"\n")] {
        assert_eq!(problems(&format!("{SMALL}{differs}")), [""; 0]);
    }
    // A file may be spelt in many ways.
    let (one, two) = ("sqlite:/tmp/shop.db", "sqlite:///tmp/../tmp/./shop.db");
    let url = "postgres://me:sesame@db/shop";
    assert_eq!(problems(&format!("{}{}", SMALL.replace(url, one), other.replace(url, two))), [expected]);
}

#[test]
fn names_that_no_variable_could_tell_apart_are_refused() {
    let named = |name: &str| SMALL.replace("outboxes.shop", &format!("outboxes.{name}")).replace("/shop", name);
    let told = problems(&format!("{}{}", named("a-b"), named("A_b")));
    let expected = "`A_b` and `a-b` would be set by the same variables at relevo.toml:1; \
                    hint: variables have neither lower case nor `-`: rename one";
    assert_eq!(told, [expected]);
}

#[test]
fn an_address_with_a_placeholder_that_nothing_replaces_is_refused() {
    let told = problems(&format!("{SMALL}[[outboxes.shop.destinations.main.routes]]\naddress = \"a.{{foo}}\"\n"));
    let expected = "`{foo}` in `address` is replaced by nothing at relevo.toml:6; \
                    hint: `{topic}`, `{type}`, `{key}` are known";
    assert_eq!(told, [expected]);
}

#[test]
fn routes_add_and_rename_headers() {
    let text = format!(
        "{SMALL}[[outboxes.shop.destinations.main.routes]]\nheaders = {{ x-event-id = \"{{id}}\", x-c = \"{{header:c}}!\" }}\n\
         rename_headers = {{ correlation-id = \"x-correlation-id\" }}\n"
    );
    let loaded = load(&text, &[], &[]).unwrap();
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let headers = std::sync::Arc::new(HeaderRules {
        add: pairs(&[("x-event-id", "{id}"), ("x-c", "{header:c}!")]),
        rename: pairs(&[("correlation-id", "x-correlation-id")]),
    });
    let expected = relevo_core::Routes::new(vec![relevo_core::Route { headers, ..relevo_core::Route::catch_all() }]);
    assert_eq!(loaded.config.outboxes[0].destinations[0].relay.routes, expected);
}

#[test]
fn headers_that_would_confuse_receivers_are_refused() {
    let text = format!(
        "{SMALL}[[outboxes.shop.destinations.main.routes]]\n\
         headers = {{ ce-id = \"1\", x = \"{{header:c}} {{nonsense}}\", \"\" = \"y\" }}\n\
         rename_headers = {{ a = \"z\", b = \"z\", relevo-epoch = \"e\" }}\n[[outboxes.shop.destinations.main.routes]]\n\
         name = \"b\"\nheaders = [\"x\"]\nrename_headers = {{ a = 1 }}\n"
    );
    assert_eq!(
        problems(&text),
        [
            "`headers` is a table of texts at relevo.toml:10",
            "`rename_headers` is a table of texts at relevo.toml:11",
            "`a` and `b` would both become `z` at relevo.toml:7; hint: a name is sent once",
            "the header `relevo-epoch` cannot be changed: receivers know messages by it at relevo.toml:7",
            "a header has no name at relevo.toml:6",
            "the header `ce-id` cannot be changed: receivers know messages by it at relevo.toml:6",
            "`{nonsense}` in `headers` is replaced by nothing at relevo.toml:6; \
             hint: `{id}`, `{topic}`, `{type}`, `{key}` and `{header:NAME}` are known",
        ]
    );
}

#[test]
fn an_empty_file_says_what_to_add() {
    assert_eq!(
        problems(""),
        ["no outbox is configured; hint: add `[outboxes.NAME]`; `relevo.example.toml` documents every key"]
    );
}

#[test]
fn no_secret_is_shown_by_debug_or_print() {
    let loaded = load(SMALL, &[], &[]).unwrap();
    let mut lines = Vec::new();
    print::lines(&loaded, &mut lines).unwrap();
    for shown in [format!("{loaded:?}"), String::from_utf8(lines).unwrap(), print::json(&loaded).to_string()] {
        assert!(!shown.contains("sesame") && shown.contains("<secret>"), "{shown}");
    }
}

#[test]
fn a_secret_comes_from_a_file_without_its_last_line_break() {
    let path = std::env::temp_dir().join(format!("relevo-secret-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(b"postgres://me:sesame@db/shop\n").unwrap();
    let named = format!("database_file = {path:?}");
    let text = SMALL.replace("database = \"postgres://me:sesame@db/shop\"", &named);
    let loaded = load(&text, &[], &[]).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(loaded.config.outboxes[0].store_config.url, "postgres://me:sesame@db/shop");
    assert!(!format!("{loaded:?}").contains("sesame"));
    let gone = problems(&text).join("\n");
    assert!(gone.contains("cannot be read") && gone.ends_with("at relevo.toml:2"), "{gone}");
}

/// The words of the table as they stand in the example file.
fn heading(section: &Section) -> Path {
    let mut names = reference::names_of(section).into_iter();
    section.path.iter().fold(Path::default(), |so_far, word| match *word {
        NAME => so_far.name(names.next().unwrap()),
        INDEX => so_far.index(0),
        word => so_far.name(word),
    })
}

const EXAMPLE: &str = include_str!("../../../../relevo.example.toml");

#[test]
fn the_example_file_is_good() {
    let loaded = load(EXAMPLE, &[], &[]).unwrap();
    assert_eq!(loaded.config.outboxes.len(), 1);
}

#[test]
fn the_example_file_documents_every_key_with_its_default() {
    // With the comments taken away from `#key = value`, everything is set, and to its default.
    let set: String = EXAMPLE
        .lines()
        .map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line).to_owned() + "\n")
        .collect();
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    file::read("relevo.example.toml", &set, &mut settings, &mut problems);
    assert_eq!(problems, []);
    for section in SECTIONS {
        for key in section.keys {
            let path = heading(section).name(key.name);
            let setting = settings.get(&path).unwrap_or_else(|| panic!("`{path}` is not in the example file"));
            assert!(matches!(setting.origin, Origin::File { .. }));
            if let Some(default) = Value::default_of(key) {
                assert_eq!(setting.value, default, "`{path}`");
            }
        }
    }
}

/// A line such as `name = 1`, rather than a sentence.
fn is_setting(line: &&str) -> bool {
    let name = line.split_once(" = ").map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        || (line.starts_with('[') && line.ends_with(']'))
}
