//! Replays: enqueues messages of a log into the retry table again, at a limited rate.
//!
//! The store keeps the cursor of a replay and moves it in the transaction that enqueues the messages. A runner can
//! therefore crash at any time: the next one skips no message and enqueues none twice.

use std::time::Duration;

use relevo_core::inbox::InboxMessage;
use relevo_core::inbox::replays::{ConsumerReplays, EnqueueOutcome, Replay, ReplayBatch, ReplayState};
use relevo_core::replay_source::{LogMessage, ReplayFilter, ReplayReadRequest, ReplaySource, ReplaySourceError};
use relevo_core::retry::ExponentialBackoff;
use relevo_core::store::StoreError;
use relevo_core::{Delivery, DeliveryTag, Jitter};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::decode::Decoder;

/// Maximum number of messages in one transaction.
const BATCH_MESSAGES_MAX: usize = 500;
/// Approximate limit of payload bytes in one transaction.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Maximum number of waiting messages of a replay in the retry table, whatever they wait for.
const QUEUED_MESSAGES_MAX: u64 = 10_000;
/// How often to check for room in the retry table.
const QUEUE_FULL_DELAY: Duration = Duration::from_millis(200);
/// Number of retries of a failed call.
const RETRIES_MAX: u32 = 5;
/// First and longest pause before such a retry.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(3200));
/// Messages are enqueued in batches, at most this many per second, instead of one by one.
const TICKS_PER_SECOND: f64 = 10.0;

/// Settings of a replay run.
#[derive(Clone, Debug)]
pub struct ReplayJob {
    /// Name of the consumer.
    pub consumer: String,
    /// How the consumer reads messages: its order, and how it reads foreign messages.
    pub config: Config,
    /// Number of the replay.
    pub number: u32,
    /// Selects messages of the log.
    pub filter: ReplayFilter,
    /// Messages per second. At most one second's worth waits to be handled, so this also limits the handling rate.
    pub rate: u32,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// All messages were enqueued.
    Finished,
    /// An operator, or too many dead letters, stopped the replay.
    Stopped,
    /// Another runner continues the replay.
    TakenOver,
    /// The stop token was cancelled; the replay can be resumed.
    Interrupted,
}

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// Number of messages enqueued; 0 if the part of the log that was read has no match.
    Enqueued(usize),
    /// Too many messages wait to be handled, so none were enqueued.
    QueueFull,
    /// The run has ended.
    End(ReplayEnd),
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The consumer's store failed.
    #[error("the consumer's store failed")]
    Store(#[source] StoreError),
    /// The log could not be read.
    #[error(transparent)]
    Source(#[from] ReplaySourceError),
    /// The consumer has no replay with this number.
    #[error("consumer `{consumer}` has no replay {number}")]
    Unknown {
        /// Name of the consumer.
        consumer: String,
        /// Number of the replay.
        number: u32,
    },
    /// The cursor of the replay is not a number.
    #[error("the cursor of replay {0} is not a number")]
    Cursor(u32),
}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl ReplayError {
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Source(error) => error.is_retryable(),
            Self::Unknown { .. } | Self::Cursor(_) => false,
        }
    }
}

/// Converts a message of a log for the inbox of a consumer with this configuration, with its id and queue.
pub fn to_inbox_message(config: &Config, message: LogMessage) -> InboxMessage {
    let LogMessage { raw, address, lane, offset, .. } = message;
    let delivery =
        Delivery { tag: DeliveryTag::new(0), raw, address, lane, offset, redelivered: false, retry_count: 0 };
    Decoder::new("").decode_delivery(config, delivery).message
}

/// Runs one replay.
pub struct ReplayRunner<'a> {
    job: ReplayJob,
    source: &'a dyn ReplaySource,
    replays: &'a dyn ConsumerReplays,
    /// The cursor after the last step. If the stored cursor differs, another runner is active.
    expected_cursor: Option<String>,
}

impl<'a> ReplayRunner<'a> {
    /// Reads from this log and enqueues for the consumers of this store.
    pub const fn new(job: ReplayJob, source: &'a dyn ReplaySource, replays: &'a dyn ConsumerReplays) -> Self {
        Self { job, source, replays, expected_cursor: None }
    }

    /// The current state of the replay.
    async fn replay(&self) -> Result<Replay, ReplayError> {
        let (consumer, number) = (&self.job.consumer, self.job.number);
        let replays = self.replays.list_replays(consumer).await?;
        let found = replays.into_iter().find(|replay| replay.number == number);
        found.ok_or_else(|| ReplayError::Unknown { consumer: consumer.clone(), number })
    }

