//! A lane of one consumer, and how its record is written.

use async_nats::Subject;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::Info;
use relevo_core::Lane;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::ConsumerInner;
use super::lane_messages::{LaneChange, LaneMessages, ServerAck};
use super::lane_store::{LaneRecord, RecordWrite};
use crate::classify::Error;
use crate::settle::SettleCall;
use crate::topology::Group;

/// The number of attempts to write a record when our own earlier write, which seemed lost, arrived first.
const WRITE_ATTEMPTS_MAX: usize = 3;
/// After a restart, server 2.9 reports the creation time of a consumer with a difference of less than a millisecond.
const CREATED_TOLERANCE_NS: u64 = 100_000_000;

/// A lane of the group, owned by this consumer or not.
pub(crate) struct LaneSlot {
    pub(crate) number: u16,
    pub(crate) lane: Lane,
    pub(crate) durable: String,
    pub(crate) filters: Vec<String>,
    /// Locked while memory and the record must agree.
    pub(crate) owned: Mutex<Option<OwnedLane>>,
    /// Acknowledgements that the next write includes.
    pub(crate) settle_calls: parking_lot::Mutex<Vec<SettleCall>>,
}

impl LaneSlot {
    pub(crate) fn new(group: &Group, number: u16) -> Self {
        Self {
            number,
            lane: Lane::new(number.to_string()),
            durable: group.durable(number),
            filters: group.filters(number),
            owned: Mutex::default(),
            settle_calls: parking_lot::Mutex::default(),
        }
    }
}

/// A lane that this consumer owns, as far as it knows.
pub(crate) struct OwnedLane {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) durable_ns: i64,
    pub(crate) messages: LaneMessages,
    /// A write started and its result is unknown: the record must be read before any other change.
    pub(crate) uncertain: bool,
    /// The lane is released to another consumer when no delivery is outstanding.
    pub(crate) releasing: bool,
    pub(crate) paused: bool,
    pub(crate) reader: AbortHandle,
}

impl Drop for OwnedLane {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The creation time of a durable consumer, which identifies it among consumers of the same name.
pub(crate) fn durable_ns(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default()
}

/// Whether two creation times identify the same durable consumer.
pub(crate) fn is_same_durable(one_ns: i64, other_ns: i64) -> bool {
    one_ns.abs_diff(other_ns) <= CREATED_TOLERANCE_NS
}

impl OwnedLane {
    /// Whether this state belongs to the durable consumer with this creation time.
    pub(crate) fn belongs_to(&self, durable_ns: i64) -> bool {
        is_same_durable(self.durable_ns, durable_ns)
    }

    fn record(&self, owner: Option<&str>, lease_ms: u64, change: &LaneChange) -> LaneRecord {
        let (handed_out_to, unacknowledged) = self.messages.record(change);
        LaneRecord {
            owner: owner.map(str::to_owned),
            epoch: self.epoch,
            lease_ms,
            durable_ns: self.durable_ns,
            handed_out_to,
            unacknowledged,
            redelivered_to: self.messages.redelivered_to(),
        }
    }
}

impl ConsumerInner {
    /// Reloads an uncertain lane from its record. Removes the lane if another consumer owns it now.
    pub(crate) async fn reload_if_uncertain(
        &self,
        slot: &LaneSlot,
        owned: &mut Option<OwnedLane>,
    ) -> Result<(), Error> {
        let Some(lane) = owned.as_mut().filter(|lane| lane.uncertain) else { return Ok(()) };
        let stored = self.lane_store.read_lane(slot.number).await?;
        match stored.filter(|stored| self.is_own_record(&stored.record, lane)) {
            Some(stored) => {
                lane.revision = stored.revision;
                lane.uncertain = false;
                let acks = lane.messages.adopt_record(&stored.record);
                self.ack_at_server(slot, acks).await;
            }
            None => self.drop_lane(slot, owned),
        }
        Ok(())
    }

