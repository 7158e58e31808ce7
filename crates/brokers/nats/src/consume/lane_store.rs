//! The owner and the unacknowledged messages of each lane: one record per lane, in a bucket that all consumers share.
//!
//! Only a consumer that has read the newest revision can replace a record. The server compares the revisions, so a
//! consumer that lost its lane changes nothing, however long it was suspended and whatever its clock shows.
//! Acknowledgements cannot do that: the server accepts them from any client, even from one that lost the lane long ago.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderValue, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{RawMessageError, RawMessageErrorKind};
use async_nats::jetstream::{Context, stream};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::classify::{Error, api_error};
use crate::topology::{BUCKET, Group};

/// The record of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneRecord {
    /// The consumer that owns the lane, if any.
    pub(crate) owner: Option<String>,
    /// Increases with every new owner.
    pub(crate) epoch: u64,
    /// The lane is free if the record was not written for this long.
    pub(crate) lease_ms: u64,
    /// When the durable consumer was created. The record applies only to that one.
    pub(crate) durable_ns: i64,
    /// The last message that was delivered. Earlier messages that are not in `unacknowledged` are acknowledged.
    #[serde(rename = "high")]
    pub(crate) handed_out_to: u64,
    /// Messages that were delivered and not acknowledged, by their stream sequence.
    #[serde(rename = "open")]
    pub(crate) unacknowledged: Vec<u64>,
    /// Messages up to this one may have been delivered before this record existed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) redelivered_to: u64,
}

/// The heartbeat of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberHeartbeat {
    /// The display name of the consumer.
    pub(crate) name: String,
    /// Without a heartbeat for this long, the consumer counts as dead.
    pub(crate) lease_ms: u64,
    /// Requests that the other members rebalance at once.
    pub(crate) call: bool,
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct StoredRecord {
    pub(crate) record: LaneRecord,
    pub(crate) revision: u64,
    /// When it was written, by the server's clock.
    pub(crate) written_at_ms: i64,
}

/// The result of replacing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordWrite {
    /// The record was stored with this revision.
    Stored(u64),
    /// Another consumer wrote the record first; nothing was changed.
    Conflict,
}

/// The records and members of one group.
#[derive(Debug)]
pub(crate) struct LaneStore {
    context: Context,
    stream: stream::Stream<()>,
    prefix: String,
    timeout: Duration,
}

impl LaneStore {
    /// Opens the bucket, which must exist.
    pub(crate) async fn open(context: &Context, group: &Group, timeout: Duration) -> Result<Self, Error> {
        let stream = context
            .get_stream_no_info(stream_name())
            .await
            .map_err(|error| api_error("get the bucket of lanes", error))?;
        let prefix = format!("$KV.{BUCKET}.{}.{}", group.stream, group.name);
        Ok(Self { context: context.clone(), stream, prefix, timeout })
    }

    /// The subject of the heartbeats.
    pub(crate) fn member_subjects(&self) -> String {
        format!("{}.member.*", self.prefix)
    }

    fn lane_subject(&self, lane: u16) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    fn member_subject(&self, id: &str) -> String {
        format!("{}.member.{id}", self.prefix)
    }

    /// Reads the record of a lane, if it exists.
    pub(crate) async fn read_lane(&self, lane: u16) -> Result<Option<StoredRecord>, Error> {
        let subject = self.lane_subject(lane);
        let response = self.stream.raw_message_builder().last_by_subject(subject.as_str()).send().await;
        let Some(message) = none_if_missing(response)? else { return Ok(None) };
        let record = serde_json::from_slice(&message.payload).map_err(|_| Error::InvalidLaneRecord(subject))?;
        Ok(Some(StoredRecord { record, revision: message.sequence, written_at_ms: timestamp_ms(&message) }))
    }

