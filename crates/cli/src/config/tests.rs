use std::any::Any;
use std::time::Duration;

use relevo_config::reference;
use relevo_core::outbox::admin::StartFrom;
use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, HeaderRules, Route, Routes};
use relevo_host::registry::TopologyMode;

use super::load::{read, setting};
use super::*;

mod broker;
mod walk;

const SMALL: &str = "\
[outboxes.shop]
database = \"postgres://me:sesame@db/shop\"
[outboxes.shop.destinations.main]
broker = { kind = \"embedded\", path = \"broker.db\" }
";
const ROUTES: &str = "[[outboxes.shop.destinations.main.routes]]\n";

fn load(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Loaded, Problems> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    read("relevo.toml".to_owned(), text, variables, &flags)
}

fn problems(text: &str) -> Vec<String> {
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
    assert_eq!((main.create, main.shards, main.start), (true, 8, StartFrom::Oldest));
    assert_eq!(main.broker.topology_on_start, TopologyMode::Apply);
    assert_eq!(*embedded(&main.broker).config(), relevo_broker_embedded::Config::new("broker.db"));
    let defaults = relevo_relay::Config { routes: Routes::new(vec![Route::catch_all()]), ..Default::default() };
    assert_eq!(format!("{:?}", main.relay), format!("{defaults:?}"));
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let text =
        format!("{SMALL}[relay]\nlease_duration = \"11s\"\nbatch_messages_max = 6\n[relay.advanced]\npages_max = 5\n");
    let variables = [("RELEVO__RELAY__ADVANCED__PAGES_MAX", "7"), ("RELEVO__RELAY__BATCH_MESSAGES_MAX", "8")];
    let loaded = load(&text, &variables, &["relay.batch_messages_max=9"]).unwrap();
    let relay = &loaded.config.outboxes[0].destinations[0].relay;
    assert_eq!((relay.advanced.pages_max, relay.batch_messages_max), (7, 9));
    assert_eq!(relay.lease_duration, Duration::from_secs(11));
    let origin = |key: &str| setting(&loaded.settings, &format!("relay.{key}")).unwrap().origin.to_string();
    assert_eq!(origin("lease_duration"), "relevo.toml:6");
    assert_eq!(origin("advanced.pages_max"), "variable `RELEVO__RELAY__ADVANCED__PAGES_MAX`");
    assert_eq!(origin("batch_messages_max"), "flag `--set`");
    assert_eq!(origin("poll_interval_max"), "default");
}

#[test]
fn a_destination_overrides_single_keys_of_the_relay() {
    let text = format!(
        "{SMALL}[relay]\nlease_duration = \"11s\"\n[relay.advanced]\nlease_margin = \"3s\"\n\
         [outboxes.shop.destinations.main.relay]\nlease_duration = \"12s\"\nadvanced = {{ pages_max = 2 }}\n"
    );
    let loaded = load(&text, &[], &[]).unwrap();
    let relay = &loaded.config.outboxes[0].destinations[0].relay;
    assert_eq!((relay.lease_duration, relay.advanced.pages_max), (Duration::from_secs(12), 2));
    assert_eq!(relay.advanced.lease_margin, Duration::from_secs(3));
    let own = "outboxes.shop.destinations.main.relay";
    assert_eq!(setting(&loaded.settings, &format!("{own}.lease_duration")).unwrap().value, "12s");
    assert_eq!(setting(&loaded.settings, &format!("{own}.publish_timeout")), None);
}

#[test]
fn routes_keep_their_order_and_have_retry_policies() {
    let text = format!(
        "{SMALL}{ROUTES}name = \"a\"\ntopic = \"orders.*\"\nretry = {{ backoff = \"linear\", delay_min = \"500ms\" }}\n\
         after_dead = \"continue\"\nheaders = {{ x-event-id = \"{{id}}\" }}\nrename_headers = {{ a = \"b\" }}\n{ROUTES}"
    );
    let loaded = load(&text, &[], &[]).unwrap();
    let default = Route::catch_all();
    let pair = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let first = Route {
        name: "a".to_owned(),
        topic: "orders.*".to_owned(),
        headers: std::sync::Arc::new(HeaderRules { add: pair("x-event-id", "{id}"), rename: pair("a", "b") }),
        policy: relevo_core::RetryPolicy {
            base: Duration::from_millis(500),
            backoff: Backoff::Linear,
            ..default.policy.clone()
        },
        after_dead: AfterDead::Continue,
        ..default.clone()
    };
    assert_eq!(loaded.config.outboxes[0].destinations[0].relay.routes, Routes::new(vec![first, default]));
}

#[test]
fn every_problem_is_reported_at_once_with_its_place() {
    let text = "\
[admin]
listen = \"0.0.0.0:80\"
[log]
level = \"loud=very\"
[relay]
publish_timeout = \"9s\"
lease_sm = 1
memory_max = 10
shutdown_grace = 5
[relay.advanced]
poll_interval_min = \"50ms\"
[outboxes.empty]
database = \"mysql://me:sesame@db/shop\"
[outboxes.shop]
database_env = \"NOT_SET_ANYWHERE\"
database_file = \"/nowhere\"
schema = \"no such\"
[outboxes.shop.destinations.main]
start = \"nwo\"
broker = { kind = \"embeded\" }
[[outboxes.shop.destinations.main.routes]]
topic = \"ord*\"
[outboxes.shop.destinations.main.routes.retry]
backoff = \"linear\"
factor = 3
delay_min = \"10m\"
[[outboxes.shop.destinations.main.routes]]
[amdin]
";
    insta::assert_snapshot!(problems(text).join("\n"));
}

#[test]
fn a_secret_in_place_of_its_name_is_not_printed() {
    for key in ["database_env", "database_file"] {
        let found = problems(&SMALL.replace("database =", &format!("{key} =")));
        assert!(found.len() == 1 && found[0].contains(&format!("`{key}` must be the")), "{found:?}");
        assert!(found[0].ends_with(" at relevo.toml:2") && !found[0].contains("sesame"), "{found:?}");
    }
    for (key, value) in [("token_env", "sesame"), ("token_env", "sesame-open"), ("token_file", "https://sesame")] {
        let found = problems(&format!("{SMALL}[admin]\n{key} = \"{value}\"\n")).join("\n");
        assert!(found.contains(" at relevo.toml:6") && !found.contains("sesame"), "{found}");
    }
    let found = problems(&SMALL.replace("database = \"postgres://me:sesame@db/shop\"", "database_env = \"NOT_SET\""));
    assert_eq!(found, ["`database_env`: variable `NOT_SET` is not set at relevo.toml:2"]);
}

#[test]
fn a_url_in_the_wrong_place_is_not_printed() {
    let url = "postgres://me:sesame@db/shop";
    for text in [
        format!("{SMALL}[log]\nlevel = \"{url}\"\nformat = \"{url}\"\n[admin]\nlisten = \"{url}\"\n"),
        format!("\"{url}\" = 1\n[outboxes.\"{url}\"]\n"),
        SMALL.replace("database = ", "schema = "),
        format!("{SMALL}[relay]\nlease_duration = \"{url}\"\nmemory_max = \"{url}\"\n"),
    ] {
        let found = problems(&text).join("\n");
        assert!(!found.is_empty() && !found.contains("sesame"), "{found}");
    }
    let flags = [url, "postgres://me:sesame@db/shop?sslmode=disable"];
    for problem in load(SMALL, &[], &flags).unwrap_err().iter() {
        assert!(!problem.to_string().contains("sesame"), "{problem}");
    }
}

#[test]
fn an_unknown_level_is_rejected() {
    for level in ["blah", "info,zork", "relevo_relay=loud", "", "info,", "=debug"] {
        let found = problems(&format!("{SMALL}[log]\nlevel = \"{level}\"\n")).join("\n");
        assert!(
            found.contains("`level` is not a level, or a list of levels at relevo.toml:6; hint: "),
            "`{level}`: {found}"
        );
    }
    for level in ["info", "WARN", "info,relevo_relay=debug", "off, relevo_relay::publish = trace"] {
        assert_eq!(problems(&format!("{SMALL}[log]\nlevel = \"{level}\"\n")), [""; 0], "`{level}`");
    }
    let found = load(SMALL, &[("RELEVO_LOG", "zork")], &[]).unwrap_err();
    assert!(found.iter().all(|it| it.to_string().contains(" at variable `RELEVO_LOG`")));
}

/// `RelevoSamplingStopped` fires for samples older than a minute.
#[test]
fn a_sample_interval_that_makes_every_sample_old_is_rejected() {
    let found = |interval: &str| problems(&format!("{SMALL}[admin]\nsample_interval = \"{interval}\"\n"));
    assert_eq!(found("30s"), [""; 0]);
    assert_eq!(found("31s"), ["`sample_interval` must be from 100ms to 30s at relevo.toml:6"]);
}

#[test]
fn a_destination_that_two_outboxes_serve_is_reported_without_its_url() {
    let other = SMALL.replace("shop]", "copy]").replace("shop.", "copy.");
    let found = problems(&format!("{SMALL}{}", other.replace("me:sesame@db/", "you:sesame@db:5432/")));
    let expected = "outboxes `copy` and `shop` are the same database and schema, and both have destination `main` at \
                    relevo.toml:3; hint: one relay serves a destination: remove one of them";
    assert_eq!(found, [expected]);
    for differs in [other.replace("/shop\"", "/bill\""), other.replace("shop\"\n", "shop\"\nschema = \"b\"\n")] {
        assert_eq!(problems(&format!("{SMALL}{differs}")), [""; 0]);
    }
    // A path has several spellings.
    let (one, two) = ("sqlite:/tmp/shop.db", "sqlite:///tmp/../tmp/./shop.db");
    let url = "postgres://me:sesame@db/shop";
    assert_eq!(problems(&format!("{}{}", SMALL.replace(url, one), other.replace(url, two))), [expected]);
}

#[test]
fn names_that_share_their_variables_are_rejected() {
    let named = |name: &str| SMALL.replace("outboxes.shop", &format!("outboxes.{name}")).replace("/shop", name);
    let found = problems(&format!("{}{}", named("a-b"), named("A_b")));
    assert!(found[0].starts_with("`a-b` and `A_b` would be set by the same variables at relevo.toml:5"), "{found:?}");
    for name in ["a.b", "a__b", "_a", "a b", ""] {
        let found = problems(&format!("[outboxes.\"{name}\"]\n")).join("\n");
        assert!(found.contains("cannot be a name at relevo.toml:1"), "{name}: {found}");
    }
}

#[test]
fn headers_that_would_confuse_receivers_are_rejected() {
    let text = format!(
        "{SMALL}{ROUTES}headers = {{ ce-id = \"1\", x = \"{{header:c}} {{nonsense}}\", \"\" = \"y\" }}\n\
         rename_headers = {{ a = \"z\", b = \"z\", relevo-epoch = \"e\" }}\n{ROUTES}name = \"b\"\nheaders = [\"x\"]\n\
         rename_headers = {{ a = 1 }}\n"
    );
    insta::assert_snapshot!(problems(&text).join("\n"));
}

#[test]
fn an_empty_file_says_what_to_add() {
    let expected = "no outbox is configured; hint: add `[outboxes.NAME]`; `relevo init` writes a file with one";
    assert_eq!(problems(""), [expected]);
    assert_eq!(problems("[outboxes]\n"), [expected.replacen(';', " at relevo.toml:1;", 1)]);
    let found = problems("[outboxes.shop]\ndatabase = \"sqlite:a.db\"\n[outboxes.shop.destinations]\n");
    assert!(found.len() == 1 && found[0].starts_with("outbox `shop` has no destination at relevo.toml:1"), "{found:?}");
}

#[test]
fn invalid_toml_is_reported_by_line_and_never_printed() {
    let found = problems("a = \nb = \"sesame\" x\n").join("\n");
    assert!(found.contains("relevo.toml:1") && found.contains("relevo.toml:2"), "{found}");
    assert!(!found.contains("sesame"), "{found}");
}

#[test]
fn debug_output_and_settings_contain_no_secret() {
    let loaded = load(SMALL, &[], &[]).unwrap();
    let shown = format!("{loaded:?}");
    assert!(!shown.contains("sesame") && shown.contains("<secret>"), "{shown}");
    assert_eq!(setting(&loaded.settings, "outboxes.shop.database").unwrap().value, "<secret>");
}

#[test]
fn a_secret_is_read_from_a_file_without_its_last_line_break() {
    let path = std::env::temp_dir().join(format!("relevo-secret-{}", std::process::id()));
    std::fs::write(&path, "postgres://me:sesame@db/shop\n").unwrap();
    let text = SMALL.replace("database = \"postgres://me:sesame@db/shop\"", &format!("database_file = {path:?}"));
    let loaded = load(&text, &[], &[]).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(loaded.config.outboxes[0].store_config.url, "postgres://me:sesame@db/shop");
    assert!(!format!("{loaded:?}").contains("sesame"));
    let missing = problems(&text).join("\n");
    assert!(missing.contains("cannot be read") && missing.ends_with("at relevo.toml:2"), "{missing}");
}