    /// Enqueues the next messages, up to `limit`. Cancelling the future is safe.
    pub async fn step(&mut self, limit: usize) -> Result<ReplayStep, ReplayError> {
        let replay = self.replay().await?;
        match replay.state {
            ReplayState::Running => {}
            ReplayState::Finished => return Ok(ReplayStep::End(ReplayEnd::Finished)),
            ReplayState::Stopped => return Ok(ReplayStep::End(ReplayEnd::Stopped)),
        }
        if self.expected_cursor.is_some() && self.expected_cursor != replay.cursor {
            return Ok(ReplayStep::End(ReplayEnd::TakenOver));
        }
        let ahead = u64::from(self.job.rate.max(1));
        let room = ahead.saturating_sub(replay.ready).min(QUEUED_MESSAGES_MAX.saturating_sub(replay.waiting()));
        let limit = limit.min(BATCH_MESSAGES_MAX).min(usize::try_from(room).unwrap_or(BATCH_MESSAGES_MAX));
        if limit == 0 {
            return Ok(ReplayStep::QueueFull);
        }
        let after = replay.cursor.as_deref().map_or(Ok(0), str::parse);
        let after = after.map_err(|_| ReplayError::Cursor(self.job.number))?;
        let page =
            self.source.read(&self.job.filter, ReplayReadRequest { after, limit, bytes: BATCH_BYTES_MAX }).await?;
        let messages: Vec<InboxMessage> =
            page.messages.into_iter().map(|message| to_inbox_message(&self.job.config, message)).collect();
        let next = (!page.ended).then(|| page.next.to_string());
        let batch = ReplayBatch { messages: &messages, cursor: replay.cursor.as_deref(), next_cursor: next.as_deref() };
        let outcome = self.replays.enqueue_replay(&self.job.consumer, self.job.number, batch).await?;
        Ok(match (outcome, next) {
            (EnqueueOutcome::Enqueued, None) => ReplayStep::End(ReplayEnd::Finished),
            (EnqueueOutcome::Enqueued, next) => {
                self.expected_cursor = next;
                ReplayStep::Enqueued(messages.len())
            }
            (EnqueueOutcome::CursorMoved, _) => ReplayStep::End(ReplayEnd::TakenOver),
            (EnqueueOutcome::NotRunning, _) => ReplayStep::End(match self.replay().await?.state {
                ReplayState::Finished => ReplayEnd::Finished,
                ReplayState::Running | ReplayState::Stopped => ReplayEnd::Stopped,
            }),
        })
    }

    /// Enqueues at the configured rate until the end of the log or until `stop` is cancelled. Calls `report` after every
    /// step.
    ///
    /// Transient errors are retried for some seconds. After an error the replay can be resumed.
    pub async fn run(
        &mut self,
        stop: &CancellationToken,
        mut report: impl FnMut(&Replay, ReplayStep),
    ) -> Result<ReplayEnd, ReplayError> {
        let mut bucket = TokenBucket::new(self.job.rate);
        let (mut backoff, mut failures) = (ExponentialBackoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1), 0);
        loop {
            let pause = match self.step_and_report(bucket.available(), &mut report).await {
                Ok(ReplayStep::End(end)) => return Ok(end),
                Ok(ReplayStep::Enqueued(count)) => {
                    failures = 0;
                    backoff.reset();
                    bucket.spend(count);
                    bucket.refill_delay()
                }
                Ok(ReplayStep::QueueFull) => {
                    failures = 0;
                    backoff.reset();
                    QUEUE_FULL_DELAY
                }
                Err(error) if error.is_retryable() && failures < RETRIES_MAX => {
                    failures += 1;
                    // The batch may be stored although the reply was lost, so the cursor is read again.
                    self.expected_cursor = None;
                    backoff.next(Jitter::NONE)
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(ReplayEnd::Interrupted),
                () = sleep(pause) => {}
            }
        }
    }

    async fn step_and_report(
        &mut self,
        limit: usize,
        report: &mut impl FnMut(&Replay, ReplayStep),
    ) -> Result<ReplayStep, ReplayError> {
        let step = self.step(limit).await?;
        report(&self.replay().await?, step);
        Ok(step)
    }
}

/// Token bucket for the rate.
struct TokenBucket {
    rate: f64,
    tokens: f64,
    refilled_at: Instant,
}

impl TokenBucket {
    fn new(rate: u32) -> Self {
        let rate = f64::from(rate.max(1));
        Self { rate, tokens: (rate / TICKS_PER_SECOND).max(1.0), refilled_at: Instant::now() }
    }

    /// Capacity of one tick, so that a pause does not lead to a burst.
    fn burst(&self) -> f64 {
        (self.rate / TICKS_PER_SECOND).max(1.0)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and the rate")]
    fn available(&mut self) -> usize {
        let now = Instant::now();
        self.tokens = (self.tokens + now.duration_since(self.refilled_at).as_secs_f64() * self.rate).min(self.burst());
        self.refilled_at = now;
        self.tokens as usize
    }

    fn spend(&mut self, count: usize) {
        self.tokens -= f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Time until one tick's worth is allowed again.
    fn refill_delay(&self) -> Duration {
        Duration::from_secs_f64((self.burst() - self.tokens).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_bucket_limits_the_rate_and_saves_no_burst() {
        for (rate, seconds) in [(1, 20), (7, 20), (1000, 3)] {
            let mut bucket = TokenBucket::new(rate);
            let (started, mut enqueued) = (Instant::now(), 0);
            while started.elapsed() < Duration::from_secs(seconds) {
                let count = bucket.available();
                bucket.spend(count);
                enqueued += count as u64;
                sleep(bucket.refill_delay().max(Duration::from_millis(1))).await;
            }
            let (most, least) = (u64::from(rate) * (seconds + 1), u64::from(rate) * (seconds - 1));
            assert!((least..=most).contains(&enqueued), "{enqueued} at {rate} a second");
            sleep(Duration::from_hours(1)).await;
            assert!(bucket.available() <= (rate as usize).div_ceil(10).max(1));
        }
    }
}
