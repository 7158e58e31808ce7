//! Spans of every component that handles a message, up to a collector.

#[path = "traces/collector.rs"]
mod collector;
#[path = "traces/harness.rs"]
mod harness;

use std::sync::Arc;
use std::time::{Duration, Instant};

use collector::{Collector, ExportedSpan};
use harness::Harness;
use relevo_core::message::Headers;
use relevo_core::trace::{CommonAttributes, Operation};
use relevo_core::{Draft, Message, MessageId, Tracer};
use relevo_observe::traces::{Config, Exporter, Ratio};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const CLIENT: i32 = 3;
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;
const ERROR: i32 = 2;

/// Sent and settled by two relays. Received, processed and settled by two consumers, one of which fails once.
const SPANS_PER_MESSAGE: usize = 2 * 2 + 2 * 3 + 1;
/// The follow-up message is created too. No consumer handles it, but it takes the same path.
const SPANS_PER_FOLLOW_UP: usize = 1 + 2 * 2 + 2 * 3;

fn of<'a>(spans: &'a [ExportedSpan], service: &str, name: &str) -> Vec<&'a ExportedSpan> {
    spans.iter().filter(|span| span.service == service && span.span.name == name).collect()
}

/// Checks the spans of the first message of a trace, and the creation of the follow-up message.
fn check_spans_of_message(spans: &[ExportedSpan], trace: &str, origin: &str, id: MessageId) {
    let id = id.to_string();
    let link = [(trace.to_owned(), origin.to_owned())];
    for system in ["embedded", "rabbitmq"] {
        let sent = of(spans, "relay", "send orders.placed");
        let sent: Vec<_> =
            sent.into_iter().filter(|span| span.attribute("messaging.system").as_deref() == Some(system)).collect();
        let [sent] = sent[..] else { panic!("{system}: {sent:?}") };
        assert_eq!((sent.parent(), sent.links(), sent.span.kind), (origin.to_owned(), link.to_vec(), CLIENT));
        assert_eq!(sent.attribute("messaging.operation.type").as_deref(), Some("send"));
        assert_eq!(sent.attribute("messaging.operation.name").as_deref(), Some("send"));
        assert_eq!(sent.attribute("messaging.destination.name").as_deref(), Some("orders.placed"));
        assert_eq!(sent.attribute("messaging.message.id"), Some(id.clone()));
        assert_eq!(sent.attribute("relevo.attempt").as_deref(), Some("1"));
        assert_eq!(sent.attribute("relevo.outbox").as_deref(), Some("shop"));
        assert!(sent.span.start_time_unix_nano <= sent.span.end_time_unix_nano && sent.span.start_time_unix_nano > 0);
    }
    assert_eq!(of(spans, "relay", "settle orders.placed").len(), 2, "{spans:?}");
    for service in ["billing", "shipping"] {
        let [received] = of(spans, service, "receive orders.placed")[..] else { panic!("{service}: {spans:?}") };
        assert_eq!(
            (received.parent(), received.links(), received.span.kind),
            (origin.to_owned(), link.to_vec(), CLIENT)
        );
        let processed = of(spans, service, "process orders.placed");
        for (attempt, span) in processed.iter().enumerate() {
            assert_eq!((span.parent(), span.links(), span.span.kind), (origin.to_owned(), link.to_vec(), CONSUMER));
            assert_eq!(span.attribute("messaging.message.id"), Some(id.clone()));
            assert_eq!(span.attribute("relevo.attempt"), Some((attempt + 1).to_string()));
        }
        let last = processed.last().expect("it was handled");
        assert_eq!((last.attribute("relevo.verdict").as_deref(), &last.span.status), (Some("done"), &None));
        let [settled] = of(spans, service, "settle orders.placed")[..] else { panic!("{service}: {spans:?}") };
        assert_eq!((settled.parent(), settled.links(), settled.span.kind), (origin.to_owned(), link.to_vec(), CLIENT));
        assert_eq!(settled.attribute("relevo.verdict").as_deref(), Some("acknowledge"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_covers_an_emit_in_rust_the_relays_two_consumers_and_a_follow_up() {
    let collector = Collector::start().await;
    let harness = Harness::sampling(&collector, Ratio::ALL).await;
    let id = harness.emit().await;
    let created = loop {
        let created = collector.all().into_iter().find(|span| span.service == "producer");
        if let Some(created) = created {
            break created;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((created.span.name.as_str(), created.span.kind), ("create orders.placed", PRODUCER));
    assert_eq!((created.parent(), created.attribute("messaging.message.id")), (String::new(), Some(id.to_string())));
    let trace = created.trace();
    let spans = collector.trace(&trace, 1 + SPANS_PER_MESSAGE + SPANS_PER_FOLLOW_UP).await;
    check_spans_of_message(&spans, &trace, &created.id(), id);

    let [first, second] = of(&spans, "billing", "process orders.placed")[..] else { panic!("two attempts: {spans:?}") };
    let status = first.span.status.as_ref().expect("it failed");
    assert_eq!((status.code, status.message.as_str()), (ERROR, "the first one fails"));
    assert_eq!(first.attribute("error.type").as_deref(), Some("transient"));
    // The create span of the emitted message is a child of the handler's span, and the origin of that message.
    let [follows] = of(&spans, "billing", "create orders.billed")[..] else { panic!("{spans:?}") };
    assert_eq!(follows.parent(), second.id());
    for span in of(&spans, "relay", "send orders.billed") {
        assert_eq!(span.parent(), follows.id());
    }
    assert_eq!(harness.exporters(), 6, "all exporters are running");
    assert!(collector.all().iter().all(|span| span.trace() == trace), "no other trace was exported");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_covers_the_caller_of_the_sql_function_the_relays_and_two_consumers() {
    let collector = Collector::start().await;
    let harness = Harness::sampling(&collector, Ratio::NONE).await;
    let id = harness.emit_sql(&format!(r#"{{"traceparent": "00-{TRACE}-{SPAN}-01", "tracestate": "shop=1"}}"#)).await;
    let spans = collector.trace(TRACE, SPANS_PER_MESSAGE + SPANS_PER_FOLLOW_UP).await;
    check_spans_of_message(&spans, TRACE, SPAN, id);
    assert!(of(&spans, "producer", "create orders.placed").is_empty(), "the caller exports that span itself");
    assert!(spans.iter().all(|span| span.span.trace_state == "shop=1"), "{spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsampled_messages_export_no_spans() {
    let collector = Collector::start().await;
    let harness = Harness::sampling(&collector, Ratio::NONE).await;
    harness.emit_sql(&format!(r#"{{"traceparent": "00-{TRACE}-{SPAN}-00"}}"#)).await;
    harness.emit_sql("{}").await;
    harness.emit().await;
    // Three messages and their follow-up messages, at two consumers.
    harness.handled(12).await;
    // When these spans have arrived, all earlier ones have arrived too.
    let other = "00000000000000000000000000000001";
    harness.emit_sql(&format!(r#"{{"traceparent": "00-{other}-{SPAN}-01"}}"#)).await;
    collector.trace(other, SPANS_PER_MESSAGE - 1 + SPANS_PER_FOLLOW_UP).await;
    assert!(collector.all().iter().all(|span| span.trace() == other));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_message_without_context_is_its_id_and_its_origin_is_the_send_span() {
    let collector = Collector::start().await;
    let harness = Harness::sampling(&collector, Ratio::ALL).await;
    let id = harness.emit_sql("{}").await;
    let trace = id.as_uuid().simple().to_string();
    let spans = collector.trace(&trace, SPANS_PER_MESSAGE + SPANS_PER_FOLLOW_UP).await;
    for (system, service) in [("embedded", "billing"), ("rabbitmq", "shipping")] {
        let sent = of(&spans, "relay", "send orders.placed");
        let sent = sent.into_iter().find(|span| span.attribute("messaging.system").as_deref() == Some(system));
        let sent = sent.expect("it was sent");
        assert_eq!((sent.parent(), sent.links().len(), sent.span.kind), (String::new(), 0, PRODUCER));
        for span in of(&spans, service, "process orders.placed") {
            assert_eq!((span.parent(), span.links()), (sent.id(), vec![(trace.clone(), sent.id())]), "{service}");
        }
    }
}

fn message() -> Arc<Message> {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let headers = Headers::from([("traceparent".to_owned(), parent)]);
    let draft = Draft { headers, ..Draft::json("orders", "o-1", "OrderPlaced", "{}") };
    Arc::new(draft.into_message(MessageId::v7(1, [7; 10]), jiff::Timestamp::UNIX_EPOCH))
}

fn record_spans(traces: &Tracer, spans: usize) {
    let (message, address) = (message(), "orders".into());
    for _ in 0..spans {
        traces.start(Operation::Send, &message, &address).expect("it is sampled").end();
    }
}

#[tokio::test]
async fn a_full_queue_drops_spans_and_counts_them() {
    let config = Config { queue_max: 10, ..Config::new("http://127.0.0.1:1", "relay") };
    let exporter = Exporter::new(config).expect("a configuration");
    let counts = exporter.counts();
    record_spans(&exporter.traces(CommonAttributes::default()), 100);
    assert_eq!((counts.dropped(), counts.exported()), (90, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_collector_drops_spans_and_later_spans_arrive() {
    // The port is reserved, and no process listens on it until later.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = socket.local_addr().expect("an address");
    let every = Duration::from_millis(5);
    let config = Config { every, queue_max: 1000, ..Config::new(format!("http://{address}"), "relay") };
    let exporter = Exporter::new(config).expect("a configuration");
    let (counts, traces, stop) =
        (exporter.counts(), exporter.traces(CommonAttributes::default()), CancellationToken::new());
    let mut running = JoinSet::new();
    running.spawn(exporter.run(stop.clone()));
    let begun = Instant::now();
    record_spans(&traces, 50_000);
    assert!(begun.elapsed() < Duration::from_secs(5), "recording waited for the collector: {:?}", begun.elapsed());
    assert!(counts.dropped() >= 40_000, "{counts:?}");
    while counts.dropped() < 50_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let collector = Collector::on(socket.listen(64).expect("the port is ours"));
    while counts.exported() == 0 {
        record_spans(&traces, 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Spans that are queued when the exporter is stopped are still sent.
    record_spans(&traces, 100);
    stop.cancel();
    running.join_next().await.expect("it runs").expect("it ends");
    assert_eq!(collector.all().len() as u64, counts.exported());
    assert!(counts.exported() > 100, "{counts:?}");
}
