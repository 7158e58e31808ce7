//! Answers, on their way to the broker.
//!
//! What moves elsewhere is published there first and confirmed; then the original is acknowledged. A crash in between
//! leaves two of it, with the same id, and never none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use relevo_core::{Answer, Tag};
use tokio::time::timeout;

use super::arrived::Arrived;
use super::shared::Shared;
use super::side::Copy;
use super::state::Phase;
use crate::classify::Error;
use crate::ladder::{self, Past};
use crate::topology::retry_queue;

impl Shared {
    /// Answers deliveries; the tags that were lost.
    pub(crate) async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Error> {
        let (claims, lost) = self.claim(answers);
        let settled = join_all(claims.into_iter().map(|(lane, claim)| self.settle_lane(lane, claim))).await;
        settled.into_iter().collect::<Result<Vec<()>, Error>>()?;
        Ok(lost)
    }

    /// Reserves what is to be answered for this call.
    fn claim<'a>(&'a self, answers: &[(Tag, Answer)]) -> (BTreeMap<usize, Claim<'a>>, Vec<Tag>) {
        let mut claims: BTreeMap<usize, Claim<'a>> = BTreeMap::new();
        let mut lost = Vec::new();
        let mut state = self.state();
        for (tag, answer) in answers {
            let Some((lane, held)) = state.find(*tag) else {
                lost.push(*tag);
                continue;
            };
            let claim = claims.entry(lane).or_insert_with(|| Claim::new(self, lane));
            claim.tags.insert(tag.number());
            if held.phase == Phase::Out {
                held.phase = Phase::Settling;
                claim.moves.extend(move_of(answer).map(|moved| (tag.number(), moved)));
            }
        }
        drop(state);
        (claims, lost)
    }

    /// Answers what can be answered; what cannot stays out, and does not hold back its neighbours.
    async fn settle_lane(&self, lane: usize, claim: Claim<'_>) -> Result<(), Error> {
        let (stay, moved) = self.move_copies(lane, &claim).await;
        let tags: BTreeSet<u64> = claim.tags.difference(&stay).copied().collect();
        if tags.is_empty() {
            return moved;
        }
        let channel = self.tell(lane, &tags)?;
        self.round_trip(lane, &channel).await?;
        let mut state = self.state();
        for tag in &tags {
            state.lanes[lane].held.remove(tag);
        }
        drop(state);
        self.wakers[lane].notify_one();
        moved
    }

    /// Publishes what has to be elsewhere before the originals may go: which of them must stay, and why the first must.
    async fn move_copies(&self, lane: usize, claim: &Claim<'_>) -> (BTreeSet<u64>, Result<(), Error>) {
        let (mut tags, mut copies) = (Vec::new(), Vec::new());
        let (mut stay, mut moved) = (BTreeSet::new(), Ok(()));
        let mut stays = |tag: u64, error: Error| {
            stay.insert(tag);
            let first = std::mem::replace(&mut moved, Ok(()));
            moved = first.and(Err(error));
        };
        for (tag, result) in self.copies(lane, claim) {
            match result {
                Ok(copy) => {
                    tags.push(tag);
                    copies.push(copy);
                }
                Err(error) => stays(tag, error),
            }
        }
        if !copies.is_empty() {
            for (tag, verdict) in tags.into_iter().zip(self.side.publish(copies).await) {
                if let Err(error) = verdict {
                    stays(tag, error);
                }
            }
        }
        (stay, moved)
    }

    fn copies(&self, lane: usize, claim: &Claim<'_>) -> Vec<(u64, Result<Copy, Error>)> {
        let state = self.state();
        let copy = |(tag, moved): &(u64, Move)| {
            let held = state.lanes[lane].held.get(tag).ok_or(Error::Unsettled);
            (*tag, held.and_then(|held| self.copy(lane, &held.arrived, moved)))
        };
        claim.moves.iter().map(copy).collect()
    }

    /// Queues the acknowledgements; the channel that they are on.
    fn tell(&self, lane: usize, tags: &BTreeSet<u64>) -> Result<Channel, Error> {
        let mut state = self.state();
        let lane = &mut state.lanes[lane];
        // The lane may have gone meanwhile, and even be back: its new channel knows nothing of these.
        if !tags.iter().all(|tag| lane.held.contains_key(tag)) {
            return Err(Error::Unsettled);
        }
        let channel = lane.channel.clone().ok_or(Error::Unsettled)?;
        for (number, multiple) in lane.tell(tags) {
            // The first poll queues the frame; whether it arrived, the round trip tells.
            if let Some(Err(_)) = channel.basic_ack(number, BasicAckOptions { multiple }).now_or_never() {
                return Err(Error::Unsettled);
            }
        }
        Ok(channel)
    }

    fn copy(&self, lane: usize, arrived: &Arrived, moved: &Move) -> Result<Copy, Error> {
        let Arrived { properties, address, past: Past { count, retries }, .. } = arrived;
        let (queue, properties) = match moved {
            Move::Later { after, counted } => {
                let Some((rung, left)) = ladder::step(&self.group.retry, *after) else {
                    return Err(Error::Missing(format!("the queue `{}` has no retry ladder", self.group.name)));
                };
                let past = if *counted {
                    Past { count: *count, retries: retries.saturating_add(1) }
                } else {
                    Past { count: count.saturating_sub(1), retries: *retries }
                };
                (retry_queue(&self.queues[lane], rung), ladder::climbing(properties, past, left, address))
            }
            Move::Dead { reason } => (self.group.dead_queue()?, ladder::buried(properties, *count, reason, address)),
        };
        Ok(Copy { queue, properties, payload: arrived.payload.clone() })
    }

    /// Sends a message up the ladder again whose pause is not over; it was not handed out, and that does not count.
    pub(crate) async fn climb_on(&self, lane: usize, tag: u64) -> Result<(), Error> {
        let mut claim = Claim::new(self, lane);
        {
            let mut state = self.state();
            let Some((_, held)) = state.find(Tag::new(tag)) else { return Ok(()) };
            claim.tags.insert(tag);
            if held.phase == Phase::Out {
                held.phase = Phase::Settling;
                claim.moves.push((tag, Move::Later { after: held.arrived.pause_left, counted: false }));
            }
        }
        self.settle_lane(lane, claim).await
    }

    /// An acknowledgement has no answer. What is asked after it on the same channel is answered after it was seen: here by
    /// the queue itself. From then on neither this process nor its connection matters to it. The broker's own crash does:
    /// the queue may have it in memory only.
    async fn round_trip(&self, lane: usize, channel: &Channel) -> Result<(), Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked = channel.queue_declare(self.queues[lane].as_str().into(), options, FieldTable::default());
        match timeout(self.config.confirm_deadline, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Unsettled),
        }
    }
}

/// Where a message goes that is not simply done.
enum Move {
    Later { after: Duration, counted: bool },
    Dead { reason: String },
}

fn move_of(answer: &Answer) -> Option<Move> {
    match answer {
        Answer::Acknowledge => None,
        Answer::Reject { reason } => Some(Move::Dead { reason: reason.clone() }),
        Answer::RetryLater { after } => Some(Move::Later { after: *after, counted: true }),
    }
}

/// The deliveries of one lane that one call answers. Those of which the broker was not told are out again when it ends,
/// however it ends.
struct Claim<'a> {
    shared: &'a Shared,
    lane: usize,
    tags: BTreeSet<u64>,
    moves: Vec<(u64, Move)>,
}

impl<'a> Claim<'a> {
    fn new(shared: &'a Shared, lane: usize) -> Self {
        Self { shared, lane, tags: BTreeSet::new(), moves: Vec::new() }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let lane = &mut state.lanes[self.lane];
        for tag in &self.tags {
            if let Some(held) = lane.held.get_mut(tag).filter(|held| held.phase == Phase::Settling) {
                held.phase = Phase::Out;
            }
        }
    }
}
