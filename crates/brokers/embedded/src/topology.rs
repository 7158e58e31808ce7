//! Consumer groups: which messages each group receives.

use relevo_core::slot::SLOTS;
use sqlx::Row as _;

use crate::address::AddressPatterns;
use crate::broker::BrokerFile;
use crate::classify::Error;

/// Where a new group starts to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the next message that is published.
    Now,
    /// At the oldest stored message.
    #[default]
    Oldest,
}

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
    /// Where a new group starts to read.
    pub start: Start,
}

impl Group {
    /// A group of sixteen lanes that starts at the oldest message.
    pub fn new<P: Into<String>>(name: impl Into<String>, patterns: impl IntoIterator<Item = P>) -> Self {
        Self {
            name: name.into(),
            patterns: patterns.into_iter().map(Into::into).collect(),
            lanes: 16,
            start: Start::default(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let malformed = |why| Err(Error::InvalidGroup { name: self.name.clone(), why });
        match self {
            Self { name, .. } if name.is_empty() => malformed("its name is empty"),
            Self { patterns, .. } if patterns.is_empty() => malformed("it has no patterns"),
            Self { lanes, .. } if !(1..=SLOTS).contains(lanes) => malformed("it needs 1 to 256 lanes"),
            _ => Ok(()),
        }
    }

    /// Describes how an existing group differs.
    fn difference(&self, stored: &StoredGroup) -> Option<String> {
        let mut parts = Vec::new();
        if self.patterns != stored.patterns {
            parts.push(format!("patterns are {:?}, asked for {:?}", stored.patterns, self.patterns));
        }
        if self.lanes != stored.lanes {
            parts.push(format!("lanes are {}, asked for {}", stored.lanes, self.lanes));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
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
        let malformed = || Error::Schema { what: format!("the row of the group `{name}` cannot be read") };
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
    /// Creates a group. An existing group is not changed; if it differs, the error says how.
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
             INSERT INTO broker_lane (group_id, lane, cursor) SELECT ?1, n,
                 CASE WHEN ?3 THEN coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'broker_message'), 0) ELSE 0 END
             FROM lane",
        )
        .bind(id)
        .bind(group.lanes)
        .bind(group.start == Start::Now)
        .execute(write.connection())
        .await?;
        write.commit().await
    }

    /// Deletes a group and its progress, and returns whether it existed. Its consumers lose all their lanes.
    pub async fn delete_group(&self, name: &str) -> Result<bool, Error> {
        let mut write = self.0.connections.begin_durable().await?;
        let removed =
            sqlx::query("DELETE FROM broker_group WHERE name = ?1").bind(name).execute(write.connection()).await?;
        write.commit().await?;
        self.0.change_notifier.notify();
        Ok(removed.rows_affected() > 0)
    }
}
