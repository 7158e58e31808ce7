//! Spans that have started but not ended.

use std::sync::Arc;

use super::{CommonAttributes, Operation, SpanContext, SpanData, SpanError, SpanRecorder, TraceId};
use crate::draft::Draft;
use crate::message::{Headers, Message, MessageId, TraceContext};

/// Records spans for messages, or does nothing when tracing is off. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<TracerInner>);

#[derive(Clone, Debug)]
struct TracerInner {
    recorder: Arc<dyn SpanRecorder>,
    common: Arc<CommonAttributes>,
}

/// The trace origin of a message.
enum Origin {
    /// The message carries the context of the span that created it.
    Carried(SpanContext),
    /// The message carries no context.
    Unknown(TraceId),
}

impl Tracer {
    /// Creates a tracer that sends spans with these attributes to the recorder.
    pub fn new(recorder: Arc<dyn SpanRecorder>, common: CommonAttributes) -> Self {
        Self(Some(TracerInner { recorder, common: Arc::new(common) }))
    }

    /// A tracer that records nothing.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Whether tracing is on.
    pub const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a span for an operation on a message, if the message is sampled. The origin decides; without an origin,
    /// the id decides. A key in the address is replaced by a placeholder: keys may identify people, and there may be
    /// millions of them.
    pub fn start(&self, operation: Operation, message: &Message, address: &Arc<str>) -> Option<ActiveSpan> {
        let inner = self.0.as_ref()?;
        let origin = inner.origin(&message.headers, message.id)?;
        let destination = without_key(address, &message.key);
        match origin {
            Origin::Carried(origin) => {
                let state = message.headers.get(TraceContext::STATE).cloned();
                let mut span = inner.start_span(operation, origin.trace, destination);
                span.0.span.parent = Some(origin.span);
                span.0.span.tracestate = state;
                span.0.span.origin = Some(origin);
                span.0.span.message = Some(message.id);
                Some(span)
            }
            Origin::Unknown(trace) => {
                let mut span = inner.start_span(operation, trace, destination);
                span.0.span.message = Some(message.id);
                Some(span)
            }
        }
    }

    /// Starts the span of an emit, and makes this span the origin of the message. An existing context in the draft
    /// becomes the parent. Without one, a new random trace id decides whether the span is recorded.
    pub fn start_emit(&self, draft: &mut Draft) -> Option<ActiveSpan> {
        let inner = self.0.as_ref()?;
        let parent = draft.headers.get(TraceContext::PARENT).and_then(|text| SpanContext::parse(text));
        let trace = match parent {
            Some(parent) => parent.sampled.then_some(parent.trace)?,
            None => inner.new_trace().filter(|trace| inner.recorder.is_sampled(*trace))?,
        };
        let mut span = inner.start_span(Operation::Create, trace, (*draft.topic).into());
        span.0.span.parent = parent.map(|parent| parent.span);
        span.0.span.tracestate = draft.headers.get(TraceContext::STATE).filter(|_| parent.is_some()).cloned();
        if parent.is_none() {
            // The state belongs to a parent that could not be parsed.
            draft.headers.remove(TraceContext::STATE);
        }
        draft.headers.insert(TraceContext::PARENT.to_owned(), span.0.span.context.to_string());
        Some(span)
    }

    /// The trace id of a message, for log lines: the trace it carries, sampled or not, or else the one recorded for it.
    pub fn trace_id(&self, message: &Message) -> Option<TraceId> {
        if let Some(origin) = parse_origin(&message.headers) {
            return Some(origin.trace);
        }
        match self.0.as_ref()?.origin(&message.headers, message.id)? {
            Origin::Carried(origin) => Some(origin.trace),
            Origin::Unknown(trace) => Some(trace),
        }
    }
}

impl TracerInner {
    /// Returns `None` if the message is not sampled.
    fn origin(&self, headers: &Headers, id: MessageId) -> Option<Origin> {
        match parse_origin(headers) {
            Some(origin) => origin.sampled.then_some(Origin::Carried(origin)),
            None => TraceId::of_message(id).filter(|trace| self.recorder.is_sampled(*trace)).map(Origin::Unknown),
        }
    }

