//! Tracing: the operations on a message, as spans that a collector joins into one trace.
//!
//! The engines use [`Tracer`] and know nothing about exporters: the host process provides a [`SpanRecorder`]. Without a
//! recorder, and for a message that is not sampled, tracing allocates nothing.
//!
//! A message carries the context of the span that created it, its *origin*, in its headers. The origin never changes.
//! Spans of relays and consumers are its children and link to it.
//!
//! A message without an origin uses its own id as its trace id. All processes with the same sampling ratio therefore
//! record the same traces.

mod context;
mod tracer;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

pub use context::{SpanContext, SpanId, TraceId};
pub use tracer::{ActiveSpan, Tracer};

use crate::message::MessageId;

crate::text_enum! {
    /// An operation on a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operation {
        /// An application emitted it.
        Create = "create",
        /// A relay passed it to a broker.
        Send = "send",
        /// A consumer received it from a broker, and it waited for a worker.
        Receive = "receive",
        /// Its handler ran.
        Process = "process",
        /// The response of an external service to its handler was committed.
        Commit = "commit",
        /// Its result was recorded: in the outbox by a relay, or at the broker by a consumer.
        Settle = "settle",
    }
}

/// Attributes that all spans of one relay or consumer share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonAttributes {
    /// The kind of broker, such as `rabbitmq`.
    pub system: String,
    /// Further attributes.
    pub attributes: Vec<(&'static str, String)>,
}

/// The reason why the operation of a span failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanError {
    /// The failure class, from a small fixed set.
    pub class: &'static str,
    /// The error text.
    pub error: String,
}

/// A finished operation on one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanData {
    /// Its own context.
    pub context: SpanContext,
    /// The parent span. `None` if this span starts the trace.
    pub parent: Option<SpanId>,
    /// The `tracestate` that came with the message.
    pub tracestate: Option<String>,
    /// The origin of the message. `None` if this span is the origin.
    pub origin: Option<SpanContext>,
    /// The operation.
    pub operation: Operation,
    /// The address, with [`SpanData::KEY`] in place of the message's key. For [`Operation::Create`] it is the topic.
    pub destination: Arc<str>,
    /// The message id. `None` if the message could not be emitted.
    pub message: Option<MessageId>,
    /// Start time.
    pub started_at: Timestamp,
    /// End time.
    pub ended_at: Timestamp,
    /// The number of the counted attempt, for operations that count attempts.
    pub attempt: Option<u32>,
    /// The decision, as one word, if there was one.
    pub verdict: Option<&'static str>,
    /// The error, if it failed.
    pub error: Option<SpanError>,
    /// The shared attributes.
    pub common: Arc<CommonAttributes>,
}

impl SpanData {
    /// The placeholder for the key in an address.
    pub const KEY: &str = "{key}";
}

/// Receives finished spans. The engines call it on their hot path, so no method may block.
pub trait SpanRecorder: Send + Sync {
    /// Whether to record a trace that starts here. Returns the same answer for the same id in every process with the
    /// same ratio.
    fn is_sampled(&self, trace: TraceId) -> bool;

    /// A new random span id.
    fn new_span_id(&self) -> SpanId;

    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Accepts a finished span. When there is no room, drops the span and counts it.
    fn record(&self, span: SpanData);
}

impl fmt::Debug for dyn SpanRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanRecorder")
    }
}
