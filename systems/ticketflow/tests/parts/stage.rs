//! A test's own database, virtual host and mail server, and processes that use them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{self, Server};
use relevo_testkit::rabbitmq;
use relevo_testkit::smtp::Smtp;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use ticketflow::config::{Broker, Config, Database, Mail, Role, Secret};
use ticketflow::desk::{self, Token};
use ticketflow::domain::{self, Language, Person};
use ticketflow::run;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::http::{Answer, ask};

/// The tokens of the people of a stage.
pub(crate) const ANA: &str = "token-of-ana";
pub(crate) const DAN: &str = "token-of-dan";
pub(crate) const EVA: &str = "token-of-eva";
const PEOPLE: [(&str, &str, domain::Role, Language); 3] = [
    ("Ana", ANA, domain::Role::Requester, Language::Es),
    ("Dan", DAN, domain::Role::Agent, Language::En),
    ("Eva", EVA, domain::Role::Admin, Language::Es),
];

/// Dead-lettered e-mails, in a process's metrics.
pub(crate) const DEAD: &str = "consumer=\"notifications\",outcome=\"dead_lettered\"";

const DEADLINE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Stage {
    pub(crate) database: postgres::Database,
    pub(crate) smtp: Smtp,
    /// What processes are started with; their role is theirs.
    pub(crate) config: Config,
    pub(crate) vhost: rabbitmq::Vhost,
}

impl Stage {
    /// On the shared servers.
    pub(crate) async fn new() -> Self {
        let vhost = rabbitmq::Server::shared().vhost().await;
        let management_url = Some(Secret::new(vhost.management_url()));
        Self::with(vhost, management_url).await
    }

    /// On a broker of the test's own.
    pub(crate) async fn with(vhost: rabbitmq::Vhost, management_url: Option<Secret>) -> Self {
        let database = Server::shared(PgVersion::V15).database().await;
        let smtp = Smtp::start();
        let mut config = Config::embedded("nowhere".as_ref());
        config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.database = Database::Postgres(Secret::new(database.url()));
        config.broker = Broker::RabbitMq {
            url: Secret::new(vhost.amqp_url()),
            management_url,
            ladder: [60, 300, 900].map(Duration::from_secs).to_vec(),
        };
        config.mail = Mail::Smtp { url: Secret::new(smtp.url()), ca_file: None };
        config.worker.retries = [50, 100].map(Duration::from_millis).to_vec();
        add_people(&config.database).await;
        Self { database, smtp, config, vhost }
    }

    /// While every recipient has this answer an e-mail for Ana opens the breaker; when they are taken again it arrives.
    pub(crate) async fn waits_while_barred(&self, all: &Running, answer: &str) {
        let before = self.smtp.mails().len();
        self.smtp.bar_but("nowhere.example", answer);
        all.open(ANA, "who are we").await;
        until(async || so(all.metric("inbox_member_breakers_open", "notifications").await > 0.5, self.smtp.events()))
            .await;
        self.smtp.unbar();
        until(async || so(self.smtp.mails().len() == before + 1, self.smtp.events())).await;
        until(async || so(all.metric("inbox_member_breakers_open", "notifications").await < 0.5, answer)).await;
    }

    /// Starts a process of this role, in this one.
    pub(crate) async fn start(&self, role: Role) -> Running {
        Running::start(Config { role, ..self.config.clone() }).await
    }

    pub(crate) async fn session(&self) -> PgConnection {
        self.database.connect().await
    }

    /// Every Message-ID that the mail server kept, with how often it did.
    pub(crate) fn message_ids(&self) -> BTreeMap<String, usize> {
        let mut ids = BTreeMap::new();
        for mail in self.smtp.mails() {
            *ids.entry(header(&mail, "Message-ID").expect("every e-mail has one")).or_default() += 1;
        }
        ids
    }

    /// How often the mail server was asked for a recipient.
    pub(crate) fn asked(&self, recipient: &str) -> usize {
        self.asked_at(recipient).len()
    }

    /// When the mail server was asked for a recipient, by its own clock.
    pub(crate) fn asked_at(&self, recipient: &str) -> Vec<Duration> {
        let begin = format!("asked {recipient} ");
        let events = self.smtp.events();
        let asked = events.iter().filter(|event| event.starts_with(&begin));
        let ms = asked.map(|event| event.rsplit(' ').next().and_then(|ms| ms.parse().ok()));
        ms.map(|ms| Duration::from_millis(ms.expect("a number"))).collect()
    }

    /// The broker, over a separate connection.
    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.vhost.amqp_url(), properties).await.expect("the broker is there");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// Waits until exchange and queues are there: a process serves without them where the broker is slow to make them.
    pub(crate) async fn has_queues(&self) {
        let broker = ticketflow::flow::Broker::open(&self.config.broker).await.expect("a URL");
        broker.prepare().await.expect("the broker is there");
        broker.close().await;
    }
}

