//! Real faults of the file, and the failure classes that they cause.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group};
use relevo_conformance::broker::harness::{
    ADDRESS, numbers, publication, publish, publish_all, receive, stale, with_message,
};
use relevo_core::{BrokerConsumer as _, Class, Publication};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use crate::directory::{Directory, connect, stored_messages};

fn config(directory: &Path) -> Config {
    Config::new(directory.join("broker.db"))
}

async fn open(directory: &Path) -> BrokerFile {
    BrokerFile::open(config(directory)).await.expect("the file can be opened")
}

/// A broker that reports a locked file quickly. The file is created first, because that takes longer than the short
/// timeout.
async fn open_with_short_wait(directory: &Path) -> BrokerFile {
    open(directory).await.close().await;
    let config = Config { busy_timeout: Duration::from_secs(2), ..config(directory) };
    BrokerFile::open(config).await.expect("the file can be opened")
}

async fn stored_numbers(directory: &Path) -> Vec<i64> {
    numbers(stored_messages(&directory.join("broker.db"), ADDRESS).await.iter())
}

async fn other_connection(directory: &Path) -> SqliteConnection {
    connect(&directory.join("broker.db")).await
}

/// A file system in memory, small enough to fill up.
struct SmallDisk(Directory);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let directory = Directory::new();
        mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], directory.path());
        Self(directory)
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], self.0.path());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmount lazily: connections may still be closing.
        Command::new("umount").arg("-l").arg(self.0.path()).status().ok();
    }
}

fn mount(arguments: &[&str], path: &Path) {
    let status = Command::new("mount").args(arguments).arg(path).status().expect("`mount` runs");
    assert!(status.success(), "`mount` requires root");
}

/// Publishes 4 kB messages, ten at a time, until a publish fails. Returns the number of confirmed messages and the
/// failure class.
async fn fill(broker: &BrokerFile) -> (u32, Class) {
    for batch in 0..10_000 {
        let messages = (batch * 10..batch * 10 + 10).map(|number| {
            with_message(&publication(number, "k"), |message| message.payload = vec![b'x'; 4_096].into())
        });
        let outcomes = publish(broker, &messages.collect::<Vec<Publication>>()).await;
        if let Some(class) = outcomes[0] {
            assert!(outcomes.iter().all(|outcome| *outcome == Some(class)), "a batch is stored whole or not at all");
            return (batch * 10, class);
        }
    }
    panic!("the disk is not full");
}

#[tokio::test]
async fn opening_waits_for_another_writer_of_a_new_file() {
    let directory = Directory::new();
    let file = directory.path().join("broker.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let mut other = options.connect().await.expect("the file can be made");
    // The file has no write-ahead log yet. SQLite then reports the other writer at once and ignores the busy timeout.
    sqlx::raw_sql("BEGIN IMMEDIATE; CREATE TABLE theirs (what)").execute(&mut other).await.expect("a writer");
    let mut opening = std::pin::pin!(BrokerFile::open(Config::new(&file)));
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut opening).await.is_err(), "it waits");
    sqlx::raw_sql("COMMIT").execute(&mut other).await.expect("the writer ends");
    publish_all(&opening.await.expect("the file can be opened"), &[publication(1, "k")]).await;
}

