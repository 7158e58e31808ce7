//! One lane at one consumer, and how its record is written.

use async_nats::Subject;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::Info;
use relevo_core::Lane;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::Shared;
use super::settle::Call;
use super::window::{Plan, Window, Word};
use crate::classify::Error;
use crate::group::Group;
use crate::lanes::{Record, Written};

/// How often a write is tried again that our own earlier one, given up as lost, came before.
const GHOSTS_MAX: usize = 3;
/// A 2.9 remembers the time at which a consumer was made less than a millisecond differently after its restart.
const SAME_NS: u64 = 100_000_000;

/// A lane of the group, whether or not this consumer has it.
pub(super) struct Cell {
    pub(super) number: u16,
    pub(super) lane: Lane,
    pub(super) durable: String,
    pub(super) filters: Vec<String>,
    /// Held while the record and this must agree.
    pub(super) held: Mutex<Option<Held>>,
    /// What the next write of acknowledgements takes along.
    pub(super) calls: std::sync::Mutex<Vec<Call>>,
}

impl Cell {
    pub(super) fn new(group: &Group, number: u16) -> Self {
        Self {
            number,
            lane: Lane::new(number.to_string()),
            durable: group.durable(number),
            filters: group.filters(number),
            held: Mutex::default(),
            calls: std::sync::Mutex::default(),
        }
    }
}

/// A lane that this consumer has, as far as it knows.
pub(super) struct Held {
    pub(super) epoch: u64,
    pub(super) revision: u64,
    pub(super) durable_ns: i64,
    pub(super) window: Window,
    /// A write was begun and its end not seen: the record must be read before anything else.
    pub(super) doubtful: bool,
    /// It goes to another consumer as soon as nothing is out.
    pub(super) leaving: bool,
    pub(super) paused: bool,
    pub(super) reader: AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// When a durable consumer was made, which tells it from another one of its name.
pub(super) fn durable_ns(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default()
}

/// Whether two such times are of one durable consumer.
pub(super) fn is_same_durable(one_ns: i64, other_ns: i64) -> bool {
    one_ns.abs_diff(other_ns) <= SAME_NS
}

impl Held {
    /// Whether what is known is about the durable consumer that was made then.
    pub(super) fn is_of(&self, durable_ns: i64) -> bool {
        is_same_durable(self.durable_ns, durable_ns)
    }

    fn record(&self, owner: Option<&str>, lease_ms: u64, plan: &Plan) -> Record {
        let (high, open) = self.window.record(plan);
        Record { owner: owner.map(str::to_owned), epoch: self.epoch, lease_ms, durable_ns: self.durable_ns, high, open }
    }
}

impl Shared {
    /// Makes sure that what is believed of a lane is so; a lane that went to somebody else is gone afterwards.
    pub(super) async fn resolve(&self, cell: &Cell, slot: &mut Option<Held>) -> Result<(), Error> {
        let Some(held) = slot.as_mut().filter(|held| held.doubtful) else { return Ok(()) };
        let found = self.bucket.lane(cell.number).await?;
        match found.filter(|found| self.is_mine(&found.record, held)) {
            Some(found) => {
                held.revision = found.revision;
                held.doubtful = false;
                let words = held.window.believe(&found.record);
                self.say(cell, words).await;
            }
            None => self.lose(cell, slot),
        }
        Ok(())
    }

    fn is_mine(&self, record: &Record, held: &Held) -> bool {
        record.owner.as_ref() == Some(&self.id) && record.epoch == held.epoch && record.durable_ns == held.durable_ns
    }

    pub(super) fn lose(&self, cell: &Cell, slot: &mut Option<Held>) {
        *slot = None;
        tracing::info!(group = self.group.name, lane = %cell.lane, "lane lost");
        self.changed.notify_waiters();
    }

    /// Writes down what is about to change. `false`: somebody else was quicker, and it must be found out who.
    ///
    /// Cancelling leaves the lane in doubt, which the next call resolves.
    pub(super) async fn write(&self, cell: &Cell, held: &mut Held, plan: &Plan) -> Result<bool, Error> {
        let record = held.record(Some(&self.id), self.lease_ms(), plan);
        held.doubtful = true;
        match self.bucket.write(cell.number, &record, held.revision).await? {
            Written::Kept(revision) => {
                held.revision = revision;
                held.doubtful = false;
                Ok(true)
            }
            Written::Overtaken => Ok(false),
        }
    }

    /// Carries out what `plan` makes of the lane once the server has kept it. `None`: the lane is somebody else's.
    pub(super) async fn change(
        &self,
        cell: &Cell,
        slot: &mut Option<Held>,
        plan: impl Fn(&Window) -> Plan,
    ) -> Result<Option<Plan>, Error> {
        for _ in 0..GHOSTS_MAX {
            self.resolve(cell, slot).await?;
            let Some(held) = slot else { return Ok(None) };
            let planned = plan(&held.window);
            if planned.is_empty() || self.write(cell, held, &planned).await? {
                return Ok(Some(planned));
            }
        }
        Err(Error::Unconfirmed(self.deadline))
    }

    /// Gives a lane back, with what is known of it.
    pub(super) async fn release(&self, cell: &Cell, slot: &mut Option<Held>) -> Result<(), Error> {
        for _ in 0..GHOSTS_MAX {
            self.resolve(cell, slot).await?;
            let Some(held) = slot else { return Ok(()) };
            let record = held.record(None, self.lease_ms(), &Plan::default());
            held.doubtful = true;
            if let Written::Kept(_) = self.bucket.write(cell.number, &record, held.revision).await? {
                *slot = None;
                return Ok(());
            }
        }
        Err(Error::Unconfirmed(self.deadline))
    }

    /// Acknowledges at the server. The record is what counts: if an acknowledgement gets lost the server brings the message
    /// again after `ack_wait`, and is told again.
    pub(super) async fn say(&self, cell: &Cell, words: Vec<Word>) {
        let all = async {
            for Word { seq, reply } in words {
                let reply = reply.unwrap_or_else(|| self.reply(cell, seq));
                if self.client.publish(reply, AckKind::Ack.into()).await.is_err() {
                    return;
                }
            }
        };
        // Without a connection it would wait for one.
        if tokio::time::timeout(self.deadline, all).await.is_err() {
            tracing::debug!(group = self.group.name, lane = %cell.lane, "the server could not be told");
        }
    }

    /// Where the server expects word of a message that it delivered to somebody else: only the sequence is looked at.
    pub(super) fn reply(&self, cell: &Cell, seq: u64) -> Subject {
        format!("$JS.ACK.{}.{}.1.{seq}.1.1.0", self.group.stream, cell.durable).into()
    }
}
