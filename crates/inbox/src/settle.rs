//! Answers to the broker, many in one call.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use relevo_core::inbox::Inbox;
use relevo_core::trace::Open;
use relevo_core::{Answer, Class, Consumer, Failure, Lane, Tag, Traces};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::config::Config;
use crate::item::Item;
use crate::runtime::{Pending, Runtime, poll};
use crate::stats::add;

/// An answer, and whose message left with it.
#[derive(Debug)]
struct Given {
    tag: Tag,
    answer: Answer,
    lane: Lane,
    place: Option<u64>,
    /// Tells that the answer is on its way.
    span: Option<Open>,
}

/// Answers on their way to the broker, in the order in which they were found.
pub(crate) struct Settling {
    waiting: VecDeque<Given>,
    /// How many of the first ones the current call is about.
    current: usize,
    call: Option<Pending<Result<Vec<Tag>, Failure>>>,
    /// Not before this time, after a failure.
    at: Instant,
    failures: u32,
}

impl Settling {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), current: 0, call: None, at: now, failures: 0 }
    }

    pub(crate) fn push(&mut self, item: Item, answer: Answer, traces: &Traces) {
        let span = item.settling(traces, &answer);
        let Item { tag, arrival, .. } = item;
        self.waiting.push_back(Given { tag, answer, lane: arrival.lane, place: arrival.place, span });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The answer to the current call; waits for ever without one.
    pub(crate) async fn ended(&mut self) -> Result<Vec<Tag>, Failure> {
        let settled = poll(&mut self.call).await;
        self.call = None;
        settled
    }

    /// When a failed call is made again.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        (self.call.is_none() && !self.waiting.is_empty()).then_some(self.at)
    }

    fn start(&mut self, consumer: &Arc<dyn Consumer>, config: &Config) {
        self.current = self.waiting.len().min(config.settle_max);
        let answers: Vec<_> =
            self.waiting.iter().take(self.current).map(|given| (given.tag, given.answer.clone())).collect();
        let (consumer, deadline) = (Arc::clone(consumer), config.broker_deadline);
        self.call = Some(Box::pin(async move {
            let late = |_| Err(Failure::new(Class::Unknown, "the broker did not answer in time"));
            timeout(deadline, consumer.settle(&answers)).await.unwrap_or_else(late)
        }));
    }
}

impl<I: Inbox + 'static> Runtime<I>
where
    I::Transaction: 'static,
{
    pub(crate) fn start_settling(&mut self, now: Instant) {
        if self.settling.call.is_none() && !self.settling.is_empty() && now >= self.settling.at {
            self.settling.start(&self.consumer, &self.work.config);
        }
    }

    pub(crate) fn settled(&mut self, settled: Result<Vec<Tag>, Failure>) {
        let now = Instant::now();
        let lost: BTreeSet<Tag> = match settled {
            Ok(lost) => lost.into_iter().collect(),
            Err(failure) => {
                // The same call may be made again, whatever became of it.
                add(&self.work.stats.broker_away, 1);
                let pause = self.work.config.outage(self.settling.failures);
                warn!(error = %failure.describe(), ?pause, "answers were not taken, will be given again");
                self.settling.failures += 1;
                self.settling.at = now + pause;
                return;
            }
        };
        self.settling.failures = 0;
        add(&self.work.stats.answers_lost, lost.len());
        for given in self.settling.waiting.drain(..self.settling.current) {
            if let Some(span) = given.span {
                if lost.contains(&given.tag) {
                    span.fail("lost", "the broker did not know the delivery any more".to_owned());
                } else {
                    span.end();
                }
            }
            self.lanes.left(&given.lane, now);
            let Some(state) = self.lanes.map.get_mut(&given.lane) else { continue };
            // It comes again, maybe to another member, or was settled before; either way it is in the inbox.
            state.gone |= lost.contains(&given.tag);
            if let Some(place) = given.place {
                state.marks.settled(place);
            }
        }
        self.settling.current = 0;
    }
}
