//! The spans that the daemon exports to a collector.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Server, unique};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Stores the received bytes. OTLP contains names and attributes as plain text.
struct Collector {
    address: SocketAddr,
    came: Arc<Mutex<Vec<u8>>>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, came) = (listener.local_addr().expect("an address"), Arc::<Mutex<Vec<u8>>>::default());
        let take = |State(came): State<Arc<Mutex<Vec<u8>>>>, body: Bytes| async move {
            came.lock().expect("no thread panicked with it").extend_from_slice(&body);
        };
        let router = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&came));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { address, came, _serving: serving }
    }

    fn count(&self, what: &str) -> usize {
        let came = self.came.lock().expect("no thread panicked with it");
        came.windows(what.len()).filter(|part| *part == what.as_bytes()).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_exports_spans_of_sampled_messages_and_flushes_them_at_shutdown() {
    let collector = Collector::start().await;
    let shop = TestOutbox::new().await;
    shop.emit("orders", 100).await;
    let headers = format!(r#"{{"traceparent": "{SAMPLED}"}}"#);
    let emit = format!("SELECT relevo.emit('traced', 'k', 'T', '{{}}', headers => '{headers}')");
    shop.run(&emit).await;
    let traces = format!("[traces]\nendpoint = \"http://{}\"\nsample_ratio = 0\n", collector.address);
    let mut daemon = shop.start(&traces);
    assert_eq!(daemon.line("span export started")["sample"], "0");
    TestOutbox::delivered(&daemon, "shop", 101);
    until("its spans are exported", || collector.count("settle traced") == 1);
    assert_eq!((collector.count("send traced"), collector.count("send orders")), (1, 0));
    for part in ["messaging.system", "embedded", "relevo.destination", "main", "service.name"] {
        assert!(collector.count(part) > 0, "{part}");
    }
    shop.run(&emit).await;
    TestOutbox::delivered(&daemon, "shop", 102);
    daemon.stop();
    assert_eq!((collector.count("send traced"), collector.count("settle traced")), (2, 2), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_stops_nothing_and_its_spans_are_counted() {
    // No process listens at this address any more.
    let address = Collector::start().await.address;
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start(&format!("[traces]\nendpoint = \"http://{address}\"\nsample_ratio = 1.0\n"));
    shop.emit("orders", 500).await;
    TestOutbox::delivered(&daemon, "shop", 500);
    daemon.line("the collector does not accept spans, they are dropped");
    until("the dropped spans are counted", || {
        daemon.metric("relevo_spans_dropped_total").is_some_and(|spans| spans > 0)
    });
    assert_eq!(daemon.metric("relevo_spans_exported_total"), Some(0));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_line_about_a_message_has_its_id_and_trace() {
    let shop = TestOutbox::new().await;
    let headers = format!(r#"{{"traceparent": "{SAMPLED}"}}"#);
    let big = format!("SELECT relevo.emit('traced', 'k', 'T', to_jsonb(repeat('x', 5000)), headers => '{headers}')");
    shop.run(&big).await;
    let stream = unique("shop");
    let broker = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\ntopology_on_start = \"apply\"\nmessage_size_max = \"2000B\"\n\
         [BROKER.streams.{stream}]\nsubjects = [\"{stream}.>\"]\n",
        Server::shared(NatsVersion::V2_15).url()
    );
    let route = format!("[[outboxes.shop.destinations.main.routes]]\naddress = \"{stream}.{{topic}}\"\n");
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], &route), &[]);
    let line = daemon.line("message dead-lettered");
    assert_eq!(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(line["message_id"].as_str().is_some_and(|id| id.len() == 36), "{line}");
    daemon.stop();
}
