//! A store, a broker and consumers in virtual time, with scripted handlers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::broker::Publication;
use relevo_core::inbox::Keeping;
use relevo_core::inbox::operate::{DeadFilter, DeadLetter, Operate as _, Order as Ordered, Shown};
use relevo_core::message::Headers;
use relevo_core::{Message, MessageId, Raw, wire};
use relevo_inbox::{
    Call, Clock, Config, Handled, Handlers, Incoming, Inside, Order, Runtime, RuntimeError, Stats, Trouble, Verdict,
};
use relevo_store_memory::{Outbox, Settings, Transaction};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::faulty::{Faulty, Line};
use crate::wire::{Hand, Wire};

pub(crate) const CONSUMER: &str = "billing";
/// Start of the wall clock in every test.
pub(crate) const BEGUN: Timestamp = Timestamp::constant(1_700_000_000, 0);

/// What a scripted handler does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    Done,
    DoneAfter(Duration),
    Skip,
    Fail,
    Poison,
    Away,
    Panic,
    Hang,
}

type Script = Arc<dyn Fn(&Incoming) -> Do + Send + Sync>;

/// A handler that follows a script and writes `key:payload` into the ledger.
#[derive(Clone)]
pub(crate) struct Told {
    script: Script,
    running: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    pub(crate) tries: Arc<Mutex<Vec<(Instant, String)>>>,
    pub(crate) calls: Arc<Mutex<Vec<uuid::Uuid>>>,
}

pub(crate) fn told(script: impl Fn(&Incoming) -> Do + Send + Sync + 'static) -> Told {
    Told {
        script: Arc::new(script),
        running: Arc::default(),
        most: Arc::default(),
        tries: Arc::default(),
        calls: Arc::default(),
    }
}

/// Fails `times` times for each payload, then succeeds.
pub(crate) fn fails(times: u32) -> Told {
    let failed = Mutex::new(BTreeMap::<String, u32>::new());
    told(move |incoming| {
        let mut failed = failed.lock().expect("no test panics with it");
        let count = failed.entry(text(incoming)).or_default();
        *count += 1;
        if *count <= times { Do::Fail } else { Do::Done }
    })
}

pub(crate) fn text(incoming: &Incoming) -> String {
    String::from_utf8(incoming.payload().to_vec()).expect("payloads of these tests are text")
}

impl Told {
    /// When a payload was attempted, in tenths of a second since `from`.
    pub(crate) fn times(&self, payload: &str, from: Instant) -> Vec<u128> {
        let tries = self.tries.lock().expect("no handler panics with it");
        let of = tries.iter().filter(|(_, tried)| tried == payload);
        of.map(|(at, _)| at.duration_since(from).as_millis() / 100).collect()
    }

    pub(crate) fn tried(&self) -> Vec<String> {
        self.tries.lock().expect("no handler panics with it").iter().map(|(_, payload)| payload.clone()).collect()
    }

    async fn act(&self, incoming: &Incoming) -> Handled {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let _ends = Ends(Arc::clone(&self.running));
        self.tries.lock().expect("no handler panics with it").push((Instant::now(), text(incoming)));
        match (self.script)(incoming) {
            Do::Done => Ok(Verdict::Done),
            Do::DoneAfter(pause) => {
                tokio::time::sleep(pause).await;
                Ok(Verdict::Done)
            }
            Do::Skip => Ok(Verdict::Skip),
            Do::Fail => Err(Trouble::retry("it was told to fail")),
            Do::Poison => Err(Trouble::poison("it was told to be poison")),
            Do::Away => Err(Trouble::away("it was told to be away")),
            Do::Panic => panic!("it was told to panic"),
            Do::Hang => std::future::pending().await,
        }
    }
}

