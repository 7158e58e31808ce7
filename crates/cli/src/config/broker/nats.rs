//! NATS `JetStream`: its keys beside the code that they set.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_nats::{
    AtomicBatches, Auth, Config, Discard, Group, Identity, Retention, Storage, Stream, Tls, Topology,
};
use relevo_core::BrokerAdapter;

use super::super::keys::{Key, Kind};
use super::super::problem::Problem;
use super::super::resolved::Reader;
use super::super::settings::Path;
use super::{ACCEPT, LANES, TOPOLOGY, certificates, named, secret, shorter, urls};

/// The keys of the broker itself.
pub(crate) const NATS: &[Key] = &[
    Key::unset(
        "urls",
        Kind::Secrets,
        "[\"nats://localhost:4222\"]",
        "`nats://host:port` or `tls://host:port`, tried in turn: the servers of one cluster. Exactly one of `urls`, \
         `urls_file` and `urls_env` is set. The login stands in the keys below.",
    ),
    Key::unset("urls_file", Kind::Text, "\"/etc/relevo/nats\"", "A file that holds the URLs."),
    Key::unset("urls_env", Kind::Text, "\"NATS_URLS\"", "The name of a variable that holds the URLs."),
    Key::unset("user", Kind::Text, "\"relevo\"", "The user; needs a password."),
    Key::unset(
        "password_file",
        Kind::Text,
        "\"/run/credentials/relevo/nats-password\"",
        "A file that holds the password.",
    ),
    Key::unset("password_env", Kind::Text, "\"NATS_PASSWORD\"", "The name of a variable that holds the password."),
    Key::unset("token_file", Kind::Text, "\"/run/credentials/relevo/nats-token\"", "A file that holds a token."),
    Key::unset("token_env", Kind::Text, "\"NATS_TOKEN\"", "The name of a variable that holds a token."),
    Key::unset(
        "nkey_file",
        Kind::Text,
        "\"/run/credentials/relevo/nats.nk\"",
        "A file that holds the seed of an NKey.",
    ),
    Key::unset("nkey_env", Kind::Text, "\"NATS_NKEY\"", "The name of a variable that holds the seed of an NKey."),
    Key::unset(
        "credentials_file",
        Kind::Text,
        "\"/run/credentials/relevo/nats.creds\"",
        "A credentials file: a JWT and the seed that goes with it.",
    ),
    Key::unset(
        "credentials_env",
        Kind::Text,
        "\"NATS_CREDENTIALS\"",
        "The name of a variable that holds such a file's text.",
    ),
    Key::unset(
        "tls_ca_file",
        Kind::Text,
        "\"/etc/relevo/ca.pem\"",
        "Certificates of who vouches for the server, in PEM; without it the system's authorities do.",
    ),
    Key::unset("tls_cert_file", Kind::Text, "\"/etc/relevo/client.pem\"", "Our own certificate and its chain, in PEM."),
    Key::unset(
        "tls_key_file",
        Kind::Text,
        "\"/run/credentials/relevo/client.key\"",
        "The key of our certificate, in PEM.",
    ),
    Key::new("tls_required", Kind::Boolean, "false", "A connection without TLS is refused; `tls://` asks for it too."),
    Key::new("tls_first", Kind::Boolean, "false", "TLS begins before the server says anything (`handshake_first`)."),
    Key::new("source", Kind::Text, "\"/relevo\"", "What `ce-source` says: a URI that names the outbox."),
    LANES,
    Key::unset(
        "stream",
        Kind::Text,
        "\"ORDERS\"",
        "The stream that everything must be stored in; the server checks it on every publish. Atomic batches need it.",
    ),
    Key::number("connect_deadline_ms", 1, "5000", "No attempt to connect takes longer."),
    Key::number(
        "ack_deadline_ms",
        1,
        "4000",
        "No message waits longer for its acknowledgement; shorter than `publish_deadline_ms`.",
    ),
    Key::number("in_flight_max", 1, "8000", "Messages of the connection that wait for their acknowledgement."),
    Key::new(
        "atomic",
        Kind::Choice(&["auto", "off", "always"]),
        "\"auto\"",
        "Whether messages go in atomic batches, from 2.12 on: where acknowledgements are slow, never, or wherever server and \
         stream can.",
    ),
    Key::number(
        "ping_every_ms",
        100,
        "2000",
        "An idle connection is pinged so often; after two pings without an answer it counts as lost.",
    ),
    Key::number(
        "message_bytes_max",
        1,
        "1048576",
        "The largest message with its headers; if the server allows less, that counts.",
    ),
    Key::unset(
        "monitor_url",
        Kind::Text,
        "\"http://localhost:8222\"",
        "The server's monitoring port: only there `relevo doctor` can read how often it writes to the disk. It needs no login.",
    ),
    TOPOLOGY,
    ACCEPT,
];

