use relevo_broker_nats as nats;
use relevo_broker_rabbitmq::{self as rabbitmq, Binding, Exchange, ExchangeKind, Policy, Queue};

use super::*;

/// A destination with these keys in its broker's table, followed by more tables, in which `BROKER` is the broker's path.
fn text(inside: &str, behind: &str) -> String {
    let broker = "outboxes.shop.destinations.main.broker";
    format!(
        "[outboxes.shop]\ndatabase = \"postgres://db/shop\"\n[{broker}]\n{inside}\n{}",
        behind.replace("BROKER", broker)
    )
}

fn destination(inside: &str, behind: &str) -> Destination {
    let loaded = load(&text(inside, behind), &[], &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    loaded.config.outboxes[0].destinations[0].clone()
}

fn broker(inside: &str, behind: &str) -> BrokerConfig {
    destination(inside, behind).broker
}

fn rabbitmq(broker: &BrokerConfig) -> &rabbitmq::Config {
    let adapter: &dyn Any = &*broker.adapter;
    adapter.downcast_ref::<rabbitmq::Adapter>().expect("a broker of kind `rabbitmq`").config()
}

fn nats(broker: &BrokerConfig) -> &nats::Config {
    let adapter: &dyn Any = &*broker.adapter;
    adapter.downcast_ref::<nats::Adapter>().expect("a broker of kind `nats`").config()
}

const RABBIT: &str = "kind = \"rabbitmq\"\nurls = [\"amqp://me:sesame@a:5672/v\", \"amqps://b\"]";
const NATS: &str = "kind = \"nats\"\nurls = [\"nats://a:4222\"]";

#[test]
fn a_broker_needs_its_url_alone() {
    assert_eq!(*rabbitmq(&broker("kind = \"rabbitmq\"\nurl = \"amqp://a\"", "")), rabbitmq::Config::new("amqp://a"));
    assert_eq!(*nats(&broker("kind = \"nats\"\nurl = \"nats://a:4222\"", "")), nats::Config::new("nats://a:4222"));
    let found = problems(&text(&format!("{NATS}\nurl = \"nats://b:4222\""), ""));
    assert_eq!(found, ["`url` and `urls` are both set, only one is allowed at relevo.toml:5"]);
}

#[test]
fn every_key_of_rabbitmq_sets_something() {
    let inside = format!(
        "{RABBIT}\nuser = \"u\"\npassword_env = \"PATH\"\nexchange = \"shop\"\nsource = \"/shop\"\nlanes = 4\n\
         heartbeat = \"7s\"\nconnect_timeout = \"1ms\"\nconfirm_timeout = \"2ms\"\nchannels_per_exchange = 3\n\
         in_flight_max = 4\nmessage_size_max = \"5B\"\nmanagement_urls = [\"http://a\", \"http://b\"]\n\
         topology_on_start = \"check\"\naccept = [\"queue-classic\"]"
    );
    let broker = broker(&inside, "");
    let expected = rabbitmq::Config {
        urls: vec!["amqp://me:sesame@a:5672/v".into(), "amqps://b".into()],
        user: Some("u".into()),
        password: Some(std::env::var("PATH").unwrap().trim().to_owned()),
        exchange: "shop".into(),
        source: "/shop".into(),
        lanes: Some(4),
        heartbeat: Duration::from_secs(7),
        connect_timeout: Duration::from_millis(1),
        confirm_timeout: Duration::from_millis(2),
        channels_per_exchange: 3,
        in_flight_max: 4,
        message_size_max: 5,
        management_urls: vec!["http://a".into(), "http://b".into()],
        tls: rabbitmq::Tls::default(),
        topology: rabbitmq::Topology::default(),
    };
    assert!(*rabbitmq(&broker) == expected, "{broker:?}");
    assert_eq!((broker.topology_on_start, broker.accept), (TopologyMode::Check, vec!["queue-classic".to_owned()]));
}

#[test]
fn a_topology_of_rabbitmq_is_read() {
    let behind = "\
[BROKER.exchanges.shop]
kind = \"headers\"
alternate = \"lost\"
bind = [\"all/\"]
[BROKER.queues.billing]
name = \"shop.billing\"
kind = \"classic\"
retry_delays = [\"1s\"]
dead_letter_queue = false
max_length = 5
max_length_bytes = \"6B\"
quorum_initial_group_size = 3
bind = [\"shop/a.*\", \"shop/b/c\"]
[BROKER.queues.plain]
[BROKER.queues.special]
dead_letter_queue = \"special.dlq\"
[BROKER.policies.limits]
pattern = \"^shop\"
definition = { max-length = 5, overflow = \"reject-publish\" }
priority = 2
";
    let inside = format!("{RABBIT}\nmanagement_url = \"http://a:15672\"");
    let broker = broker(&inside, behind);
    let topology = &rabbitmq(&broker).topology;
    let alternate = Some("lost".to_owned());
    assert_eq!(topology.exchanges, [Exchange { kind: ExchangeKind::Headers, alternate, ..Exchange::new("shop") }]);
    let billing = Queue {
        kind: rabbitmq::QueueKind::Classic,
        retry_delays: vec![Duration::from_secs(1)],
        dead_letter_queue: None,
        max_length: Some(5),
        max_length_bytes: Some(6),
        quorum_initial_group_size: Some(3),
        ..Queue::new("shop.billing")
    };
    let special = Queue { dead_letter_queue: Some("special.dlq".to_owned()), ..Queue::new("special") };
    assert_eq!(topology.queues, [billing, Queue::new("plain"), special]);
    let of_queue = |key: &str| Binding::to_queue("shop", key, "shop.billing");
    assert_eq!(topology.bindings, [Binding::to_exchange("all", "", "shop"), of_queue("a.*"), of_queue("b/c")]);
    let policy = Policy {
        name: "limits".into(),
        pattern: "^shop".into(),
        definition: [("max-length".into(), 5.into()), ("overflow".into(), "reject-publish".into())].into(),
        priority: 2,
        ..Policy::default()
    };
    assert_eq!(topology.policies, [policy]);
}

#[test]
fn nats_is_read_with_its_login_and_its_topology() {
    let inside = format!(
        "{NATS}\nuser = \"u\"\npassword_env = \"PATH\"\ntls = {{ required = true, handshake_first = true }}\nsource = \"/s\"\n\
         lanes = 2\nstream = \"ORDERS\"\nconnect_timeout = \"1ms\"\nconfirm_timeout = \"2ms\"\nin_flight_max = 3\n\
         atomic_batches = \"always\"\nping_interval = \"400ms\"\nmessage_size_max = \"5B\"\n\
         monitoring_url = \"http://a:8222\""
    );
    let behind = "\
[BROKER.streams.orders]
name = \"ORDERS\"
subjects = [\"orders.>\"]
storage = \"memory\"
replicas = 3
retention = \"workqueue\"
max_age = \"1s\"
max_bytes = \"2B\"
max_messages = 3
max_message_bytes = \"4B\"
discard = \"old\"
duplicate_window = \"500ms\"
allow_atomic_publish = false
[BROKER.groups.billing]
stream = \"ORDERS\"
subjects = [\"orders.eu\"]
lanes = 2
ack_wait = \"1s\"
max_ack_pending = 7
";
    let broker = broker(&inside, behind);
    let config = nats(&broker);
    let password = std::env::var("PATH").unwrap().trim().to_owned();
    let millis = Duration::from_millis;
    let stream = nats::Stream {
        storage: nats::Storage::Memory,
        replicas: 3,
        retention: nats::Retention::WorkQueue,
        max_age: Some(millis(1000)),
        max_bytes: Some(2),
        max_messages: Some(3),
        max_message_bytes: Some(4),
        discard: nats::Discard::Old,
        duplicate_window: millis(500),
        allow_atomic_publish: false,
        ..nats::Stream::new("ORDERS", ["orders.>"])
    };
    let group = nats::Group {
        lanes: Some(2),
        ack_wait: millis(1000),
        max_ack_pending: 7,
        ..nats::Group::new("billing", "ORDERS", ["orders.eu"])
    };
    let expected = nats::Config {
        auth: nats::Auth::UserPassword { user: "u".into(), password },
        tls: nats::Tls { required: true, handshake_first: true, ..nats::Tls::default() },
        source: "/s".into(),
        lanes: Some(2),
        stream: Some("ORDERS".into()),
        connect_timeout: millis(1),
        confirm_timeout: millis(2),
        in_flight_max: 3,
        atomic_batches: nats::AtomicBatches::Always,
        ping_interval: millis(400),
        message_size_max: 5,
        monitoring_url: Some("http://a:8222".into()),
        topology: nats::Topology { streams: vec![stream], groups: vec![group] },
        urls: vec!["nats://a:4222".into()],
    };
    assert!(*config == expected, "{config:?}");
}

#[test]
fn a_stream_that_only_the_broker_names_decides_the_default_address() {
    let address = |inside: &str, behind: &str| {
        let routes = destination(inside, behind).relay.routes;
        routes.iter().map(|route| route.address.clone()).collect::<Vec<_>>()
    };
    let named = format!("{NATS}\nstream = \"SHOP\"");
    assert_eq!(address(&named, ""), ["SHOP.{topic}"]);
    assert_eq!(address(&named, "[BROKER.streams.SHOP]\nsubjects = [\"orders\"]\n"), ["{topic}"]);
    assert_eq!(address(&named, "[[outboxes.shop.destinations.main.routes]]\n"), ["{topic}"]);
    assert_eq!(address(NATS, ""), ["{topic}"]);
}

#[test]
fn keys_of_another_kind_are_unknown() {
    let behind = "[BROKER.queues.q]\nlanes = 2\n";
    let found = problems(&text(&format!("{NATS}\npath = \"x\"\nheartbeat = \"1s\""), behind));
    let at = "outboxes.shop.destinations.main.broker";
    assert_eq!(
        found,
        [
            format!("unknown key `path` in `{at}` at relevo.toml:6"),
            format!("unknown key `heartbeat` in `{at}` at relevo.toml:7"),
            format!("unknown key `queues` in `{at}` at relevo.toml:8"),
        ]
    );
}

#[test]
fn problems_of_a_broker_are_reported_without_its_secrets() {
    for (inside, behind, what) in [
        ("kind = \"rabbitmq\"", "", "has no `url` at relevo.toml:3; hint: `url = "),
        ("kind = \"rabbitmq\"\nurls = [\"http://me:sesame@a\"]", "", "is not like `amqp[s]://"),
        ("kind = \"rabbitmq\"\nurls = []", "", "has no `url`"),
        ("kind = \"rabbitmq\"\nurls = \"amqp://me:sesame@a\"", "", "`urls` must be a list at relevo.toml:5"),
        ("kind = \"rabbitmq\"\nurl = [\"amqp://me:sesame@a\"]", "", "`url` must be one value, not a list"),
        ("kind = \"rabbitmq\"\nurl_env = \"amqp://me:sesame@a\"", "", "`url_env` must be the name of a variable"),
        ("kind = \"nats\"\nurls = [\"nats://me:sesame@a\"]", "", "a URL contains credentials"),
        (RABBIT, "password_file = \"/nowhere\"", "the file of `password_file` cannot be read"),
        (RABBIT, "password_file = \"a\"\npassword_env = \"b\"", "`password_env` and `password_file` are both set"),
        (RABBIT, "tls = { cert_file = \"/proc/self/status\" }", "a client certificate needs both `cert` and `key`"),
        (RABBIT, "tls = { sasl_external = true }", "only with an `amqps` URL"),
        (RABBIT, "confirm_timeout = \"5s\"", "`confirm_timeout` must be shorter than the relay's `publish_timeout`"),
        (RABBIT, "[BROKER.queues.q]\nbind = [\"key\"]", "`bind` has a part without an exchange at relevo.toml:7"),
        (
            RABBIT,
            "[BROKER.queues.q]\nkind = \"classic\"\ndelivery_limit = 2",
            "only quorum queues have a delivery limit",
        ),
        (RABBIT, "[BROKER.policies.p]\n", "has no `pattern` at relevo.toml:6"),
        (RABBIT, "[BROKER.queues.q]\nretry_delays = [\"0s\"]", "a retry delay is between 1 millisecond and 49 days"),
        (RABBIT, "[BROKER.policies.p]\npattern = \"x\"", "policies need a `management_url`"),
        (NATS, "user = \"u\"", "a login needs both `user` and `password`"),
        (NATS, "monitoring_url = \"http://me:sesame@a:8222\"", "must not contain credentials at relevo.toml:6"),
        (NATS, "monitoring_url = \"a:8222\"", "`monitoring_url` must begin with `http://`"),
        (NATS, "token_env = \"PATH\"\nnkey_env = \"PATH\"", "only one kind of credentials is allowed"),
        (NATS, "[BROKER.streams.s]\n", "`subjects` is empty at relevo.toml:6"),
        (NATS, "[BROKER.groups.g]\n", "has no `stream` at relevo.toml:6"),
    ] {
        let found = problems(&text(inside, behind)).join("\n");
        assert!(found.contains(what) && !found.contains("sesame"), "{inside}\n{behind}\n{found}");
    }
}

#[test]
fn headers_that_a_broker_interprets_are_rejected_for_that_broker_alone() {
    let route = |rules: &str| format!("[[outboxes.shop.destinations.main.routes]]\n{rules}\n");
    let (cc, nats) = (route("headers = { cC = \"x\" }"), route("rename_headers = { a = \"Nats-Expected-Stream\" }"));
    let bcc = route("rename_headers = { a = \"BCC\" }");
    for (inside, rules, what) in [
        (RABBIT, &cc, "the header `cC` cannot be sent: RabbitMQ sends copies to the routing keys in it"),
        (RABBIT, &bcc, "the header `BCC` cannot be sent"),
        (NATS, &nats, "the header `Nats-Expected-Stream` cannot be sent"),
    ] {
        let found = problems(&text(inside, rules));
        assert!(found.len() == 1 && found[0].contains(what) && found[0].contains("relevo.toml:7"), "{found:?}");
    }
    for (inside, rules) in [(RABBIT, &nats), (NATS, &cc), (NATS, &bcc)] {
        assert_eq!(problems(&text(inside, rules)), [""; 0]);
    }
}

#[test]
fn variables_set_lists_and_tables_of_a_broker() {
    let at = "RELEVO__OUTBOXES__SHOP__DESTINATIONS__MAIN__BROKER__";
    let set = |key: &str, value: &str| (format!("{at}{key}"), value.to_owned());
    let all = [
        set("URLS", "amqp://a, amqp://b"),
        set("ACCEPT", "plain-text"),
        set("QUEUES__Q__RETRY_DELAYS", "1s,2s"),
        set("QUEUES__Q__BIND", "x/a,x/b"),
    ];
    let variables: Vec<(&str, &str)> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let loaded = load(&text("kind = \"rabbitmq\"", ""), &variables, &[]).unwrap();
    let destination = &loaded.config.outboxes[0].destinations[0];
    let config = rabbitmq(&destination.broker);
    assert_eq!((config.urls.len(), config.topology.bindings.len()), (2, 2));
    assert_eq!(config.topology.queues[0].retry_delays, [1, 2].map(Duration::from_secs));
    assert_eq!(destination.broker.accept, ["plain-text"]);
}

#[test]
fn urls_are_read_from_a_file_and_never_printed() {
    let path = std::env::temp_dir().join(format!("relevo-urls-{}", std::process::id()));
    std::fs::write(&path, "amqp://me:sesame@a\namqp://me:sesame@b\n").unwrap();
    let inside = format!("kind = \"rabbitmq\"\nurls_file = {path:?}\npassword_file = {path:?}\n");
    let loaded = load(&text(&inside, ""), &[], &[]).unwrap();
    std::fs::remove_file(&path).unwrap();
    let config = rabbitmq(&loaded.config.outboxes[0].destinations[0].broker);
    assert_eq!(config.urls, ["amqp://me:sesame@a", "amqp://me:sesame@b"]);
    assert!(!format!("{loaded:?}").contains("sesame"));
}

#[test]
fn a_queue_with_other_lanes_than_its_messages_is_rejected() {
    let found = |lanes: &str, queue: &str| {
        let route = "[[outboxes.shop.destinations.main.routes]]\ntopic = \"orders.**\"\n";
        problems(&text(&format!("{RABBIT}\nexchange = \"shop\"\n{lanes}"), &format!("{queue}\n{route}")))
    };
    let queue = |bind: &str, lanes: &str| format!("[BROKER.queues.q]\nbind = [\"{bind}\"]\n{lanes}");
    for (lanes, piece, what) in [
        (
            "lanes = 4",
            queue("shop/orders.#", "lanes = 8"),
            "has `lanes = 8`, and messages for that queue have `lanes = 4`",
        ),
        ("lanes = 4", queue("shop/orders.eu", ""), "has no lanes, and messages for that queue have `lanes = 4`"),
        ("", queue("shop/#", "lanes = 2"), "has `lanes = 2`, and messages for that queue have no lanes"),
    ] {
        let found = found(lanes, &piece);
        assert!(found.len() == 1 && found[0].contains(what), "{lanes} {piece}: {found:?}");
    }
    for (lanes, piece) in [
        ("lanes = 4", queue("shop/orders.#", "lanes = 4")),
        ("lanes = 4", queue("shop/invoices.#", "lanes = 8")),
        ("", queue("other/#", "lanes = 2")),
    ] {
        assert_eq!(found(lanes, &piece), [""; 0], "{lanes} {piece}");
    }
}

#[test]
fn the_configurations_of_the_guides_are_valid() {
    let pages = [
        include_str!("../../../../../docs/how-to/publish-to-rabbitmq.md"),
        include_str!("../../../../../docs/how-to/publish-to-nats.md"),
        include_str!("../../../../../docs/how-to/publish-to-several-brokers.md"),
        include_str!("../../../../../docs/how-to/run-as-a-service.md"),
    ];
    for page in pages {
        let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
        let whole: Vec<&str> = blocks.filter(|block| block.contains("[outboxes.shop]\n")).collect();
        assert_eq!(whole.len(), 1);
        // Files and variables of the reader's machine.
        let lines = whole[0].lines().map(|line| match line.split_once(" = ") {
            Some(("database_file" | "database_env", _)) => "database = \"postgres://db/shop\"\n".to_owned(),
            Some((key, _)) if key.ends_with("_file") => format!("{key} = \"/proc/version\"\n"),
            _ => format!("{line}\n"),
        });
        assert_eq!(problems(&lines.collect::<String>()), [""; 0], "{}", whole[0]);
    }
}

fn warnings(inside: &str) -> Vec<String> {
    let loaded = load(&text(inside, ""), &[], &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn plain_text_to_a_public_host_is_an_error_unless_it_is_accepted() {
    let private = "management_url = \"http://me:sesame@127.0.0.1:15672\"";
    for (inside, what) in [
        (
            "kind = \"rabbitmq\"\nurl = \"amqp://me:sesame@8.8.8.8/%2f\"".to_owned(),
            "messages and the password are sent to `8.8.8.8` in plain text at relevo.toml:5; hint: use an `amqps://` URL; ",
        ),
        (
            format!("kind = \"rabbitmq\"\nurls = [\"amqps://a\", \"amqp://me:sesame@mq.example.com\"]\n{private}"),
            "sent to `mq.example.com` in plain text at relevo.toml:5",
        ),
        (
            "kind = \"rabbitmq\"\nurl = \"amqps://a\"\nmanagement_url = \"http://me:se/sa@me@[2001:db8::1]:1/x\""
                .to_owned(),
            "the management API of `2001:db8::1` in plain text at relevo.toml:6; hint: use an `https://` URL",
        ),
        (
            "kind = \"nats\"\nurl = \"nats://8.8.8.8:4222\"".to_owned(),
            "messages and credentials are sent to `8.8.8.8` without encryption at relevo.toml:5; hint: use a `tls://` URL",
        ),
    ] {
        let found = problems(&text(&inside, ""));
        assert!(found.len() == 1 && found[0].contains(what) && !found[0].contains("sesame"), "{found:?}");
        assert!(
            found[0].contains("`accept = [\"plain-text\"]` in `outboxes.shop.destinations.main.broker`"),
            "{found:?}"
        );
        assert_eq!(warnings(&format!("{inside}\naccept = [\"plain-text\"]")), [""; 0]);
    }
}

#[test]
fn plain_text_to_a_private_host_is_a_warning_and_to_this_machine_none() {
    for host in ["10.0.0.1", "192.168.1.1", "rabbit", "mq.local"] {
        let found = warnings(&format!("kind = \"rabbitmq\"\nurl = \"amqp://me:sesame@{host}\""));
        assert!(found.len() == 1 && found[0].contains(&format!("sent to `{host}`")), "{found:?}");
        assert!(found[0].contains(" at relevo.toml:5; hint: use an `amqps://` URL"), "{found:?}");
        let found = warnings(&format!("kind = \"nats\"\nurl = \"nats://{host}\""));
        assert!(found.len() == 1 && found[0].contains(" at relevo.toml:5; hint: use a `tls://` URL"), "{found:?}");
    }
    for inside in [
        "kind = \"rabbitmq\"\nurl = \"amqp://localhost\"\nmanagement_url = \"http://[::1]:15672\"",
        "kind = \"rabbitmq\"\nurl = \"amqps://8.8.8.8\"\nmanagement_url = \"https://8.8.8.8\"",
        "kind = \"nats\"\nurl = \"nats://127.0.0.2:4222\"",
        "kind = \"nats\"\nurl = \"tls://8.8.8.8\"",
        "kind = \"nats\"\nurl = \"nats://8.8.8.8\"\ntls = { required = true }",
    ] {
        assert_eq!(warnings(inside), [""; 0], "{inside}");
    }
}

#[test]
fn a_wrong_key_of_a_broker_makes_no_other_key_unknown() {
    let found = problems(&text(
        "kind = \"rabbitmq\"\nurl = \"amqp://localhost\"\nexchange = \"shop\"\ntopology_on_start = \"maybe\"",
        "[BROKER.queues.q]\n",
    ));
    assert_eq!(found, ["`topology_on_start` must be one of `off`, `check`, `apply` at relevo.toml:7"]);
    let found = problems(&text("url = \"amqp://localhost\"", ""));
    assert!(
        found.len() == 1 && found[0].contains("broker` has no `kind` at relevo.toml:3; hint: one of "),
        "{found:?}"
    );
    let found = problems(&text("kind = 3\nurl = \"amqp://localhost\"", ""));
    assert_eq!(found, ["`kind` must be a text at relevo.toml:4"]);
}
