//! A store, a broker and consumers in virtual time, with scripted handlers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::broker::Publication;
use relevo_core::dead_letters::{
    DeadLetterAdmin as _, DeadLetterContent, DeadLetterFilter, DeadLetterSummary, MarkAction, MarkRequest,
};
use relevo_core::inbox::InboxMessage;
use relevo_core::inbox::InboxRetention;
use relevo_core::inbox::admin::{ConsumerAdmin as _, ConsumerControl as Ordered, ConsumerDetails};
use relevo_core::message::Headers;
use relevo_core::{Draft, MessageId, RawMessage, wire};
use relevo_inbox::{
    CallHandler, Clock, Config, ConsumerError, ConsumerRuntime, ConsumerStatus, Handler, HandlerError, HandlerResult,
    Handlers, Incoming, MessageOrder, Verdict,
};
use relevo_store_memory::{Config as StoreConfig, Database, Transaction};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fake_broker::{FakeBroker, FakeConsumer};
use crate::faulty_inbox::{FaultPlan, FaultyInbox};

pub(crate) const CONSUMER: &str = "billing";
/// Start of the wall clock in every test.
pub(crate) const STARTED_AT: Timestamp = Timestamp::constant(1_700_000_000, 0);

/// What a scripted handler does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Done,
    DoneAfter(Duration),
    Skip,
    Fail,
    Poison,
    Unavailable,
    Panic,
    Hang,
}

type Script = Arc<dyn Fn(&Incoming) -> Action + Send + Sync>;

/// A handler that follows a script and writes `key:payload` into the ledger.
#[derive(Clone)]
pub(crate) struct ScriptedHandler {
    script: Script,
    running: Arc<AtomicUsize>,
    pub(crate) max_running: Arc<AtomicUsize>,
    pub(crate) attempts: Arc<Mutex<Vec<(Instant, String)>>>,
    pub(crate) calls: Arc<Mutex<Vec<uuid::Uuid>>>,
}

pub(crate) fn scripted(script: impl Fn(&Incoming) -> Action + Send + Sync + 'static) -> ScriptedHandler {
    ScriptedHandler {
        script: Arc::new(script),
        running: Arc::default(),
        max_running: Arc::default(),
        attempts: Arc::default(),
        calls: Arc::default(),
    }
}

/// Fails `times` times for each payload, then succeeds.
pub(crate) fn failing(times: u32) -> ScriptedHandler {
    let failed = Mutex::new(BTreeMap::<String, u32>::new());
    scripted(move |incoming| {
        let mut failed = failed.lock().expect("no test panics with it");
        let count = failed.entry(payload_text(incoming)).or_default();
        *count += 1;
        if *count <= times { Action::Fail } else { Action::Done }
    })
}

pub(crate) fn payload_text(incoming: &Incoming) -> String {
    String::from_utf8(incoming.payload().to_vec()).expect("payloads of these tests are text")
}

impl ScriptedHandler {
    /// When a payload was attempted, in tenths of a second since `from`.
    pub(crate) fn attempt_times(&self, payload: &str, from: Instant) -> Vec<u128> {
        let tries = self.attempts.lock().expect("no handler panics with it");
        let of = tries.iter().filter(|(_, tried)| tried == payload);
        of.map(|(at, _)| at.duration_since(from).as_millis() / 100).collect()
    }

    pub(crate) fn attempted(&self) -> Vec<String> {
        self.attempts.lock().expect("no handler panics with it").iter().map(|(_, payload)| payload.clone()).collect()
    }

    async fn act(&self, incoming: &Incoming) -> HandlerResult {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_running.fetch_max(running, Ordering::SeqCst);
        let _ends = RunningGuard(Arc::clone(&self.running));
        self.attempts.lock().expect("no handler panics with it").push((Instant::now(), payload_text(incoming)));
        match (self.script)(incoming) {
            Action::Done => Ok(Verdict::Done),
            Action::DoneAfter(pause) => {
                tokio::time::sleep(pause).await;
                Ok(Verdict::Done)
            }
            Action::Skip => Ok(Verdict::Skip),
            Action::Fail => Err(HandlerError::transient("simulated failure").into()),
            Action::Poison => Err(HandlerError::permanent("simulated poison").into()),
            Action::Unavailable => Err(HandlerError::unavailable("simulated outage").into()),
            Action::Panic => panic!("simulated panic"),
            Action::Hang => std::future::pending().await,
        }
    }
}

