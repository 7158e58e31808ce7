//! An automated operator of the consumers: it cures poison for a while, redrives dead letters, and samples lane marks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction, MarkRequest};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::consumers::GROUPS;
use crate::database::Database;
use crate::ledger::Store;
use crate::oracle::LaneMark;
use crate::producers::Progress;
use relevo_core::random::SplitMix64;

/// Operates all consumers of a run.
pub(crate) struct Operator {
    database: Database,
    store: Store,
    random: SplitMix64,
    done: Arc<Progress>,
    /// The inbox of this consumer is emptied repeatedly.
    forgets: Option<&'static str>,
}

/// Marks that were sampled, by consumer.
pub(crate) type SampledMarks = BTreeMap<&'static str, Vec<LaneMark>>;

impl Operator {
    pub(crate) fn new(
        database: &Database,
        random: SplitMix64,
        done: Arc<Progress>,
        forgets: Option<&'static str>,
    ) -> Self {
        Self { database: database.clone(), store: database.ledger(), random, done, forgets }
    }

    /// Runs until it is stopped. If the database is unreachable, it tries again in the next round.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> SampledMarks {
        let mut marks_by_consumer = SampledMarks::new();
        while !stop.is_cancelled() {
            if let Some(consumer) = self.forgets {
                self.database.forget(consumer).await.ok();
            }
            self.count().await.ok();
            let pause = Duration::from_millis(u64::from(500 + self.random.below(1500)));
            for group in GROUPS {
                if let Ok(marks) = self.database.marks(group.name).await {
                    marks_by_consumer.entry(group.name).or_default().extend(marks);
                }
                // Some messages are dead-lettered again, because not every consumer is cured at that time.
                if self.random.one_in(3) {
                    self.store.cure(group.name).await.ok();
                } else {
                    self.database.revert_cure(group.name).await.ok();
                }
                redrive(&self.store, group.name).await.ok();
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
        marks_by_consumer
    }

    /// Reports the progress of the slowest consumer to the producers.
    async fn count(&self) -> Result<()> {
        let mut least = u64::MAX;
        for group in GROUPS.iter().filter(|group| Some(group.name) != self.forgets) {
            let (done, _) = self.database.done(group.name).await?;
            least = least.min(u64::try_from(done)?);
        }
        self.done.handled.store(least, Ordering::Relaxed);
        Ok(())
    }
}

/// Two operators redrive all dead letters at the same time. Returns the sum of both counts.
pub(crate) async fn redrive(store: &Store, consumer: &str) -> Result<u64> {
    let operator = store.operator().await?;
    let request = |by: &str| MarkRequest {
        filter: DeadLetterFilter::of_consumer(consumer),
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: by.to_owned(),
        reason: "torture".to_owned(),
    };
    let (one, other) = (request("one"), request("other"));
    let (one, other) = tokio::join!(operator.mark_dead_letters(&one), operator.mark_dead_letters(&other));
    Ok(one?.count + other?.count)
}
