//! Simulated operators. They redrive and discard dead letters, send requests twice, and reshard.

use std::collections::BTreeSet;
use std::sync::Arc;

use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest};
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin as _};
use relevo_store_memory::{Database, MAIN};
use tokio::time::{Instant, sleep, sleep_until};

use crate::history::MessageName;
use crate::outbox::event::{Event, History};
use crate::outbox::scenario::Scenario;
use relevo_core::random::SplitMix64;

/// One operator.
pub struct Operator {
    outbox: Database,
    commands: relevo_store_memory::Operator,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    random: SplitMix64,
}

impl Operator {
    /// Creates an operator with its own random numbers.
    pub fn new(outbox: Database, history: Arc<History>, scenario: Arc<Scenario>) -> Self {
        let random = SplitMix64::for_part(scenario.seed, "operator", 0);
        Self { commands: outbox.operator(), outbox, history, scenario, random }
    }

    /// Handles dead letters until the faults end.
    pub async fn run(mut self) {
        while self.history.now() < self.scenario.faults_for {
            sleep(self.scenario.operator_interval).await;
            let discard = self.random.permille(250);
            let share = *self.random.pick(&[0, 300, 1000]);
            self.mark(discard, share).await;
        }
    }

    /// Marks `share` per thousand of the dead letters, each with two requests.
    pub async fn mark(&mut self, discard: bool, share: u64) {
        self.check_queues();
        for dead_letter in self.outbox.dead_letters(MAIN) {
            if dead_letter.summary.state != DeadLetterState::Dead || !self.random.permille(share) {
                continue;
            }
            let Some(message) = dead_letter.content.outbox_message() else { continue };
            let name = MessageName::of(message);
            let request = MarkRequest {
                filter: DeadLetterFilter { ids: vec![name.id], ..DeadLetterFilter::of_destination(MAIN) },
                action: if discard { MarkAction::Discard } else { MarkAction::Redrive },
                dry_run: false,
                rate_per_second: None,
                by: "an operator".to_owned(),
                reason: "a test".to_owned(),
            };
            let marked_counts = [self.mark_once(&request).await, self.mark_once(&request).await];
            if marked_counts[0] == 1 {
                self.history.record(Event::Marked { name: name.clone(), discard });
            }
            if marked_counts[1] != 0 {
                self.history.record(Event::MarkedTwice(name));
            }
        }
    }

    async fn mark_once(&self, request: &MarkRequest) -> u64 {
        self.commands.mark_dead_letters(request).await.unwrap_or_default().count
    }

    fn check_queues(&self) {
        for parked in self.outbox.parked(MAIN) {
            let mut ids = BTreeSet::new();
            for entry in &parked.queue {
                if !ids.insert(entry.seq) {
                    self.history.record(Event::QueuedTwice(MessageName::of(&entry.message)));
                }
            }
        }
    }
}

/// Requests resharding at the times of the scenario.
pub async fn reshard(outbox: Database, history: Arc<History>, scenario: Arc<Scenario>) {
    let start = Instant::now();
    for (at, shards) in &scenario.reshards {
        sleep_until(start + *at).await;
        history.record(Event::Reshard(*shards));
        let resharded = outbox.operator().update_destination(MAIN, DestinationChange::Shards(*shards)).await;
        if !matches!(resharded, Ok(true)) {
            history.record(Event::Fault("the resharding was refused"));
        }
    }
}

/// Restarts the database at the times of the scenario. While it is down, the links make calls fail.
pub async fn restart_database(outbox: Database, history: Arc<History>, scenario: Arc<Scenario>) {
    let start = Instant::now();
    let mut outages = scenario.database_outages.clone();
    outages.sort_by_key(|(span, _)| span.from);
    for (span, restarts) in outages {
        sleep_until(start + span.from).await;
        history.record(Event::Fault("the database goes away"));
        if restarts {
            outbox.restart();
        }
    }
}

/// Records when the broker goes down and comes back.
pub async fn record_broker_outages(history: Arc<History>, scenario: Arc<Scenario>) {
    let start = Instant::now();
    let mut outages = scenario.broker_outages.clone();
    outages.sort_by_key(|span| span.from);
    for span in outages {
        sleep_until(start + span.from).await;
        history.record(Event::Fault("the broker goes away"));
    }
}
