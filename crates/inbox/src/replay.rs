//! Replays: enqueues messages of a log into the retry table again, at a limited rate.
//!
//! The store keeps the cursor of a replay and moves it in the transaction that enqueues the messages. A runner can
//! therefore crash at any time: the next one skips no message and enqueues none twice.

use std::time::Duration;

use relevo_core::inbox::Arrival;
use relevo_core::inbox::operate::{Fed, Operate, Portion, Replay, ReplayState};
use relevo_core::inbox::source::{Ask, Filter, Logged, ReplaySource, SourceError};
use relevo_core::store::StoreError;
use relevo_core::{Delivery, DeliveryTag};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::decode::Decoder;

/// Maximum number of messages in one transaction.
const PORTION_MAX: usize = 500;
/// Approximate limit of payload bytes in one transaction.
const PORTION_BYTES: usize = 4 << 20;
/// Maximum number of waiting messages of a replay in the retry table, whatever they wait for.
const WAITING_MAX: u64 = 10_000;
/// How often to check for room in the retry table.
const FULL_PAUSE: Duration = Duration::from_millis(200);
/// Number of retries of a failed call, and the first pause, which doubles.
const TRIES_MAX: u32 = 5;
const TRY_PAUSE: Duration = Duration::from_millis(200);
/// Messages are enqueued in portions, at most this many per second, instead of one by one.
const TICKS_PER_SECOND: f64 = 10.0;

/// Settings of a replay run.
#[derive(Clone, Debug)]
pub struct Feeding {
    /// How the consumer reads messages: its name, its order, and how it reads foreign messages.
    pub consumer: Config,
    /// Number of the replay.
    pub number: u32,
    /// Selects messages of the log.
    pub filter: Filter,
    /// Messages per second. At most one second's worth waits to be handled, so this also limits the handling rate.
    pub rate: u32,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedEnd {
    /// All messages were enqueued.
    Finished,
    /// An operator, or too many dead letters, stopped the replay.
    Stopped,
    /// Another runner continues the replay.
    Elsewhere,
    /// The stop token was cancelled; the replay can be resumed.
    Interrupted,
}

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStep {
    /// Number of messages enqueued; 0 if the part of the log that was read has no match.
    Fed(usize),
    /// Too many messages wait to be handled, so none were enqueued.
    Full,
    /// The run has ended.
    End(FeedEnd),
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The consumer's store failed.
    #[error("the consumer's store failed")]
    Store(#[source] StoreError),
    /// The log could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The consumer has no replay with this number.
    #[error("consumer `{consumer}` has no replay {number}")]
    Unknown {
        /// Name of the consumer.
        consumer: String,
        /// Number of the replay.
        number: u32,
    },
    /// The cursor of the replay is not a number.
    #[error("replay {0} stands at a place that this program does not know")]
    Cursor(u32),
}

impl From<StoreError> for FeedError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl FeedError {
    const fn is_passing(&self) -> bool {
        match self {
            Self::Store(error) => error.is_passing(),
            Self::Source(error) => error.is_passing(),
            Self::Unknown { .. } | Self::Cursor(_) => false,
        }
    }
}

/// Converts a message of a log for this consumer's inbox, with its id and queue.
pub fn arrival(consumer: &Config, logged: Logged) -> Arrival {
    let Logged { raw, address, lane, place, .. } = logged;
    let delivery = Delivery { tag: DeliveryTag::new(0), raw, address, lane, place, redelivered: false, retries: 0 };
    Decoder::new(consumer).item(consumer, delivery).arrival
}

/// Runs one replay.
pub struct Feeder<'a> {
    feeding: Feeding,
    source: &'a dyn ReplaySource,
    desk: &'a dyn Operate,
    /// The cursor after the last step. If the stored cursor differs, another runner is active.
    left_at: Option<String>,
}

impl<'a> Feeder<'a> {
    /// Reads from this log and enqueues for the consumers of this store.
    pub const fn new(feeding: Feeding, source: &'a dyn ReplaySource, desk: &'a dyn Operate) -> Self {
        Self { feeding, source, desk, left_at: None }
    }

    /// The current state of the replay.
    pub async fn replay(&self) -> Result<Replay, FeedError> {
        let (consumer, number) = (&self.feeding.consumer.consumer, self.feeding.number);
        let replays = self.desk.replays(consumer).await?;
        let found = replays.into_iter().find(|replay| replay.number == number);
        found.ok_or_else(|| FeedError::Unknown { consumer: consumer.clone(), number })
    }

