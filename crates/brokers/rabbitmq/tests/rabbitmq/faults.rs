//! Real faults. After each, no confirmed message is missing, first occurrences are in order per key, and duplicates
//! have the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::harness::{decode, publication_to, publish, publish_all, with_message};
use relevo_core::{Class, Publication};
use relevo_testkit::proxy::{CutProxy, Direction};
use relevo_testkit::rabbitmq::{Private, Server, Settings};

use crate::harness::AmqpClient;

const KEYS: u32 = 20;
/// Enough for a fault to occur in the middle.
const ROUNDS: u32 = 100;
const WAIT_MAX: Duration = Duration::from_mins(1);

/// Short deadlines, so that a test is short: for messages that are published until they are confirmed.
fn short_timeouts(url: String) -> Config {
    let second = Duration::from_secs(1);
    Config { heartbeat: second, connect_timeout: second, confirm_timeout: second, ..Config::new(url) }
}

/// Longer deadlines, for tests that require one specific outcome even on a machine that stalls for a while.
fn long_timeouts(url: String) -> Config {
    let deadline = Duration::from_secs(4);
    Config { heartbeat: HEARTBEAT, connect_timeout: deadline, confirm_timeout: deadline, ..Config::new(url) }
}

const HEARTBEAT: Duration = Duration::from_secs(2);

async fn open(config: Config) -> Publisher {
    Publisher::open(config).await.expect("a valid configuration")
}

