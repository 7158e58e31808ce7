//! RabbitMQ: its keys beside the code that they set.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_rabbitmq::{
    Binding, BindingTarget, Config, Exchange, ExchangeKind, Identity, Policy, Queue, QueueKind, Tls, Topology,
    dead_letter_queue_name,
};
use relevo_core::BrokerAdapter;

use super::super::keys::{Key, Kind};
use super::super::problem::Problem;
use super::super::resolved::Reader;
use super::super::settings::Path;
use super::{ACCEPT, LANES, TOPOLOGY, certificates, named, secret, shorter, urls};

/// The keys of the broker itself.
pub(crate) const RABBITMQ: &[Key] = &[
    Key::unset(
        "urls",
        Kind::Secrets,
        "[\"amqp://relevo@localhost:5672/shop\"]",
        "`amqp://user:password@host:port/vhost`, or `amqps://`, tried in turn: the nodes of one cluster. They are never \
         shown. Exactly one of `urls`, `urls_file` and `urls_env` is set.",
    ),
    Key::unset("urls_file", Kind::Text, "\"/run/credentials/relevo/rabbitmq\"", "A file that holds the URLs."),
    Key::unset("urls_env", Kind::Text, "\"RABBITMQ_URLS\"", "The name of a variable that holds the URLs."),
    Key::unset("user", Kind::Text, "\"relevo\"", "The user, instead of the one in the URLs."),
    Key::unset(
        "password_file",
        Kind::Text,
        "\"/run/credentials/relevo/rabbitmq-password\"",
        "A file that holds the password, instead of the one in the URLs.",
    ),
    Key::unset("password_env", Kind::Text, "\"RABBITMQ_PASSWORD\"", "The name of a variable that holds the password."),
    Key::unset(
        "tls_ca_file",
        Kind::Text,
        "\"/etc/relevo/ca.pem\"",
        "Certificates of who vouches for the server, in PEM; without it the public authorities do.",
    ),
    Key::unset("tls_cert_file", Kind::Text, "\"/etc/relevo/client.pem\"", "Our own certificate and its chain, in PEM."),
    Key::unset(
        "tls_key_file",
        Kind::Text,
        "\"/run/credentials/relevo/client.key\"",
        "The key of our certificate, in PEM.",
    ),
    Key::new(
        "tls_external",
        Kind::Boolean,
        "false",
        "The certificate takes the place of user and password (EXTERNAL).",
    ),
    Key::new(
        "exchange",
        Kind::Text,
        "\"\"",
        "The exchange of addresses without a `/`; empty for the default exchange, where the routing key names a queue. An \
         address `exchange/routing.key` names its own.",
    ),
    Key::new("source", Kind::Text, "\"/relevo\"", "What `ce-source` says: a URI that names the outbox."),
    LANES,
    Key::number(
        "heartbeat_ms",
        1_000,
        "5000",
        "How often each side shows that it lives, in whole seconds; a silent server is noticed after twice the time.",
    ),
    Key::number("connect_deadline_ms", 1, "5000", "No attempt to connect takes longer."),
    Key::number(
        "confirm_deadline_ms",
        1,
        "4000",
        "No message waits longer for its confirm; shorter than `publish_deadline_ms`.",
    ),
    Key::new(
        "channels",
        Kind::Integer { min: 1, max: 64 },
        "1",
        "Channels of each exchange; a key always uses the same.",
    ),
    Key::number("in_flight_max", 1, "5000", "Unconfirmed messages of a channel."),
    Key::number("message_bytes_max", 1, "16777216", "The largest payload; the server has a limit of its own."),
    Key::unset(
        "management_url",
        Kind::Secret,
        "\"http://localhost:15672\"",
        "The management API, `http://user:password@host:port` or `https://`, for policies and most checks of `relevo \
         doctor`. Several URLs, separated by spaces, are tried in turn: name every node of a cluster. Without a user, the \
         user above is used. It is never shown.",
    ),
    Key::unset(
        "management_url_file",
        Kind::Text,
        "\"/run/credentials/relevo/management\"",
        "A file that holds the URL of the management API.",
    ),
    Key::unset(
        "management_url_env",
        Kind::Text,
        "\"RABBITMQ_MANAGEMENT_URL\"",
        "The name of a variable that holds the URL of the management API.",
    ),
    TOPOLOGY,
    ACCEPT,
];

const NAME: Key = Key::unset("name", Kind::Text, "\"shop.orders\"", "What it is called; without it as its section.");

