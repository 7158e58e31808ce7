//! What becomes of messages while a real server, or the way to it, fails.
//!
//! A carrier does what the relay does: one message of a key at a time, many keys at once, the same message again until it
//! is confirmed. Whatever happens meanwhile, in the end everything is there, first appearances of each key are in
//! order, repeats are the same message, and no failure was one that counts against a message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::broker::Reports;
use relevo_core::{Broker, Class, Publication};
use tokio::time::{Instant, sleep, timeout};

use super::harness::{ADDRESS, BrokerHarness, decoded, publication};

/// No call takes longer, as the relay's publish deadline.
const DEADLINE: Duration = Duration::from_secs(5);
/// Everything is carried by then, whatever happens.
const CARRIED_WITHIN: Duration = Duration::from_secs(90);
const KEYS: u32 = 20;
const MESSAGES: u32 = 3_000;

/// What is done to the server, or to the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server's processes are stopped, and continued when it is mended.
    Stopped,
    /// The server is killed without warning, and started again when it is mended.
    Killed,
    /// All connections are cut at once; new ones are welcome.
    Cut,
    /// All connections are cut, and new ones are closed until it is mended.
    Unreachable,
    /// What the server says does not arrive; what is said to it does. The connections are cut when it is mended.
    Mute,
    /// Everything arrives late and slowly.
    Slow,
    /// The queue or stream takes nothing more until it is mended.
    Full,
    /// The server's memory is short, or whatever else makes it take nothing.
    Memory,
    /// The server's disk is short.
    Disk,
}

/// A broker on a server that a case may harm.
#[async_trait]
pub trait FaultHarness: BrokerHarness {
    /// A publisher that reaches the server by the way that can fail. Its deadlines are short.
    async fn distant(&self) -> Self::Broker;

    /// Makes a fault; returns when it is there.
    async fn harm(&mut self, fault: Fault);

    /// Ends it; returns when the server is back, if it was gone.
    async fn mend(&mut self, fault: Fault);
}

/// What a carrier met on its way.
#[derive(Debug, Default)]
struct Met {
    /// How often each class of failure.
    classes: BTreeMap<&'static str, usize>,
    /// The longest call.
    longest: Duration,
}

/// How far a carrier is, and whether the fault is there.
#[derive(Debug, Default)]
struct Progress {
    confirmed: AtomicUsize,
    harmed: AtomicBool,
}

impl Progress {
    fn confirmed(&self) -> usize {
        self.confirmed.load(Ordering::Relaxed)
    }
}

