//! Trace spans and log fields of messages while they are handled.

use std::borrow::Cow;

use relevo_core::Tracer;
use relevo_core::inbox::Inbox;
use relevo_core::trace::{ActiveSpan, Operation, TraceId};
use tracing::field::display;
use tracing::{Instrument as _, info_span};

use crate::attempt::CallResult;
use crate::delivery::PendingDelivery;
use crate::error::{HandlerError, HandlerResult, Verdict};
use crate::handler::{DynCall, Registration};
use crate::incoming::Incoming;
use crate::work::Worker;

/// Span and log context of one part of handling a message.
struct HandlerSpan<'a> {
    /// The message as the handler sees it. Its trace context is that of the span, so that messages the handler emits
    /// become children.
    incoming: Cow<'a, Incoming>,
    span: Option<ActiveSpan>,
    /// Adds the message id and trace id to the handler's log lines.
    log_span: tracing::Span,
}

impl<'a> HandlerSpan<'a> {
    fn start(traces: &Tracer, operation: Operation, incoming: &'a Incoming) -> Self {
        let (message_id, trace_id) = (incoming.id(), traces.trace_id(&incoming.message).map(display));
        let log_span = info_span!("message", %message_id, trace_id);
        let Some(mut span) = traces.start(operation, &incoming.message, &incoming.address) else {
            return Self { incoming: Cow::Borrowed(incoming), span: None, log_span };
        };
        span.attempt(incoming.attempt);
        let incoming = Incoming { trace: Some(span.trace_context()), ..incoming.clone() };
        Self { incoming: Cow::Owned(incoming), span: Some(span), log_span }
    }

    fn end(self, result: Result<Option<Verdict>, &HandlerError>) {
        let Some(mut span) = self.span else { return };
        match result {
            Ok(verdict) => {
                if let Some(verdict) = verdict {
                    span.verdict(verdict.as_str());
                }
                span.end();
            }
            Err(trouble) => span.fail(trouble.class, trouble.error.clone()),
        }
    }
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Calls [`handle`](Self::handle) inside a trace span.
    pub(crate) async fn process(
        &self,
        registered: Option<&Registration<I::Transaction>>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
    ) -> HandlerResult {
        let handling = HandlerSpan::start(&self.config.tracer, Operation::Process, incoming);
        let lines = handling.log_span.clone();
        let handled = self.handle(registered, transaction, &handling.incoming).instrument(lines).await;
        handling.end(handled.as_ref().map(|verdict| Some(*verdict)));
        handled
    }

    /// Calls [`call`](Self::call) inside a trace span.
    pub(crate) async fn process_call(
        &self,
        registered: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        incoming: &Incoming,
    ) -> Result<CallResult, HandlerError> {
        let handling = HandlerSpan::start(&self.config.tracer, Operation::Process, incoming);
        let lines = handling.log_span.clone();
        let answered = self.call(registered, handler, &handling.incoming).instrument(lines).await;
        handling.end(answered.as_ref().map(|_| None));
        answered
    }

    /// Calls [`commit_answer`](Self::commit_call_result) inside a trace span.
    pub(crate) async fn process_commit(
        &self,
        registered: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
        answered: &mut CallResult,
    ) -> HandlerResult {
        let handling = HandlerSpan::start(&self.config.tracer, Operation::Commit, incoming);
        let lines = handling.log_span.clone();
        let commit = self.commit_call_result(registered, handler, transaction, &handling.incoming, answered);
        let committed = commit.instrument(lines).await;
        handling.end(committed.as_ref().map(|verdict| Some(*verdict)));
        committed
    }

    /// The trace id of a message, for log lines about it.
    pub(crate) fn trace_id(&self, incoming: Option<&Incoming>) -> Option<TraceId> {
        incoming.and_then(|incoming| self.config.tracer.trace_id(&incoming.message))
    }
}

impl PendingDelivery {
    /// Begins the span of its acknowledgement or delayed retry.
    pub(crate) fn start_settle_span(&self, traces: &Tracer, is_retry: bool) -> Option<ActiveSpan> {
        let incoming = self.incoming.as_ref().ok()?;
        let mut span = traces.start(Operation::Settle, &incoming.message, &incoming.address)?;
        span.verdict(if is_retry { "retry" } else { "acknowledge" });
        Some(span)
    }
}
