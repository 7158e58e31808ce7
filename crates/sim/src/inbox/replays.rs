//! Replays. Two operators enqueue the same replay, stop it and resume it.

use std::sync::Arc;

use relevo_core::inbox::replays::{ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use tokio::time::{Instant, sleep, sleep_until};

use crate::inbox::broker::{ADDRESS, Group};
use crate::inbox::event::{Event, History};
use crate::inbox::operator_port::OperatorPort;
use crate::inbox::scenario::Scenario;
use crate::link::FaultyLink;
use crate::network::Network;
use relevo_core::random::SplitMix64;

/// Starts replays of the messages published so far, at the times of the scenario.
pub async fn run_replays(
    port: Arc<OperatorPort>,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    groups: Vec<Arc<Group>>,
    network: Network,
) {
    let start = Instant::now();
    let mut random = SplitMix64::for_part(scenario.seed, "replays", 0);
    for at in &scenario.replays {
        sleep_until(start + *at).await;
        let consumer = random.count(0, scenario.consumers.len() - 1);
        let messages = inbox_messages(&groups[consumer], scenario.consumers[consumer].ordered);
        let plan = ReplayPlan {
            consumer: scenario.consumers[consumer].name.clone(),
            source: "the broker".to_owned(),
            count: messages.len() as u64,
            rate: 100,
            dead_letters_max: *random.pick(&[1, 1000, 1000]),
            requested_by: "an operator".to_owned(),
            reason: "a test".to_owned(),
        };
        let Ok(number) = port.create_replay(plan).await else { continue };
        let size = random.count(1, 10);
        let stops_at = random.permille(400).then(|| random.count(0, messages.len()));
        let mut feeder = |stops_at| ReplayWriter {
            port: &port,
            link: FaultyLink::new(
                Arc::clone(&history),
                network.clone(),
                scenario.operator_link_faults(),
                SplitMix64::new(random.next_u64()),
            ),
            random: SplitMix64::new(random.next_u64()),
            consumer,
            number,
            messages: &messages,
            size,
            stops_at,
            keeps_resuming: false,
        };
        let (first, second) = (feeder(stops_at), feeder(None));
        tokio::join!(first.run(), second.run());
    }
}

/// The messages that a consumer received from the broker or will receive.
fn inbox_messages(group: &Group, ordered: bool) -> Vec<InboxMessage> {
    let readable = |(lane, offset, dedup_id, raw): (usize, u64, DedupId, relevo_core::RawMessage)| {
        let key = raw.decode().ok()?.message.key;
        Some(InboxMessage {
            dedup_id,
            queue: if ordered { key } else { dedup_id.id.to_string().into() },
            raw,
            address: ADDRESS.into(),
            lane: Group::lane(lane),
            offset: Some(offset),
            attempts: 0,
        })
    };
    group.log().into_iter().filter_map(readable).collect()
}

/// An operator's process that enqueues a replay.
struct ReplayWriter<'a> {
    port: &'a Arc<OperatorPort>,
    link: FaultyLink<Event>,
    random: SplitMix64,
    consumer: usize,
    number: u32,
    messages: &'a [InboxMessage],
    /// The number of messages per call.
    size: usize,
    /// Stops the replay at this position, and may resume it.
    stops_at: Option<usize>,
    /// Resumes the replay until it is seen to run, because the reply of a late call is lost.
    keeps_resuming: bool,
}

impl ReplayWriter<'_> {
    async fn run(mut self) {
        loop {
            sleep(self.random.millis(0, 300)).await;
            let Some(replay) = self.port.replay(self.consumer, self.number).await else { return };
            match replay.state {
                ReplayState::Stopped if self.should_resume() => self.resume().await,
                ReplayState::Stopped | ReplayState::Finished => return,
                ReplayState::Running => self.enqueue(replay.cursor).await,
            }
        }
    }

    fn should_resume(&mut self) -> bool {
        self.keeps_resuming |= self.stops_at.take().is_some() && self.random.permille(600);
        self.keeps_resuming
    }

    /// Enqueues the next messages. If the reply is lost, the replay itself contains the progress.
    async fn enqueue(&mut self, from: Option<String>) {
        let enqueued: usize = from.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let (port, consumer, number) = (Arc::clone(self.port), self.consumer, self.number);
        if self.stops_at.is_some_and(|at| enqueued >= at) {
            drop(self.link.call(async move { port.stop_replay(consumer, number).await }).await);
            return;
        }
        let messages: Vec<InboxMessage> = self.messages[enqueued..].iter().take(self.size).cloned().collect();
        let next = enqueued + messages.len();
        let to = (next < self.messages.len()).then(|| next.to_string());
        drop(self.link.call(async move { port.enqueue_replay(consumer, number, messages, from, to).await }).await);
    }

    async fn resume(&self) {
        let (port, consumer, number) = (Arc::clone(self.port), self.consumer, self.number);
        drop(self.link.call(async move { port.resume_replay(consumer, number).await }).await);
    }
}
