//! Blocking work in an async test.

/// Runs the job outside the async threads, so that the test's other tasks continue. Propagates a panic of the job.
pub(crate) async fn unblocked<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(job).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
