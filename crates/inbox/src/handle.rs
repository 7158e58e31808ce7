//! Calls handlers, with their span, log fields, schema, timeout and duration. No other file calls user code.

use std::any::Any;
use std::backtrace::Backtrace;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::Poll;
use std::time::Duration;

use relevo_core::Tracer;
use relevo_core::inbox::Inbox;
use relevo_core::inbox::retries::classes;
use relevo_core::trace::{ActiveSpan, Operation};
use tokio::time::{Instant, timeout};
use tracing::field::display;
use tracing::{Instrument as _, info_span};

use crate::error::{HandlerError, Verdict};
use crate::handler::{DynCall, HandlerKind, Registration};
use crate::incoming::Incoming;
use crate::status::{GaugeGuard, add};
use crate::tx::Tx;
use crate::worker::Worker;

/// The result of an external call, and its duration until the statistics have counted it.
pub(crate) struct CallResult {
    value: Box<dyn Any + Send + Sync>,
    duration: Duration,
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Runs the handler of a message in its transaction. A message without a handler is skipped. After an error the
    /// transaction is missing if the handler keeps it.
    pub(crate) async fn handle(
        &self,
        transaction: I::Transaction,
        incoming: &Incoming,
    ) -> Result<(I::Transaction, Verdict), (Option<I::Transaction>, HandlerError)> {
        let span = HandlerSpan::start(&self.config.tracer, Operation::Process, incoming);
        let result = match self.handler(incoming) {
            None => Ok((transaction, Verdict::Skip)),
            Some(registration) => match self.validate(&span) {
                Ok(()) => self.handle_in_span(transaction, registration, &span).await,
                Err(error) => Err((Some(transaction), error)),
            },
        };
        span.end(result.as_ref().map(|(_, verdict)| Some(*verdict)).map_err(|(_, error)| error));
        result
    }

    async fn handle_in_span(
        &self,
        transaction: I::Transaction,
        registration: &Registration<I::Transaction>,
        span: &HandlerSpan<'_>,
    ) -> Result<(I::Transaction, Verdict), (Option<I::Transaction>, HandlerError)> {
        let HandlerKind::InTransaction(handler) = &registration.kind else {
            unreachable!("a call is made before its transaction")
        };
        let (tx, lent) = Tx::lend(transaction);
        let code = handler.handle(tx, &span.incoming);
        let (result, duration) = self.supervise(span, registration, code).await;
        self.status.observe_duration(duration);
        match (result, lent.take_back()) {
            (Ok(verdict), Some(transaction)) => Ok((transaction, verdict)),
            (Ok(_), None) => {
                let error = "the handler keeps its transaction; it must be dropped before the handler returns";
                Err((None, HandlerError::transient(error).with_class(classes::COMMIT)))
            }
            (Err(error), transaction) => Err((transaction, error)),
        }
    }

    /// Makes the external call of a message, outside of any transaction.
    pub(crate) async fn call(
        &self,
        registration: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        incoming: &Incoming,
    ) -> Result<CallResult, HandlerError> {
        let span = HandlerSpan::start(&self.config.tracer, Operation::Process, incoming);
        let result = match self.validate(&span) {
            Ok(()) => {
                let (result, duration) = self.supervise(&span, registration, handler.call(&span.incoming)).await;
                if result.is_err() {
                    self.status.observe_duration(duration);
                }
                result.map(|value| CallResult { value, duration })
            }
            Err(error) => Err(error),
        };
        span.end(result.as_ref().map(|_| None));
        result
    }

    /// Passes the result of a call to its handler, inside the transaction that commits it.
    pub(crate) async fn store_call_result(
        &self,
        registration: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
        call_result: &mut CallResult,
    ) -> Result<Verdict, HandlerError> {
        let span = HandlerSpan::start(&self.config.tracer, Operation::Commit, incoming);
        let code = handler.commit(transaction, &span.incoming, &*call_result.value);
        let (result, duration) = self.supervise(&span, registration, code).await;
        self.status.observe_duration(std::mem::take(&mut call_result.duration) + duration);
        span.end(result.as_ref().map(|verdict| Some(*verdict)));
        result
    }

    fn validate(&self, span: &HandlerSpan<'_>) -> Result<(), HandlerError> {
        let Some(validator) = &self.config.validator else { return Ok(()) };
        span.log_span.in_scope(|| validator.validate(&span.incoming)).map_err(HandlerError::undecodable)
    }