    fn is_own_record(&self, record: &LaneRecord, lane: &OwnedLane) -> bool {
        record.owner.as_ref() == Some(&self.id) && record.epoch == lane.epoch && record.durable_ns == lane.durable_ns
    }

    pub(crate) fn drop_lane(&self, slot: &LaneSlot, owned: &mut Option<OwnedLane>) {
        *owned = None;
        tracing::info!(group = self.group.name, lane = %slot.lane, "lane lost");
        self.changed.notify_waiters();
    }

    /// Writes the change change to the record. `false` means that another writer was first, and the lane must be
    /// reloaded.
    ///
    /// Cancelling leaves the lane uncertain; the next call reloads it.
    pub(crate) async fn write_record(
        &self,
        slot: &LaneSlot,
        lane: &mut OwnedLane,
        change: &LaneChange,
    ) -> Result<bool, Error> {
        let record = lane.record(Some(&self.id), self.lease_ms(), change);
        lane.uncertain = true;
        match self.lane_store.write_lane(slot.number, &record, lane.revision).await? {
            RecordWrite::Stored(revision) => {
                lane.revision = revision;
                lane.uncertain = false;
                Ok(true)
            }
            RecordWrite::Conflict => Ok(false),
        }
    }

    /// Writes the change that `plan` computes to the record, and returns it for the caller to apply. `None` means that
    /// another consumer owns the lane.
    pub(crate) async fn write_change(
        &self,
        slot: &LaneSlot,
        owned: &mut Option<OwnedLane>,
        plan: impl Fn(&LaneMessages) -> LaneChange,
    ) -> Result<Option<LaneChange>, Error> {
        for _ in 0..WRITE_ATTEMPTS_MAX {
            self.reload_if_uncertain(slot, owned).await?;
            let Some(lane) = owned else { return Ok(None) };
            let change = plan(&lane.messages);
            if change.is_empty() || self.write_record(slot, lane, &change).await? {
                return Ok(Some(change));
            }
        }
        Err(Error::Unconfirmed(self.timeout))
    }

    /// Releases a lane and records its state.
    pub(crate) async fn release(&self, slot: &LaneSlot, owned: &mut Option<OwnedLane>) -> Result<(), Error> {
        for _ in 0..WRITE_ATTEMPTS_MAX {
            self.reload_if_uncertain(slot, owned).await?;
            let Some(lane) = owned else { return Ok(()) };
            let record = lane.record(None, self.lease_ms(), &LaneChange::default());
            lane.uncertain = true;
            if let RecordWrite::Stored(_) = self.lane_store.write_lane(slot.number, &record, lane.revision).await? {
                *owned = None;
                return Ok(());
            }
        }
        Err(Error::Unconfirmed(self.timeout))
    }

    /// Sends acknowledgements to the server. The record is authoritative: if an acknowledgement is lost, the server
    /// redelivers the message after `ack_wait`, and this consumer acknowledges it again.
    pub(crate) async fn ack_at_server(&self, slot: &LaneSlot, acks: Vec<ServerAck>) {
        let all = async {
            for ServerAck { seq, reply } in acks {
                let reply = reply.unwrap_or_else(|| self.ack_subject(slot, seq));
                if self.client.publish(reply, AckKind::Ack.into()).await.is_err() {
                    return;
                }
            }
        };
        // Without a connection, publishing would wait for one.
        if tokio::time::timeout(self.timeout, all).await.is_err() {
            tracing::debug!(group = self.group.name, lane = %slot.lane, "acknowledgements not sent to the server, which will redeliver");
        }
    }

    /// The reply subject of a message that was delivered to another consumer. The server uses only the sequence.
    pub(crate) fn ack_subject(&self, slot: &LaneSlot, seq: u64) -> Subject {
        format!("$JS.ACK.{}.{}.1.{seq}.1.1.0", self.group.stream, slot.durable).into()
    }
}
