//! Values as both databases hold them: PostgreSQL has types for ids and times, SQLite has text and milliseconds.

use jiff::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Database, Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

/// An id.
pub(super) struct Id(pub(super) Uuid);

/// A time; what is finer than a millisecond is not kept.
pub(super) struct At(pub(super) Timestamp);

/// PostgreSQL's `timestamptz`: microseconds since 2000.
const TIMESTAMPTZ: PgTypeInfo = PgTypeInfo::with_oid(Oid(1184));
const YEAR_2000_MS: i64 = 946_684_800_000;

type Bound<'q, DB> = Query<'q, DB, <DB as Database>::Arguments>;

/// What a statement can be given, whichever database it goes to.
pub(super) trait Value: Sync {
    fn give_postgres<'q>(&self, query: Bound<'q, Postgres>) -> Bound<'q, Postgres>;
    fn give_sqlite<'q>(&self, query: Bound<'q, Sqlite>) -> Bound<'q, Sqlite>;
}

impl<T> Value for T
where
    T: for<'q> Encode<'q, Postgres> + Type<Postgres> + for<'q> Encode<'q, Sqlite> + Type<Sqlite> + Sync,
{
    fn give_postgres<'q>(&self, query: Bound<'q, Postgres>) -> Bound<'q, Postgres> {
        query.bind(self)
    }

    fn give_sqlite<'q>(&self, query: Bound<'q, Sqlite>) -> Bound<'q, Sqlite> {
        query.bind(self)
    }
}

/// What can be read out of a row, whichever database it comes from.
pub(super) trait Column:
    for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite>
{
}

impl<T> Column for T where T: for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite> {}

impl Type<Postgres> for Id {
    fn type_info() -> PgTypeInfo {
        <Uuid as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for Id {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Uuid as Encode<Postgres>>::encode_by_ref(&self.0, buffer)
    }
}

impl Decode<'_, Postgres> for Id {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        <Uuid as Decode<Postgres>>::decode(value).map(Self)
    }
}

impl Type<Sqlite> for Id {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for Id {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <String as Encode<Sqlite>>::encode(self.0.to_string(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for Id {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(<&str as Decode<Sqlite>>::decode(value)?.parse()?))
    }
}

impl Type<Postgres> for At {
    fn type_info() -> PgTypeInfo {
        TIMESTAMPTZ
    }
}

impl Encode<'_, Postgres> for At {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let microseconds = (self.0.as_millisecond() - YEAR_2000_MS) * 1000;
        <i64 as Encode<Postgres>>::encode_by_ref(&microseconds, buffer)
    }
}

impl Decode<'_, Postgres> for At {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let microseconds = <i64 as Decode<Postgres>>::decode(value)?;
        Ok(Self(Timestamp::from_millisecond(microseconds.div_euclid(1000) + YEAR_2000_MS)?))
    }
}

impl Type<Sqlite> for At {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for At {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Sqlite>>::encode_by_ref(&self.0.as_millisecond(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for At {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(Timestamp::from_millisecond(<i64 as Decode<Sqlite>>::decode(value)?)?))
    }
}