    /// Runs user code within its timeout; a panic becomes an error. Returns the duration too.
    async fn supervise<T>(
        &self,
        span: &HandlerSpan<'_>,
        registration: &Registration<I::Transaction>,
        code: impl Future<Output = Result<T, HandlerError>> + Send,
    ) -> (Result<T, HandlerError>, Duration) {
        let _running = GaugeGuard::new(&self.status.handlers_running);
        let started = Instant::now();
        let limit = self.handler_timeout(registration);
        let result = timeout(limit, catch_panic(code)).instrument(span.log_span.clone()).await;
        let duration = started.elapsed();
        let result = match result {
            Ok(Err(error)) if error.backtrace.is_some() => {
                add(&self.status.handler_panics, 1);
                Err(error)
            }
            Ok(result) => result,
            Err(_) => {
                add(&self.status.handler_timeouts, 1);
                let error = format!("the handler did not return within {limit:?}");
                Err(HandlerError::transient(error).with_class(classes::TIMEOUT))
            }
        };
        (result, duration)
    }
}

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
    fn start(tracer: &Tracer, operation: Operation, incoming: &'a Incoming) -> Self {
        let (message_id, trace_id) = (incoming.id(), tracer.trace_id(&incoming.message).map(display));
        let log_span = info_span!("message", %message_id, trace_id);
        let Some(mut span) = tracer.start(operation, &incoming.message, &incoming.address) else {
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
            Err(error) => span.fail(error.class, error.error.clone()),
        }
    }
}

thread_local! {
    /// Whether a handler is being polled on this thread.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of a guarded handler happened.
    static LAST_PANIC: RefCell<Option<PanicLocation>> = const { RefCell::new(None) };
}

/// Maximum length of a stored backtrace in bytes. The part that is cut off shows how the runtime called the handler.
const BACKTRACE_MAX: usize = 16 << 10;

struct PanicLocation {
    location: String,
    backtrace: String,
}

/// Extends the panic hook of the process, once: only inside the hook does a backtrace lead to the panic. The previous
/// hook is still called.
pub(crate) fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if IN_HANDLER.get() {
                let location = info.location().map(ToString::to_string).unwrap_or_default();
                let mut backtrace = Backtrace::force_capture().to_string();
                backtrace.truncate(backtrace.floor_char_boundary(BACKTRACE_MAX));
                LAST_PANIC.with_borrow_mut(|last| *last = Some(PanicLocation { location, backtrace }));
            }
            previous(info);
        }));
    });
}

/// Polls the future to completion; a panic becomes an error.
async fn catch_panic<T>(future: impl Future<Output = Result<T, HandlerError>> + Send) -> Result<T, HandlerError> {
    // Boxed, so that the rest of the future can be dropped under the same guard after a panic.
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(future));
    poll_fn(move |context| {
        let polled = future.as_mut().expect("a finished future is not polled again");
        match poll_guarded(|| polled.as_mut().poll(context)) {
            Ok(poll) => poll,
            Err(error) => {
                let rest = future.take();
                // Dropping its variables may panic too; only the first panic is reported.
                drop(poll_guarded(move || drop(rest)));
                Poll::Ready(Err(error))
            }
        }
    })
    .await
}

fn poll_guarded<T>(call: impl FnOnce() -> T) -> Result<T, HandlerError> {
    IN_HANDLER.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IN_HANDLER.set(false);
    result.map_err(|panic| {
        let last = LAST_PANIC.with_borrow_mut(Option::take);
        let (location, backtrace) = last.map_or_else(Default::default, |last| (last.location, last.backtrace));
        HandlerError::panicked(format!("the handler panicked at {location}: {}", panic_message(&*panic)), backtrace)
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("the panic has no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is polled, and again when it is dropped.
    struct PanicsTwice;

    impl Future for PanicsTwice {
        type Output = Result<(), HandlerError>;

        fn poll(self: Pin<&mut Self>, _context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
            panic!("first");
        }
    }

    impl Drop for PanicsTwice {
        fn drop(&mut self) {
            panic!("second");
        }
    }

    async fn explode() -> Result<(), HandlerError> {
        tokio::task::yield_now().await;
        panic!("no {}", "way");
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_its_backtrace() {
        install_panic_hook();
        let error = catch_panic(explode()).await.unwrap_err();
        assert_eq!(error.class, "panic");
        assert!(error.error.contains("handle.rs") && error.error.ends_with("no way"), "{}", error.error);
        let backtrace = error.backtrace.expect("a panic has one");
        assert!(backtrace.contains("explode"), "{backtrace}");
    }

    #[tokio::test]
    async fn a_panic_while_dropping_is_caught() {
        install_panic_hook();
        let error = catch_panic(PanicsTwice).await.unwrap_err();
        assert!(error.error.ends_with("first"), "{}", error.error);
    }

    #[tokio::test]
    async fn a_result_without_a_panic_is_unchanged() {
        assert_eq!(catch_panic(async { Ok(7) }).await.ok(), Some(7));
    }
}