/// Sends rounds of one message per key, as a relay would. It repeats a message until it is confirmed, and then sends
/// the next one of its key. Returns the failure classes.
pub(crate) async fn send_all(broker: &Publisher, first: u32, rounds: u32) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + WAIT_MAX;
    for round in 0..rounds {
        let number = |key: u32| first + round * KEYS + key;
        let mut batch: Vec<Publication> =
            (0..KEYS).map(|key| publication_to("orders", number(key), &format!("k-{key}"))).collect();
        while !batch.is_empty() {
            assert!(Instant::now() < deadline, "the messages of round {round} do not pass: {seen:?}");
            let outcomes = publish(broker, &batch).await;
            seen.extend(outcomes.iter().flatten().map(|class| class.as_str()));
            let mut outcomes = outcomes.into_iter();
            batch.retain(|_| outcomes.next().flatten().is_some());
            if !batch.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    seen
}

/// Takes everything from the queue and compares it with the messages of [`send_all`].
pub(crate) async fn assert_all_stored(client: &AmqpClient, first: u32, rounds: u32) {
    let mut first_seen: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for raw in client.take_all("orders").await {
        let received = decode(&raw);
        let number = received.seq.expect("a number");
        let sent = publication_to("orders", u32::try_from(number).expect("a number of ours"), &received.message.key);
        assert_eq!(received.message, *sent.message, "a repeat is the same message");
        if seen.insert(number) {
            first_seen.entry(received.message.key.to_string()).or_default().push(number);
        }
    }
    let expected: BTreeSet<i64> = (first..first + rounds * KEYS).map(i64::from).collect();
    let missing: Vec<_> = expected.difference(&seen).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    for (key, numbers) in first_seen {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

/// Publishes until the message has this failure class, or until it is confirmed.
async fn publish_until(broker: &Publisher, message: &Publication, expected: Option<Class>) {
    let deadline = Instant::now() + WAIT_MAX;
    while publish(broker, std::slice::from_ref(message)).await != [expected] {
        assert!(Instant::now() < deadline, "still not {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Publishes, runs `fault` in the middle, and checks that no message is missing.
async fn publish_during(
    server: &Private,
    broker: &Publisher,
    fault: impl Future<Output = ()>,
) -> BTreeSet<&'static str> {
    let (seen, ()) = tokio::join!(send_all(broker, 0, ROUNDS), fault);
    assert_all_stored(&AmqpClient::connect(&server.amqp_url()).await, 0, ROUNDS).await;
    seen
}

/// One server for all faults, because each takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_server_loses_nothing() {
    let server = Private::start_with(Settings::new().config("max_message_size = 100000")).await;
    AmqpClient::connect(&server.amqp_url()).await.quorum_queue("orders", &[]).await;
    let broker = open(long_timeouts(server.amqp_url())).await;
    the_servers_own_size_limit_is_poison(&server, &broker).await;
    a_stalled_queue_holds_only_its_own_address(&server, &broker).await;
    an_alarm_is_an_outage_and_loses_nothing(&server, &broker, true).await;
    an_alarm_is_an_outage_and_loses_nothing(&server, &broker, false).await;
    let broker = open(short_timeouts(server.amqp_url())).await;
    a_suspended_server_is_noticed_and_loses_nothing(&server, &broker).await;
    a_killed_server_loses_nothing(&server, &broker).await;
    a_stopped_server_loses_nothing(&server, &broker).await;
}

async fn the_servers_own_size_limit_is_poison(server: &Private, broker: &Publisher) {
    let large = with_message(&publication_to("orders", 1, "k"), |message| message.payload = vec![0; 100_001].into());
    assert_eq!(publish(broker, &[large]).await, [Some(Class::Poison)]);
    publish_all(broker, &[publication_to("orders", 2, "k")]).await;
    assert_eq!(AmqpClient::connect(&server.amqp_url()).await.take_all("orders").await.len(), 1);
}

async fn a_stalled_queue_holds_only_its_own_address(server: &Private, broker: &Publisher) {
    let client = AmqpClient::connect(&server.amqp_url()).await;
    client.quorum_queue("still", &[]).await;
    publish_all(broker, &[publication_to("still", 1, "a")]).await;
    // Suspends the process of the queue, as if it had no majority: it accepts messages and confirms none.
    server.ctl(&["eval", "sys:suspend('%2F_still')."]).await;
    let throttled = Some(Class::Throttled(Duration::from_secs(1)));
    // Without other messages, this looks like a server that does not respond.
    assert_eq!(publish(broker, &[publication_to("still", 2, "a")]).await, [Some(Class::Unknown)]);
    for number in 10..13 {
        let batch = [publication_to("still", number, "a"), publication_to("orders", number, "b")];
        assert_eq!(publish(broker, &batch).await, [throttled, None], "round {number}");
    }
    server.ctl(&["eval", "sys:resume('%2F_still')."]).await;
    publish_until(broker, &publication_to("still", 20, "a"), None).await;
    client.take_all("orders").await;
}

async fn an_alarm_is_an_outage_and_loses_nothing(server: &Private, broker: &Publisher, memory: bool) {
    let alarm = async |on| if memory { server.memory_alarm(on).await } else { server.disk_alarm(on).await };
    let probe = publication_to("orders", 1_000_000, "probe");
    alarm(true).await;
    publish_until(broker, &probe, Some(Class::Outage)).await;
    // It lasts longer than heartbeats would allow for a silent server.
    let since = Instant::now();
    while since.elapsed() < 2 * HEARTBEAT + Duration::from_secs(1) {
        let outcome = publish(broker, std::slice::from_ref(&probe)).await;
        assert_eq!(outcome, [Some(Class::Outage)], "after {:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    alarm(false).await;
    publish_until(broker, &probe, None).await;
    AmqpClient::connect(&server.amqp_url()).await.take_all("orders").await;
    publish_during(server, broker, async {
        alarm(true).await;
        alarm(false).await;
    })
    .await;
}

async fn a_suspended_server_is_noticed_and_loses_nothing(server: &Private, broker: &Publisher) {
    let seen = publish_during(server, broker, async {
        server.pause().await;
        // Both the confirm deadline and two heartbeat intervals pass.
        publish_until(broker, &publication_to("orders", 1, "probe"), Some(Class::Outage)).await;
        server.resume().await;
    })
    .await;
    assert!(seen.contains("outage") && seen.is_subset(&BTreeSet::from(["outage", "unknown"])), "{seen:?}");
}

async fn a_killed_server_loses_nothing(server: &Private, broker: &Publisher) {
    let seen = publish_during(server, broker, async {
        server.kill9().await;
        publish_until(broker, &publication_to("orders", 1, "probe"), Some(Class::Outage)).await;
        server.start_again().await;
    })
    .await;
    assert!(seen.contains("outage"), "{seen:?}");
}

async fn a_stopped_server_loses_nothing(server: &Private, broker: &Publisher) {
    let seen = publish_during(server, broker, async {
        server.stop().await;
        server.start_again().await;
    })
    .await;
    assert!(seen.contains("outage"), "{seen:?}");
}

/// The cut is at random bytes: in the middle of a frame, a message or a confirm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_any_byte_loses_nothing() {
    let vhost = Server::shared().vhost().await;
    let client = AmqpClient::connect(&vhost.amqp_url()).await;
    client.quorum_queue("orders", &[]).await;
    let server = Server::shared().amqp_url().rsplit_once('@').and_then(|(_, host)| host.parse::<SocketAddr>().ok());
    let proxy = CutProxy::start(server.expect("an address")).await;
    let broker = open(short_timeouts(format!("amqp://guest:guest@{}/{}", proxy.addr(), vhost.name()))).await;
    publish_until(&broker, &publication_to("orders", 1_000_000, "probe"), None).await;
    client.take_all("orders").await;
    let mut seen = BTreeSet::new();
    for cut in 0..10_u32 {
        let (direction, bytes) = match cut % 2 {
            0 => (Direction::ToServer, 1_000 + u64::from(cut) * 1_977),
            _ => (Direction::ToClient, 100 + u64::from(cut) * 131),
        };
        proxy.cut_after(direction, bytes);
        seen.extend(send_all(&broker, cut * 10 * KEYS, 10).await);
    }
    assert!(seen.contains("unknown"), "{seen:?}");
    assert_all_stored(&client, 0, 100).await;
}
