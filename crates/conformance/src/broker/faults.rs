//! Publishing while a real server, or the network to it, fails.
//!
//! A publisher loop behaves like the relay: one message of a key at a time, many keys at once. It repeats each message
//! until it is confirmed. After every fault, all messages are stored in the end, and first occurrences are in order per
//! key. Repeated messages are identical, and no failure counts against a message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker, Class, Publication};
use tokio::time::{Instant, sleep, timeout};

use super::harness::{ADDRESS, BrokerHarness, decode, publication};

/// Timeout of one call, like the publish timeout of the relay.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for publishing all messages, with any fault.
const PUBLISH_TIME_MAX: Duration = Duration::from_secs(90);
const KEYS: u32 = 20;
const MESSAGES: u32 = 3_000;

/// A fault of the server or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server's processes are suspended, and resumed when the fault ends.
    Suspended,
    /// The server is killed without warning, and restarted when the fault ends.
    Killed,
    /// All connections are closed at once; new ones are accepted.
    ConnectionsCut,
    /// All connections are closed, and new ones are closed immediately until the fault ends.
    Unreachable,
    /// Data from the server is lost, data to the server arrives. The connections are closed when the fault ends.
    ResponsesLost,
    /// All data arrives late and slowly.
    Slow,
    /// The queue or stream accepts no more messages until the fault ends.
    Full,
    /// The server is short of memory, or accepts no messages for a similar reason.
    MemoryAlarm,
    /// The server is short of disk space.
    DiskAlarm,
}

/// A broker on a server that can be made to fail.
#[async_trait]
pub trait FaultHarness: BrokerHarness {
    /// Creates a publisher whose connection can be made to fail. Its timeouts are short.
    async fn publisher_through_proxy(&self) -> Self::Broker;

    /// Injects a fault; returns when it is in effect.
    async fn inject(&mut self, fault: Fault);

    /// Ends a fault; returns when the server is available again.
    async fn clear(&mut self, fault: Fault);
}

/// The failures that the publisher loop observed.
#[derive(Debug, Default)]
struct FailureCounts {
    /// Number of failures per class.
    classes: BTreeMap<&'static str, usize>,
    /// Duration of the longest call.
    longest: Duration,
}

/// Number of confirmed messages, and whether the fault was injected.
#[derive(Debug, Default)]
struct Progress {
    confirmed: AtomicUsize,
    injected: AtomicBool,
}

impl Progress {
    fn confirmed(&self) -> usize {
        self.confirmed.load(Ordering::Relaxed)
    }
}