struct RunningGuard(Arc<AtomicUsize>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Handler<Transaction> for ScriptedHandler {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> HandlerResult {
        // The effect comes first, so that a failure has something to roll back.
        transaction.record_effect(format!("{}:{}", incoming.key(), payload_text(incoming)))?;
        self.act(incoming).await
    }
}

#[async_trait]
impl CallHandler<Transaction> for ScriptedHandler {
    type Answer = Verdict;

    async fn call(&self, incoming: &Incoming) -> HandlerResult {
        self.calls.lock().expect("no handler panics with it").push(incoming.idempotency_id());
        self.act(incoming).await
    }

    async fn commit(&self, transaction: &mut Transaction, incoming: &Incoming, answer: &Verdict) -> HandlerResult {
        transaction.record_effect(format!("{}:{}", incoming.key(), payload_text(incoming)))?;
        Ok(*answer)
    }
}

/// Everything that outlives a process.
pub(crate) struct Env {
    pub(crate) outbox: Database,
    pub(crate) broker: FakeBroker,
    pub(crate) faults: Arc<FaultPlan>,
    pub(crate) started_at: Instant,
    retention: InboxRetention,
    next: AtomicU64,
}

impl Env {
    pub(crate) fn new() -> Self {
        Self::with_retention(InboxRetention::default())
    }

    pub(crate) fn with_retention(retention: InboxRetention) -> Self {
        Self {
            outbox: Database::new(StoreConfig::default()),
            broker: FakeBroker::default(),
            faults: Arc::default(),
            started_at: Instant::now(),
            retention,
            next: AtomicU64::new(0),
        }
    }

    /// Numbers messages and processes from one.
    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Builds a message of this type, key and payload.
    pub(crate) fn raw(&self, kind: &str, key: &str, payload: &str, headers: Headers) -> RawMessage {
        let number = self.next_number();
        let draft = Draft { headers, ..Draft::json("orders", key, kind, payload.to_owned()) };
        let message = draft.into_message(MessageId::v7(number, [7; 10]), STARTED_AT);
        let publication = Publication {
            message: Arc::new(message),
            address: "orders".into(),
            headers: Arc::default(),
            seq: i64::try_from(number).expect("a small number"),
            epoch: 1,
        };
        RawMessage::new(wire::headers(&publication, "/outbox"), publication.message.payload.clone())
    }

    /// Publishes a message to a lane and returns its offset.
    pub(crate) fn send(&self, lane: &str, key: &str, payload: &str) -> u64 {
        self.broker.publish(lane, self.raw("OrderPlaced", key, payload, Headers::new()))
    }

    /// Starts a process of the consumer.
    pub(crate) fn start(&self, config: Config, handlers: Handlers<Transaction>) -> Process {
        self.start_with(self.broker.consumer(1), config, handlers)
    }

    pub(crate) fn start_with(&self, hand: FakeConsumer, config: Config, handlers: Handlers<Transaction>) -> Process {
        let inbox = self.outbox.inbox(CONSUMER, self.retention);
        let inbox = Arc::new(FaultyInbox { inner: inbox, faults: Arc::clone(&self.faults) });
        let seed = self.next_number();
        let runtime = ConsumerRuntime::with_seed(inbox, Arc::new(hand), handlers, config, seed);
        let (stop, stats) = (CancellationToken::new(), runtime.status());
        let mut task = JoinSet::new();
        task.spawn(runtime.run(stop.clone()));
        Process { stop, status: stats, task }
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.outbox.effects()
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetterSummary> {
        let all = DeadLetterFilter::of_consumer(CONSUMER);
        self.outbox.operator().list_dead_letters(&all, None, 100).await.expect("the store answers").letters
    }

    /// The message and the backtrace of the oldest dead letter.
    pub(crate) async fn first_dead_letter(&self) -> (InboxMessage, Option<String>) {
        let all = DeadLetterFilter::of_consumer(CONSUMER);
        let mut letters = self.outbox.operator().get_dead_letters(&all, 1).await.expect("the store answers");
        match letters.remove(0).content {
            DeadLetterContent::Inbox { message, backtrace } => (message, backtrace),
            DeadLetterContent::Outbox(_) => panic!("the filter selects a consumer"),
        }
    }

    /// Redrives all dead letters and returns how many.
    pub(crate) async fn redrive_all(&self) -> u64 {
        let request = MarkRequest {
            filter: DeadLetterFilter::of_consumer(CONSUMER),
            action: MarkAction::Redrive,
            dry_run: false,
            rate_per_second: None,
            by: "ana".to_owned(),
            reason: "fixed".to_owned(),
        };
        self.outbox.operator().mark_dead_letters(&request).await.expect("the store answers").count
    }

    pub(crate) async fn consumer(&self) -> ConsumerDetails {
        self.outbox.operator().get_consumer(CONSUMER, 100).await.expect("the store answers").expect("it is known")
    }

    pub(crate) async fn set_control(&self, lane: Option<&str>, order: Ordered) {
        assert!(self.outbox.operator().set_control(CONSUMER, lane, order).await.expect("the store answers"));
    }
}

/// A running process. Dropping it kills the process.
pub(crate) struct Process {
    pub(crate) stop: CancellationToken,
    pub(crate) status: Arc<ConsumerStatus>,
    task: JoinSet<Result<(), ConsumerError>>,
}

impl Process {
    /// Shuts down cleanly.
    pub(crate) async fn stop(mut self) -> Result<(), ConsumerError> {
        self.stop.cancel();
        self.wait().await
    }

    /// Waits until it ends on its own.
    pub(crate) async fn wait(&mut self) -> Result<(), ConsumerError> {
        self.task.join_next().await.expect("it runs").expect("it does not panic")
    }

    /// Kills it, whatever it is doing.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// One message per key at a time, on the test's clock.
pub(crate) fn ordered_config() -> Config {
    let begun = Instant::now();
    let clock = Clock::new(move || STARTED_AT + begun.elapsed());
    Config { order: MessageOrder::ByKey { concurrency: 8 }, clock, ..Config::default() }
}

/// Any messages at the same time.
pub(crate) fn unordered_config() -> Config {
    Config { order: MessageOrder::None { concurrency: 8 }, ..ordered_config() }
}

pub(crate) fn transaction_handlers(handler: &ScriptedHandler) -> Handlers<Transaction> {
    Handlers::new().handler("*", handler.clone())
}

pub(crate) fn call_handlers(handler: &ScriptedHandler) -> Handlers<Transaction> {
    Handlers::new().call_handler("*", handler.clone())
}

/// Waits in virtual time until the condition holds.
pub(crate) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_hours(2);
    while !holds().await {
        assert!(Instant::now() < end, "it never came about that {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `count` offsets are acknowledged.
pub(crate) async fn wait_for_acks(stage: &Env, count: usize) {
    wait_until(&format!("{count} are acknowledged"), async || stage.broker.acknowledged().len() >= count).await;
}

pub(crate) const RETENTION: InboxRetention =
    InboxRetention { done: Duration::from_hours(24 * 30), dead_letters: Duration::from_hours(24 * 90) };
