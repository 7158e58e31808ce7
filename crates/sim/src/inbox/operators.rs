//! Simulated operators. Two at a time redrive and discard dead letters, pause and resume, and force breakers.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary, MarkAction, MarkRequest};
use relevo_core::inbox::admin::ConsumerControl;
use relevo_core::store::StoreError;
use tokio::time::sleep;

use crate::inbox::broker::Group;
use crate::inbox::event::{Event, History};
use crate::inbox::operator_port::OperatorPort;
use crate::inbox::scenario::Scenario;
use crate::link::FaultyLink;
use crate::network::Network;
use relevo_core::random::SplitMix64;

/// An operator, and a second one who sends the same requests at the same time.
pub struct Operator {
    port: Arc<OperatorPort>,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    links: [FaultyLink<Event>; 2],
    random: SplitMix64,
}

impl Operator {
    /// Creates operators with their own random numbers.
    pub fn new(
        port: Arc<OperatorPort>,
        history: Arc<History>,
        scenario: Arc<Scenario>,
        network: &Network,
        number: u64,
    ) -> Self {
        let mut random = SplitMix64::for_part(scenario.seed, "operator", number);
        let mut link = || {
            FaultyLink::new(
                Arc::clone(&history),
                network.clone(),
                scenario.operator_link_faults(),
                SplitMix64::new(random.next_u64()),
            )
        };
        let links = [link(), link()];
        Self { port, history, scenario, links, random }
    }

    /// Handles dead letters until the faults end.
    pub async fn mark_periodically(mut self) {
        while !self.faults_ended() {
            sleep(self.scenario.operator_interval).await;
            let discard = self.random.permille(200);
            let share = *self.random.pick(&[0, 300, 1000]);
            self.mark(discard, share).await;
        }
    }

    /// Redrives or discards `share` per thousand of the dead letters, each with two requests.
    pub async fn mark(&mut self, discard: bool, share: u64) {
        for (_, dead_letter) in self.port.dead_letters().await {
            let dead_letter = dead_letter.summary;
            if dead_letter.state != DeadLetterState::Dead || !self.random.permille(share) {
                continue;
            }
            // Redriven, these would be dead-lettered again every time.
            let discard = discard || matches!(dead_letter.class.as_str(), "undecodable" | "expired");
            let filter = self.filter(&dead_letter, discard);
            self.send_twice(filter, discard).await;
        }
    }

    /// Selects one dead letter, or all of its queue.
    fn filter(&mut self, dead_letter: &DeadLetterSummary, discard: bool) -> DeadLetterFilter {
        let of_consumer = DeadLetterFilter::of_consumer(&*dead_letter.owner);
        if !discard && self.random.permille(300) {
            DeadLetterFilter { key: Some(dead_letter.key.clone()), ..of_consumer }
        } else {
            DeadLetterFilter { ids: vec![dead_letter.id], ..of_consumer }
        }
    }

    async fn send_twice(&mut self, filter: DeadLetterFilter, discard: bool) {
        let rate = self.random.permille(200).then_some(2);
        let request = MarkRequest {
            filter,
            action: if discard { MarkAction::Discard } else { MarkAction::Redrive },
            dry_run: false,
            rate_per_second: rate,
            by: "an operator".to_owned(),
            reason: "a test".to_owned(),
        };
        let call = |link: usize| {
            let (port, request) = (Arc::clone(&self.port), request.clone());
            self.links[link].call(async move { port.mark(request).await })
        };
        // After an error, an operator checks again later.
        let _results: (Result<u64, StoreError>, Result<u64, StoreError>) = tokio::join!(call(0), call(1));
    }

    /// Pauses, resumes and forces breakers until the faults end.
    pub async fn send_controls(mut self) {
        if let Some(interval) = self.scenario.control_interval {
            while !self.faults_ended() {
                sleep(self.random.time(Duration::ZERO, interval * 2)).await;
                let consumer = self.random.count(0, self.scenario.consumers.len() - 1);
                let lanes = self.scenario.consumers[consumer].lanes;
                let lane = Group::lane(self.random.count(0, lanes - 1));
                let lane = self.random.permille(700).then(|| lane.name());
                let controls = [
                    ConsumerControl::Pause,
                    ConsumerControl::Resume,
                    ConsumerControl::OpenBreaker,
                    ConsumerControl::CloseBreaker,
                    ConsumerControl::AutoBreaker,
                ];
                let control = *self.random.pick(&controls);
                self.port.set_control(consumer, lane, control).await;
            }
        }
    }

    /// Reverts every command.
    pub async fn clear_controls(&self) {
        for consumer in 0..self.scenario.consumers.len() {
            self.port.set_control(consumer, None, ConsumerControl::Resume).await;
            for lane in self.port.consumer_details(consumer).await.into_iter().flat_map(|details| details.lanes) {
                self.port.set_control(consumer, Some(&lane.name), ConsumerControl::Resume).await;
                self.port.set_control(consumer, Some(&lane.name), ConsumerControl::AutoBreaker).await;
            }
        }
    }

    fn faults_ended(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }
}