/// Makes the tables, and lets in who is there from the beginning.
async fn add_people(database: &Database) {
    desk::migrate(database).await.expect("the database is there");
    let desk = desk::open(database).await.expect("the tables are there");
    for (name, token, role, language) in PEOPLE {
        let email = format!("{}@ticketflow.example", name.to_lowercase());
        let person = Person { id: Uuid::now_v7(), name: name.to_owned(), email, role, language };
        desk.add_person(&person, &Token::new(token), Timestamp::now()).await.expect("the address is new");
    }
}

/// A process in this one.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    parts: JoinSet<Result<()>>,
}

impl Running {
    pub(crate) async fn start(config: Config) -> Self {
        let (tell, started) = oneshot::channel();
        let (stop, mut parts) = (CancellationToken::new(), JoinSet::new());
        let serves = move |serving: &run::Serving| tell.send(serving.address).expect("the test waits for it");
        parts.spawn(run::run(config, false, serves, stop.clone()));
        let Ok(address) = started.await else { panic!("it does not start: {:?}", parts.join_next().await) };
        Self { address, stop, parts }
    }

    /// Stops it orderly.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = self.parts.join_next().await.expect("it ran");
        ended.expect("it did not panic").expect("it ended well");
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        ask(self.address, "GET", path, &[format!("authorization: Bearer {token}")], "").await
    }

    pub(crate) async fn post(&self, token: &str, path: &str, headers: &[&str], body: &Value) -> Answer {
        let mut lines = vec![format!("authorization: Bearer {token}")];
        lines.extend(headers.iter().map(|line| (*line).to_owned()));
        ask(self.address, "POST", path, &lines, &body.to_string()).await
    }

    /// A new ticket.
    pub(crate) async fn open(&self, token: &str, title: &str) -> Value {
        let answer = self.post(token, "/api/tickets", &[], &json!({ "title": title, "description": "x" })).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()
    }

    /// Another status; returns the ticket.
    pub(crate) async fn set(&self, token: &str, ticket: &Value, status: &str) -> Value {
        let path = format!("/api/tickets/{}/status", ticket["id"].as_str().expect("an id"));
        let version = format!("if-match: \"{}\"", ticket["version"]);
        let answer = self.post(token, &path, &[&version], &json!({ "status": status })).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// A requester with this address; returns their token.
    pub(crate) async fn person(&self, email: &str) -> String {
        let person = json!({ "name": "Pia", "email": email, "role": "requester", "language": "en" });
        let answer = self.post(EVA, "/api/people", &[], &person).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["token"].as_str().expect("a token").to_owned()
    }

    pub(crate) async fn figures(&self) -> Value {
        self.get(EVA, "/api/figures").await.json()
    }

    pub(crate) async fn health(&self) -> (u16, Value) {
        let answer = ask(self.address, "GET", "/health", &[], "").await;
        (answer.status, answer.json())
    }

    /// The sum of a metric's series whose labels have this in them; there is always one. Counters of consumers are distinguished from the
    /// start, so that one which is not there has another name.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> f64 {
        self.sampled(name, label).await.unwrap_or_else(|| panic!("no series of `{name}` has `{label}`"))
    }

    /// The same of what is sampled from database and broker; `None` while there is no sample.
    pub(crate) async fn sampled(&self, name: &str, label: &str) -> Option<f64> {
        let text = ask(self.address, "GET", "/metrics", &[], "").await.text;
        let of_name = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number");
        of_name.map(value).reduce(|sum, value| sum + value)
    }
}

/// The messages in a queue.
pub(crate) async fn depth(channel: &Channel, queue: &str) -> u32 {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
    declared.unwrap_or_else(|error| panic!("`{queue}`: {error}")).message_count()
}

/// Takes a message out of a queue, with its headers that are text.
pub(crate) async fn take(channel: &Channel, queue: &str) -> BTreeMap<String, String> {
    let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("the queue is there");
    let headers = got.expect("a message").delivery.properties.headers().clone().unwrap_or_default();
    let text =
        |value: &AMQPValue| value.as_long_string().map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
    headers.inner().iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect()
}

/// The only row of a number.
pub(crate) async fn number(session: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(session).await.expect("a number")
}

/// A header of an e-mail, unfolded.
pub(crate) fn header(mail: &str, name: &str) -> Option<String> {
    let mail = mail.replace("\r\n", "\n");
    let (head, _) = mail.split_once("\n\n")?;
    let head = head.replace("\n ", " ");
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
}

/// Looks until it is so, and panics with the last that was seen when the time is over.
pub(crate) async fn until<T>(look: impl AsyncFnMut() -> Result<T, String>) -> T {
    until_within(DEADLINE, look).await
}

/// The same, for no longer than this.
pub(crate) async fn until_within<T>(deadline: Duration, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + deadline;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) => assert!(Instant::now() < deadline, "{seen}"),
        }
        sleep(POLL).await;
    }
}

/// For [`until`]: whether it is so, or what is seen instead.
pub(crate) fn so(is_so: bool, seen: impl std::fmt::Debug) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(format!("{seen:?}")) }
}
