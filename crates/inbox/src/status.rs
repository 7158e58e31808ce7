//! Statistics and status of a consumer, for monitoring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::Lane;
use relevo_core::histogram::{Histogram, HistogramSnapshot};
use tokio::time::Instant;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Statistics of one consumer in one process.
        #[derive(Debug, Default)]
        pub struct ConsumerStatus {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
            pub(crate) run_state: SharedRunState,
            consumer: String,
            heartbeat_ttl: Duration,
            durations: HandlerDurations,
            lanes: Mutex<LaneStatus>,
            /// Time of the last successful heartbeat.
            last_heartbeat: Mutex<Option<Instant>>,
            created: CreatedAt,
        }

        impl ConsumerStatus {
            $($(#[doc = $doc])+ pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            })+
        }
    };
}

stats! {
    /// Messages delivered by the broker, redeliveries included.
    received,
    /// Messages handled with verdict `done`.
    done,
    /// Messages with verdict `skip`: the handler skipped them, or no handler is registered for their type.
    skipped,
    /// Messages delivered again after they had ended, and therefore not handled.
    duplicates,
    /// Messages queued behind others of the same key in the retry table.
    queued_behind,
    /// Handler attempts that failed and were counted.
    handler_failures,
    /// Of those, attempts that panicked.
    handler_panics,
    /// Of those, attempts that timed out.
    handler_timeouts,
    /// Retries scheduled in memory.
    retried_in_memory,
    /// Retries scheduled in the retry table or at the broker.
    retried_later,
    /// Messages that were dead-lettered.
    dead_lettered,
    /// Of those, messages that could not be decoded or did not match their schema.
    undecodable,
    /// Of those, messages whose handling crashed the process too often.
    crashed,
    /// Of those, messages older than the inbox retention.
    expired,
    /// Copies of dead letters that could not be published.
    dead_letter_copies_failed,
    /// First deliveries with a lower sequence number than an earlier delivery of the same key.
    out_of_order,
    /// Deliveries whose sequence number was already received.
    sequence_repeats,
    /// Transactions that handled several messages.
    batches,
    /// Of those, transactions that were rolled back; their messages were then handled one by one.
    batches_rolled_back,
    /// Attempts postponed because another worker had the message.
    busy,
    /// Attempts fenced off because another worker holds the lane lease or the claim.
    fenced,
    /// Acknowledgements of deliveries that were no longer outstanding at the broker.
    stale_acks,
    /// Outages that handlers reported for a service they need.
    handler_outages,
    /// Lanes whose breaker is open now.
    breakers_open,
    /// Times the database was unreachable, failed heartbeats included.
    database_outages,
    /// Database errors in a call about a single message.
    database_errors,
    /// Times the broker was unreachable.
    broker_outages,
    /// Consecutive failures to receive messages; 0 while the broker is reachable.
    receive_failures,
    /// Consecutive failures to read the lag; 0 after a success.
    lag_failures,
    /// Successful heartbeats.
    heartbeats,
    /// Failed heartbeats.
    heartbeats_failed,
    /// Messages in memory now.
    buffered_messages,
    /// Handlers running now, those of the retry table included.
    handlers_running,
}

/// Values recorded per lane.
#[derive(Debug, Default)]
struct LaneStatus {
    lag: Vec<(Lane, u64)>,
    open_breakers: Vec<(Lane, String)>,
}

/// Upper bounds of the duration histogram, in seconds.
const DURATION_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

#[derive(Debug)]
struct HandlerDurations(Histogram);

impl Default for HandlerDurations {
    fn default() -> Self {
        Self(Histogram::new(DURATION_BOUNDS))
    }
}

#[derive(Debug)]
struct CreatedAt(Instant);

impl Default for CreatedAt {
    fn default() -> Self {
        Self(Instant::now())
    }
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(crate) fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Ordering::Relaxed);
}