struct Ends(Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Inside<Transaction> for Told {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> Handled {
        // The effect comes first, so that a failure has something to roll back.
        transaction.record(format!("{}:{}", incoming.key(), text(incoming)))?;
        self.act(incoming).await
    }
}

#[async_trait]
impl Call<Transaction> for Told {
    type Answer = Verdict;

    async fn call(&self, incoming: &Incoming) -> Result<Verdict, Trouble> {
        self.calls.lock().expect("no handler panics with it").push(incoming.idempotency_id());
        self.act(incoming).await
    }

    async fn commit(&self, transaction: &mut Transaction, incoming: &Incoming, answer: &Verdict) -> Handled {
        transaction.record(format!("{}:{}", incoming.key(), text(incoming)))?;
        Ok(*answer)
    }
}

/// Everything that outlives a process.
pub(crate) struct Stage {
    pub(crate) outbox: Outbox,
    pub(crate) wire: Wire,
    pub(crate) line: Arc<Line>,
    pub(crate) began: Instant,
    next: AtomicU64,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            outbox: Outbox::new(Settings::default()),
            wire: Wire::default(),
            line: Arc::default(),
            began: Instant::now(),
            next: AtomicU64::new(0),
        }
    }

    /// Numbers messages and processes from one.
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Builds a message of this type, key and payload.
    pub(crate) fn raw(&self, kind: &str, key: &str, payload: &str, headers: Headers) -> Raw {
        let number = self.number();
        let message = Message {
            id: MessageId::v7(number, [7; 10]),
            kind: kind.into(),
            key: key.into(),
            topic: "orders".into(),
            payload: Bytes::from(payload.to_owned()),
            content_type: "application/json".into(),
            headers,
            created_at: BEGUN,
        };
        let publication = Publication {
            message: Arc::new(message),
            address: "orders".into(),
            headers: Arc::default(),
            seq: i64::try_from(number).expect("a small number"),
            epoch: 1,
        };
        Raw::new(wire::headers(&publication, "/outbox"), publication.message.payload.clone())
    }

    /// Publishes a message to a lane and returns its offset.
    pub(crate) fn send(&self, lane: &str, key: &str, payload: &str) -> u64 {
        self.wire.put(lane, self.raw("OrderPlaced", key, payload, Headers::new()))
    }

    /// Starts a process of the consumer.
    pub(crate) fn start(&self, config: Config, handlers: Handlers<Transaction>) -> Process {
        self.start_with(self.wire.hand(1), config, handlers)
    }

    pub(crate) fn start_with(&self, hand: Hand, config: Config, handlers: Handlers<Transaction>) -> Process {
        let inbox = self.outbox.inbox(&config.consumer, config.keeping);
        let inbox = Arc::new(Faulty { inner: inbox, line: Arc::clone(&self.line) });
        let seed = self.number();
        let runtime = Runtime::with_seed(inbox, Arc::new(hand), handlers, config, seed);
        let (stop, stats) = (CancellationToken::new(), runtime.stats());
        let mut task = JoinSet::new();
        task.spawn(runtime.run(stop.clone()));
        Process { stop, stats, task }
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        self.outbox.ledger()
    }

    pub(crate) async fn dead(&self) -> Vec<DeadLetter> {
        self.outbox.operator().dead(&DeadFilter::default(), 100).await.expect("the store answers")
    }

    pub(crate) async fn shown(&self) -> Shown {
        self.outbox.operator().consumer(CONSUMER, 100).await.expect("the store answers").expect("it is known")
    }

    pub(crate) async fn order(&self, lane: Option<&str>, order: Ordered) {
        assert!(self.outbox.operator().order(CONSUMER, lane, order).await.expect("the store answers"));
    }
}

/// A running process. Dropping it kills the process.
pub(crate) struct Process {
    pub(crate) stop: CancellationToken,
    pub(crate) stats: Arc<Stats>,
    task: JoinSet<Result<(), RuntimeError>>,
}

impl Process {
    /// Shuts down cleanly.
    pub(crate) async fn stop(mut self) -> Result<(), RuntimeError> {
        self.stop.cancel();
        self.ended().await
    }

    /// Waits until it ends on its own.
    pub(crate) async fn ended(&mut self) -> Result<(), RuntimeError> {
        self.task.join_next().await.expect("it runs").expect("it does not panic")
    }

    /// Kills it, whatever it is doing.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// One message per key at a time, on the test's clock.
pub(crate) fn ordered() -> Config {
    let begun = Instant::now();
    let clock = Clock::new(move || BEGUN + begun.elapsed());
    Config { order: Order::ByKey { concurrency: 8 }, clock, ..Config::new(CONSUMER) }
}

/// Any messages at the same time.
pub(crate) fn unordered() -> Config {
    Config { order: Order::None { concurrency: 8 }, ..ordered() }
}

pub(crate) fn inside(told: &Told) -> Handlers<Transaction> {
    Handlers::new().inside("*", told.clone())
}

pub(crate) fn call(told: &Told) -> Handlers<Transaction> {
    Handlers::new().call("*", told.clone())
}

/// Waits in virtual time until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_hours(2);
    while !holds().await {
        assert!(Instant::now() < end, "it never came about that {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `count` offsets are acknowledged.
pub(crate) async fn acknowledged(stage: &Stage, count: usize) {
    until(&format!("{count} are acknowledged"), async || stage.wire.acknowledged().len() >= count).await;
}

pub(crate) const KEEPING: Keeping = Keeping {
    done: Duration::from_hours(24 * 30),
    dead: Duration::from_hours(24 * 90),
    trace: Some(Duration::from_hours(24)),
};
