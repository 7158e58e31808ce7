//! Rows of the table in docs/reference/failures.md that are about consumers: a daemon reports those whose inbox is
//! in the database of its outbox.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::RetryPolicy;
use relevo_inbox::{HandlerError, HandlerResult, Verdict};
use relevo_torture::ledger::{Behaviour, Feed, Member, Point, PointReached, RunningMember, Store, prepare};
use relevo_torture::ledger_beside;

use crate::daemon::{DEADLINE, Daemon, POLL, until};
use crate::failure::run_command;
use crate::test_outbox::TestOutbox;

const CONSUMER: &str = "billing";
const LANES: u16 = 4;
/// Number of attempts after which a message is a dead letter.
const TRIES: u32 = 3;
/// How long a member counts as alive: short, because tests wait until it ends.
const HEARTBEAT_TTL: Duration = Duration::from_millis(600);
/// The signal of a process that aborts.
const SIGABRT: i32 = 6;

/// A relay to the embedded broker, and a consumer there that writes what it handled into a ledger.
pub(crate) struct Fixture {
    outbox: TestOutbox,
    store: Store,
    feed: Feed,
    daemon: Daemon,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        let outbox = TestOutbox::new().await;
        let store: Store = outbox.database.url().parse().expect("a URL");
        prepare(&store).await.expect("a database");
        let feed = Feed::new(&broker(&outbox), CONSUMER, Some(LANES), true).expect("a broker");
        feed.declare().await.expect("a directory");
        let daemon = outbox.start("");
        Self { outbox, store, feed, daemon }
    }

    /// Changes with these numbers, of twelve keys.
    pub(crate) async fn emit(&self, numbers: std::ops::RangeInclusive<i64>) {
        let (first, last) = numbers.into_inner();
        let sql = format!(
            "SELECT relevo.emit('orders', 'k' || n % 12, 'Changed', jsonb_build_object('change', n)) \
             FROM generate_series({first}, {last}) n"
        );
        self.outbox.run(&sql).await;
    }

    /// A member in this process.
    async fn member(&self, behaviour: Arc<dyn Behaviour>) -> RunningMember {
        let member = Member::new(self.store.clone(), self.feed.clone(), CONSUMER, "here", HEARTBEAT_TTL);
        let mut member = Member { behaviour, ..member };
        let soon = RetryPolicy { base: Duration::from_millis(50), attempts_max: TRIES, ..member.config.retry.durable };
        member.config.retry = HandlerRetryPolicy { in_memory: vec![Duration::from_millis(10)], durable: soon };
        member.config.breaker.base = Duration::from_millis(100);
        member.config.breaker.max = Duration::from_millis(200);
        member.start().await.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// A member as a process.
    pub(crate) fn process(&self, name: &str, more: &[&str]) -> Process {
        let ledger = ledger_beside(Path::new(env!("CARGO_BIN_EXE_relevo"))).unwrap_or_else(|error| panic!("{error:#}"));
        let (store, broker, lasts) =
            (self.outbox.database.url(), broker(&self.outbox), HEARTBEAT_TTL.as_millis().to_string());
        let mut command = Command::new(ledger);
        command.args(["--store", &store, "--broker", &broker, "--consumer", CONSUMER, "--member", name]);
        command.args(["--lanes", &LANES.to_string(), "--heartbeat-ttl-ms", &lasts]).args(more);
        let log = std::fs::File::create(self.outbox.directory.path().join(format!("{name}.log"))).expect("a directory");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("it runs");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Process { child, output }
    }

    /// The numbers of the changes that had an effect, in order.
    async fn effects(&self) -> Vec<i64> {
        let rows = self.store.rows(CONSUMER).await.expect("a ledger");
        let mut changes: Vec<i64> = rows.iter().map(|row| row.change).collect();
        changes.sort_unstable();
        changes
    }

    /// Waits until these changes, and no others, had one effect each.
    pub(crate) async fn has_effects(&self, expected: &[i64]) {
        let end = Instant::now() + DEADLINE;
        while self.effects().await.len() < expected.len() {
            assert!(Instant::now() < end, "{:?} of {expected:?}", self.effects().await);
            tokio::time::sleep(POLL).await;
        }
        assert_eq!(self.effects().await, expected);
    }

    fn metric(&self, name: &str) -> Option<f64> {
        self.daemon.value(&format!("{name}{{service=\"relevo\",outbox=\"shop\",consumer=\"{CONSUMER}\""))
    }

    /// Lanes whose breaker is reported as open, and the number of reported lanes.
    fn breakers(&self) -> (Vec<String>, usize) {
        let begin = format!("inbox_breaker_open{{service=\"relevo\",outbox=\"shop\",consumer=\"{CONSUMER}\",lane=\"");
        let (_, body) = self.daemon.get("/metrics");
        let lanes: Vec<_> = body.lines().filter_map(|line| line.strip_prefix(&begin)?.split_once("\"} ")).collect();
        let open = lanes.iter().filter(|(_, value)| *value == "1").map(|(lane, _)| (*lane).to_owned());
        (open.collect(), lanes.len())
    }
}