/// The keys of an exchange.
pub(crate) const EXCHANGE: &[Key] = &[
    NAME,
    Key::new(
        "kind",
        Kind::Choice(&["topic", "direct", "fanout", "headers"]),
        "\"topic\"",
        "How it routes: by words of the routing key, by all of it, to everything, or by headers.",
    ),
    Key::unset("alternate", Kind::Text, "\"unrouted\"", "The exchange of messages that nothing bound here wants."),
    Key::new(
        "bind",
        Kind::Texts,
        "[]",
        "Other exchanges and routing keys from which messages flow here, as `exchange/routing.key`.",
    ),
];

/// The keys of a queue.
pub(crate) const QUEUE: &[Key] = &[
    NAME,
    Key::new(
        "kind",
        Kind::Choice(&["quorum", "classic"]),
        "\"quorum\"",
        "`quorum` is written by most of its nodes before it is confirmed; `classic` is on one node.",
    ),
    Key::new(
        "bind",
        Kind::Texts,
        "[]",
        "The exchanges and routing keys from which messages flow here, as `exchange/routing.key`; `*` and `#` stand for \
         words at a topic exchange.",
    ),
    Key::unset(
        "lanes",
        Kind::Integer { min: 1, max: 256 },
        "8",
        "So many queues `name.0`, `name.1`, … in place of one, each with a single active consumer, for publishers with the \
         same `lanes`.",
    ),
    Key::new(
        "ordered",
        Kind::Boolean,
        "true",
        "One consumer at a time is active, as order by key needs; lanes always are.",
    ),
    Key::new(
        "retry_ms",
        Kind::Integers { min: 1, max: 4_294_967_295 },
        "[60000, 300000, 900000]",
        "How long messages wait that a consumer puts off: one queue `name.retry.MS` a number; empty for none.",
    ),
    Key::new(
        "dead_letters",
        Kind::Boolean,
        "true",
        "Whether what is given up goes to a queue, `name.dead` or `dead_queue`.",
    ),
    Key::unset("dead_queue", Kind::Text, "\"billing.dlq\"", "Another name for the queue of what is given up."),
    Key::unset("max_length", Kind::from(1), "1000000", "More messages are refused, and wait in the outbox."),
    Key::unset("max_bytes", Kind::from(1), "1073741824", "More bytes are refused, and wait in the outbox."),
    Key::unset(
        "delivery_limit",
        Kind::Integer { min: 1, max: 4_294_967_295 },
        "20",
        "What came back unacknowledged more often goes to the dead letters; quorum queues only.",
    ),
    Key::unset(
        "initial_group_size",
        Kind::Integer { min: 1, max: 99 },
        "3",
        "On how many nodes of a cluster a quorum queue begins.",
    ),
];

/// The keys of a policy.
pub(crate) const POLICY: &[Key] = &[
    NAME,
    Key::unset("pattern", Kind::Text, "\"^shop[.]\"", "A regular expression of the names that it applies to; needed."),
    Key::new("apply_to", Kind::Text, "\"queues\"", "`queues`, `exchanges` or `all`; newer servers know more."),
    Key::new(
        "definition",
        Kind::Scalars,
        "{}",
        "The settings, as `{ max-length = 1000000, overflow = \"reject-publish\" }`.",
    ),
    Key::new(
        "priority",
        Kind::Integer { min: -2_147_483_648, max: 2_147_483_647 },
        "0",
        "Of several policies that match, the one with the highest counts.",
    ),
];

pub(super) fn resolve(
    reader: &mut Reader<'_>,
    path: &Path,
    publish_deadline: Duration,
) -> Option<Arc<dyn BrokerAdapter>> {
    let urls = urls(reader, path, &["amqp://", "amqps://"]);
    let certificates = certificates(reader, path);
    let identity = certificates.identity.map(|(cert_chain, key)| Identity { cert_chain, key });
    let tls = Tls { ca: certificates.ca, identity, sasl_external: reader.boolean(&path.name("tls_external")) };
    let config = Config {
        user: reader.find_text(&path.name("user")),
        password: secret(reader, path, "password"),
        tls,
        exchange: reader.text(&path.name("exchange")),
        source: reader.text(&path.name("source")),
        lanes: reader.find_number(&path.name("lanes")),
        heartbeat: reader.millis(&path.name("heartbeat_ms")),
        connect_timeout: reader.millis(&path.name("connect_deadline_ms")),
        confirm_timeout: shorter(reader, path, "confirm_deadline_ms", publish_deadline),
        channels_per_exchange: reader.integer(&path.name("channels")),
        in_flight_max: reader.integer(&path.name("in_flight_max")),
        message_bytes_max: reader.integer(&path.name("message_bytes_max")),
        management_urls: management_urls(reader, path),
        topology: topology(reader, path),
        urls: Vec::new(),
    };
    super::adapter(reader, path, Config { urls: urls?, ..config })
}

