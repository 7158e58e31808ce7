//! Consuming from a server that is killed, suspended, or out of memory.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_broker_rabbitmq::{Config, ConsumerOptions, GroupConsumer, Queue};
use relevo_conformance::broker::harness::{
    ADDRESS, BrokerHarness as _, number, publication, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::{BrokerConsumer as _, Class, Publication};
use relevo_testkit::rabbitmq::{Private, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::consumer_harness::{Groups, WaitDeadline, retry};

const QUEUE: &str = "billing";

async fn lanes() -> (Groups, Queue) {
    let groups = Groups::private(Private::start().await).await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    (groups, queue)
}

fn server(groups: &Groups) -> &Private {
    groups.private.as_ref().expect("a server of the test's own")
}

fn batch(numbers: std::ops::Range<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{}", number % 50))).collect()
}

/// Receives and acknowledges until the server is killed.
async fn consume_until_killed(
    config: Config,
    queue: Queue,
    progress: watch::Sender<usize>,
    mut killed: watch::Receiver<bool>,
) -> ConsumeResult {
    let membership = ConsumerOptions { prefetch: 40, ..ConsumerOptions::default() };
    let consumer = GroupConsumer::open(&config, &queue, membership).await.expect("a consumer");
    let mut result = ConsumeResult::default();
    loop {
        let some = tokio::select! {
            some = consumer.receive(40) => some.expect("deliveries"),
            _ = killed.wait_for(|killed| *killed) => break,
        };
        result.first_deliveries.extend(some.iter().filter(|one| !one.redelivered).map(number));
        let tags: Vec<_> = some.iter().map(|one| one.tag).collect();
        let Ok(lost) = stale(&consumer, &tags).await else {
            result.uncertain.extend(some.iter().map(number));
            break;
        };
        result.settled.extend(some.iter().filter(|one| !lost.contains(&one.tag)).map(number));
        progress.send_replace(result.settled.len());
    }
    result
}

/// Receives and acknowledges until every missing message is acknowledged.
async fn drain(config: Config, queue: Queue, mut missing: BTreeSet<i64>) -> ConsumeResult {
    let membership = ConsumerOptions { prefetch: 40, ..ConsumerOptions::default() };
    let consumer = GroupConsumer::open(&config, &queue, membership).await.expect("a consumer");
    let mut result = ConsumeResult::default();
    while !missing.is_empty() {
        let some = within_timeout(consumer.receive(40)).await.expect("deliveries");
        result.first_deliveries.extend(some.iter().filter(|one| !one.redelivered).map(number));
        let tags: Vec<_> = some.iter().map(|one| one.tag).collect();
        // Messages of a lost connection are redelivered.
        let Ok(lost) = stale(&consumer, &tags).await else { continue };
        result.settled.extend(some.iter().filter(|one| !lost.contains(&one.tag)).map(number));
        missing.retain(|number| !result.settled.contains(number));
    }
    result
}

/// The results for a set of messages.
#[derive(Default)]
struct ConsumeResult {
    /// Acknowledged, as reported to the consumer.
    settled: BTreeSet<i64>,
    /// Being acknowledged when the server was killed.
    uncertain: BTreeSet<i64>,
    /// Delivered without the redelivery mark.
    first_deliveries: BTreeSet<i64>,
}

/// The number of acknowledged messages before each kill.
const KILLS: [usize; 3] = [40, 500, 1_000];

/// The server is killed several times while acknowledgements are in progress. It may forget even acknowledgements that
/// it had processed, and this has been observed: their messages are redelivered. No message is lost, and redeliveries
/// are marked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_acknowledgements_loses_no_message() {
    let (groups, queue) = lanes().await;
    let mut all = ConsumeResult::default();
    let total = 6_000;
    let broker = groups.broker().await;
    for start in (0..total).step_by(200) {
        publish_all(&broker, &batch(start..start + 200)).await;
    }
    for settled in KILLS {
        let mut working = JoinSet::new();
        let (progress, mut seen) = watch::channel(0);
        let (killed, is_killed) = watch::channel(false);
        working.spawn(consume_until_killed(groups.config(), queue.clone(), progress, is_killed));
        within_timeout(seen.wait_for(|seen| *seen >= settled)).await.expect("it works");
        server(&groups).kill9().await;
        killed.send_replace(true);
        all.add(working.join_next().await.expect("it works").expect("no panic"));
        server(&groups).start_again().await;
    }
    let expected: BTreeSet<i64> = (0..i64::from(total)).collect();
    let missing = expected.difference(&all.settled_or_uncertain()).copied().collect();
    // The last messages of each lane are among them and were not delivered yet: every redelivery comes before them.
    all.add(drain(groups.config(), queue, missing).await);
    assert_eq!(all.settled_or_uncertain(), expected, "lost or invented");
}

impl ConsumeResult {
    fn settled_or_uncertain(&self) -> BTreeSet<i64> {
        self.settled.union(&self.uncertain).copied().collect()
    }

    fn add(&mut self, more: Self) {
        let again: Vec<&i64> = more.first_deliveries.intersection(&self.first_deliveries).collect();
        assert!(again.is_empty(), "a redelivery is not marked: {again:?}");
        self.settled.extend(more.settled);
        self.uncertain.extend(more.uncertain);
        self.first_deliveries.extend(more.first_deliveries);
    }
}

#[tokio::test]
async fn a_consumer_continues_after_its_server_was_killed_or_suspended() {
    let (groups, queue) = lanes().await;
    let config = Config { heartbeat: Duration::from_secs(1), ..groups.config() };
    let consumer = GroupConsumer::open(&config, &queue, ConsumerOptions::default()).await.expect("a consumer");
    publish_all(&groups.broker().await, &batch(0..20)).await;
    let held = receive(&consumer, 20).await;
    server(&groups).kill9().await;
    server(&groups).start_again().await;
    // The consumer reconnects by itself; its outstanding deliveries are stale.
    let again = receive(&consumer, 20).await;
    let expected: BTreeSet<i64> = (0..20).collect();
    assert_eq!(again.iter().map(number).collect::<BTreeSet<_>>(), expected);
    assert!(again.iter().all(|one| one.redelivered));
    let tags: Vec<_> = held.iter().map(|one| one.tag).collect();
    assert_eq!(stale(&consumer, &tags).await.expect("a response").len(), 20);

    server(&groups).pause().await;
    let mut deadline = WaitDeadline::new("the silence is detected");
    while consumer.is_connected() {
        deadline.wait().await;
    }
    server(&groups).resume().await;
    let third = receive(&consumer, 20).await;
    assert_eq!(third.iter().map(number).collect::<BTreeSet<_>>(), expected);
    let tags: Vec<_> = third.iter().map(|one| one.tag).collect();
    assert_eq!(stale(&consumer, &tags).await.expect("settled"), []);
}

#[tokio::test]
async fn a_server_with_a_memory_alarm_can_be_consumed_and_retries_wait() {
    let (groups, queue) = lanes().await;
    publish_all(&groups.broker().await, &batch(0..20)).await;
    let config = Config { confirm_timeout: Duration::from_secs(1), ..groups.config() };
    let consumer = GroupConsumer::open(&config, &queue, ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 20).await;
    server(&groups).memory_alarm(true).await;
    assert_eq!(stale(&consumer, &tags(&held[..10])).await.expect("acknowledged"), []);
    let rest = tags(&held[10..]);
    let failure = retry(&consumer, &rest, Duration::ZERO).await.expect_err("the server accepts nothing");
    assert_eq!(failure.class(), Class::Unknown);
    let failure = retry(&consumer, &rest, Duration::ZERO).await.expect_err("the server accepts nothing");
    assert_eq!(failure.class(), Class::Outage);
    server(&groups).memory_alarm(false).await;
    // They are still outstanding, so the same call can be repeated.
    let mut deadline = WaitDeadline::new("the alarm ends");
    loop {
        match retry(&consumer, &rest, Duration::ZERO).await {
            Ok(lost) => break assert_eq!(lost, []),
            Err(_) => deadline.wait().await,
        }
    }
    // Copies of the first call arrived too, later; duplicates have the same number.
    let mut seen = BTreeSet::new();
    let expected: BTreeSet<i64> = held[10..].iter().map(number).collect();
    while seen != expected {
        let some = within_timeout(consumer.receive(20)).await.expect("deliveries");
        assert!(some.iter().all(|one| one.redelivered));
        seen.extend(some.iter().map(number));
    }
}

/// `consumer_timeout`: the server closes the channel with a code that it also uses for errors that need an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_past_the_consumer_timeout_is_redelivered_without_an_error() {
    let server = Private::start_with(Settings::new().config("consumer_timeout = 1000")).await;
    // The default check interval is a minute.
    server.ctl(&["eval", "application:set_env(rabbit, channel_tick_interval, 200)."]).await;
    let groups = Groups::private(server).await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    publish_all(&groups.broker().await, &batch(1..2)).await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    // The consumer gets the message, and no error.
    let again = receive(&consumer, 1).await.remove(0);
    assert_eq!((number(&again), again.redelivered), (number(&first), true));
    let lost = stale(&consumer, &[first.tag]).await.expect("a response");
    assert_eq!(lost, [first.tag]);
    assert_eq!(stale(&consumer, &[again.tag]).await.expect("settled"), []);
}
