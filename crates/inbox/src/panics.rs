//! Catches panics of handlers and records where they happened.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::Poll;

use crate::error::HandlerError;

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
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if IN_HANDLER.get() {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                let mut backtrace = Backtrace::force_capture().to_string();
                backtrace.truncate(backtrace.floor_char_boundary(BACKTRACE_MAX));
                LAST_PANIC.with_borrow_mut(|seen| *seen = Some(PanicLocation { location: place, backtrace }));
            }
            before(info);
        }));
    });
}

/// Polls the future to completion; a panic becomes an error.
pub(crate) async fn catch_panic<T>(
    future: impl Future<Output = Result<T, HandlerError>> + Send,
) -> Result<T, HandlerError> {
    // Boxed, so that the rest of the future can be dropped under the same guard after a panic.
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(future));
    poll_fn(move |context| {
        let polled = future.as_mut().expect("it is not polled after its end");
        match poll_guarded(|| polled.as_mut().poll(context)) {
            Ok(poll) => poll,
            Err(trouble) => {
                let rest = future.take();
                // Dropping its variables may panic too; only the first panic is reported.
                drop(poll_guarded(move || drop(rest)));
                Poll::Ready(Err(trouble))
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
        let seen = LAST_PANIC.with_borrow_mut(Option::take);
        let (place, backtrace) = seen.map_or_else(Default::default, |seen| (seen.location, seen.backtrace));
        HandlerError::panicked(format!("the handler panicked at {place}: {}", panic_message(&*panic)), backtrace)
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("something that is no text")
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
        let trouble = catch_panic(explode()).await.unwrap_err();
        assert_eq!(trouble.class, "panic");
        assert!(trouble.error.contains("panics.rs") && trouble.error.ends_with("no way"), "{}", trouble.error);
        let backtrace = trouble.backtrace.expect("a panic has one");
        assert!(backtrace.contains("explode"), "{backtrace}");
    }

    #[tokio::test]
    async fn a_panic_while_dropping_is_caught() {
        install_panic_hook();
        let trouble = catch_panic(PanicsTwice).await.unwrap_err();
        assert!(trouble.error.ends_with("first"), "{}", trouble.error);
    }

    #[tokio::test]
    async fn a_result_without_a_panic_is_unchanged() {
        assert_eq!(catch_panic(async { Ok(7) }).await.ok(), Some(7));
    }
}
