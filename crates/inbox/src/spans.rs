//! Trace spans and log fields of messages while they are handled.

use std::borrow::Cow;

use relevo_core::Traces;
use relevo_core::inbox::Inbox;
use relevo_core::trace::{Open, Operation, TraceId};
use tracing::field::display;
use tracing::{Instrument as _, info_span};

use crate::attempt::Answered;
use crate::handler::{AnyCall, Registered};
use crate::incoming::Incoming;
use crate::item::Item;
use crate::verdict::{Handled, Trouble, Verdict};
use crate::work::Work;

/// Span and log context of one part of handling a message.
struct Handling<'a> {
    /// The message as the handler sees it. Its trace context is that of the span, so that messages the handler emits
    /// become children.
    incoming: Cow<'a, Incoming>,
    span: Option<Open>,
    /// Adds the message id and trace id to the handler's log lines.
    lines: tracing::Span,
}

impl<'a> Handling<'a> {
    fn begin(traces: &Traces, operation: Operation, incoming: &'a Incoming) -> Self {
        let (message_id, trace_id) = (incoming.id(), traces.trace_of(&incoming.message).map(display));
        let lines = info_span!("message", %message_id, trace_id);
        let Some(mut span) = traces.begin(operation, &incoming.message, &incoming.address) else {
            return Self { incoming: Cow::Borrowed(incoming), span: None, lines };
        };
        span.attempt(incoming.attempt);
        let incoming = Incoming { trace: Some(span.headers()), ..incoming.clone() };
        Self { incoming: Cow::Owned(incoming), span: Some(span), lines }
    }

    fn end(self, result: Result<Option<Verdict>, &Trouble>) {
        let Some(mut span) = self.span else { return };
        match result {
            Ok(verdict) => {
                if let Some(verdict) = verdict {
                    span.verdict(verdict.word());
                }
                span.end();
            }
            Err(trouble) => span.fail(trouble.class, trouble.error.clone()),
        }
    }
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// Calls [`handle`](Self::handle) inside a trace span.
    pub(crate) async fn process(
        &self,
        registered: Option<&Registered<I::Transaction>>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
    ) -> Handled {
        let handling = Handling::begin(&self.config.traces, Operation::Process, incoming);
        let lines = handling.lines.clone();
        let handled = self.handle(registered, transaction, &handling.incoming).instrument(lines).await;
        handling.end(handled.as_ref().map(|verdict| Some(*verdict)));
        handled
    }

    /// Calls [`call`](Self::call) inside a trace span.
    pub(crate) async fn process_call(
        &self,
        registered: &Registered<I::Transaction>,
        handler: &dyn AnyCall<I::Transaction>,
        incoming: &Incoming,
    ) -> Result<Answered, Trouble> {
        let handling = Handling::begin(&self.config.traces, Operation::Process, incoming);
        let lines = handling.lines.clone();
        let answered = self.call(registered, handler, &handling.incoming).instrument(lines).await;
        handling.end(answered.as_ref().map(|_| None));
        answered
    }

    /// Calls [`commit_answer`](Self::commit_answer) inside a trace span.
    pub(crate) async fn process_commit(
        &self,
        registered: &Registered<I::Transaction>,
        handler: &dyn AnyCall<I::Transaction>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
        answered: &mut Answered,
    ) -> Handled {
        let handling = Handling::begin(&self.config.traces, Operation::Commit, incoming);
        let lines = handling.lines.clone();
        let commit = self.commit_answer(registered, handler, transaction, &handling.incoming, answered);
        let committed = commit.instrument(lines).await;
        handling.end(committed.as_ref().map(|verdict| Some(*verdict)));
        committed
    }

    /// The trace id of a message, for log lines about it.
    pub(crate) fn trace_of(&self, incoming: Option<&Incoming>) -> Option<TraceId> {
        incoming.and_then(|incoming| self.config.traces.trace_of(&incoming.message))
    }
}

impl Item {
    /// Begins the span of its acknowledgement or delayed retry.
    pub(crate) fn settling(&self, traces: &Traces, is_retry: bool) -> Option<Open> {
        let incoming = self.incoming.as_ref().ok()?;
        let mut span = traces.begin(Operation::Settle, &incoming.message, &incoming.address)?;
        span.verdict(if is_retry { "retry" } else { "acknowledge" });
        Some(span)
    }
}