#[tokio::test]
async fn a_full_disk_is_an_outage_and_loses_nothing() {
    let disk = SmallDisk::new("4m");
    let broker = open(disk.0.path()).await;
    let (confirmed, class) = fill(&broker).await;
    assert_eq!(class, Class::Outage);
    let expected: Vec<i64> = (0..i64::from(confirmed)).collect();
    assert_eq!(stored_numbers(disk.0.path()).await, expected);
    // The outage lasts while the disk is full, and ends when there is space. The broker need not be reopened.
    assert_eq!(fill(&broker).await.1, Class::Outage);
    disk.remount("size=64m");
    publish_all(&broker, &[publication(confirmed, "k")]).await;
    broker.close().await;
    open(disk.0.path()).await;
    assert_eq!(stored_numbers(disk.0.path()).await, (0..=i64::from(confirmed)).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_consumer_survives_a_full_disk() {
    let disk = SmallDisk::new("4m");
    let broker = open(disk.0.path()).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let (confirmed, _) = fill(&broker).await;
    let failure = loop {
        // A few writes may still fit into the last pages of the log; eventually every write fails.
        match consumer.receive(50).await {
            Ok(_) => {}
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.class(), Class::Outage, "{}", failure.error_chain());
    disk.remount("size=64m");
    consumer.close().await.expect("closed");
    let consumer =
        broker.consumer("g", ConsumerOptions { prefetch: 10_000, ..ConsumerOptions::default() }).await.expect("one");
    let held = receive(&consumer, usize::try_from(confirmed).expect("few")).await;
    assert_eq!(numbers(held.iter().map(|delivery| &delivery.raw)), (0..i64::from(confirmed)).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_locked_file_is_an_outage_until_it_is_unlocked() {
    let directory = Directory::new();
    let broker = open_with_short_wait(directory.path()).await;
    let mut other = other_connection(directory.path()).await;
    let lock = other.begin_with("BEGIN EXCLUSIVE").await.expect("the lock");
    assert_eq!(publish(&broker, &[publication(1, "a")]).await, [Some(Class::Outage)]);
    // Reading still works.
    assert_eq!(stored_numbers(directory.path()).await, Vec::<i64>::new());
    lock.rollback().await.expect("unlocked");
    publish_all(&broker, &[publication(1, "a")]).await;
    assert_eq!(stored_numbers(directory.path()).await, [1]);
}

#[tokio::test]
async fn consumers_wait_for_a_locked_file() {
    let directory = Directory::new();
    let broker = open_with_short_wait(directory.path()).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    publish_all(&broker, &[publication(1, "a"), publication(2, "b")]).await;
    let held = receive(&consumer, 1).await;
    let mut other = other_connection(directory.path()).await;
    let lock = other.begin_with("BEGIN EXCLUSIVE").await.expect("the lock");
    let failure = consumer.receive(1).await.expect_err("locked");
    assert_eq!(failure.class(), Class::Outage);
    let tag = [held[0].tag];
    assert_eq!(stale(&consumer, &tag).await.expect_err("locked").class(), Class::Outage);
    lock.rollback().await.expect("unlocked");
    assert_eq!(stale(&consumer, &tag).await.expect("settled"), []);
    assert_eq!(receive(&consumer, 1).await.len(), 1);
}

#[tokio::test]
async fn a_corrupt_file_is_blocked_until_it_is_repaired() {
    let directory = Directory::new();
    let broker = open(directory.path()).await;
    let batch: Vec<Publication> = (0..2_000).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &batch).await;
    broker.close().await;
    let path = directory.path().join("broker.db");
    let whole = std::fs::read(&path).expect("the file can be read");
    // Overwrite everything except the first pages, which describe the tables.
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file can be opened");
    file.seek(SeekFrom::Start(4_096 * 16)).expect("it is longer");
    file.write_all(&vec![0xa5; whole.len() - 4_096 * 16]).expect("it can be written");
    let broker = open(directory.path()).await;
    assert_eq!(publish(&broker, &[publication(2_000, "k")]).await, [Some(Class::Blocked)]);
    broker.close().await;

    std::fs::write(&path, &whole).expect("it can be written");
    let broker = open(directory.path()).await;
    publish_all(&broker, &[publication(2_000, "k")]).await;
    assert_eq!(stored_numbers(directory.path()).await, (0..=2_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_rejected() {
    let directory = Directory::new();
    std::fs::write(directory.path().join("broker.db"), "this is not a database".repeat(100)).expect("written");
    let error = BrokerFile::open(config(directory.path())).await.expect_err("no database");
    assert_eq!(error.class(), Class::Blocked);
    assert_eq!(error.to_string(), "the broker's file is corrupt; hint: restore it from a backup");
}

#[tokio::test]
async fn a_read_only_file_is_blocked() {
    let directory = Directory::new();
    open(directory.path()).await.close().await;
    // File modes do not stop root; the immutable flag does.
    let path = directory.path().join("broker.db");
    let chattr = |change: &str| Command::new("chattr").arg(change).arg(&path).status().expect("`chattr` runs");
    assert!(chattr("+i").success());
    let result = BrokerFile::open(config(directory.path())).await;
    assert!(chattr("-i").success());
    let error = result.expect_err("it may not be written");
    assert_eq!(error.class(), Class::Blocked, "{error:?}");
}

#[tokio::test]
async fn a_read_only_disk_is_an_outage() {
    let disk = SmallDisk::new("8m");
    open(disk.0.path()).await.close().await;
    disk.remount("ro");
    let error = BrokerFile::open(config(disk.0.path())).await.expect_err("it may not be written");
    assert_eq!(error.class(), Class::Outage, "{error:?}");
}

#[tokio::test]
async fn a_missing_directory_is_an_outage() {
    let directory = Directory::new();
    let error = BrokerFile::open(config(&directory.path().join("missing"))).await.expect_err("no directory");
    assert_eq!(error.class(), Class::Outage, "{error:?}");
}

#[tokio::test]
async fn tables_of_a_later_version_are_rejected() {
    let directory = Directory::new();
    open(directory.path()).await.close().await;
    let mut other = other_connection(directory.path()).await;
    sqlx::query("UPDATE broker_meta SET version = 99").execute(&mut other).await.expect("updated");
    let error = BrokerFile::open(config(directory.path())).await.expect_err("a later version");
    assert_eq!(error.class(), Class::Blocked);
    assert_eq!(
        error.to_string(),
        "the broker's tables do not fit this program: they have version 99, this program has version 3"
    );
}

/// Versions 1 and 2 had other tables under the same names.
#[tokio::test]
async fn tables_of_an_earlier_version_are_rejected() {
    let directory = Directory::new();
    open(directory.path()).await.close().await;
    for version in [1, 2] {
        let mut other = other_connection(directory.path()).await;
        let update = sqlx::query("UPDATE broker_meta SET version = ?1").bind(version);
        update.execute(&mut other).await.expect("updated");
        let error = BrokerFile::open(config(directory.path())).await.expect_err("an earlier version");
        assert_eq!(error.class(), Class::Blocked);
        let expected = format!("they have version {version}, which this program cannot migrate to 3; hint: ");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// The statements that create the tables, without their comments.
#[tokio::test]
async fn the_tables_are_these() {
    let directory = Directory::new();
    open(directory.path()).await.close().await;
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name LIKE 'broker_%' ORDER BY tbl_name, type DESC, name";
    let statements: Vec<String> =
        sqlx::query_scalar(sql).fetch_all(&mut other_connection(directory.path()).await).await.expect("tables");
    let statement = |sql: &String| {
        let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(statements.iter().map(statement).collect::<Vec<_>>().join("\n\n"));
}

#[tokio::test]
async fn missing_tables_are_blocked() {
    let directory = Directory::new();
    let broker = open(directory.path()).await;
    let mut other = other_connection(directory.path()).await;
    sqlx::query("DROP TABLE broker_message").execute(&mut other).await.expect("dropped");
    assert_eq!(publish(&broker, &[publication(1, "a")]).await, [Some(Class::Blocked)]);
}