    /// Enqueues the next messages, up to `most`. Cancelling the future is safe.
    pub async fn step(&mut self, most: usize) -> Result<FeedStep, FeedError> {
        let replay = self.replay().await?;
        match replay.state {
            ReplayState::Running => {}
            ReplayState::Finished => return Ok(FeedStep::End(FeedEnd::Finished)),
            ReplayState::Stopped => return Ok(FeedStep::End(FeedEnd::Stopped)),
        }
        if self.left_at.is_some() && self.left_at != replay.cursor {
            return Ok(FeedStep::End(FeedEnd::Elsewhere));
        }
        let ahead = u64::from(self.feeding.rate.max(1));
        let room = ahead.saturating_sub(replay.ready).min(WAITING_MAX.saturating_sub(replay.waiting()));
        let limit = most.min(PORTION_MAX).min(usize::try_from(room).unwrap_or(PORTION_MAX));
        if limit == 0 {
            return Ok(FeedStep::Full);
        }
        let after = replay.cursor.as_deref().map_or(Ok(0), str::parse);
        let after = after.map_err(|_| FeedError::Cursor(self.feeding.number))?;
        let read = self.source.read(&self.feeding.filter, Ask { after, limit, bytes: PORTION_BYTES }).await?;
        let messages: Vec<Arrival> =
            read.messages.into_iter().map(|logged| arrival(&self.feeding.consumer, logged)).collect();
        let to = (!read.ended).then(|| read.next.to_string());
        let portion = Portion { messages: &messages, from: replay.cursor.as_deref(), to: to.as_deref() };
        let fed = self.desk.feed(&self.feeding.consumer.consumer, self.feeding.number, portion).await?;
        Ok(match (fed, to) {
            (Fed::Kept, None) => FeedStep::End(FeedEnd::Finished),
            (Fed::Kept, to) => {
                self.left_at = to;
                FeedStep::Fed(messages.len())
            }
            (Fed::Moved, _) => FeedStep::End(FeedEnd::Elsewhere),
            (Fed::Ended, _) => FeedStep::End(match self.replay().await?.state {
                ReplayState::Finished => FeedEnd::Finished,
                ReplayState::Running | ReplayState::Stopped => FeedEnd::Stopped,
            }),
        })
    }

    /// Enqueues at the configured rate until the end of the log or until `stop` is cancelled. Calls `told` after every
    /// step.
    ///
    /// Transient errors are retried for some seconds. After an error the replay can be resumed.
    pub async fn run(
        &mut self,
        stop: &CancellationToken,
        mut told: impl FnMut(&Replay, FeedStep),
    ) -> Result<FeedEnd, FeedError> {
        let mut pace = Pace::new(self.feeding.rate);
        let mut failures = 0;
        loop {
            let pause = match self.told_step(pace.allowed(), &mut told).await {
                Ok(FeedStep::End(end)) => return Ok(end),
                Ok(FeedStep::Fed(count)) => {
                    failures = 0;
                    pace.spend(count);
                    pace.pause()
                }
                Ok(FeedStep::Full) => {
                    failures = 0;
                    FULL_PAUSE
                }
                Err(error) if error.is_passing() && failures < TRIES_MAX => {
                    failures += 1;
                    // The portion may be stored although the reply was lost, so the cursor is read again.
                    self.left_at = None;
                    TRY_PAUSE * 2_u32.pow(failures - 1)
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(FeedEnd::Interrupted),
                () = sleep(pause) => {}
            }
        }
    }

    async fn told_step(
        &mut self,
        most: usize,
        told: &mut impl FnMut(&Replay, FeedStep),
    ) -> Result<FeedStep, FeedError> {
        let step = self.step(most).await?;
        told(&self.replay().await?, step);
        Ok(step)
    }
}

/// Token bucket for the rate.
struct Pace {
    rate: f64,
    saved: f64,
    since: Instant,
}

impl Pace {
    fn new(rate: u32) -> Self {
        let rate = f64::from(rate.max(1));
        Self { rate, saved: (rate / TICKS_PER_SECOND).max(1.0), since: Instant::now() }
    }

    /// Capacity of one tick, so that a pause does not lead to a burst.
    fn burst(&self) -> f64 {
        (self.rate / TICKS_PER_SECOND).max(1.0)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and the rate")]
    fn allowed(&mut self) -> usize {
        let now = Instant::now();
        self.saved = (self.saved + now.duration_since(self.since).as_secs_f64() * self.rate).min(self.burst());
        self.since = now;
        self.saved as usize
    }

    fn spend(&mut self, count: usize) {
        self.saved -= f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Time until one tick's worth is allowed again.
    fn pause(&self) -> Duration {
        Duration::from_secs_f64((self.burst() - self.saved).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_allows_what_the_rate_says_and_makes_up_for_nothing() {
        for (rate, seconds) in [(1, 20), (7, 20), (1000, 3)] {
            let mut pace = Pace::new(rate);
            let (began, mut fed) = (Instant::now(), 0);
            while began.elapsed() < Duration::from_secs(seconds) {
                let count = pace.allowed();
                pace.spend(count);
                fed += count as u64;
                sleep(pace.pause().max(Duration::from_millis(1))).await;
            }
            let (most, least) = (u64::from(rate) * (seconds + 1), u64::from(rate) * (seconds - 1));
            assert!((least..=most).contains(&fed), "{fed} at {rate} a second");
            sleep(Duration::from_hours(1)).await;
            assert!(pace.allowed() <= (rate as usize).div_ceil(10).max(1));
        }
    }
}
