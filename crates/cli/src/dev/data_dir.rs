//! The directory of the demo: three databases, as three services would have.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, anyhow};
use relevo_broker_embedded::{BrokerFile, Group};
use relevo_core::inbox::InboxRetention;
use relevo_core::outbox::admin::{OutboxAdmin as _, StartFrom};
use relevo_store_sqlite::inbox::{self, Inbox};
use relevo_store_sqlite::{Config, Operator, OperatorConfig, Store, connect_options, migrate};
use sqlx::error::DatabaseError;
use sqlx::{ConnectOptions as _, SqliteConnection};

use super::{orders, shipping};

/// The one destination of the shop's outbox.
pub(crate) const DESTINATION: &str = "main";
/// The number of shards of the outbox.
pub(crate) const SHARDS: u16 = 8;
/// The consumer, and its group at the broker.
pub(crate) const GROUP: &str = "shipping";

/// The data directory.
#[derive(Debug)]
pub(crate) struct DataDir {
    directory: PathBuf,
}

impl DataDir {
    /// Opens the data directory. Creates everything that is missing.
    pub(crate) async fn open(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| {
            let shown = directory.display();
            anyhow!("directory `{shown}` cannot be written; hint: choose another directory with `--data`")
        })?;
        let data = Self { directory: directory.to_owned() };
        migrate::migrate(&data.file("shop")).await.context("the outbox cannot be created")?;
        data.operator().await?.add_destination(DESTINATION, SHARDS, StartFrom::Oldest).await?;
        orders::open(&mut data.orders().await?).await?;
        migrate::migrate(&data.file("shipping")).await.context("the inbox cannot be created")?;
        shipping::open(&mut data.shipping().await?).await?;
        data.broker().await?.declare_group(&Group::new(GROUP, ["orders"])).await?;
        Ok(data)
    }

    /// The operator's access to the outbox.
    pub(crate) async fn operator(&self) -> Result<Operator> {
        Operator::open(OperatorConfig::new(self.file("shop"))).await.context("the outbox cannot be opened")
    }

    /// The relay's access to the outbox.
    pub(crate) async fn store(&self) -> Result<Store> {
        Store::open(Config::new(self.file("shop"), DESTINATION)).await.context("the outbox cannot be opened")
    }

    /// The inbox of the consumer.
    pub(crate) async fn inbox(&self) -> Result<Inbox> {
        let config = inbox::Config::new(self.file("shipping"));
        Inbox::open(&config, GROUP, InboxRetention::default()).await.context("the inbox cannot be opened")
    }

    /// The operator's access to the inbox.
    pub(crate) async fn consumers(&self) -> Result<Operator> {
        Operator::open(OperatorConfig::new(self.file("shipping"))).await.context("the inbox cannot be opened")
    }

    /// The broker.
    pub(crate) async fn broker(&self) -> Result<BrokerFile> {
        let file = self.file("broker");
        let opened = BrokerFile::open(relevo_broker_embedded::Config::new(&file)).await;
        opened.with_context(|| format!("the broker's `{}` cannot be opened", file.display()))
    }

    /// A connection of the shop.
    pub(crate) async fn orders(&self) -> Result<SqliteConnection> {
        self.connect("shop").await
    }

    /// A connection of shipping.
    pub(crate) async fn shipping(&self) -> Result<SqliteConnection> {
        self.connect("shipping").await
    }

    /// The command that lists the messages of the outbox.
    pub(crate) fn list_command(&self) -> String {
        format!("relevo message list --database sqlite:{}", self.file("shop").display())
    }

    /// The command that shows the consumer.
    pub(crate) fn consumer_command(&self) -> String {
        format!("relevo consumer show {GROUP} --database sqlite:{}", self.file("shipping").display())
    }

    /// The directory and its files.
    pub(crate) fn description(&self) -> String {
        format!("{}: shop.db (orders and outbox), broker.db, shipping.db (inbox and effects)", self.directory.display())
    }

    async fn connect(&self, name: &str) -> Result<SqliteConnection> {
        let file = self.file(name);
        let options = connect_options(&file).create_if_missing(true).disable_statement_logging();
        options.connect().await.with_context(|| format!("`{}` cannot be opened", file.display()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.db"))
    }
}

const FULL: i32 = 13;
const NO_DATABASE: i32 = 26;
const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;

/// Adds a hint to an error that SQLite caused, unless it has one.
pub(crate) fn add_hint(error: Error) -> Error {
    if error.chain().any(|cause| cause.to_string().contains("hint: ")) {
        return error;
    }
    let Some(code) = error.chain().find_map(result_code) else { return error };
    match code & 0xff {
        FULL => error.context(
            "the disk is full, and no committed message is lost; hint: free some space and start the demo again",
        ),
        NO_DATABASE => {
            error.context("a file of the demo is not a database; hint: choose another directory with `--data`")
        }
        BUSY => error.context("a file of the demo is locked; hint: find the process that has it open"),
        READ_ONLY => error.context("a file of the demo is not writable; hint: choose another directory with `--data`"),
        _ => error,
    }
}

fn result_code(cause: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let database = |error: &dyn DatabaseError| error.code().and_then(|code| code.parse().ok());
    if let Some(error) = cause.downcast_ref::<sqlx::Error>() {
        return error.as_database_error().and_then(database);
    }
    cause.downcast_ref::<sqlx::sqlite::SqliteError>().and_then(|error| database(error))
}