impl ConsumerStatus {
    /// Statistics of a consumer that has not started.
    pub(crate) fn new(consumer: &str, heartbeat_ttl: Duration) -> Self {
        Self { consumer: consumer.to_owned(), heartbeat_ttl, ..Self::default() }
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Run state of this member.
    pub fn run_state(&self) -> RunState {
        self.run_state.get()
    }

    /// Histogram of the duration of finished handler attempts in seconds, successful or not. A call and the commit of
    /// its result count as one attempt.
    pub fn durations(&self) -> HistogramSnapshot {
        self.durations.0.snapshot()
    }

    /// Time since the last successful heartbeat, or since the consumer was created if there was none.
    pub fn heartbeat_age(&self) -> Duration {
        let last = *self.last_heartbeat.lock();
        last.unwrap_or(self.created.0).elapsed()
    }

    /// Whether the heartbeat of this member has not expired in the database.
    pub fn is_alive(&self) -> bool {
        self.heartbeats() > 0 && self.heartbeat_age() < self.heartbeat_ttl
    }

    /// Number of undelivered messages per lane, as the broker last reported. Empty while it is unknown.
    pub fn lag(&self) -> Vec<(Lane, u64)> {
        self.lanes.lock().lag.clone()
    }

    /// Lanes whose breaker is open, each with the reason.
    pub fn open_breakers(&self) -> Vec<(Lane, String)> {
        self.lanes.lock().open_breakers.clone()
    }

    /// Records the duration of a finished handler attempt.
    pub(crate) fn observe_duration(&self, duration: Duration) {
        self.durations.0.observe(duration.as_secs_f64());
    }

    /// Records a successful heartbeat.
    pub(crate) fn record_heartbeat(&self) {
        add(&self.heartbeats, 1);
        *self.last_heartbeat.lock() = Some(Instant::now());
    }

    pub(crate) fn set_lag(&self, lag: Vec<(Lane, u64)>) {
        self.lanes.lock().lag = lag;
    }

    pub(crate) fn set_open_breakers(&self, open: Vec<(Lane, String)>) {
        set(&self.breakers_open, open.len());
        self.lanes.lock().open_breakers = open;
    }
}

/// Increments a gauge for as long as it lives.
pub(crate) struct GaugeGuard<'a>(&'a AtomicU64);

impl<'a> GaugeGuard<'a> {
    pub(crate) fn new(gauge: &'a AtomicU64) -> Self {
        add(gauge, 1);
        Self(gauge)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Run state of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RunState {
    /// It was created and has not started.
    #[default]
    New,
    /// It is running.
    Running,
    /// It was stopped through its stop token.
    Stopped,
    /// It ended with an error or was dropped while running, and receives no messages any more.
    Failed,
}

const RUN_STATES: [RunState; 4] = [RunState::New, RunState::Running, RunState::Stopped, RunState::Failed];

/// A run state with one writer and many readers.
#[derive(Debug, Default)]
pub(crate) struct SharedRunState(AtomicU8);

impl SharedRunState {
    pub(crate) fn get(&self) -> RunState {
        RUN_STATES[usize::from(self.0.load(Ordering::Relaxed))]
    }

    fn set(&self, state: RunState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }
}

/// Sets the run state to running, and to its final state when dropped.
pub(crate) struct RunStateGuard {
    status: Arc<ConsumerStatus>,
    final_state: RunState,
}

impl RunStateGuard {
    pub(crate) fn start(status: Arc<ConsumerStatus>) -> Self {
        status.run_state.set(RunState::Running);
        Self { status, final_state: RunState::Failed }
    }

    /// Records that the member stopped as requested.
    pub(crate) fn mark_stopped(mut self) {
        self.final_state = RunState::Stopped;
    }
}

impl Drop for RunStateGuard {
    fn drop(&mut self) {
        self.status.run_state.set(self.final_state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_guard_reports_a_failure() {
        let status = Arc::<ConsumerStatus>::default();
        assert_eq!(status.run_state(), RunState::New);
        let guard = RunStateGuard::start(Arc::clone(&status));
        assert_eq!(status.run_state(), RunState::Running);
        drop(guard);
        assert_eq!(status.run_state(), RunState::Failed);
        RunStateGuard::start(Arc::clone(&status)).mark_stopped();
        assert_eq!(status.run_state(), RunState::Stopped);
    }
}
