//! The environment of a case: store, broker, group, the published messages, and the final checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use relevo_core::broker::{OutcomeReceiver, Publication};
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary};
use relevo_core::inbox::{ConsumerOperator, InboxMessage};
use relevo_core::message::Headers;
use relevo_core::{Broker, Draft, Message, MessageId};
use relevo_torture::ledger::{Behaviour, Feed, Member, Row, RunningMember, Store};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::backends::{self, Backends, OrderMode, Resources};
use crate::process::Process;

/// How long a member counts as alive. It is short, because cases wait until it expires.
pub(crate) const HEARTBEAT_TTL: Duration = Duration::from_millis(600);
/// Long enough for any step, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Waits until a condition holds.
pub(crate) async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < end, "timed out: {condition}");
        sleep(Duration::from_millis(25)).await;
    }
}

/// A published message.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) id: MessageId,
    pub(crate) key: String,
    pub(crate) change: i64,
}

/// Everything that outlives a member.
pub(crate) struct Harness {
    pub(crate) backends: Backends,
    pub(crate) order_mode: OrderMode,
    pub(crate) resources: Resources,
    pub(crate) store: Store,
    pub(crate) feed: Feed,
    pub(crate) consumer: String,
    publisher: Arc<dyn Broker>,
    sent: Mutex<Vec<Sent>>,
    next: AtomicI64,
}

impl Harness {
    /// Uses shared servers.
    pub(crate) async fn new(backends: Backends, order_mode: OrderMode) -> Self {
        Self::with(Resources::shared(backends).await, backends, order_mode).await
    }

    pub(crate) async fn with(resources: Resources, backends: Backends, order_mode: OrderMode) -> Self {
        let consumer = format!("ledger-{}", &Uuid::new_v4().simple().to_string()[..8]);
        let store = resources.store().await;
        let feed = backends::feed(&resources.broker(backends, &consumer), backends, order_mode, &consumer).await;
        let publisher = feed.publisher().await.expect("a publisher");
        let (sent, next) = (Mutex::default(), AtomicI64::new(0));
        Self { backends, order_mode, resources, store, feed, consumer, publisher, sent, next }
    }

    /// Creates a second group that also receives every message, for the same consumer.
    pub(crate) async fn second_feed(&self) -> Feed {
        let group = format!("{}-two", self.consumer);
        backends::feed(&self.resources.broker(self.backends, &group), self.backends, self.order_mode, &group).await
    }

    /// A message with this key, and the next number as its change.
    pub(crate) fn message(&self, key: &str) -> (Message, i64) {
        let change = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let payload = format!("{{\"change\": {change}, \"text\": \"ñ\"}}");
        let headers = Headers::from([("x-own".to_owned(), "its own".to_owned())]);
        let draft = Draft { headers, ..Draft::json("orders", key, "Changed", payload) };
        let message = draft.into_message(MessageId::from_uuid(Uuid::now_v7()), Timestamp::now());
        (message, change)
    }

    /// Publishes `messages` messages, cycling through the keys. Returns the last change.
    pub(crate) async fn send(&self, messages: usize, keys: usize) -> i64 {
        let mut batch = Vec::new();
        for number in 0..messages {
            batch.push(self.message(&format!("k{}", number % keys)));
        }
        self.publish(batch).await
    }

    /// Publishes messages in their order per key.
    pub(crate) async fn publish(&self, batch: Vec<(Message, i64)>) -> i64 {
        let last = batch.last().map_or(0, |(_, change)| *change);
        let mut publications = Vec::new();
        for (message, change) in batch {
            let (id, key) = (message.id, message.key.to_string());
            self.sent.lock().expect("no thread panicked").push(Sent { id, key, change });
            publications.push(Publication {
                message: Arc::new(message),
                address: self.feed.address().into(),
                headers: Arc::default(),
                seq: change,
                epoch: 1,
            });
        }
        until("the broker accepts the messages", async || {
            let reports = OutcomeReceiver::default();
            self.publisher.publish(&publications, &reports.sender(0)).await;
            let outcomes = reports.take();
            let confirmed = outcomes.iter().filter(|(_, _, outcome)| outcome.is_ok()).count();
            // If only a part of the batch were sent again, it could arrive after the messages that follow it.
            assert!(confirmed == 0 || confirmed == publications.len(), "{outcomes:?}");
            confirmed > 0
        })
        .await;
        last
    }

    /// A member in this process, not started yet.
    pub(crate) fn member(&self, name: &str) -> Member {
        Member::new(self.store.clone(), self.feed.clone(), &self.consumer, name, HEARTBEAT_TTL)
    }

    /// Starts a member with a behaviour.
    pub(crate) async fn start(&self, name: &str, behaviour: Arc<dyn Behaviour>) -> RunningMember {
        start(Member { behaviour, ..self.member(name) }).await
    }