const NAME: Key = Key::unset("name", Kind::Text, "\"ORDERS\"", "What it is called; without it as its section.");

/// The keys of a stream.
pub(crate) const STREAM: &[Key] = &[
    NAME,
    Key::new("subjects", Kind::Texts, "[]", "The subjects that it stores, `*` and `>` as in NATS; at least one."),
    Key::new("storage", Kind::Choice(&["file", "memory"]), "\"file\"", "`memory` is gone when the server ends."),
    Key::new("replicas", Kind::Integer { min: 1, max: 5 }, "1", "On how many servers of a cluster it is kept."),
    Key::new(
        "retention",
        Kind::Choice(&["limits", "interest", "workqueue"]),
        "\"limits\"",
        "What removes a message: only the limits below; that every consumer has acknowledged it; that its one consumer has.",
    ),
    Key::unset("max_age_ms", Kind::from(100), "604800000", "Older messages are removed."),
    Key::unset("max_bytes", Kind::from(1), "10737418240", "At most so many bytes."),
    Key::unset("max_messages", Kind::from(1), "10000000", "At most so many messages."),
    Key::unset(
        "max_message_bytes",
        Kind::Integer { min: 1, max: 2_147_483_647 },
        "1048576",
        "Larger messages are refused.",
    ),
    Key::new(
        "discard",
        Kind::Choice(&["new", "old"]),
        "\"new\"",
        "What a full stream does: refuse new messages, which wait in the outbox, or drop the oldest.",
    ),
    Key::number("duplicate_window_ms", 100, "600000", "How long the server recognises a message that is sent again."),
    Key::new("atomic", Kind::Boolean, "true", "Whether it takes atomic batches, where the server can."),
];

/// The keys of a group.
pub(crate) const GROUP: &[Key] = &[
    NAME,
    Key::unset("stream", Kind::Text, "\"ORDERS\"", "The stream that it reads; needed."),
    Key::new("subjects", Kind::Texts, "[]", "Which of the stream's subjects, without the lane's word; all if empty."),
    Key::unset(
        "lanes",
        Kind::Integer { min: 1, max: 256 },
        "8",
        "So many durable consumers `name-0`, `name-1`, … in place of one, for publishers with the same `lanes`.",
    ),
    Key::number("ack_wait_ms", 100, "30000", "How long the server waits for an answer before it delivers again."),
    Key::number("max_ack_pending", 1, "1000", "At most so many deliveries of a lane are out."),
];

pub(super) fn resolve(
    reader: &mut Reader<'_>,
    path: &Path,
    publish_deadline: Duration,
) -> Option<Arc<dyn BrokerAdapter>> {
    let urls = urls(reader, path, &["nats://", "tls://"]);
    if urls.as_ref().is_some_and(|urls| urls.iter().any(|url| url.contains('@'))) {
        let problem = Problem::new("a URL of NATS holds no login");
        reader
            .problem(path, problem.hint("`user` and `password_file`, `token_file`, `nkey_file` or `credentials_file`"));
    }
    let certificates = certificates(reader, path);
    let identity = certificates.identity.map(|(cert_chain, key)| Identity { cert_chain, key });
    let (required, first) = (reader.boolean(&path.name("tls_required")), reader.boolean(&path.name("tls_first")));
    let config = Config {
        auth: auth(reader, path),
        tls: Tls { required, handshake_first: first, ca: certificates.ca, identity },
        source: reader.text(&path.name("source")),
        lanes: reader.find_number(&path.name("lanes")),
        stream: reader.find_text(&path.name("stream")),
        connect_timeout: reader.millis(&path.name("connect_deadline_ms")),
        confirm_timeout: shorter(reader, path, "ack_deadline_ms", publish_deadline),
        in_flight_max: reader.integer(&path.name("in_flight_max")),
        atomic_batches: match reader.text(&path.name("atomic")).as_str() {
            "off" => AtomicBatches::Off,
            "always" => AtomicBatches::Always,
            _ => AtomicBatches::Auto,
        },
        ping_interval: reader.millis(&path.name("ping_every_ms")),
        message_bytes_max: reader.integer(&path.name("message_bytes_max")),
        monitoring_url: monitor_url(reader, path),
        topology: topology(reader, path),
        urls: Vec::new(),
    };
    super::adapter(reader, path, Config { urls: urls?, ..config })
}

