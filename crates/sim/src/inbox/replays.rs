//! Replays. Two operators feed the same replay, stop it and resume it.

use std::sync::Arc;

use relevo_core::inbox::operate::{Plan, ReplayState};
use relevo_core::inbox::{Arrival, Entry};
use tokio::time::{Instant, sleep, sleep_until};

use crate::inbox::broker::{ADDRESS, Group};
use crate::inbox::event::{Event, History};
use crate::inbox::office::Office;
use crate::inbox::scenario::Scenario;
use crate::line::Line;
use crate::wire::Wire;
use relevo_core::random::SplitMix64;

/// Starts replays of the messages published so far, at the times of the scenario.
pub async fn work(
    office: Arc<Office>,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    groups: Vec<Arc<Group>>,
    wire: Wire,
) {
    let start = Instant::now();
    let mut random = SplitMix64::for_part(scenario.seed, "replays", 0);
    for at in &scenario.replays {
        sleep_until(start + *at).await;
        let consumer = random.count(0, scenario.consumers.len() - 1);
        let arrivals = arrivals(&groups[consumer], scenario.consumers[consumer].ordered);
        let plan = Plan {
            consumer: scenario.consumers[consumer].name.clone(),
            source: "the broker".to_owned(),
            count: arrivals.len() as u64,
            rate: 100,
            dead_max: *random.pick(&[1, 1000, 1000]),
            by: "somebody".to_owned(),
            reason: "a test".to_owned(),
        };
        let Ok(number) = office.begin_replay(plan).await else { continue };
        let size = random.count(1, 10);
        let stops_at = random.permille(400).then(|| random.count(0, arrivals.len()));
        let mut feeder = |stops_at| Feeder {
            office: &office,
            line: Line::new(
                Arc::clone(&history),
                wire.clone(),
                scenario.office_weather(),
                SplitMix64::new(random.next_u64()),
            ),
            random: SplitMix64::new(random.next_u64()),
            consumer,
            number,
            arrivals: &arrivals,
            size,
            stops_at,
            persists: false,
        };
        let (first, second) = (feeder(stops_at), feeder(None));
        tokio::join!(first.work(), second.work());
    }
}

/// The messages that a consumer received from the broker or will receive.
fn arrivals(group: &Group, ordered: bool) -> Vec<Arrival> {
    let readable = |(lane, place, entry, raw): (usize, u64, Entry, relevo_core::Raw)| {
        let key = raw.decode().ok()?.message.key;
        Some(Arrival {
            entry,
            queue: if ordered { key } else { entry.id.to_string().into() },
            raw,
            address: ADDRESS.into(),
            lane: Group::lane(lane),
            place: Some(place),
            correlation: None,
        })
    };
    group.log().into_iter().filter_map(readable).collect()
}

/// An operator's process that feeds a replay.
struct Feeder<'a> {
    office: &'a Arc<Office>,
    line: Line<Event>,
    random: SplitMix64,
    consumer: usize,
    number: u32,
    arrivals: &'a [Arrival],
    /// The number of messages per call.
    size: usize,
    /// Stops the replay at this position, and may resume it.
    stops_at: Option<usize>,
    /// Resumes the replay until it is seen to run, because the reply of a late call is lost.
    persists: bool,
}

impl Feeder<'_> {
    async fn work(mut self) {
        loop {
            sleep(self.random.millis(0, 300)).await;
            let Some(replay) = self.office.replay(self.consumer, self.number).await else { return };
            match replay.state {
                ReplayState::Stopped if self.lets_it_go_on() => self.resume().await,
                ReplayState::Stopped | ReplayState::Finished => return,
                ReplayState::Running => self.feed(replay.cursor).await,
            }
        }
    }

    fn lets_it_go_on(&mut self) -> bool {
        self.persists |= self.stops_at.take().is_some() && self.random.permille(600);
        self.persists
    }

    /// Feeds the next messages. If the reply is lost, the replay itself contains the progress.
    async fn feed(&mut self, from: Option<String>) {
        let fed: usize = from.as_deref().and_then(|place| place.parse().ok()).unwrap_or(0);
        let (office, consumer, number) = (Arc::clone(self.office), self.consumer, self.number);
        if self.stops_at.is_some_and(|at| fed >= at) {
            drop(self.line.call(async move { office.stop_replay(consumer, number).await }).await);
            return;
        }
        let messages: Vec<Arrival> = self.arrivals[fed..].iter().take(self.size).cloned().collect();
        let next = fed + messages.len();
        let to = (next < self.arrivals.len()).then(|| next.to_string());
        drop(self.line.call(async move { office.feed(consumer, number, messages, from, to).await }).await);
    }

    async fn resume(&self) {
        let (office, consumer, number) = (Arc::clone(self.office), self.consumer, self.number);
        drop(self.line.call(async move { office.resume_replay(consumer, number).await }).await);
    }
}
