//! Catches panics of handlers and records where they happened.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::Poll;

use crate::verdict::Trouble;

thread_local! {
    /// Whether a handler is being polled on this thread.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of a guarded handler happened.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// Maximum length of a stored backtrace in bytes. The part that is cut off shows how the runtime called the handler.
const BACKTRACE_MAX: usize = 16 << 10;

struct Seen {
    place: String,
    backtrace: String,
}

/// Extends the panic hook of the process, once: only inside the hook does a backtrace lead to the panic. The previous
/// hook is still called.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if WATCHING.get() {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                let mut backtrace = Backtrace::force_capture().to_string();
                backtrace.truncate(backtrace.floor_char_boundary(BACKTRACE_MAX));
                SEEN.with_borrow_mut(|seen| *seen = Some(Seen { place, backtrace }));
            }
            before(info);
        }));
    });
}

/// Polls the future to completion; a panic becomes an error.
pub(crate) async fn caught<T>(future: impl Future<Output = Result<T, Trouble>> + Send) -> Result<T, Trouble> {
    // Boxed, so that the rest of the future can be dropped under the same guard after a panic.
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(future));
    poll_fn(move |context| {
        let polled = future.as_mut().expect("it is not polled after its end");
        match watched(|| polled.as_mut().poll(context)) {
            Ok(poll) => poll,
            Err(trouble) => {
                let rest = future.take();
                // Dropping its variables may panic too; only the first panic is reported.
                drop(watched(move || drop(rest)));
                Poll::Ready(Err(trouble))
            }
        }
    })
    .await
}

fn watched<T>(call: impl FnOnce() -> T) -> Result<T, Trouble> {
    WATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    WATCHING.set(false);
    result.map_err(|panic| {
        let seen = SEEN.with_borrow_mut(Option::take);
        let (place, backtrace) = seen.map_or_else(Default::default, |seen| (seen.place, seen.backtrace));
        Trouble::panicked(format!("the handler panicked at {place}: {}", text(&*panic)), backtrace)
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is polled, and again when it is dropped.
    struct Bomb;

    impl Future for Bomb {
        type Output = Result<(), Trouble>;

        fn poll(self: Pin<&mut Self>, _context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
            panic!("first");
        }
    }

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("second");
        }
    }

    async fn explode() -> Result<(), Trouble> {
        tokio::task::yield_now().await;
        panic!("no {}", "way");
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_its_backtrace() {
        watch();
        let trouble = caught(explode()).await.unwrap_err();
        assert_eq!(trouble.class, "panic");
        assert!(trouble.error.contains("panics.rs") && trouble.error.ends_with("no way"), "{}", trouble.error);
        let backtrace = trouble.backtrace.expect("a panic has one");
        assert!(backtrace.contains("explode"), "{backtrace}");
    }

    #[tokio::test]
    async fn a_second_panic_while_dropping_does_not_get_out() {
        watch();
        let trouble = caught(Bomb).await.unwrap_err();
        assert!(trouble.error.ends_with("first"), "{}", trouble.error);
    }

    #[tokio::test]
    async fn what_does_not_panic_is_left_alone() {
        assert_eq!(caught(async { Ok(7) }).await.ok(), Some(7));
    }
}
