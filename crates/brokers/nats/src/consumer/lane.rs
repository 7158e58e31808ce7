//! A lane of one consumer, and how its record is written.

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

/// The number of attempts to write a record when our own earlier write, which seemed lost, arrived first.
const GHOSTS_MAX: usize = 3;
/// After a restart, server 2.9 reports the creation time of a consumer with a difference of less than a millisecond.
const SAME_NS: u64 = 100_000_000;

/// A lane of the group, owned by this consumer or not.
pub(super) struct Cell {
    pub(super) number: u16,
    pub(super) lane: Lane,
    pub(super) durable: String,
    pub(super) filters: Vec<String>,
    /// Locked while memory and the record must agree.
    pub(super) held: Mutex<Option<Held>>,
    /// Acknowledgements that the next write includes.
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

/// A lane that this consumer owns, as far as it knows.
pub(super) struct Held {
    pub(super) epoch: u64,
    pub(super) revision: u64,
    pub(super) durable_ns: i64,
    pub(super) window: Window,
    /// A write started and its result is unknown: the record must be read before any other change.
    pub(super) doubtful: bool,
    /// The lane is released to another consumer when no delivery is outstanding.
    pub(super) leaving: bool,
    pub(super) paused: bool,
    pub(super) reader: AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The creation time of a durable consumer, which identifies it among consumers of the same name.
pub(super) fn durable_ns(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default()
}

/// Whether two creation times identify the same durable consumer.
pub(super) fn is_same_durable(one_ns: i64, other_ns: i64) -> bool {
    one_ns.abs_diff(other_ns) <= SAME_NS
}

impl Held {
    /// Whether this state belongs to the durable consumer with this creation time.
    pub(super) fn is_of(&self, durable_ns: i64) -> bool {
        is_same_durable(self.durable_ns, durable_ns)
    }

    fn record(&self, owner: Option<&str>, lease_ms: u64, plan: &Plan) -> Record {
        let (high, open) = self.window.record(plan);
        Record { owner: owner.map(str::to_owned), epoch: self.epoch, lease_ms, durable_ns: self.durable_ns, high, open }
    }
}

impl Shared {
    /// Reloads an uncertain lane from its record. Removes the lane if another consumer owns it now.
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

    /// Writes the planned change to the record. `false` means that another writer was first, and the lane must be
    /// reloaded.
    ///
    /// Cancelling leaves the lane uncertain; the next call reloads it.
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

    /// Writes the change that `plan` computes to the record, and returns it for the caller to apply. `None` means that
    /// another consumer owns the lane.
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

    /// Releases a lane and records its state.
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

    /// Sends acknowledgements to the server. The record is authoritative: if an acknowledgement is lost, the server
    /// redelivers the message after `ack_wait`, and this consumer acknowledges it again.
    pub(super) async fn say(&self, cell: &Cell, words: Vec<Word>) {
        let all = async {
            for Word { seq, reply } in words {
                let reply = reply.unwrap_or_else(|| self.reply(cell, seq));
                if self.client.publish(reply, AckKind::Ack.into()).await.is_err() {
                    return;
                }
            }
        };
        // Without a connection, publishing would wait for one.
        if tokio::time::timeout(self.deadline, all).await.is_err() {
            tracing::debug!(group = self.group.name, lane = %cell.lane, "the server could not be told");
        }
    }

    /// The reply subject of a message that was delivered to another consumer. The server uses only the sequence.
    pub(super) fn reply(&self, cell: &Cell, seq: u64) -> Subject {
        format!("$JS.ACK.{}.{}.1.{seq}.1.1.0", self.group.stream, cell.durable).into()
    }
}