    /// Replaces the record of a lane if `revision` is the newest. Zero means that there is no record.
    pub(crate) async fn write_lane(&self, lane: u16, record: &LaneRecord, revision: u64) -> Result<RecordWrite, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(revision));
        match self.publish(self.lane_subject(lane), headers, json(record)).await {
            Ok(revision) => Ok(RecordWrite::Stored(revision)),
            Err(WriteError::Conflict) => Ok(RecordWrite::Conflict),
            Err(WriteError::Other(error)) => Err(error),
        }
    }

    /// Writes a heartbeat and returns its time by the server's clock.
    pub(crate) async fn heartbeat(&self, id: &str, member: &MemberHeartbeat) -> Result<i64, Error> {
        let written = self.publish(self.member_subject(id), HeaderMap::new(), json(member)).await;
        let sequence = match written {
            Ok(sequence) => sequence,
            Err(WriteError::Conflict) => unreachable!("a heartbeat expects no revision"),
            Err(WriteError::Other(error)) => return Err(error),
        };
        let response = self.stream.raw_message_builder().sequence(sequence).send().await;
        // Only another heartbeat of this consumer could replace it, and those are written one at a time.
        none_if_missing(response)?
            .map(|message| timestamp_ms(&message))
            .ok_or_else(|| Error::InvalidLaneRecord(self.member_subject(id)))
    }

    /// Every member that wrote a heartbeat and did not leave: its id, its heartbeat, and the time by the server's
    /// clock.
    pub(crate) async fn members(&self) -> Result<Vec<(String, MemberHeartbeat, i64)>, Error> {
        let subjects = self.member_subjects();
        // Keyed by id: a bucket created with a longer history has several values for each, and the last one counts.
        let mut members = BTreeMap::new();
        let mut next = 1;
        while let Some(message) = self.next(&subjects, next).await? {
            next = message.sequence + 1;
            let id = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
            if let Ok(member) = serde_json::from_slice(&message.payload) {
                members.insert(id, (member, timestamp_ms(&message)));
            }
        }
        Ok(members.into_iter().map(|(id, (member, at_ms))| (id, member, at_ms)).collect())
    }

    /// Deletes a member and its heartbeat.
    pub(crate) async fn remove_member(&self, id: &str) -> Result<(), Error> {
        let purged = self.stream.purge().filter(self.member_subject(id)).await;
        purged.map(drop).map_err(|error| api_error("delete a member of the group", error))
    }

    async fn next(&self, subjects: &str, from: u64) -> Result<Option<StreamMessage>, Error> {
        next_message(&self.stream, subjects, from).await
    }

    async fn publish(&self, subject: String, headers: HeaderMap, payload: Bytes) -> Result<u64, WriteError> {
        let write_error = |error: async_nats::jetstream::context::PublishError| match error.kind() {
            PublishErrorKind::WrongLastSequence => WriteError::Conflict,
            PublishErrorKind::TimedOut => WriteError::Other(Error::Unconfirmed(self.timeout)),
            PublishErrorKind::StreamNotFound => WriteError::Other(Error::GroupNotFound(format!("KV_{BUCKET}"))),
            PublishErrorKind::BrokenPipe => WriteError::Other(Error::ConnectionLost),
            // Nothing was sent. A group is opened only if every record fits, so the server's limit was changed later.
            PublishErrorKind::MaxPayloadExceeded => WriteError::Other(Error::Config(
                "a lane record exceeds the server's `max_payload`: increase it, or decrease the group's \
                 `max_ack_pending`"
                    .to_owned(),
            )),
            PublishErrorKind::WrongLastMessageId | PublishErrorKind::MaxAckPending | PublishErrorKind::Other => {
                WriteError::Other(api_error("write a lane record", error))
            }
        };
        let sent = self.context.publish_with_headers(subject, headers, payload);
        // Sending waits while there is no connection, and no call may exceed its timeout.
        let Ok(sent) = tokio::time::timeout(self.timeout, sent).await else {
            return Err(WriteError::Other(Error::Unconfirmed(self.timeout)));
        };
        Ok(sent.map_err(write_error)?.await.map_err(write_error)?.sequence)
    }
}

enum WriteError {
    Conflict,
    Other(Error),
}

/// The stream behind the bucket.
pub(crate) fn stream_name() -> String {
    format!("KV_{BUCKET}")
}

/// The first message with a matching subject at or after this sequence, as the stream's leader knows it.
pub(crate) async fn next_message(
    stream: &stream::Stream<()>,
    subjects: &str,
    from: u64,
) -> Result<Option<StreamMessage>, Error> {
    none_if_missing(stream.raw_message_builder().sequence(from).next_by_subject(subjects).send().await)
}

/// A message that may not exist.
pub(crate) fn none_if_missing(
    response: Result<StreamMessage, RawMessageError>,
) -> Result<Option<StreamMessage>, Error> {
    match response {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(api_error("read a message", error)),
    }
}

fn timestamp_ms(message: &StreamMessage) -> i64 {
    i64::try_from(message.time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("a record has only keys of text").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_short_and_round_trips() {
        let record = LaneRecord {
            owner: Some("a".to_owned()),
            epoch: 3,
            lease_ms: 10_000,
            durable_ns: 5,
            handed_out_to: 12,
            unacknowledged: vec![10, 12],
            redelivered_to: 0,
        };
        let text = json(&record);
        assert_eq!(text, r#"{"owner":"a","epoch":3,"lease_ms":10000,"durable_ns":5,"high":12,"open":[10,12]}"#);
        assert_eq!(serde_json::from_slice::<LaneRecord>(&text).expect("a record"), record);
    }
}
