//! Consumer groups: which messages each group receives, and the status of each group.

use futures_util::TryStreamExt as _;
use relevo_core::slot::SLOTS;
use sqlx::Row as _;

use crate::address::AddressPatterns;
use crate::classify::Error;
use crate::consume::lag::LAG_COUNT_MAX;
use crate::publish::BrokerFile;

/// A group of consumers that share every message of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The address patterns, in the pattern language of routes: `*` matches one segment, `**` any number of segments at
    /// the end.
    pub patterns: Vec<String>,
    /// The number of lanes that keys are hashed into. It limits how many consumers work in parallel: at most 256, and
    /// it cannot change.
    pub lanes: u16,
}

impl Group {
    /// A group of sixteen lanes. It starts with the oldest stored message.
    pub fn new<P: Into<String>>(name: impl Into<String>, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { name: name.into(), patterns: patterns.into_iter().map(Into::into).collect(), lanes: 16 }
    }

    fn validate(&self) -> Result<(), Error> {
        let invalid = |reason| Err(Error::InvalidGroup { name: self.name.clone(), reason });
        match self {
            Self { name, .. } if name.is_empty() => invalid("its name is empty"),
            Self { patterns, .. } if patterns.is_empty() => invalid("it has no patterns"),
            Self { lanes, .. } if !(1..=SLOTS).contains(lanes) => invalid("it needs 1 to 256 lanes"),
            _ => Ok(()),
        }
    }

    /// Describes how an existing group differs.
    fn difference(&self, stored: &StoredGroup) -> Option<String> {
        let mut parts = Vec::new();
        if self.patterns != stored.patterns {
            parts.push(format!("patterns are {:?}, requested {:?}", stored.patterns, self.patterns));
        }
        if self.lanes != stored.lanes {
            parts.push(format!("lanes are {}, requested {}", stored.lanes, self.lanes));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The status of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The name.
    pub name: String,
    /// The address patterns of the group.
    pub patterns: Vec<String>,
    /// The number of lanes.
    pub lanes: u16,
    /// The number of live consumers.
    pub consumers: u64,
    /// The number of messages that were never delivered. Above [`LAG_COUNT_MAX`] it is a lower bound.
    pub lag: u64,
    /// The number of messages that are delivered and not acknowledged.
    pub outstanding: u64,
    /// The number of messages that were delivered, returned and wait for the next delivery.
    pub ready: u64,
}

/// A group as stored in the file.
#[derive(Clone, Debug)]
pub(crate) struct StoredGroup {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) patterns: Vec<String>,
    pub(crate) lanes: u16,
}

impl StoredGroup {
    pub(crate) async fn all(reader: impl sqlx::SqliteExecutor<'_>) -> Result<Vec<Self>, Error> {
        let rows = sqlx::query("SELECT id, name, patterns, lanes FROM broker_group ORDER BY name");
        rows.fetch_all(reader).await?.iter().map(Self::read).collect()
    }

    pub(crate) async fn find(reader: impl sqlx::SqliteExecutor<'_>, name: &str) -> Result<Option<Self>, Error> {
        let row = sqlx::query("SELECT id, name, patterns, lanes FROM broker_group WHERE name = ?1");
        row.bind(name).fetch_optional(reader).await?.as_ref().map(Self::read).transpose()
    }

    fn read(row: &sqlx::sqlite::SqliteRow) -> Result<Self, Error> {
        let name: String = row.get(1);
        let malformed = || Error::Schema { detail: format!("the row of group `{name}` is malformed") };
        Ok(Self {
            id: row.get(0),
            patterns: serde_json::from_str(row.get(2)).map_err(|_| malformed())?,
            lanes: u16::try_from(row.get::<i64, _>(3)).map_err(|_| malformed())?,
            name,
        })
    }

    pub(crate) fn patterns(&self) -> AddressPatterns {
        AddressPatterns::new(self.patterns.clone())
    }
}

impl BrokerFile {
    /// Creates a group, which starts with the oldest stored message. An existing group is not changed; if it differs, the
    /// error describes the difference.
    pub async fn declare_group(&self, group: &Group) -> Result<(), Error> {
        group.validate()?;
        let mut write = self.0.connections.begin_durable().await?;
        if let Some(stored) = StoredGroup::find(write.connection(), &group.name).await? {
            write.rollback().await?;
            return match group.difference(&stored) {
                Some(difference) => Err(Error::Mismatch { name: group.name.clone(), difference }),
                None => Ok(()),
            };
        }
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO broker_group (name, patterns, lanes, created_ms)
             VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER)) RETURNING id",
        )
        .bind(&group.name)
        .bind(serde_json::json!(group.patterns).to_string())
        .bind(group.lanes)
        .fetch_one(write.connection())
        .await?;
        sqlx::query(
            "WITH RECURSIVE lane(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM lane WHERE n + 1 < ?2)
             INSERT INTO broker_lane (group_id, lane, cursor) SELECT ?1, n, 0 FROM lane",
        )
        .bind(id)
        .bind(group.lanes)
        .execute(write.connection())
        .await?;
        write.commit().await
    }

    /// Deletes a group and its progress, and returns whether it existed. Its consumers lose all their lanes.
    pub async fn delete_group(&self, name: &str) -> Result<bool, Error> {
        let mut write = self.0.connections.begin_durable().await?;
        let deleted =
            sqlx::query("DELETE FROM broker_group WHERE name = ?1").bind(name).execute(write.connection()).await?;
        write.commit().await?;
        self.0.change_notifier.notify();
        Ok(deleted.rows_affected() > 0)
    }

    /// The status of every group, sorted by name.
    pub async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let mut statuses = Vec::new();
        for group in StoredGroup::all(self.0.connections.readers()).await? {
            statuses.push(self.status(group).await?);
        }
        Ok(statuses)
    }

    async fn status(&self, group: StoredGroup) -> Result<GroupStatus, Error> {
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM broker_member WHERE group_id = ?1 AND lease_until_ms > unixepoch('subsec') * 1000),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 1),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 0)",
        )
        .bind(group.id)
        .fetch_one(self.0.connections.readers())
        .await?;
        let number = |column: usize| row.get::<i64, _>(column).cast_unsigned();
        Ok(GroupStatus {
            consumers: number(0),
            lag: self.lag(&group).await?,
            outstanding: number(1),
            ready: number(2),
            name: group.name,
            patterns: group.patterns,
            lanes: group.lanes,
        })
    }

    async fn lag(&self, group: &StoredGroup) -> Result<u64, Error> {
        let patterns = group.patterns();
        let mut rows = sqlx::query(
            "SELECT m.address FROM broker_message m
             JOIN broker_lane l ON l.group_id = ?1 AND l.lane = m.slot % ?2 AND m.seq > l.cursor
             WHERE m.seq > (SELECT min(cursor) FROM broker_lane WHERE group_id = ?1)",
        )
        .bind(group.id)
        .bind(i64::from(group.lanes))
        .fetch(self.0.connections.readers());
        let mut lag = 0;
        while let Some(row) = rows.try_next().await? {
            lag += u64::from(patterns.matches(row.get(0)));
            if lag > LAG_COUNT_MAX {
                break;
            }
        }
        Ok(lag)
    }
}