fn management_urls(reader: &mut Reader<'_>, path: &Path) -> Vec<String> {
    let urls = management_url(reader, path).unwrap_or_default();
    urls.split_whitespace().map(str::to_owned).collect()
}

fn management_url(reader: &mut Reader<'_>, path: &Path) -> Option<String> {
    let at = path.name("management_url");
    let Some(url) = reader.find_secret(&at) else { return secret(reader, path, "management_url") };
    for other in ["management_url_file", "management_url_env"].map(|key| path.name(key)) {
        if reader.settings.is_given(&other) {
            reader.problem(&other, Problem::new("`management_url` is set already"));
        }
    }
    Some(url.reveal().to_owned())
}

fn topology(reader: &mut Reader<'_>, path: &Path) -> Topology {
    let mut topology = Topology::default();
    for (name, at) in reader.sections(&path.name("exchanges")) {
        let exchange = exchange(reader, &at, &name);
        topology.bindings.extend(bindings(reader, &at, &BindingTarget::Exchange(exchange.name.clone())));
        topology.exchanges.push(exchange);
    }
    for (name, at) in reader.sections(&path.name("queues")) {
        let queue = queue(reader, &at, &name);
        topology.bindings.extend(bindings(reader, &at, &BindingTarget::Queue(queue.name.clone())));
        topology.queues.push(queue);
    }
    for (name, at) in reader.sections(&path.name("policies")) {
        if !reader.settings.is_given(&at.name("pattern")) {
            reader.problem(&at, Problem::new(format!("`{at}` has no `pattern`")));
        }
        topology.policies.push(Policy {
            name: named(reader, &at, &name),
            pattern: reader.text(&at.name("pattern")),
            apply_to: reader.text(&at.name("apply_to")),
            definition: reader.scalars(&at.name("definition")),
            priority: reader.integer(&at.name("priority")),
        });
    }
    topology
}

fn exchange(reader: &Reader<'_>, at: &Path, name: &str) -> Exchange {
    Exchange {
        name: named(reader, at, name),
        kind: ExchangeKind::parse(&reader.text(&at.name("kind"))).unwrap_or_default(),
        alternate: reader.find_text(&at.name("alternate")),
    }
}

fn queue(reader: &mut Reader<'_>, at: &Path, name: &str) -> Queue {
    let name = named(reader, at, name);
    Queue {
        kind: QueueKind::parse(&reader.text(&at.name("kind"))).unwrap_or_default(),
        lanes: reader.find_number(&at.name("lanes")),
        single_active_consumer: reader.boolean(&at.name("ordered")),
        retry_delays: reader.integers(&at.name("retry_ms")).into_iter().map(Duration::from_millis).collect(),
        dead_letter_queue: dead_letters(reader, at, &name),
        max_length: reader.find_number(&at.name("max_length")),
        max_length_bytes: reader.find_number(&at.name("max_bytes")),
        delivery_limit: reader.find_number(&at.name("delivery_limit")),
        quorum_initial_group_size: reader.find_number(&at.name("initial_group_size")),
        name,
    }
}

fn dead_letters(reader: &mut Reader<'_>, at: &Path, queue: &str) -> Option<String> {
    let chosen = reader.find_text(&at.name("dead_queue"));
    if reader.boolean(&at.name("dead_letters")) {
        return Some(chosen.unwrap_or_else(|| dead_letter_queue_name(queue)));
    }
    if chosen.is_some() {
        reader.problem(&at.name("dead_queue"), Problem::new("`dead_queue` says nothing without `dead_letters`"));
    }
    None
}

fn bindings(reader: &mut Reader<'_>, at: &Path, to: &BindingTarget) -> Vec<Binding> {
    let bind = at.name("bind");
    let mut bindings = Vec::new();
    for text in reader.texts(&bind) {
        let Some((exchange, key)) = text.split_once('/').filter(|(exchange, _)| !exchange.is_empty()) else {
            let problem = Problem::new(format!("`{text}` in `bind` names no exchange"));
            reader.problem(
                &bind,
                problem.hint("`exchange/routing.key`; nothing after the `/` where no key is looked at"),
            );
            continue;
        };
        bindings.push(Binding { exchange: exchange.to_owned(), to: to.clone(), key: key.to_owned() });
    }
    bindings
}
