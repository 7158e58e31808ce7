//! Streams for one test, and helpers to set them up with unsafe settings.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use relevo_broker_nats::{Admin, Config, Topology};
use relevo_core::broker::admin::{BrokerAdmin as _, ExamineContext};
use relevo_core::finding::{Finding, Severity};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Server, unique};

pub(crate) struct TopologyHarness {
    pub(crate) url: String,
    pub(crate) jetstream: jetstream::Context,
    /// The name of the test's main stream, and the first token of its subjects.
    pub(crate) name: String,
}

impl TopologyHarness {
    pub(crate) async fn shared(version: NatsVersion) -> Self {
        Self::new_at(Server::shared(version).url()).await
    }

    pub(crate) async fn new_at(url: &str) -> Self {
        let client = async_nats::connect(url).await.expect("a connection");
        Self { url: url.to_owned(), jetstream: jetstream::new(client), name: unique("s") }
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(&self.url)
    }

    pub(crate) fn admin(&self, topology: Topology) -> Admin {
        Admin::new(Config { topology, ..self.config() }).expect("a valid topology")
    }

    /// The test's own subject `orders`.
    pub(crate) fn subject(&self) -> String {
        format!("{}.orders", self.name)
    }

    /// A stream configuration with safe settings.
    pub(crate) fn safe_stream(&self) -> stream::Config {
        stream::Config {
            name: self.name.clone(),
            subjects: vec![format!("{}.>", self.name)],
            discard: stream::DiscardPolicy::New,
            duplicate_window: Duration::from_mins(10),
            ..stream::Config::default()
        }
    }

    /// Creates the stream, and replaces an existing one.
    pub(crate) async fn create_stream(&self, config: stream::Config) {
        self.delete().await;
        self.jetstream.create_stream(config).await.expect("a stream");
    }

    pub(crate) async fn delete(&self) {
        // It may not exist yet.
        self.jetstream.delete_stream(&self.name).await.ok();
    }

    /// The findings of doctor for this test's subject.
    pub(crate) async fn examine(&self) -> Findings {
        self.examine_with(self.config(), &[&self.subject()]).await
    }

    pub(crate) async fn examine_with(&self, config: Config, addresses: &[&str]) -> Findings {
        let admin = Admin::new(config).expect("a valid configuration");
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        let expectations = ExamineContext { addresses, resend_window: Duration::from_mins(5) };
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
        assert!(fits, "`{subject}` of `{object}` did not pass: {found:#?}\nin {self:#?}");
    }

    fn about(&self, subject: &str, object: &str) -> impl Iterator<Item = &Finding> {
        let object = format!("`{object}`");
        self.0.iter().filter(move |finding| finding.subject == subject && finding.detail.contains(&object))
    }
}
