//! Simulated operators. Two at a time redrive and archive dead letters, pause and resume, and force breakers.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::operate::{DeadFilter, DeadLetter, Fate, Mark, Order};
use relevo_core::store::StoreError;
use tokio::time::sleep;

use crate::inbox::broker::Group;
use crate::inbox::event::{Event, History};
use crate::inbox::office::Office;
use crate::inbox::scenario::Scenario;
use crate::line::Line;
use crate::wire::Wire;
use relevo_core::random::SplitMix64;

/// An operator, and a second one who sends the same requests at the same time.
pub struct Operator {
    office: Arc<Office>,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    lines: [Line<Event>; 2],
    random: SplitMix64,
}

impl Operator {
    /// Creates operators with their own random numbers.
    pub fn new(office: Arc<Office>, history: Arc<History>, scenario: Arc<Scenario>, wire: &Wire, number: u64) -> Self {
        let mut random = SplitMix64::for_part(scenario.seed, "operator", number);
        let mut line = || {
            Line::new(Arc::clone(&history), wire.clone(), scenario.office_weather(), SplitMix64::new(random.next_u64()))
        };
        let lines = [line(), line()];
        Self { office, history, scenario, lines, random }
    }

    /// Handles dead letters until the faults end.
    pub async fn look(mut self) {
        while !self.is_quiet() {
            sleep(self.scenario.operator_every).await;
            let archive = self.random.permille(200);
            let share = *self.random.pick(&[0, 300, 1000]);
            self.mark(archive, share).await;
        }
    }

    /// Redrives or archives `share` per thousand of the dead letters, each with two requests.
    pub async fn mark(&mut self, archive: bool, share: u64) {
        for (_, letter) in self.office.letters().await {
            if letter.fate != Fate::Pending || !self.random.permille(share) {
                continue;
            }
            // Redriven, these would be dead-lettered again every time.
            let archive = archive || matches!(letter.class.as_str(), "undecodable" | "expired");
            let filter = self.filter(&letter, archive);
            self.click(filter, archive).await;
        }
    }

    /// Selects one dead letter, or all of its queue.
    fn filter(&mut self, letter: &DeadLetter, archive: bool) -> DeadFilter {
        let consumer = Some(letter.consumer.clone());
        if !archive && self.random.permille(300) {
            let queue = Some(letter.arrival.queue.to_string());
            DeadFilter { consumer, queue, ..DeadFilter::default() }
        } else {
            DeadFilter { consumer, ids: vec![letter.arrival.entry.id], ..DeadFilter::default() }
        }
    }

    async fn click(&mut self, filter: DeadFilter, archive: bool) {
        let rate = self.random.permille(200).then_some(2);
        let mark = Mark { filter, dry_run: false, rate, by: "somebody".to_owned(), note: "a test".to_owned() };
        let call = |line: usize| {
            let (office, mark) = (Arc::clone(&self.office), mark.clone());
            self.lines[line]
                .call(async move { if archive { office.archive(mark).await } else { office.redrive(mark).await } })
        };
        // After an error, an operator checks again later.
        let _answers: (Result<u64, StoreError>, Result<u64, StoreError>) = tokio::join!(call(0), call(1));
    }

    /// Pauses, resumes and forces breakers until the faults end.
    pub async fn order(mut self) {
        if let Some(every) = self.scenario.orders_every {
            while !self.is_quiet() {
                sleep(self.random.time(Duration::ZERO, every * 2)).await;
                let consumer = self.random.count(0, self.scenario.consumers.len() - 1);
                let lanes = self.scenario.consumers[consumer].lanes;
                let lane = Group::lane(self.random.count(0, lanes - 1));
                let lane = self.random.permille(700).then(|| lane.name());
                let orders = [Order::Pause, Order::Resume, Order::OpenBreaker, Order::CloseBreaker, Order::FreeBreaker];
                let order = *self.random.pick(&orders);
                self.office.order(consumer, lane, order).await;
            }
        }
    }

    /// Reverts every command.
    pub async fn free(&self) {
        for consumer in 0..self.scenario.consumers.len() {
            self.office.order(consumer, None, Order::Resume).await;
            for lane in self.office.shown(consumer).await.into_iter().flat_map(|shown| shown.lanes) {
                self.office.order(consumer, Some(&lane.name), Order::Resume).await;
                self.office.order(consumer, Some(&lane.name), Order::FreeBreaker).await;
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }
}
