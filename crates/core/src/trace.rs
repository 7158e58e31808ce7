//! What happened to a message, as spans that a collector joins to one trace.
//!
//! The engines know [`Traces`] and nothing of exporters: whoever wires them gives a [`Recorder`]. Without one, and for a
//! message that is not sampled, nothing is allocated.
//!
//! A message carries the context of the span that created it, its *origin*, in its headers. It stays as it is on the whole
//! way: spans of relays and consumers are its children, and link to it. A message without an origin has its own id as the
//! id of its trace, so that all who sample it by the same ratio tell the same trace.

mod context;
mod open;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

pub use context::{SpanContext, SpanId, TraceId};
pub use open::{Open, Traces};

use crate::message::MessageId;

/// What was done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It was emitted.
    Create,
    /// It was given to a broker.
    Send,
    /// It came from a broker, and waited until a worker took it.
    Receive,
    /// Its handler ran.
    Process,
    /// What a far side answered to its handler was written down.
    Commit,
    /// What became of it was recorded: in the outbox by a relay, at the broker by a consumer.
    Settle,
}

impl Operation {
    /// The word for it, in names of spans and in attributes.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Process => "process",
            Self::Commit => "commit",
            Self::Settle => "settle",
        }
    }
}

/// What all spans of one relay or consumer have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The kind of broker, such as `rabbitmq`.
    pub system: String,
    /// Further attributes.
    pub attributes: Vec<(&'static str, String)>,
}

/// Why what a span tells of did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One of few words.
    pub class: &'static str,
    /// For people.
    pub error: String,
}

/// Something that was done with one message, and has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its own context.
    pub context: SpanContext,
    /// The span that it is a part of; none if it begins the trace.
    pub parent: Option<SpanId>,
    /// The `tracestate` that came with the message.
    pub state: Option<String>,
    /// The origin of the message, unless this span is it.
    pub origin: Option<SpanContext>,
    /// What was done.
    pub operation: Operation,
    /// The address, with [`Span::KEY`] where it holds the message's key; for [`Operation::Create`] the topic.
    pub destination: Arc<str>,
    /// The message; not known of one that could not be emitted.
    pub message: Option<MessageId>,
    /// When it began.
    pub begun: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Which counted attempt it was, where attempts are counted.
    pub attempt: Option<u32>,
    /// What was decided, in a word, where something was.
    pub verdict: Option<&'static str>,
    /// Why it failed, if it did.
    pub fault: Option<Fault>,
    /// What it has in common with others.
    pub about: Arc<About>,
}

impl Span {
    /// What stands for the key in an address.
    pub const KEY: &str = "{key}";
}

/// Where ended spans go. The engines call it in their hot path: nothing of it waits.
pub trait Recorder: Send + Sync {
    /// Whether a trace that begins here is told: the same answer for the same id, in every process with the same ratio.
    fn samples(&self, trace: TraceId) -> bool;

    /// A new id, random.
    fn span_id(&self) -> SpanId;

    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Takes a span. One that there is no room for is dropped, and counted.
    fn record(&self, span: Span);
}

impl fmt::Debug for dyn Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}