fn broker(outbox: &TestOutbox) -> String {
    format!("embedded:{}", outbox.directory.path().join("shop.db").display())
}

/// A member in its own process. It is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    output: Receiver<String>,
}

impl Process {
    /// Waits for this line. Returns `false` if the process ends without it.
    fn prints(&mut self, line: &str) -> bool {
        self.lines().any(|printed| printed == line)
    }

    /// Waits for a line that begins with this text, and returns the rest of it.
    pub(crate) fn value_after(&mut self, begin: &str) -> String {
        self.lines()
            .find_map(|line| line.strip_prefix(begin).map(str::to_owned))
            .expect("it prints the line before it ends")
    }

    /// The lines that it prints from now on, until it ends.
    fn lines(&self) -> impl Iterator<Item = String> {
        let end = Instant::now() + DEADLINE;
        std::iter::from_fn(move || match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it neither prints the line nor ends"),
        })
    }

    fn kill9(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some()
    }

    /// Whether it ended because it aborted.
    fn has_aborted(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some_and(|status| status.signal() == Some(SIGABRT))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A handler that fails until a test clears its flag.
struct FailingHandler<F> {
    is_failing: Arc<AtomicBool>,
    failure: F,
}

impl<F> FailingHandler<F> {
    fn new(failure: F) -> (Arc<Self>, Arc<AtomicBool>) {
        let is_failing = Arc::new(AtomicBool::new(true));
        (Arc::new(Self { is_failing: Arc::clone(&is_failing), failure }), is_failing)
    }
}

#[async_trait]
impl<F: Fn(PointReached<'_>) -> HandlerResult + Send + Sync> Behaviour for FailingHandler<F> {
    async fn at(&self, reached: PointReached<'_>) -> HandlerResult {
        if reached.point == Point::During && self.is_failing.load(Ordering::SeqCst) {
            return (self.failure)(reached);
        }
        Ok(Verdict::Done)
    }
}

fn key<'a>(reached: &PointReached<'a>) -> &'a str {
    reached.incoming.expect("a handler has it").key()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_consumer_stops_its_heartbeat_and_another_continues_its_work() {
    let fixture = Fixture::start().await;
    let mut first = fixture.process("first", &["--wait-at", "committed"]);
    assert!(first.prints("ready"));
    fixture.emit(1..=24).await;
    assert!(first.prints("at committed"), "a message is committed and not acknowledged");
    until("the member is reported as alive", || {
        fixture.metric("inbox_members") == Some(1.0) && fixture.metric("inbox_heartbeat_age_seconds") < Some(0.6)
    });
    first.kill9();
    until("the member is reported as dead", || {
        fixture.metric("inbox_members") == Some(0.0) && fixture.metric("inbox_heartbeat_age_seconds") > Some(2.0)
    });
    let listed = run_command(&fixture.outbox, &["consumer", "list"]);
    assert!(listed.contains(CONSUMER) && listed.contains("no members"), "{listed}");
    let before = fixture.effects().await.len();
    assert!(before > 0, "something was committed");

    let mut second = fixture.process("second", &[]);
    assert!(second.prints("ready"));
    fixture.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("the new member is reported as alive", || {
        fixture.metric("inbox_members") == Some(1.0) && fixture.metric("inbox_heartbeat_age_seconds") < Some(0.6)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_every_attempt_leaves_a_dead_letter_until_it_is_redriven() {
    let fixture = Fixture::start().await;
    let (handler, is_failing) = FailingHandler::new(|reached: PointReached<'_>| {
        assert_ne!(reached.change, 7, "no such street");
        Ok(Verdict::Done)
    });
    let member = fixture.member(handler).await;
    fixture.emit(1..=24).await;
    until("the dead letter is reported", || fixture.metric("mq_dlq_total") == Some(1.0));
    assert_eq!(member.status().handler_failures(), u64::from(TRIES), "it was tried again before");
    // 19 has the same key, and waits.
    let others: Vec<i64> = (1..=24).filter(|change| ![7, 19].contains(change)).collect();
    fixture.has_effects(&others).await;
    let listed = run_command(&fixture.outbox, &["dead-letter", "list", "-o", "json"]);
    let letter: serde_json::Value = serde_json::from_str(listed.lines().next().expect("a letter")).expect("JSON");
    assert_eq!((&letter["class"], &letter["key"]), (&"panic".into(), &"k7".into()), "{letter}");
    let id = letter["id"].as_str().expect("an id");
    let shown = run_command(&fixture.outbox, &["dead-letter", "show", id]);
    assert!(shown.contains("no such street") && shown.contains("\nbacktrace:\n"), "{shown}");
    assert_eq!(run_command(&fixture.outbox, &["dead-letter", "show", id, "--raw"]), r#"{"change": 7}"#);

    is_failing.store(false, Ordering::SeqCst);
    run_command(
        &fixture.outbox,
        &["dead-letter", "redrive", "--consumer", CONSUMER, "--all", "--yes", "--reason", "the street is there now"],
    );
    fixture.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("no dead letter is left", || fixture.metric("mq_dlq_total") == Some(0.0));
    member.stop().await.expect("it stops without an error");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_service_pauses_only_the_lane_whose_handler_calls_it() {
    let fixture = Fixture::start().await;
    let (handler, is_failing) = FailingHandler::new(|reached: PointReached<'_>| match key(&reached) {
        "k1" => Err(HandlerError::unavailable("the post is closed").into()),
        _ => Ok(Verdict::Done),
    });
    let member = fixture.member(handler).await;
    fixture.emit(1..=24).await;
    // A member without a recent heartbeat has no open breaker, so all values come from one scrape.
    let mut lane = String::new();
    until("one breaker is reported as open", || {
        let (mut open, reported) = fixture.breakers();
        lane = open.pop().unwrap_or_default();
        !lane.is_empty() && open.is_empty() && reported > 1
    });
    let mut shown = String::new();
    until("the command shows the breaker", || {
        shown = run_command(&fixture.outbox, &["consumer", "show", CONSUMER]);
        shown.contains("the post is closed")
    });
    let row = shown.lines().find(|line| line.contains("the post is closed")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.trim_start().starts_with(&lane), "{row}");
    // Keys of other lanes continue.
    fixture.emit(25..=48).await;
    let end = Instant::now() + DEADLINE;
    while !fixture.effects().await.iter().any(|change| *change > 24) {
        assert!(Instant::now() < end, "{:?}", fixture.effects().await);
    }
    assert!(fixture.effects().await.iter().all(|change| change % 12 != 1));

    is_failing.store(false, Ordering::SeqCst);
    fixture.has_effects(&(1..=48).collect::<Vec<_>>()).await;
    until("all breakers are closed", || fixture.breakers() == (Vec::new(), usize::from(LANES)));
    assert_eq!(
        (member.status().handler_failures(), fixture.metric("mq_dlq_total")),
        (0, Some(0.0)),
        "nothing was counted"
    );
    member.stop().await.expect("it stops without an error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_crashes_its_process_is_dead_lettered_and_the_others_continue() {
    let fixture = Fixture::start().await;
    fixture.emit(1..=24).await;
    let mut crashes = 0;
    loop {
        let mut process = fixture.process(&format!("m{crashes}"), &["--abort-at", "during@7"]);
        // It may crash before it prints that it is ready.
        until("the process crashes or dead-letters the message", || {
            process.has_ended() || fixture.metric("mq_dlq_total") == Some(1.0)
        });
        if !process.has_ended() {
            // 19 has the same key, and waits for an operator.
            let others: Vec<i64> = (1..=24).filter(|change| ![7, 19].contains(change)).collect();
            fixture.has_effects(&others).await;
            break;
        }
        assert!(process.has_aborted(), "it ended by itself");
        crashes += 1;
        assert!(crashes < 20, "it was never dead-lettered");
    }
    // Five starts are recorded. The first delivery is not, because nothing is written before it.
    assert!((5..=6).contains(&crashes), "{crashes}");
    let listed = run_command(&fixture.outbox, &["dead-letter", "list"]);
    let row = listed.lines().find(|line| line.contains("k7")).unwrap_or_else(|| panic!("{listed}"));
    assert!(row.contains("crash") && row.contains(CONSUMER), "{listed}");
    // The handler is fixed.
    let mut fixed = fixture.process("fixed", &[]);
    assert!(fixed.prints("ready"));
    run_command(
        &fixture.outbox,
        &["dead-letter", "redrive", "--consumer", CONSUMER, "--all", "--yes", "--reason", "the handler is fixed"],
    );
    fixture.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("no dead letter is left", || fixture.metric("mq_dlq_total") == Some(0.0));
}
