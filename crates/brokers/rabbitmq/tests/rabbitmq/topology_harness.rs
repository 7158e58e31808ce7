//! A virtual host for one test, and helpers to set it up with unsafe settings.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use relevo_broker_rabbitmq::{Admin, Config, Policy, Topology};
use relevo_core::broker::admin::{BrokerAdmin as _, ExamineContext};
use relevo_core::finding::{Finding, Severity};
use relevo_testkit::rabbitmq::{Server, Vhost};
use serde_json::Value;

pub(crate) struct TopologyHarness {
    pub(crate) vhost: Vhost,
    pub(crate) channel: Channel,
    _connection: Connection,
}

impl TopologyHarness {
    pub(crate) async fn new() -> Self {
        Self::new_at(Server::shared().vhost().await).await
    }

    pub(crate) async fn new_at(vhost: Vhost) -> Self {
        let connection =
            Connection::connect(&vhost.amqp_url(), ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        Self { vhost, channel, _connection: connection }
    }

    /// The configuration with the management API.
    pub(crate) fn config(&self) -> Config {
        Config { management_urls: vec![self.vhost.management_url().to_owned()], ..Config::new(self.vhost.amqp_url()) }
    }

    pub(crate) fn admin(&self, topology: Topology) -> Admin {
        Admin::new(Config { topology, ..self.config() }).expect("a valid topology")
    }

    /// Creates a durable queue with these arguments.
    pub(crate) async fn queue(&self, name: &str, arguments: Value) {
        self.queue_with(name, QueueDeclareOptions { durable: true, ..Default::default() }, arguments).await;
    }

    pub(crate) async fn queue_with(&self, name: &str, options: QueueDeclareOptions, arguments: Value) {
        self.channel.queue_declare(name.into(), options, table(arguments)).await.expect("a queue");
    }

    pub(crate) async fn exchange(&self, name: &str, kind: ExchangeKind, arguments: Value) {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        self.channel.exchange_declare(name.into(), kind, options, table(arguments)).await.expect("an exchange");
    }

    pub(crate) async fn bind(&self, exchange: &str, key: &str, queue: &str) {
        let options = QueueBindOptions::default();
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        self.channel.queue_bind(queue, exchange, key, options, FieldTable::default()).await.expect("a binding");
    }

    pub(crate) async fn unbind(&self, exchange: &str, key: &str, queue: &str) {
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        self.channel.queue_unbind(queue, exchange, key, FieldTable::default()).await.expect("unbound");
    }

    pub(crate) async fn delete_queue(&self, name: &str) {
        self.channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.expect("a queue deleted");
    }

    /// Sets a policy for one queue or exchange.
    pub(crate) async fn policy(&self, name: &str, apply_to: &str, definition: Value) {
        let definition = serde_json::from_value(definition).expect("a map");
        let policy = Policy {
            name: format!("for-{name}"),
            pattern: format!("^{name}$"),
            apply_to: apply_to.to_owned(),
            definition,
            priority: 1,
        };
        let admin = self.admin(Topology { policies: vec![policy], ..Topology::default() });
        admin.apply().await.expect("a policy");
    }

    /// The findings of doctor for these addresses.
    pub(crate) async fn examine(&self, addresses: &[&str]) -> Findings {
        self.examine_with(self.config(), addresses).await
    }

    pub(crate) async fn examine_with(&self, config: Config, addresses: &[&str]) -> Findings {
        let admin = Admin::new(config).expect("a valid configuration");
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        let expectations = ExamineContext { addresses, ..ExamineContext::default() };
        Findings(admin.examine(&expectations).await.expect("findings"))
    }
}

/// The findings of doctor.
#[derive(Debug)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    /// Asserts that there is one finding for the subject and object, with this severity and a fix.
    #[track_caller]
    pub(crate) fn assert_has(&self, severity: Severity, subject: &str, object: &str) {
        let found: Vec<_> = self.about(subject, object).collect();
        let fits = matches!(found[..], [finding] if finding.severity == severity && finding.fix.is_some());
        assert!(fits, "`{subject}` of `{object}` is not {severity:?}: {found:#?}\nin {self:#?}");
    }

    /// Asserts that the object passed this check.
    #[track_caller]
    pub(crate) fn assert_passed(&self, subject: &str, object: &str) {
        let found: Vec<_> = self.about(subject, object).collect();
        let fits = matches!(found[..], [finding] if finding.severity == Severity::Ok);
        assert!(fits, "`{subject}` of `{object}` has not passed: {found:#?}\nin {self:#?}");
    }

    /// Asserts that every check passed.
    #[track_caller]
    pub(crate) fn assert_all_passed(&self) {
        let worst = self.0.iter().map(|finding| finding.severity).max();
        assert_eq!(worst, Some(Severity::Ok), "{self:#?}");
    }

    fn about(&self, subject: &str, object: &str) -> impl Iterator<Item = &Finding> {
        let object = format!("`{object}`");
        self.0.iter().filter(move |finding| finding.subject == subject && finding.detail.contains(&object))
    }
}

fn table(arguments: Value) -> FieldTable {
    let arguments: std::collections::BTreeMap<String, Value> = serde_json::from_value(arguments).expect("a map");
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Value::Bool(flag) => AMQPValue::Boolean(flag),
            Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().expect("a number")),
            Value::String(text) => AMQPValue::LongString(text.as_str().into()),
            other => panic!("no argument: {other}"),
        };
        table.insert(name.as_str().into(), value);
    }
    table
}