    /// Starts a member as a separate process.
    pub(crate) async fn process(&self, name: &str, more: &[&str]) -> Process {
        let heartbeat_ttl = HEARTBEAT_TTL.as_millis().to_string();
        let broker = self.resources.broker(self.backends, &self.consumer);
        let order = if self.order_mode == OrderMode::Ordered { "key" } else { "none" };
        let store = self.resources.store_url();
        let lanes = self.feed.lanes.map(|lanes| lanes.to_string());
        let mut arguments =
            vec!["--store", &store, "--broker", &broker, "--consumer", &self.consumer, "--member", name];
        arguments.extend(["--order", order, "--heartbeat-ttl-ms", &heartbeat_ttl]);
        arguments.extend(lanes.iter().flat_map(|lanes| ["--lanes", lanes]));
        arguments.extend(more);
        Process::start(&arguments, self.resources.scratch.file(&format!("{name}.log"))).await
    }

    pub(crate) async fn rows(&self) -> Vec<Row> {
        self.store.rows(&self.consumer).await.expect("a ledger")
    }

    /// Waits until the ledger has this many rows.
    pub(crate) async fn until_rows(&self, count: usize) {
        let mut seen = 0;
        let end = Instant::now() + TIMEOUT;
        loop {
            seen = self.rows().await.len().max(seen);
            if seen >= count {
                return;
            }
            assert!(Instant::now() < end, "timed out: {seen} of {count} rows");
            sleep(Duration::from_millis(40)).await;
        }
    }

    /// Waits until every published message has a row.
    pub(crate) async fn until_all(&self) {
        self.until_rows(self.count()).await;
    }

    /// The number of published messages.
    pub(crate) fn count(&self) -> usize {
        self.sent().len()
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().expect("no thread panicked").clone()
    }

    pub(crate) async fn operator(&self) -> Box<dyn ConsumerOperator> {
        self.store.operator().await.expect("a prepared store")
    }

    /// Dead letters that wait for an operator.
    pub(crate) async fn dead(&self) -> Vec<DeadLetterSummary> {
        let filter =
            DeadLetterFilter { states: vec![DeadLetterState::Dead], ..DeadLetterFilter::of_consumer(&*self.consumer) };
        self.operator().await.list_dead_letters(&filter, None, 1_000).await.expect("a prepared store").letters
    }

    /// The message of the oldest dead letter.
    pub(crate) async fn first_dead_message(&self) -> InboxMessage {
        let filter = DeadLetterFilter::of_consumer(&*self.consumer);
        let letters = self.operator().await.get_dead_letters(&filter, 1).await.expect("a prepared store");
        letters[0].content.inbox_message().expect("the filter selects a consumer").clone()
    }

    /// Ends a case: waits until the broker is empty, stops the last members, and checks everything.
    pub(crate) async fn finish<const N: usize>(&self, members: [RunningMember; N], dead: &[i64]) {
        self.until_empty().await;
        for member in members {
            member.stop().await.expect("it stops cleanly");
        }
        self.check(dead).await;
    }

    /// Waits until the broker has no messages left.
    pub(crate) async fn until_empty(&self) {
        until("the broker's queues are empty", async || self.feed.unsettled().await.is_ok_and(|count| count == 0))
            .await;
    }

    /// Checks the state after all members have ended. Each published message has one effect, except for dead letters.
    /// If the consumer keeps order, the effects of each key are in order. Nothing waits anywhere.
    pub(crate) async fn check(&self, dead: &[i64]) {
        self.until_empty().await;
        let details =
            self.operator().await.get_consumer(&self.consumer, 10).await.expect("a store").expect("the consumer");
        assert_eq!(details.summary.waiting, 0, "nothing waits in the retry table: {:?}", details.queues);
        let dead_ids: BTreeSet<MessageId> = self.dead().await.iter().map(|dead_letter| dead_letter.id).collect();
        let expected: BTreeSet<MessageId> =
            self.sent().iter().filter(|sent| dead.contains(&sent.change)).map(|sent| sent.id).collect();
        assert_eq!(dead_ids, expected, "exactly these are dead letters");
        let rows = self.rows().await;
        let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &rows {
            *effects.entry(&row.message_id).or_default() += 1;
        }
        for Sent { id, key, change } in self.sent() {
            let count = effects.remove(id.to_string().as_str()).unwrap_or_default();
            assert_eq!(count, usize::from(!dead.contains(&change)), "effects of change {change} of {key}: {rows:?}");
        }
        assert!(effects.is_empty(), "effects of unpublished messages: {effects:?}");
        if self.order_mode == OrderMode::Ordered {
            check_order(&rows);
        }
    }
}

/// The effects of each key are in the order of publication.
fn check_order(rows: &[Row]) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        let before = last.insert(&row.message_key, row.change).unwrap_or_default();
        assert!(before < row.change, "change {} of {} after change {before}", row.change, row.message_key);
    }
}

pub(crate) async fn start(member: Member) -> RunningMember {
    member.start().await.unwrap_or_else(|error| panic!("{error:#}"))
}
