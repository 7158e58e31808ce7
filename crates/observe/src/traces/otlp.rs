//! Spans in OTLP format, with the messaging semantic conventions.
//!
//! The messages are the used part of `opentelemetry/proto/trace/v1/trace.proto` and related files.

mod wire;

use prost::Message as _;
use relevo_core::trace::{Operation, SpanContext, SpanData};

use self::wire::{
    Any, AnyValue, ExportTraceRequest, ExportTraceResponse, KeyValue, Link, Resource, ResourceSpans, Scope, ScopeSpans,
    Status,
};

/// The version of the conventions for names and attributes.
const CONVENTIONS: &str = "https://opentelemetry.io/schemas/1.37.0";
/// The flags of a sampled context. The bits about a remote parent are not set.
const SAMPLED: u32 = 1;

const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;

const ERROR: i32 = 2;

/// The spans of one request.
pub(super) fn request(service: &str, spans: Vec<SpanData>) -> ExportTraceRequest {
    let scope = Scope { name: "relevo".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = spans.into_iter().map(converted).collect();
    let resource = Resource { attributes: vec![text("service.name", service)] };
    let schema_url = CONVENTIONS.to_owned();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: schema_url.clone() }];
    ExportTraceRequest { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans, schema_url }] }
}

/// The number of spans that the collector rejected in a successful response.
pub(super) fn rejected(response: &[u8]) -> usize {
    let response = ExportTraceResponse::decode(response).unwrap_or_default();
    response.partial_success.map_or(0, |partial| usize::try_from(partial.rejected_spans).unwrap_or(0))
}

fn converted(span: SpanData) -> wire::Span {
    let attributes = attributes(&span);
    wire::Span {
        trace_id: span.context.trace.as_bytes().to_vec(),
        span_id: span.context.span.as_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.as_bytes().to_vec()).unwrap_or_default(),
        name: format!("{} {}", span.operation.as_str(), span.destination),
        kind: kind(&span),
        start_time_unix_nano: nanos(span.started_at),
        // The clock may have been set back in between.
        end_time_unix_nano: nanos(span.ended_at.max(span.started_at)),
        attributes,
        links: span.origin.map(|origin| link(origin, span.tracestate.as_deref())).into_iter().collect(),
        trace_state: span.tracestate.unwrap_or_default(),
        status: span.error.map(|fault| Status { message: fault.error, code: ERROR }),
        flags: SAMPLED,
    }
}

/// The span whose context travels with a message is a producer span, the one that processes it a consumer span. Other
/// calls to a broker or a store are client spans.
fn kind(span: &SpanData) -> i32 {
    match span.operation {
        Operation::Create => PRODUCER,
        Operation::Send if span.origin.is_none() => PRODUCER,
        Operation::Send | Operation::Receive | Operation::Settle => CLIENT,
        Operation::Process => CONSUMER,
        Operation::Commit => INTERNAL,
    }
}

fn attributes(span: &SpanData) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("messaging.system", &span.common.system),
        text("messaging.operation.name", span.operation.as_str()),
        text(destination(span), &span.destination),
    ];
    // The conventions have no commit operation.
    if span.operation != Operation::Commit {
        attributes.push(text("messaging.operation.type", span.operation.as_str()));
    }
    if let Some(id) = span.message {
        attributes.push(text("messaging.message.id", &id.to_string()));
    }
    if let Some(attempt) = span.attempt {
        let value = Some(AnyValue { value: Some(Any::Integer(attempt.into())) });
        attributes.push(KeyValue { key: "relevo.attempt".to_owned(), value });
    }
    if let Some(verdict) = span.verdict {
        attributes.push(text("relevo.verdict", verdict));
    }
    if let Some(fault) = &span.error {
        attributes.push(text("error.type", fault.class));
    }
    attributes.extend(span.common.attributes.iter().map(|(name, value)| text(name, value)));
    attributes
}

/// An address that contains the key is exported as its template: there are as many addresses as keys.
fn destination(span: &SpanData) -> &'static str {
    let has_key = span.destination.contains(SpanData::KEY);
    if has_key { "messaging.destination.template" } else { "messaging.destination.name" }
}

fn link(origin: SpanContext, state: Option<&str>) -> Link {
    Link {
        trace_id: origin.trace.as_bytes().to_vec(),
        span_id: origin.span.as_bytes().to_vec(),
        trace_state: state.unwrap_or_default().to_owned(),
        flags: SAMPLED,
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Any::Text(value.to_owned())) }) }
}

fn nanos(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}