/// Sends everything, one message of a key at a time, until it is confirmed.
async fn carry(broker: &impl Broker, messages: &[Publication], progress: &Progress) -> Met {
    let mut waiting: BTreeMap<&str, VecDeque<&Publication>> = BTreeMap::new();
    for message in messages {
        waiting.entry(&message.message.key).or_default().push_back(message);
    }
    let (mut met, began) = (Met::default(), Instant::now());
    while !waiting.is_empty() {
        assert!(began.elapsed() < CARRIED_WITHIN, "{} keys are not carried: {met:?}", waiting.len());
        if progress.confirmed() >= messages.len() * 3 / 5 && !progress.harmed.load(Ordering::Relaxed) {
            // Some faults take their time to come, and there must be something left for them to harm.
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let batch: Vec<Publication> = waiting.values().map(|queue| queue[0].clone()).collect();
        let reports = Reports::default();
        let called = Instant::now();
        drop(timeout(DEADLINE, broker.publish(&batch, &reports.confirms(1))).await);
        met.longest = met.longest.max(called.elapsed());
        let reported = reports.take();
        let mut passed = 0;
        for (_, index, outcome) in &reported {
            match outcome {
                Ok(()) => {
                    let key = &*batch[*index].message.key;
                    let queue = waiting.get_mut(key).expect("a key that was sent");
                    queue.pop_front();
                    if queue.is_empty() {
                        waiting.remove(key);
                    }
                    passed += 1;
                }
                Err(failure) => *met.classes.entry(failure.class().word()).or_default() += 1,
            }
        }
        if reported.len() < batch.len() {
            *met.classes.entry("unreported").or_default() += batch.len() - reported.len();
        }
        progress.confirmed.fetch_add(passed, Ordering::Relaxed);
        if passed == 0 {
            // As the relay pauses in an outage.
            sleep(Duration::from_millis(50)).await;
        }
    }
    met
}

/// Carries messages, makes a fault in the middle, mends it after a while, and looks at what is there in the end.
async fn through(harness: &mut impl FaultHarness, fault: Fault, lasts: Duration) -> Met {
    let broker = harness.distant().await;
    let messages: Vec<Publication> =
        (1..=MESSAGES).map(|number| publication(number, &format!("k-{}", number % KEYS))).collect();
    let progress = Progress::default();
    let harming = async {
        while progress.confirmed() < messages.len() / 5 {
            sleep(Duration::from_millis(1)).await;
        }
        harness.harm(fault).await;
        progress.harmed.store(true, Ordering::Relaxed);
        sleep(lasts).await;
        harness.mend(fault).await;
    };
    let (met, ()) = tokio::join!(carry(&broker, &messages, &progress), harming);
    for (class, times) in &met.classes {
        let counts = [Class::Transient.word(), Class::Poison.word()].contains(class);
        assert!(!counts, "{times} failures of class {class} counted against messages: {met:?}");
    }
    everything_is_there(harness, &messages).await;
    met
}

async fn everything_is_there(harness: &impl BrokerHarness, sent: &[Publication]) {
    let by_id: BTreeMap<_, _> = sent.iter().map(|one| (one.message.id, one)).collect();
    let (mut seen, mut newest) = (BTreeSet::new(), BTreeMap::<String, i64>::new());
    for raw in harness.kept(ADDRESS).await {
        let received = decoded(&raw);
        let one = by_id.get(&received.message.id).expect("a message that was sent");
        assert_eq!(received.message, *one.message, "a repeat, or a first appearance, is the same message");
        if !seen.insert(received.message.id) {
            continue;
        }
        let before = newest.insert(received.message.key.to_string(), one.seq);
        assert!(before.is_none_or(|before| before < one.seq), "{} after {before:?}", one.seq);
    }
    let lost: Vec<i64> = sent.iter().filter(|one| !seen.contains(&one.message.id)).map(|one| one.seq).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

/// SIGSTOP and SIGCONT, longer than a publish may take.
pub async fn a_server_that_is_stopped_and_continued_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Stopped, Duration::from_secs(4)).await;
    assert!(!met.classes.is_empty(), "nothing was noticed of it");
}

/// Killed in the middle of a batch.
pub async fn a_server_that_is_killed_and_restarted_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Killed, Duration::from_millis(500)).await;
    assert!(met.classes.contains_key("outage"), "{met:?}");
}

/// The publisher finds its way back by itself.
pub async fn a_connection_cut_in_the_middle_of_a_batch_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Cut, Duration::ZERO).await;
    let noticed = ["unknown", "unreported", "outage"].iter().any(|class| met.classes.contains_key(class));
    assert!(noticed, "nothing was in flight when it was cut: {met:?}");
}

/// While nobody answers, every message is told of at once and none is blamed.
pub async fn an_unreachable_server_is_an_outage(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Unreachable, Duration::from_secs(2)).await;
    assert!(met.classes.contains_key("outage"), "{met:?}");
    assert!(met.longest < DEADLINE, "a call waited for the caller's own deadline: {met:?}");
}

/// The server stored the message, and nobody heard of it: the same id goes again.
pub async fn a_confirm_that_is_lost_is_unknown_and_the_repeat_is_the_same(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Mute, Duration::from_secs(2)).await;
    let unknown = met.classes.contains_key("unknown") || met.classes.contains_key("unreported");
    assert!(unknown, "{met:?}");
}

/// Late is not lost.
pub async fn a_slow_way_to_the_server_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Slow, Duration::from_secs(2)).await;
    assert!(met.longest > Duration::from_millis(100), "nothing was slow: {met:?}");
}

/// Back-pressure: the address is held and tried again.
pub async fn a_full_queue_or_stream_throttles_and_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Full, Duration::from_secs(1)).await;
    assert!(met.classes.contains_key("throttled"), "{met:?}");
}

/// Whatever the server then does, it does not lose and is not blamed on a message.
pub async fn a_server_short_of_memory_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Memory, Duration::from_secs(3)).await;
    assert!(!met.classes.is_empty(), "nothing was noticed of it");
}

/// The same for its disk.
pub async fn a_server_short_of_disk_loses_nothing(harness: &mut impl FaultHarness) {
    let met = through(harness, Fault::Disk, Duration::from_secs(3)).await;
    assert!(!met.classes.is_empty(), "nothing was noticed of it");
}
