//! A collector: accepts OTLP over HTTP, and stores all spans. It decodes them with OpenTelemetry's own definitions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A span, and the service that sent it.
#[derive(Clone, Debug)]
pub(crate) struct ExportedSpan {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl ExportedSpan {
    /// An attribute, as text.
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        text(&self.span.attributes, key)
    }

    /// Trace and span of each link, in hex.
    pub(crate) fn links(&self) -> Vec<(String, String)> {
        self.span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect()
    }

    pub(crate) fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub(crate) fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    pub(crate) fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

type Spans = Arc<Mutex<Vec<ExportedSpan>>>;

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    spans: Spans,
    _serving: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let (address, spans) = (listener.local_addr().expect("an address"), Spans::default());
        let router = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&spans));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { address, spans, _serving: serving }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn all(&self) -> Vec<ExportedSpan> {
        self.spans.lock().expect("the lock is not poisoned").clone()
    }

    /// Waits until this many spans of a trace have arrived, and returns them.
    pub(crate) async fn trace(&self, id: &str, wanted: usize) -> Vec<ExportedSpan> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let spans: Vec<ExportedSpan> = self.all().into_iter().filter(|span| span.trace() == id).collect();
            if spans.len() >= wanted {
                return spans;
            }
            let names: Vec<_> = spans.iter().map(|span| (&span.service, &span.span.name)).collect();
            assert!(Instant::now() < end, "{} of {wanted} spans of {id} came: {names:?}", spans.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn take(State(received): State<Spans>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
    for resource in request.resource_spans {
        let attributes = resource.resource.expect("a resource").attributes;
        let service = text(&attributes, "service.name").expect("a service");
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        received
            .lock()
            .expect("the lock is not poisoned")
            .extend(spans.map(|span| ExportedSpan { service: service.clone(), span }));
    }
    StatusCode::OK
}
