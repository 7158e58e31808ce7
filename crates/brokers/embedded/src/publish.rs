//! The broker handle, and its publishing side.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{Broker, Capabilities, OutcomeSender, Publication, slot, wire};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::{Connections, WriteTransaction};
use crate::consume::ChangeNotifier;
use crate::migrations;
use crate::retention::PruneSchedule;

/// A durable broker in a SQLite file. Cheap to clone: clones share their connections and wake each other's consumers.
#[derive(Clone, Debug)]
pub struct BrokerFile(pub(crate) Arc<BrokerInner>);

#[derive(Debug)]
pub(crate) struct BrokerInner {
    pub(crate) config: Config,
    pub(crate) connections: Connections,
    pub(crate) change_notifier: ChangeNotifier,
    pub(crate) prune_schedule: PruneSchedule,
    /// Messages up to this sequence number may have been delivered before the machine was last booted.
    pub(crate) redelivered_through: i64,
}

impl BrokerFile {
    /// Opens the broker's file. Creates the file and the tables if they are missing.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let connections = Connections::open(&config).await?;
        let redelivered_through = migrations::migrate(connections.begin_durable().await?).await?;
        let change_notifier = ChangeNotifier::new(connections.watch());
        Ok(Self(Arc::new(BrokerInner {
            config,
            connections,
            change_notifier,
            prune_schedule: PruneSchedule::default(),
            redelivered_through,
        })))
    }

    /// Stores any message with text headers. `key` selects its lane; messages of one key keep their order.
    ///
    /// Use it for messages that do not come from an outbox: duplicates are not detected.
    pub async fn publish_raw(&self, address: &str, key: &str, headers: &Headers, payload: Bytes) -> Result<(), Error> {
        let row = EncodedMessage::from_raw(address, key, headers, payload);
        row.validate(self.0.config.message_size_max)?;
        self.store(&[row]).await
    }

    /// Closes the file. Later calls fail, so close the consumers first.
    pub async fn close(&self) {
        self.0.connections.close().await;
    }

    async fn store(&self, rows: &[EncodedMessage<'_>]) -> Result<(), Error> {
        let BrokerInner { config, connections, .. } = &*self.0;
        loop {
            match store(connections.begin_durable().await?, rows, config).await {
                Err(Error::Full { .. }) if self.prune_to_fit(rows).await? => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.0.change_notifier.notify();
        Ok(())
    }
}

#[async_trait]
impl Broker for BrokerFile {
    fn capabilities(&self) -> Capabilities {
        // A batch is one transaction, so no message can overtake a failed one of the same key.
        Capabilities { ordered_in_flight: true }
    }

    async fn close(&self) {
        Self::close(self).await;
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let (rows, refused) = encode_batch(batch, &self.0.config);
        confirms.report_all(refused.into_iter().map(|(index, error)| (index, Err(error.into()))));
        if rows.is_empty() {
            return;
        }
        let (indexes, rows): (Vec<usize>, Vec<EncodedMessage<'_>>) = rows.into_iter().unzip();
        match self.store(&rows).await {
            Ok(()) => confirms.report_all(indexes.into_iter().map(|index| (index, Ok(())))),
            Err(error) => {
                let error = Arc::new(error);
                let failure = |index| (index, Err(Error::Shared(Arc::clone(&error)).into()));
                confirms.report_all(indexes.into_iter().map(failure));
            }
        }
        self.prune_if_due(rows.len()).await;
    }
}

/// A message as it is stored.
pub(crate) struct EncodedMessage<'a> {
    address: &'a str,
    key: &'a str,
    id: Option<Uuid>,
    headers: String,
    payload: Bytes,
}

impl<'a> EncodedMessage<'a> {
    fn from_raw(address: &'a str, key: &'a str, headers: &Headers, payload: Bytes) -> Self {
        let headers = serde_json::to_string(headers).expect("a map of strings is always JSON");
        Self { address, key, id: None, headers, payload }
    }

    fn from_publication(publication: &'a Publication, source: &str) -> Self {
        let message = &*publication.message;
        let id = Some(*message.id.as_uuid());
        let headers = wire::headers(publication, source);
        Self { id, ..Self::from_raw(&publication.address, &message.key, &headers, message.payload.clone()) }
    }

    fn bytes(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    fn validate(&self, max: usize) -> Result<(), Error> {
        let bytes = self.bytes();
        if bytes > max { Err(Error::TooLarge { bytes, max }) } else { Ok(()) }
    }
}

/// The number of messages and of bytes in these rows.
pub(crate) fn batch_size(rows: &[EncodedMessage<'_>]) -> (u64, u64) {
    (rows.len() as u64, rows.iter().map(|row| row.bytes() as u64).sum())
}

type Indexed<T> = Vec<(usize, T)>;

/// Splits a batch into messages to store and messages to refuse. A message is refused if it, or an earlier one of its
/// key, is too large.
fn encode_batch<'a>(batch: &'a [Publication], config: &Config) -> (Indexed<EncodedMessage<'a>>, Indexed<Error>) {
    let mut rows = Vec::with_capacity(batch.len());
    let mut refused = Vec::new();
    let mut keys = HashSet::new();
    for (index, publication) in batch.iter().enumerate() {
        let row = EncodedMessage::from_publication(publication, &config.source);
        if keys.contains(row.key) {
            refused.push((index, Error::EarlierRefused));
        } else if let Err(error) = row.validate(config.message_size_max) {
            keys.insert(row.key);
            refused.push((index, error));
        } else {
            rows.push((index, row));
        }
    }
    (rows, refused)
}

/// Stores all rows or none. Returns an error if the broker is full.
async fn store(mut write: WriteTransaction, rows: &[EncodedMessage<'_>], config: &Config) -> Result<(), Error> {
    let meta = sqlx::query(
        "SELECT messages, bytes, CAST(unixepoch('subsec') * 1000 AS INTEGER),
                coalesce((SELECT max(seq) FROM broker_message), 0) FROM broker_meta",
    )
    .fetch_one(write.connection())
    .await?;
    let (messages, bytes): (u64, u64) = (meta.get::<i64, _>(0).cast_unsigned(), meta.get::<i64, _>(1).cast_unsigned());
    let (now, newest): (i64, i64) = (meta.get(2), meta.get(3));
    let (more, more_bytes) = batch_size(rows);
    if messages + more > config.messages_max || bytes + more_bytes > config.bytes_max {
        write.rollback().await?;
        return Err(Error::Full { messages, bytes });
    }
    let mut stored = 0;
    let mut rest = rows;
    while !rest.is_empty() {
        // Use only a few sizes, so that each statement is prepared once.
        let size = [128, 16, 1].into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
        let (chunk, tail) = rest.split_at(size);
        stored += insert(&mut write, chunk, now).await?;
        rest = tail;
    }
    let (added, added_bytes) = if stored == more { (more, more_bytes) } else { size_after(&mut write, newest).await? };
    sqlx::query("UPDATE broker_meta SET messages = messages + ?1, bytes = bytes + ?2")
        .bind(added.cast_signed())
        .bind(added_bytes.cast_signed())
        .execute(write.connection())
        .await?;
    write.commit().await
}

async fn insert(write: &mut WriteTransaction, rows: &[EncodedMessage<'_>], now: i64) -> Result<u64, Error> {
    let mut sql =
        String::from("INSERT INTO broker_message (address, slot, key, id, stored_at_ms, headers, payload) VALUES ");
    for index in 0..rows.len() {
        let comma = if index == 0 { "" } else { "," };
        write!(sql, "{comma}(?,?,?,?,?,?,?)").expect("writing to a string does not fail");
    }
    // Not a plain `DO NOTHING`, which would hide other conflicts.
    sql.push_str(" ON CONFLICT (id, address) WHERE id IS NOT NULL DO NOTHING");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for row in rows {
        query = query
            .bind(row.address)
            .bind(i64::from(slot::slot_of(row.key)))
            .bind(row.key)
            .bind(row.id)
            .bind(now)
            .bind(&*row.headers)
            .bind(&*row.payload);
    }
    Ok(query.execute(write.connection()).await?.rows_affected())
}

/// The number and size of the rows after `newest`. Duplicates in the batch were not stored and do not count.
async fn size_after(write: &mut WriteTransaction, newest: i64) -> Result<(u64, u64), Error> {
    let row = sqlx::query(
        "SELECT count(*), coalesce(sum(octet_length(headers) + octet_length(payload)), 0)
         FROM broker_message WHERE seq > ?1",
    )
    .bind(newest)
    .fetch_one(write.connection())
    .await?;
    Ok((row.get::<i64, _>(0).cast_unsigned(), row.get::<i64, _>(1).cast_unsigned()))
}
