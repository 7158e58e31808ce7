use std::any::Any;
use std::time::Duration;

use relevo_broker_nats as nats;
use relevo_broker_rabbitmq::{self as rabbitmq, Binding, Exchange, ExchangeKind, Policy, Queue};

use super::super::keys::SECTIONS;
use super::super::tests::{load, problems};
use super::*;

/// A destination with this inside its broker's section, and sections behind it, in which `BROKER` stands for it.
pub(super) fn text(inside: &str, behind: &str) -> String {
    let broker = "outboxes.shop.destinations.main.broker";
    format!(
        "[outboxes.shop]\ndatabase = \"postgres://db/shop\"\n[{broker}]\n{inside}\n{}",
        behind.replace("BROKER", broker)
    )
}

fn broker(inside: &str, behind: &str) -> BrokerConfig {
    let loaded = load(&text(inside, behind), &[], &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    loaded.config.outboxes[0].destinations[0].broker.clone()
}

fn rabbitmq(broker: &BrokerConfig) -> &rabbitmq::Config {
    let adapter: &dyn Any = &*broker.adapter;
    adapter.downcast_ref::<rabbitmq::Adapter>().expect("a broker of kind `rabbitmq`").config()
}

fn nats(broker: &BrokerConfig) -> &nats::Config {
    let adapter: &dyn Any = &*broker.adapter;
    adapter.downcast_ref::<nats::Adapter>().expect("a broker of kind `nats`").config()
}

fn start_up(broker: &BrokerConfig) -> (TopologyMode, &[String]) {
    (broker.topology, &broker.accept)
}

#[test]
fn every_adapter_of_the_registry_has_a_parser() {
    assert_eq!(PARSERS.map(|(kind, _)| kind), BROKERS);
}

pub(super) const RABBIT: &str = "kind = \"rabbitmq\"\nurls = [\"amqp://me:sesame@a:5672/v\", \"amqps://b\"]";
pub(super) const NATS: &str = "kind = \"nats\"\nurls = [\"nats://a:4222\"]";

#[test]
fn the_table_s_defaults_are_the_adapters_own() {
    let rabbit = broker("kind = \"rabbitmq\"\nurls = [\"amqp://a\"]", "");
    assert_eq!(*rabbitmq(&rabbit), rabbitmq::Config::new("amqp://a"));
    assert_eq!(start_up(&rabbit), (TopologyMode::Check, &[][..]));
    let jetstream = broker(NATS, "");
    assert_eq!(*nats(&jetstream), nats::Config::new("nats://a:4222"));
    assert_eq!(start_up(&jetstream), (TopologyMode::default(), &[][..]));
    let rabbit = broker(RABBIT, "[BROKER.queues.q]\n[BROKER.exchanges.x]\n");
    let topology = &rabbitmq(&rabbit).topology;
    assert_eq!((&topology.queues[0], &topology.exchanges[0]), (&Queue::new("q"), &Exchange::new("x")));
    let jetstream = broker(NATS, "[BROKER.streams.s]\nsubjects = [\"a.>\"]\n");
    assert_eq!(nats(&jetstream).topology.streams, [nats::Stream::new("s", ["a.>"])]);
}

#[test]
fn every_key_of_rabbitmq_sets_something() {
    let inside = format!(
        "{RABBIT}\nuser = \"u\"\npassword_env = \"PATH\"\nexchange = \"shop\"\nsource = \"/shop\"\nlanes = 4\n\
         heartbeat_ms = 7000\nconnect_deadline_ms = 1\nconfirm_deadline_ms = 2\nchannels = 3\nin_flight_max = 4\n\
         message_bytes_max = 5\nmanagement_url = \"http://a http://b\"\ntopology = \"apply\"\naccept = [\"queue-classic\"]"
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
        message_bytes_max: 5,
        management_urls: vec!["http://a".into(), "http://b".into()],
        tls: rabbitmq::Tls::default(),
        topology: rabbitmq::Topology::default(),
    };
    assert!(*rabbitmq(&broker) == expected, "{broker:?}");
    assert_eq!(start_up(&broker), (TopologyMode::Apply, &["queue-classic".to_owned()][..]));
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
ordered = true
retry_ms = [1000]
dead_letters = false
max_length = 5
max_bytes = 6
initial_group_size = 3
bind = [\"shop/a.*\", \"shop/b/c\"]
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
    let queue = Queue {
        kind: rabbitmq::QueueKind::Classic,
        single_active_consumer: true,
        retry_delays: vec![Duration::from_secs(1)],
        dead_letter_queue: None,
        max_length: Some(5),
        max_length_bytes: Some(6),
        quorum_initial_group_size: Some(3),
        ..Queue::new("shop.billing")
    };
    assert_eq!(topology.queues, [queue]);
    let of_queue = |key: &str| Binding::to_queue("shop", key, "shop.billing");
    assert_eq!(topology.bindings, [Binding::to_exchange("all", "", "shop"), of_queue("a.*"), of_queue("b/c")]);
    let policy = Policy {
        name: "limits".into(),
        pattern: "^shop".into(),
        apply_to: "queues".into(),
        definition: [("max-length".into(), 5.into()), ("overflow".into(), "reject-publish".into())].into(),
        priority: 2,
    };
    assert_eq!(topology.policies, [policy]);
}

#[test]
fn dead_letters_of_a_queue_have_a_name_of_their_own_or_the_usual_one() {
    let behind = "\
[BROKER.queues.billing]
dead_queue = \"billing.dlq\"
[BROKER.queues.shop]
";
    let broker = broker(RABBIT, behind);
    let dead: Vec<_> =
        rabbitmq(&broker).topology.queues.iter().map(|queue| queue.dead_letter_queue.as_deref()).collect();
    assert_eq!(dead, [Some("billing.dlq"), Some("shop.dead")]);
}

#[test]
fn nats_is_read_with_its_login_and_its_topology() {
    let inside = format!(
        "{NATS}\nuser = \"u\"\npassword_env = \"PATH\"\ntls_required = true\ntls_first = true\nsource = \"/s\"\nlanes = 2\n\
         stream = \"ORDERS\"\nconnect_deadline_ms = 1\nack_deadline_ms = 2\nin_flight_max = 3\natomic = \"always\"\n\
         ping_every_ms = 400\nmessage_bytes_max = 5\nmonitor_url = \"http://a:8222\""
    );
    let behind = "\
[BROKER.streams.orders]
name = \"ORDERS\"
subjects = [\"orders.>\"]
storage = \"memory\"
replicas = 3
retention = \"workqueue\"
max_age_ms = 1000
max_bytes = 2
max_messages = 3
max_message_bytes = 4
discard = \"old\"
duplicate_window_ms = 500
atomic = false
[BROKER.groups.billing]
stream = \"ORDERS\"
subjects = [\"orders.eu\"]
lanes = 2
ack_wait_ms = 1000
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
    let group = &config.topology.groups[0];
    assert_eq!((group.name.as_str(), group.stream.as_str(), group.lanes), ("billing", "ORDERS", Some(2)));
    assert_eq!((group.ack_wait, group.max_ack_pending), (millis(1000), 7));
    assert_eq!(group.subjects, ["orders.eu"]);
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
        message_bytes_max: 5,
        monitoring_url: Some("http://a:8222".into()),
        topology: nats::Topology { streams: vec![stream], groups: vec![group.clone()] },
        urls: vec!["nats://a:4222".into()],
    };
    assert!(*config == expected, "{config:?}");
}

#[test]
fn keys_of_another_kind_are_told_with_the_kind_that_has_them() {
    let told =
        problems(&text(&format!("{NATS}\npath = \"x\"\nheartbeat_ms = 1000\n"), "[BROKER.queues.q]\nlanes = 2\n"));
    assert_eq!(
        told,
        [
            "`outboxes.shop.destinations.main.broker.queues.q` is for brokers of kind `rabbitmq`, and this one is `nats` at \
             relevo.toml:9",
            "`outboxes.shop.destinations.main.broker.heartbeat_ms` is for brokers of kind `rabbitmq`, and this one is `nats` at \
             relevo.toml:7",
            "`outboxes.shop.destinations.main.broker.path` is for brokers of kind `embedded`, and this one is `nats` at \
             relevo.toml:6",
        ]
    );
    let told = problems(&text("kind = \"embedded\"\npath = \"x\"\ntopology = \"apply\"", ""));
    assert!(told[0].contains("`rabbitmq` and `nats`, and this one is `embedded` at relevo.toml:6"), "{told:?}");
}

#[test]
fn what_is_wrong_with_a_broker_is_told_without_its_secrets() {
    for (inside, behind, what) in [
        ("kind = \"rabbitmq\"", "", "names no server at relevo.toml:3; hint: set `urls`, `urls_file` or `urls_env`"),
        (
            "kind = \"rabbitmq\"\nurls = [\"http://me:sesame@a\"]",
            "",
            "a URL begins with none of `amqp://` and `amqps://`",
        ),
        ("kind = \"rabbitmq\"\nurls = [\"sesame\"]", "", "a URL begins with none of"),
        ("kind = \"rabbitmq\"\nurls = []", "", "there is no URL"),
        ("kind = \"rabbitmq\"\nurls = \"amqp://me:sesame@a\"", "", "`urls` is a list of texts at relevo.toml:5"),
        ("kind = \"rabbitmq\"\nurls_env = \"amqp://me:sesame@a\"", "", "the URL itself belongs into `urls`"),
        ("kind = \"nats\"\nurls = [\"nats://me:sesame@a\"]", "", "a URL of NATS holds no login"),
        (RABBIT, "password_file = \"/nowhere\"", "`/nowhere` cannot be read"),
        (RABBIT, "password_file = \"a\"\npassword_env = \"b\"", "`password_file` and `password_env` are both set"),
        (RABBIT, "tls_cert_file = \"/dev/null\"", "a certificate and its key go together"),
        (RABBIT, "tls_external = true", "only with an `amqps` URL"),
        (
            RABBIT,
            "confirm_deadline_ms = 5000",
            "`confirm_deadline_ms` is not shorter than the relay's `publish_deadline_ms`",
        ),
        (RABBIT, "[BROKER.queues.q]\nbind = [\"key\"]", "`key` in `bind` names no exchange at relevo.toml:7"),
        (
            RABBIT,
            "[BROKER.queues.q]\nkind = \"classic\"\ndelivery_limit = 2",
            "only quorum queues have a delivery limit",
        ),
        (
            RABBIT,
            "[BROKER.queues.q]\ndead_letters = false\ndead_queue = \"q.dlq\"",
            "`dead_queue` says nothing without `dead_letters`",
        ),
        (RABBIT, "[BROKER.policies.p]\n", "has no `pattern` at relevo.toml:6"),
        (RABBIT, "[BROKER.queues.q]\nretry_ms = [0]", "`retry_ms` is a list of whole numbers, each at least 1, not 0"),
        (RABBIT, "[BROKER.policies.p]\npattern = \"x\"", "policies need a `management_url`"),
        (NATS, "user = \"u\"", "has half a login"),
        (NATS, "monitor_url = \"http://me:sesame@a:8222\"", "`monitor_url` holds no login at relevo.toml:6"),
        (NATS, "monitor_url = \"a:8222\"", "`monitor_url` does not begin with `http://`"),
        (NATS, "token_env = \"PATH\"\nnkey_env = \"PATH\"", "has more than one login"),
        (NATS, "[BROKER.streams.s]\n", "has no `subjects` at relevo.toml:6"),
        (NATS, "[BROKER.groups.g]\n", "has no `stream` at relevo.toml:6"),
    ] {
        let told = problems(&text(inside, behind)).join("\n");
        assert!(told.contains(what) && !told.contains("sesame"), "{inside}\n{behind}\n{told}");
    }
}

#[test]
fn headers_that_the_broker_acts_on_are_refused_for_that_broker_alone() {
    let route = |rules: &str| format!("[[outboxes.shop.destinations.main.routes]]\n{rules}\n");
    let (cc, nats) = (route("headers = { cC = \"x\" }"), route("rename_headers = { a = \"Nats-Expected-Stream\" }"));
    let bcc = route("rename_headers = { a = \"BCC\" }");
    for (inside, rules, told) in [
        (
            RABBIT,
            &cc,
            "the header `cC` cannot be sent: RabbitMQ sends copies to the routing keys in it at relevo.toml:7",
        ),
        (RABBIT, &bcc, "the header `BCC` cannot be sent"),
        (NATS, &nats, "the header `Nats-Expected-Stream` cannot be sent: the server takes it for an instruction"),
    ] {
        let problems = problems(&text(inside, rules));
        assert!(problems.len() == 1 && problems[0].contains(told), "{problems:?}");
    }
    for (inside, rules) in [(RABBIT, &nats), (NATS, &cc), (NATS, &bcc)] {
        assert_eq!(problems(&text(inside, rules)), [""; 0]);
    }
}

#[test]
fn variables_set_lists_and_sections_of_a_broker() {
    let at = "RELEVO__OUTBOXES__SHOP__DESTINATIONS__MAIN__BROKER__";
    let set = |key: &str, value: &str| (format!("{at}{key}"), value.to_owned());
    let all = [
        set("URLS", "amqp://a, amqp://b"),
        set("ACCEPT", "plain-text"),
        set("QUEUES__Q__RETRY_MS", "1,2"),
        set("QUEUES__Q__BIND", "x/a,x/b"),
    ];
    let variables: Vec<(&str, &str)> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let loaded = load(&text("kind = \"rabbitmq\"", ""), &variables, &[]).unwrap();
    let destination = &loaded.config.outboxes[0].destinations[0];
    let config = rabbitmq(&destination.broker);
    assert_eq!((config.urls.len(), config.topology.bindings.len()), (2, 2));
    assert_eq!(config.topology.queues[0].retry_delays, [1, 2].map(Duration::from_millis));
    assert_eq!(destination.broker.accept, ["plain-text"]);
}

#[test]
fn urls_come_from_a_file_too_and_are_never_shown() {
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
fn a_key_that_several_kinds_have_takes_the_same_in_all() {
    let mut seen = std::collections::BTreeMap::new();
    for section in SECTIONS {
        for key in section.keys {
            let before = *seen.entry((section.path, key.name)).or_insert(key.kind);
            assert_eq!(
                std::mem::discriminant(&before),
                std::mem::discriminant(&key.kind),
                "{:?} {}",
                section.path,
                key.name
            );
            // The first of them is what the file is read by.
            if let (Kind::Integer { .. } | Kind::Choice(_), false) = (key.kind, before == key.kind) {
                panic!("`{}` has other limits in `{:?}`", key.name, section.of);
            }
        }
    }
}

#[test]
fn the_guide_s_configurations_are_good() {
    let page = concat!(
        include_str!("../../../../../docs/how-to/publish-to-rabbitmq.md"),
        include_str!("../../../../../docs/how-to/publish-to-nats.md"),
        include_str!("../../../../../docs/how-to/publish-to-several-brokers.md"),
    );
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let whole: Vec<&str> = blocks.filter(|block| block.contains("[outboxes.shop]\n")).collect();
    assert_eq!(whole.len(), 3);
    for block in whole {
        let here = block
            .replace("database_env = \"SHOP_DATABASE_URL\"", "database = \"postgres://db/shop\"")
            .replace("password_file = \"/run/credentials/relevo/rabbitmq\"", "password_env = \"PATH\"")
            .replace("password_file = \"/run/credentials/relevo/nats\"", "password_env = \"PATH\"");
        assert_eq!(problems(&here), [""; 0], "{block}");
    }
}