/// It is shown where the configuration is, so that it must not hold a password.
fn monitor_url(reader: &mut Reader<'_>, path: &Path) -> Option<String> {
    let at = path.name("monitor_url");
    let url = reader.find_text(&at)?;
    let wrong = if url.contains('@') {
        "`monitor_url` holds no login"
    } else if url.strip_prefix("http://").is_none_or(str::is_empty) {
        "`monitor_url` does not begin with `http://`"
    } else {
        return Some(url);
    };
    reader.problem(&at, Problem::new(wrong).hint("`http://host:8222`"));
    None
}

fn auth(reader: &mut Reader<'_>, path: &Path) -> Auth {
    let user = reader.find_text(&path.name("user"));
    let password = secret(reader, path, "password");
    let [token, nkey, credentials] = ["token", "nkey", "credentials"].map(|name| secret(reader, path, name));
    let ways = [user.is_some() || password.is_some(), token.is_some(), nkey.is_some(), credentials.is_some()];
    if ways.into_iter().filter(|way| *way).count() > 1 {
        let problem = Problem::new(format!("`{path}` has more than one login"));
        reader.problem(path, problem.hint("a user with a password, a token, an NKey, or credentials"));
    }
    match (user, password, token, nkey, credentials) {
        (Some(user), Some(password), ..) => Auth::UserPassword { user, password },
        (Some(_), None, ..) | (None, Some(_), ..) => {
            let problem = Problem::new(format!("`{path}` has half a login"));
            reader.problem(path, problem.hint("`user` goes with `password_file` or `password_env`"));
            Auth::None
        }
        (_, _, Some(token), ..) => Auth::Token(token),
        (_, _, _, Some(seed), _) => Auth::NKey(seed),
        (_, _, _, _, Some(text)) => Auth::Credentials(text),
        (None, None, None, None, None) => Auth::None,
    }
}

fn topology(reader: &mut Reader<'_>, path: &Path) -> Topology {
    let mut topology = Topology::default();
    for (name, at) in reader.sections(&path.name("streams")) {
        if reader.texts(&at.name("subjects")).is_empty() {
            reader.problem(&at, Problem::new(format!("`{at}` has no `subjects`")));
        }
        topology.streams.push(stream(reader, &at, &name));
    }
    for (name, at) in reader.sections(&path.name("groups")) {
        if !reader.settings.is_given(&at.name("stream")) {
            reader.problem(&at, Problem::new(format!("`{at}` has no `stream`")));
        }
        topology.groups.push(Group {
            name: named(reader, &at, &name),
            stream: reader.text(&at.name("stream")),
            subjects: reader.texts(&at.name("subjects")),
            lanes: reader.find_number(&at.name("lanes")),
            ack_wait: reader.millis(&at.name("ack_wait_ms")),
            max_ack_pending: reader.integer(&at.name("max_ack_pending")),
        });
    }
    topology
}

fn stream(reader: &Reader<'_>, at: &Path, name: &str) -> Stream {
    Stream {
        name: named(reader, at, name),
        subjects: reader.texts(&at.name("subjects")),
        storage: if reader.text(&at.name("storage")) == "memory" { Storage::Memory } else { Storage::File },
        replicas: reader.integer(&at.name("replicas")),
        retention: match reader.text(&at.name("retention")).as_str() {
            "interest" => Retention::Interest,
            "workqueue" => Retention::WorkQueue,
            _ => Retention::Limits,
        },
        max_age: reader.find_number(&at.name("max_age_ms")).map(Duration::from_millis),
        max_bytes: reader.find_number(&at.name("max_bytes")),
        max_messages: reader.find_number(&at.name("max_messages")),
        max_message_bytes: reader.find_number(&at.name("max_message_bytes")),
        discard: if reader.text(&at.name("discard")) == "old" { Discard::Old } else { Discard::New },
        duplicate_window: reader.millis(&at.name("duplicate_window_ms")),
        allow_atomic_publish: reader.boolean(&at.name("atomic")),
    }
}