    fn new_trace(&self) -> Option<TraceId> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(self.recorder.new_span_id().as_bytes());
        bytes[8..].copy_from_slice(self.recorder.new_span_id().as_bytes());
        TraceId::from_bytes(bytes)
    }

    fn start_span(&self, operation: Operation, trace: TraceId, destination: Arc<str>) -> ActiveSpan {
        let now = self.recorder.now();
        let span = SpanData {
            context: SpanContext { trace, span: self.recorder.new_span_id(), sampled: true },
            parent: None,
            tracestate: None,
            origin: None,
            operation,
            destination,
            message: None,
            started_at: now,
            ended_at: now,
            attempt: None,
            verdict: None,
            error: None,
            common: Arc::clone(&self.common),
        };
        ActiveSpan(Box::new(ActiveSpanInner { recorder: Arc::clone(&self.recorder), span }))
    }
}

/// Replaces the key in an address by a placeholder, unless a letter or digit is next to it.
fn without_key(address: &Arc<str>, key: &str) -> Arc<str> {
    let is_part = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    let stands_alone =
        |at: usize| !is_part(address[..at].chars().next_back()) && !is_part(address[at + key.len()..].chars().next());
    let mut masked = String::new();
    let mut rest = 0;
    for (at, _) in address.match_indices(key).filter(|(at, _)| !key.is_empty() && stands_alone(*at)) {
        masked.push_str(&address[rest..at]);
        masked.push_str(SpanData::KEY);
        rest = at + key.len();
    }
    if rest == 0 {
        return Arc::clone(address);
    }
    masked.push_str(&address[rest..]);
    masked.into()
}

/// The origin in these headers.
fn parse_origin(headers: &Headers) -> Option<SpanContext> {
    headers.get(TraceContext::PARENT).and_then(|text| SpanContext::parse(text))
}

/// A started span. If it is dropped without an end, it is not recorded, because its result is unknown.
#[derive(Debug)]
#[must_use = "a dropped span is not recorded"]
pub struct ActiveSpan(Box<ActiveSpanInner>);

/// Boxed, because every message has a field for it and most messages have no span.
#[derive(Debug)]
struct ActiveSpanInner {
    recorder: Arc<dyn SpanRecorder>,
    span: SpanData,
}

impl ActiveSpan {
    /// The context as headers.
    pub fn trace_context(&self) -> TraceContext {
        TraceContext { parent: self.0.span.context.to_string(), state: self.0.span.tracestate.clone() }
    }

    /// Sets the number of the counted attempt.
    pub fn attempt(&mut self, attempt: u32) {
        self.0.span.attempt = Some(attempt);
    }

    /// Sets the recorded destination, if it differs from the address.
    pub fn destination(&mut self, destination: Arc<str>) {
        self.0.span.destination = destination;
    }

    /// Sets the decision.
    pub fn verdict(&mut self, verdict: &'static str) {
        self.0.span.verdict = Some(verdict);
    }

    /// The message to send. If it has no origin, the returned copy carries this span as its origin.
    pub fn inject(&self, message: &Arc<Message>) -> Arc<Message> {
        if self.0.span.origin.is_some() {
            return Arc::clone(message);
        }
        let mut copy = Message::clone(message);
        copy.headers.insert(TraceContext::PARENT.to_owned(), self.0.span.context.to_string());
        // The state belongs to a parent that could not be parsed.
        copy.headers.remove(TraceContext::STATE);
        Arc::new(copy)
    }

    /// Starts a span for the next operation on the same message.
    pub fn follow_up(&self, operation: Operation) -> Self {
        // A message without an origin was sent with this span as its origin.
        let origin = self.0.span.origin.unwrap_or(self.0.span.context);
        let now = self.0.recorder.now();
        let span = SpanData {
            context: SpanContext { span: self.0.recorder.new_span_id(), ..self.0.span.context },
            parent: Some(origin.span),
            origin: Some(origin),
            operation,
            started_at: now,
            ended_at: now,
            attempt: None,
            verdict: None,
            error: None,
            ..self.0.span.clone()
        };
        Self(Box::new(ActiveSpanInner { recorder: Arc::clone(&self.0.recorder), span }))
    }

    /// Ends the span as successful and records it.
    pub fn end(mut self) {
        self.0.span.ended_at = self.0.recorder.now();
        self.0.recorder.record(self.0.span);
    }

    /// Ends the span of an emit with its result.
    pub fn finish_emit<E: std::error::Error>(mut self, emitted: &Result<MessageId, E>) {
        match emitted {
            Ok(id) => {
                self.0.span.message = Some(*id);
                self.end();
            }
            Err(error) => self.fail("refused", error.to_string()),
        }
    }

    /// Ends the span as failed and records it.
    pub fn fail(mut self, class: &'static str, error: String) {
        self.0.span.error = Some(SpanError { class, error });
        self.end();
    }
}

#[cfg(test)]
mod tests;