/// Publishes all messages, one of a key at a time, until each is confirmed.
async fn publish_until_confirmed(broker: &impl Broker, messages: &[Publication], progress: &Progress) -> FailureCounts {
    let mut waiting: BTreeMap<&str, VecDeque<&Publication>> = BTreeMap::new();
    for message in messages {
        waiting.entry(&message.message.key).or_default().push_back(message);
    }
    let (mut failures, start) = (FailureCounts::default(), Instant::now());
    while !waiting.is_empty() {
        assert!(start.elapsed() < PUBLISH_TIME_MAX, "{} keys are not published: {failures:?}", waiting.len());
        if progress.confirmed() >= messages.len() * 3 / 5 && !progress.injected.load(Ordering::Relaxed) {
            // Some faults take time to inject, so enough messages must remain for them.
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let batch: Vec<Publication> = waiting.values().map(|queue| queue[0].clone()).collect();
        let reports = OutcomeReceiver::default();
        let called = Instant::now();
        drop(timeout(CONFIRM_TIMEOUT, broker.publish(&batch, &reports.sender(1))).await);
        failures.longest = failures.longest.max(called.elapsed());
        let reported = reports.take();
        let mut confirmed = 0;
        for (_, index, outcome) in &reported {
            match outcome {
                Ok(()) => {
                    let key = &*batch[*index].message.key;
                    let queue = waiting.get_mut(key).expect("a key that was sent");
                    queue.pop_front();
                    if queue.is_empty() {
                        waiting.remove(key);
                    }
                    confirmed += 1;
                }
                Err(failure) => *failures.classes.entry(failure.class().as_str()).or_default() += 1,
            }
        }
        if reported.len() < batch.len() {
            *failures.classes.entry("unreported").or_default() += batch.len() - reported.len();
        }
        progress.confirmed.fetch_add(confirmed, Ordering::Relaxed);
        if confirmed == 0 {
            // The relay pauses like this during an outage.
            sleep(Duration::from_millis(50)).await;
        }
    }
    failures
}

/// Publishes messages, injects a fault in the middle, ends it after a while, and checks the stored messages at the end.
async fn run_with_fault(harness: &mut impl FaultHarness, fault: Fault, duration: Duration) -> FailureCounts {
    let broker = harness.publisher_through_proxy().await;
    let messages: Vec<Publication> =
        (1..=MESSAGES).map(|number| publication(number, &format!("k-{}", number % KEYS))).collect();
    let progress = Progress::default();
    let inject = async {
        while progress.confirmed() < messages.len() / 5 {
            sleep(Duration::from_millis(1)).await;
        }
        harness.inject(fault).await;
        progress.injected.store(true, Ordering::Relaxed);
        sleep(duration).await;
        harness.clear(fault).await;
    };
    let (failures, ()) = tokio::join!(publish_until_confirmed(&broker, &messages, &progress), inject);
    for (class, times) in &failures.classes {
        let counts = [Class::Transient.as_str(), Class::Poison.as_str()].contains(class);
        assert!(!counts, "{times} failures of class {class} counted against messages: {failures:?}");
    }
    assert_all_stored(harness, &messages).await;
    failures
}

async fn assert_all_stored(harness: &impl BrokerHarness, sent: &[Publication]) {
    let by_id: BTreeMap<_, _> = sent.iter().map(|publication| (publication.message.id, publication)).collect();
    let (mut ids, mut newest) = (BTreeSet::new(), BTreeMap::<String, i64>::new());
    for raw in harness.stored(ADDRESS).await {
        let received = decode(&raw);
        let publication = by_id.get(&received.message.id).expect("a message that was sent");
        assert_eq!(received.message, *publication.message, "every stored copy is the same message");
        if !ids.insert(received.message.id) {
            continue;
        }
        let before = newest.insert(received.message.key.to_string(), publication.seq);
        assert!(before.is_none_or(|before| before < publication.seq), "{} after {before:?}", publication.seq);
    }
    let lost: Vec<i64> = sent
        .iter()
        .filter(|publication| !ids.contains(&publication.message.id))
        .map(|publication| publication.seq)
        .collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

/// SIGSTOP and SIGCONT, with a pause longer than the publish timeout of the client.
pub async fn a_server_that_is_suspended_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::Suspended, Duration::from_secs(4)).await;
    assert!(!failures.classes.is_empty(), "no call failed");
}

/// The server is killed in the middle of a batch.
pub async fn a_server_that_is_killed_and_restarted_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::Killed, Duration::from_millis(500)).await;
    assert!(failures.classes.contains_key("outage"), "{failures:?}");
}

/// The publisher reconnects on its own.
pub async fn a_connection_cut_in_the_middle_of_a_batch_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::ConnectionsCut, Duration::ZERO).await;
    let noticed = ["unknown", "unreported", "outage"].iter().any(|class| failures.classes.contains_key(class));
    assert!(noticed, "no message was in flight when the connections were cut: {failures:?}");
}

/// While the server is unreachable, each message gets an outcome without delay, and no attempt of it is counted.
pub async fn an_unreachable_server_is_an_outage(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::Unreachable, Duration::from_secs(2)).await;
    assert!(failures.classes.contains_key("outage"), "{failures:?}");
    assert!(failures.longest < CONFIRM_TIMEOUT, "a call waited for the timeout of its caller: {failures:?}");
}

/// The server stored the message but the confirm was lost, so the message is published again with the same id.
pub async fn a_lost_confirm_is_unknown_and_the_repeat_has_the_same_id(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::ResponsesLost, Duration::from_secs(2)).await;
    let unknown = failures.classes.contains_key("unknown") || failures.classes.contains_key("unreported");
    assert!(unknown, "{failures:?}");
}

/// A slow connection delays messages but loses none.
pub async fn a_slow_connection_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::Slow, Duration::from_secs(2)).await;
    assert!(failures.longest > Duration::from_millis(100), "no call was slow: {failures:?}");
}

/// Back-pressure: the failures are of class `throttled`, and the messages are published again.
pub async fn a_full_queue_or_stream_throttles_and_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::Full, Duration::from_secs(1)).await;
    assert!(failures.classes.contains_key("throttled"), "{failures:?}");
}

/// The server loses no message, and no failure counts against a message.
pub async fn a_server_short_of_memory_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::MemoryAlarm, Duration::from_secs(3)).await;
    assert!(!failures.classes.is_empty(), "no call failed");
}

/// The same for a server that is short of disk space.
pub async fn a_server_short_of_disk_loses_nothing(harness: &mut impl FaultHarness) {
    let failures = run_with_fault(harness, Fault::DiskAlarm, Duration::from_secs(3)).await;
    assert!(!failures.classes.is_empty(), "no call failed");
}
