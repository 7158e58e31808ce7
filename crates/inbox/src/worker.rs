//! What all workers share, those of live messages and those of retry queues: store calls with a timeout, handler
//! permits and isolation.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::Jitter;
use relevo_core::inbox::Inbox;
use relevo_core::random::SplitMix64;
use relevo_core::store::StoreError;
use relevo_core::trace::TraceId;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::breaker::Breakers;
use crate::config::Config;
use crate::decode::Decoder;
use crate::handler::{Handlers, Registration};
use crate::incoming::Incoming;
use crate::shutdown::OpenClaims;
use crate::status::ConsumerStatus;

/// State shared by all workers.
pub(crate) struct Worker<I: Inbox> {
    pub(crate) inbox: Arc<I>,
    pub(crate) handlers: Handlers<I::Transaction>,
    pub(crate) config: Config,
    pub(crate) status: Arc<ConsumerStatus>,
    pub(crate) decoder: Decoder,
    pub(crate) breakers: Breakers,
    pub(crate) open_claims: OpenClaims,
    random: Mutex<SplitMix64>,
    /// Limits how many handlers run at once, for live messages and retry queues together.
    permits: Semaphore,
    /// Isolation lock: every running handler holds it for reading, one that must run alone holds it for writing.
    isolation_lock: RwLock<()>,
}

/// Isolation of a handler: others may run beside it, or it runs alone.
#[expect(dead_code, reason = "it is held, not read")]
pub(crate) enum Isolation<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

impl<I: Inbox> Worker<I> {
    pub(crate) fn new(inbox: Arc<I>, handlers: Handlers<I::Transaction>, config: Config, random: SplitMix64) -> Self {
        let status = Arc::new(ConsumerStatus::new(inbox.consumer(), config.heartbeat_ttl));
        Self {
            decoder: Decoder::new(inbox.consumer()),
            inbox,
            handlers,
            breakers: Breakers::new(config.breaker.clone(), Arc::clone(&status)),
            status,
            open_claims: OpenClaims::default(),
            permits: Semaphore::new(config.order.concurrency()),
            config,
            random: Mutex::new(random),
            isolation_lock: RwLock::new(()),
        }
    }

    /// Makes a store call within the configured timeout.
    pub(crate) async fn store_call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.store_call_until(Instant::now() + self.config.store_timeout, call).await
    }

    pub(crate) async fn store_call_until<T>(
        &self,
        end: Instant,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timed_out = |_| Err(StoreError::Unavailable("the database did not respond in time".into()));
        timeout_at(end, call).await.unwrap_or_else(timed_out)
    }

    /// Repeats a store call, with growing pauses, until it succeeds or no repeat can. Returns the last error if the next
    /// call would begin after `end`, or if `stop` is cancelled during a pause.
    pub(crate) async fn retry_store_call<T, F>(
        &self,
        end: Instant,
        stop: &CancellationToken,
        call: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = self.config.outage_backoff();
        loop {
            let call_end = end.min(Instant::now() + self.config.store_timeout);
            let result = self.store_call_until(call_end, call()).await;
            let pause = backoff.next(Jitter::NONE);
            match result {
                Err(error) if error.is_retryable() && Instant::now() + pause < end => {
                    if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Waits for a permit to run a handler, first come, first served. Returns `None` when the consumer shuts down.
    /// Acquire the permit before [`isolate`](Self::isolate), never after it: a handler that must run alone waits for
    /// every handler that already has a permit.
    pub(crate) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }

    /// Cancels all waits for a permit.
    pub(crate) fn close_permits(&self) {
        self.permits.close();
    }

    /// A message whose earlier starts did not end may have crashed the process; its handler runs alone.
    pub(crate) async fn isolate(&self, starts: u32) -> Isolation<'_> {
        if starts >= 2 {
            Isolation::Exclusive(self.isolation_lock.write().await)
        } else {
            Isolation::Shared(self.isolation_lock.read().await)
        }
    }

    /// The handler for this message type, if one is registered.
    pub(crate) fn handler(&self, incoming: &Incoming) -> Option<&Registration<I::Transaction>> {
        self.handlers.find(incoming.kind())
    }

    pub(crate) fn handler_timeout(&self, registration: &Registration<I::Transaction>) -> Duration {
        registration.options.timeout.unwrap_or(self.config.handler_timeout)
    }

    /// The trace id of a message, for log lines about it.
    pub(crate) fn trace_id(&self, incoming: Option<&Incoming>) -> Option<TraceId> {
        incoming.and_then(|incoming| self.config.tracer.trace_id(&incoming.message))
    }

    pub(crate) fn jitter(&self) -> Jitter {
        self.random.lock().jitter()
    }

    pub(crate) fn random_id(&self) -> Uuid {
        self.random.lock().uuid()
    }
}
