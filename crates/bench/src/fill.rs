//! Dedicated databases, filled with messages.

use anyhow::Context as _;
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_core::outbox::admin::OutboxAdmin as _;
use relevo_store_postgres::{Config, Operator, OperatorConfig, Schema, StartFrom, Store, migrate};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row as _};

/// Number of keys.
pub(crate) const KEYS: u32 = 1000;
/// Size of a payload.
pub(crate) const PAYLOAD_BYTES: usize = 300;
/// Number of shards of the destination.
pub(crate) const SHARDS: u16 = 8;

/// A fresh database with an outbox. An existing database is dropped first.
pub(crate) struct Bench {
    pub(crate) options: PgConnectOptions,
    pub(crate) connection: PgConnection,
}

impl Bench {
    pub(crate) async fn new(server: &PgConnectOptions, name: &str) -> anyhow::Result<Self> {
        let mut admin = server.connect().await.context("the server cannot be reached")?;
        let name = format!("relevo_bench_{name}");
        run(&mut admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        run(&mut admin, &format!("CREATE DATABASE {name}")).await?;
        let options = server.clone().database(&name);
        let mut connection = options.connect().await?;
        migrate::migrate(&mut connection, &Schema::default()).await?;
        Ok(Self { options, connection })
    }

    /// A store for the destination `main`, which is added if it does not exist.
    pub(crate) async fn store(&self) -> anyhow::Result<Store> {
        self.operator().await?.add_destination("main", SHARDS, StartFrom::Oldest).await?;
        Ok(Store::open(Config::new(self.options.clone(), "main")).await?)
    }

    pub(crate) async fn operator(&self) -> anyhow::Result<Operator> {
        Ok(Operator::open(OperatorConfig::new(self.options.clone())).await?)
    }

    /// Resets the progress, so that the same messages can be drained again.
    pub(crate) async fn rewind(&mut self) -> anyhow::Result<()> {
        run(&mut self.connection, "DELETE FROM relevo.parked_key").await?;
        run(
            &mut self.connection,
            "INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             SELECT destination, 8, shard, 0, 0, 0, epoch FROM relevo.lease",
        )
        .await?;
        run(&mut self.connection, "CHECKPOINT").await
    }

    /// Writes `count` messages directly into the log, in transactions of a thousand: the fastest way to fill it.
    pub(crate) async fn fill(&mut self, count: u32) -> anyhow::Result<()> {
        let mut left = count;
        while left > 0 {
            let now = left.min(100_000);
            run(&mut self.connection, "SELECT relevo.maintain()").await?;
            let mut rest = now;
            while rest > 0 {
                let part = rest.min(1000);
                run(
                    &mut self.connection,
                    &format!(
                        "INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload) \
                         SELECT nextval('relevo.message_seq'), pg_current_xact_id(), relevo.slot_of(k), relevo.new_id(), \
                         clock_timestamp(), 'orders', k, 'OrderPlaced', 'application/json', \
                         convert_to(rpad('', {PAYLOAD_BYTES}, 'x'), 'UTF8') \
                         FROM (SELECT 'k-' || (random() * {KEYS})::int AS k FROM generate_series(1, {part})) AS a"
                    ),
                )
                .await?;
                rest -= part;
            }
            left -= now;
        }
        run(&mut self.connection, "VACUUM ANALYZE relevo.message").await?;
        run(&mut self.connection, "CHECKPOINT").await
    }
}

pub(crate) async fn run(connection: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.with_context(|| sql.to_owned())?;
    Ok(())
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> anyhow::Result<i64> {
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
    Ok(row.try_get(0)?)
}

/// A broker that confirms at once and stores nothing.
pub(crate) fn quick_broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig { keeps_messages: false, ..BrokerConfig::default() })
}
