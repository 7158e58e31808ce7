//! A stream as a replay source: all stored messages, acknowledged or not.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy, pull};
use async_nats::jetstream::stream::{self, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use relevo_core::replay_source::{
    LogBounds, LogMessage, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use relevo_core::{Lane, RawMessage};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::{Error, api_error};
use crate::config::Config;
use crate::connection::{self, jetstream};
use crate::consume::lane_store::next_message;
use crate::headers::decode_headers;
use crate::topology::Group;
use crate::topology::apply::is_stream_not_found;
use crate::topology::validate::overlap;

/// The number of messages that one call reads.
const CHUNK: usize = 1_000;
/// The server deletes a reader that was inactive for this long.
const READER_INACTIVE_MAX: Duration = Duration::from_secs(30);

/// The stored messages of a group's subjects, as its consumers receive them.
#[derive(Debug)]
pub struct ReplayLog {
    context: Context,
    group: Group,
    timeout: Duration,
    reader: Mutex<Option<Reader>>,
}

/// A private consumer on the server, and its position.
#[derive(Debug)]
struct Reader {
    consumer: Consumer<pull::Config>,
    /// The stream sequence of its last message.
    last_sequence: u64,
    /// The number of messages that it delivered.
    delivered: u64,
}

impl ReplayLog {
    /// Opens the log with the subjects of this group. The group need not exist on the server.
    pub async fn open(config: &Config, group: &Group) -> Result<Self, ReplaySourceError> {
        group.validate()?;
        let client = connection::connect(config).await?;
        let context = jetstream(&client, config);
        let log = Self { context, group: group.clone(), timeout: config.confirm_timeout, reader: Mutex::default() };
        let retention = log.info().await?.config.retention;
        if retention != RetentionPolicy::Limits {
            return Err(ReplaySourceError::Unsupported(format!(
                "the stream `{}` deletes acknowledged messages, so they cannot be replayed; hint: replay from the outbox \
                 log, or set `retention = \"limits\"`",
                group.stream
            )));
        }
        Ok(log)
    }

    async fn stream(&self) -> Result<Stream<()>, Error> {
        self.context.get_stream_no_info(&self.group.stream).await.map_err(|error| api_error("get the stream", error))
    }

    async fn info(&self) -> Result<stream::Info, ReplaySourceError> {
        match self.context.get_stream(&self.group.stream).await {
            Ok(stream) => Ok(stream.cached_info().clone()),
            Err(error) if is_stream_not_found(&error.kind()) => Err(ReplaySourceError::Unsupported(format!(
                "the server has no stream `{}`; hint: `relevo topology plan` compares the topology with the server",
                self.group.stream
            ))),
            Err(error) => Err(api_error("get the stream", error).into()),
        }
    }

    /// The sequence after which the reader starts: its position, or shortly before the first message of the time range.
    async fn start_after(&self, filter: &ReplayFilter, after: u64) -> Result<u64, ReplaySourceError> {
        let low = filter.start_after(after);
        let (Some(since), Some(bounds)) = (filter.since.filter(|_| after == 0), self.bounds().await?) else {
            return Ok(low);
        };
        let stream = self.stream().await?;
        let (mut low, mut high) = (low.max(bounds.first - 1), bounds.last);
        // The first message is after `low`, and not after `high`.
        while low < high {
            let middle = low + (high - low) / 2;
            let found = next_message(&stream, ">", middle + 1).await?;
            match found.map(|message| (message.sequence, timestamp(message.time.unix_timestamp_nanos()))) {
                Some((sequence, at)) if at < since => low = sequence,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    async fn open_reader(&self, start: u64) -> Result<Reader, Error> {
        // An old server does not support several filters: it would accept them and deliver everything.
        let filter_subject = match self.group.subjects.as_slice() {
            [one] => lane_filter(one, self.group.lanes),
            _ => String::new(),
        };
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: start + 1 },
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            inactive_threshold: READER_INACTIVE_MAX,
            memory_storage: true,
            num_replicas: 1,
            filter_subject,
            ..pull::Config::default()
        };
        let created = self.stream().await?.create_consumer(config).await;
        let consumer = created.map_err(|error| api_error("create a reader of the stream", error))?;
        Ok(Reader { consumer, last_sequence: start, delivered: 0 })
    }

    async fn read_page(
        &self,
        filter: &ReplayFilter,
        request: ReplayReadRequest,
    ) -> Result<ReplayPage, ReplaySourceError> {
        let mut slot = self.reader.lock().await;
        let start = self.start_after(filter, request.after).await?;
        let mut reader = match slot.take() {
            Some(reader) if reader.last_sequence == start => reader,
            _ => self.open_reader(start).await?,
        };
        let limit = request.limit.clamp(1, CHUNK);
        let fetched = timeout(self.timeout * 2, self.fetch(&mut reader, filter, request, limit)).await;
        let (page, can_continue) = fetched.map_err(|_| Error::Unconfirmed(self.timeout * 2))??;
        if can_continue {
            *slot = Some(reader);
        }
        Ok(page)
    }

    /// Reads the next messages, and returns whether the reader can continue. It cannot if it received more than this
    /// call used.
    async fn fetch(
        &self,
        reader: &mut Reader,
        filter: &ReplayFilter,
        request: ReplayReadRequest,
        limit: usize,
    ) -> Result<(ReplayPage, bool), Error> {
        let mut page = ReplayPage { messages: Vec::new(), next: reader.last_sequence, ended: false };
        let response = reader.consumer.fetch().max_messages(limit).messages().await;
        let mut messages = response.map_err(|error| api_error("read the stream", error))?;
        let (mut bytes, mut scanned) = (0, 0);
        while let Some(message) = messages.try_next().await.map_err(|error| api_error("read the stream", error))? {
            let info = message.info().map_err(|error| api_error("parse a delivery", error))?;
            let (sequence, pending) = (info.stream_sequence, info.pending);
            // A message was lost: a new reader must request it again.
            if info.consumer_sequence != reader.delivered + 1 {
                return Ok((page, false));
            }
            if filter.to.is_some_and(|to| sequence > to) {
                page.ended = true;
                return Ok((page, false));
            }
            let at = timestamp(info.published.unix_timestamp_nanos());
            (reader.delivered, reader.last_sequence, page.next) = (reader.delivered + 1, sequence, sequence);
            scanned += 1;
            if let Some(message) = self.to_log_message(sequence, at, message).filter(|message| filter.matches(message))
            {
                bytes += message.raw.payload.len();
                page.messages.push(message);
            }
            page.ended = pending == 0;
            if bytes >= request.bytes {
                let can_continue = scanned == limit || page.ended;
                return Ok((page, can_continue));
            }
        }
        if scanned == 0 {
            let info = reader.consumer.info().await.map_err(|error| api_error("get the reader", error))?;
            page.ended = info.num_pending == 0;
        }
        Ok((page, true))
    }

    /// Converts a message to the form that this group's consumers receive; `None` if its subject does not match.
    fn to_log_message(&self, sequence: u64, at: Timestamp, message: jetstream::Message) -> Option<LogMessage> {
        let message = message.message;
        let subject = message.subject.as_str();
        let subjects = &self.group.subjects;
        if !subjects.is_empty() && !subjects.iter().any(|one| overlap(&lane_filter(one, self.group.lanes), subject)) {
            return None;
        }
        let (address, lane) = match self.group.lanes {
            Some(_) => subject.rsplit_once('.').unwrap_or((subject, "0")),
            None => (subject, "0"),
        };
        let headers = message.headers.as_ref().map(|headers: &HeaderMap| decode_headers(headers)).unwrap_or_default();
        Some(LogMessage {
            number: sequence,
            at,
            address: address.into(),
            lane: Lane::new(lane),
            offset: Some(sequence),
            raw: RawMessage::new(headers, message.payload),
        })
    }
}

/// The subjects of all lanes.
fn lane_filter(subject: &str, lanes: Option<u16>) -> String {
    if lanes.is_some() { format!("{subject}.*") } else { subject.to_owned() }
}

fn timestamp(nanos: i128) -> Timestamp {
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[async_trait]
impl ReplaySource for ReplayLog {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let state = self.info().await?.state;
        let bounds = LogBounds { first: state.first_sequence, last: state.last_sequence };
        Ok((state.messages > 0).then_some(bounds))
    }

    async fn read(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        self.read_page(filter, request).await
    }
}
