//! Kills processes while they publish or consume.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group};
use relevo_conformance::broker::harness::{
    ADDRESS, acknowledge, number, numbers, publication, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::{BrokerConsumer as _, Delivery, Publication};

use crate::directory::{Directory, connect, stored_messages};

/// The environment variables that give the child process its task and its file.
const TASK: &str = "RELEVO_EMBEDDED_TASK";
const FILE: &str = "RELEVO_EMBEDDED_FILE";
const FIRST: &str = "RELEVO_EMBEDDED_FIRST";
/// The prefix of lines that the child writes for its parent.
const DONE: &str = "done ";

/// A child process that publishes from `first` on, or consumes, until it is killed.
struct Worker(Child);

impl Worker {
    fn start(task: &str, path: &Path, first: u32) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program)
            .args(["--exact", "crashes::child_process_entry_point", "--nocapture"])
            .env(TASK, task)
            .env(FILE, path)
            .env(FIRST, first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program can be started");
        Self(child)
    }

    /// Waits for `reports` reports, kills the child, and returns every number that it reported.
    fn kill_after(mut self, reports: usize) -> BTreeSet<i64> {
        let output = BufReader::new(self.0.stdout.take().expect("it is piped"));
        let mut lines = output.lines().map_while(Result::ok).filter_map(|line| line.strip_prefix(DONE).map(parse));
        let mut all: BTreeSet<i64> = lines.by_ref().take(reports).flatten().collect();
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it ends");
        all.extend(lines.flatten());
        all
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already dead, unless the test failed.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn parse(line: &str) -> Vec<i64> {
    line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

fn report(numbers: &[i64]) {
    let line: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    // The test runner would capture the output of a macro.
    writeln!(std::io::stdout(), "{DONE}{}", line.join(" ")).expect("the parent reads");
}

fn membership() -> ConsumerOptions {
    ConsumerOptions { lease: Duration::from_millis(600), prefetch: 64, ..ConsumerOptions::default() }
}

#[tokio::test]
async fn child_process_entry_point() {
    let (Ok(task), Ok(file)) = (std::env::var(TASK), std::env::var(FILE)) else {
        return; // not started as a child: the tests below start it
    };
    let broker = BrokerFile::open(Config::new(file)).await.expect("the file can be opened");
    if task == "publish" {
        let first: u32 = std::env::var(FIRST).expect("a number").parse().expect("a number");
        for start in (first..).step_by(25) {
            let batch: Vec<Publication> =
                (start..start + 25).map(|number| publication(number, &format!("k-{}", number % 7))).collect();
            publish_all(&broker, &batch).await;
            report(&(i64::from(start)..i64::from(start) + 25).collect::<Vec<_>>());
        }
    }
    let consumer = broker.consumer("g", membership()).await.expect("a consumer");
    let mut rest: Vec<Delivery> = Vec::new();
    loop {
        let mut held = consumer.receive(40).await.expect("deliveries");
        // Half of the deliveries are outstanding when the process is killed. The earlier half is acknowledged now: a
        // lane moves to another consumer only when nothing is outstanding.
        let half = held.split_off(held.len().div_ceil(2));
        let some: Vec<Delivery> = rest.drain(..).chain(held).collect();
        rest = half;
        let lost = stale(&consumer, &tags(&some)).await.expect("acknowledged");
        let acknowledged = some.iter().filter(|one| !lost.contains(&one.tag));
        report(&acknowledged.map(number).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn confirmed_messages_of_a_killed_publisher_are_stored() {
    let directory = Directory::new();
    let path = directory.path().join("broker.db");
    let mut confirmed = BTreeSet::new();
    for round in 0..4 {
        let worker = Worker::start("publish", &path, round * 100_000);
        confirmed.extend(worker.kill_after(5 + 11 * round as usize));
    }
    // Opening the broker recovers the file.
    BrokerFile::open(Config::new(&path)).await.expect("the file can be opened");
    let stored = numbers(stored_messages(&path, ADDRESS).await.iter());
    assert!(stored.is_sorted_by(|a, b| a < b), "in order, each once");
    let stored: BTreeSet<i64> = stored.into_iter().collect();
    let missing: Vec<&i64> = confirmed.difference(&stored).collect();
    assert!(missing.is_empty(), "confirmed and lost: {missing:?}");
    // Messages that were stored but not confirmed are whole batches.
    assert_eq!(stored.len() % 25, 0);
}

#[tokio::test]
async fn killed_consumers_lose_no_message_and_no_acknowledgement() {
    let directory = Directory::new();
    let path = directory.path().join("broker.db");
    let broker = BrokerFile::open(Config::new(&path)).await.expect("the file can be opened");
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let total: u32 = 3_000;
    let batch: Vec<Publication> = (0..total).map(|number| publication(number, &format!("k-{}", number % 90))).collect();
    publish_all(&broker, &batch).await;
    let mut acknowledged = BTreeSet::new();
    for reports in [3, 7, 12] {
        // Two workers share the lanes; both are killed.
        let workers = [(); 2].map(|()| Worker::start("consume", &path, 0));
        for worker in workers {
            let some = worker.kill_after(reports);
            let twice: Vec<&i64> = some.intersection(&acknowledged).collect();
            assert!(twice.is_empty(), "acknowledged and delivered again: {twice:?}");
            acknowledged.extend(some);
        }
    }
    let rest = drain(&broker, &acknowledged).await;
    // Each kill may hide the report of one successful call, which is at most 40 messages.
    let seen = acknowledged.len() + rest.len();
    assert!(seen + 6 * 40 >= total as usize, "{seen} of {total}");
}

#[tokio::test]
async fn publishers_and_consumers_that_are_killed_together_lose_nothing() {
    let directory = Directory::new();
    let path = directory.path().join("broker.db");
    let broker = BrokerFile::open(Config::new(&path)).await.expect("the file can be opened");
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let mut confirmed = BTreeSet::new();
    let mut acknowledged = BTreeSet::new();
    for round in 0..3 {
        let publisher = Worker::start("publish", &path, round * 100_000);
        let consumer = Worker::start("consume", &path, 0);
        acknowledged.extend(consumer.kill_after(10));
        confirmed.extend(publisher.kill_after(20));
    }
    // In the file, each confirmed message either waits for the group or is acknowledged.
    let stored: BTreeSet<i64> = numbers(stored_messages(&path, ADDRESS).await.iter()).into_iter().collect();
    assert!(confirmed.is_subset(&stored), "nothing is pruned within minutes");
    assert!(acknowledged.is_subset(&stored), "only stored messages are acknowledged");
    let rest = drain(&broker, &acknowledged).await;
    let seen = acknowledged.len() + rest.len();
    assert!(seen + 3 * 40 >= stored.len(), "{seen} of {}", stored.len());
}

/// A power failure undoes commits that were not flushed, such as the record of a delivery.
#[tokio::test]
async fn deliveries_whose_record_is_lost_are_marked_as_redelivered() {
    let directory = Directory::new();
    let path = directory.path().join("broker.db");
    let broker = BrokerFile::open(Config::new(&path)).await.expect("the file can be opened");
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(1, "k")]).await;
    let consumer = broker.consumer("g", membership()).await.expect("a consumer");
    let first = within_timeout(consumer.receive(10)).await.expect("a delivery");
    assert_eq!(first.iter().map(|delivery| delivery.redelivered).collect::<Vec<_>>(), [false]);
    consumer.close().await.expect("closed");
    broker.close().await;
    let lose = "DELETE FROM broker_unacknowledged; UPDATE broker_lane SET cursor = 0; \
                UPDATE broker_meta SET boot_id = 'before the power failure'";
    sqlx::raw_sql(lose).execute(&mut connect(&path).await).await.expect("the statements run");

    let broker = BrokerFile::open(Config::new(&path)).await.expect("the file can be opened");
    publish_all(&broker, &[publication(2, "k")]).await;
    let consumer = broker.consumer("g", membership()).await.expect("a consumer");
    let deliveries = receive(&consumer, 2).await;
    let redelivered: Vec<_> = deliveries.iter().map(|one| (number(one), one.redelivered)).collect();
    assert_eq!(redelivered, [(1, true), (2, false)]);
}

/// Receives all remaining messages of the group, and asserts that none was acknowledged before.
async fn drain(broker: &BrokerFile, acknowledged: &BTreeSet<i64>) -> BTreeSet<i64> {
    let consumer = broker.consumer("g", membership()).await.expect("a consumer");
    let mut rest = BTreeSet::new();
    loop {
        let status = broker.groups().await.expect("groups").remove(0);
        if status.lag + status.outstanding + status.ready == 0 {
            return rest;
        }
        let held = within_timeout(consumer.receive(1_000)).await.expect("deliveries");
        rest.extend(held.iter().map(number));
        let again: Vec<&i64> = rest.intersection(acknowledged).collect();
        assert!(again.is_empty(), "acknowledged and delivered again: {again:?}");
        acknowledge(&consumer, &held).await;
    }
}
