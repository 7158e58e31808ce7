//! Rows of the table in docs/reference/failures.md that are about consumers: a daemon tells of those whose inbox is in
//! the database of its outbox.

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
use crate::failure::said;
use crate::test_outbox::TestOutbox;

const CONSUMER: &str = "billing";
const LANES: u16 = 4;
/// After so many a message is a dead letter.
const TRIES: u32 = 3;
/// How long a member counts as alive: short, because tests wait until it ends.
const HEARTBEAT_TTL: Duration = Duration::from_millis(600);
/// What a process gets that aborts.
const SIGABRT: i32 = 6;

/// A relay to the embedded broker, and a consumer there that writes what it handled into a ledger.
pub(crate) struct Scene {
    world: TestOutbox,
    store: Store,
    feed: Feed,
    daemon: Daemon,
}

impl Scene {
    pub(crate) async fn set() -> Self {
        let world = TestOutbox::new().await;
        let store: Store = world.database.url().parse().expect("a URL");
        prepare(&store).await.expect("a database");
        let feed = Feed::new(&broker(&world), CONSUMER, Some(LANES), true).expect("a broker");
        feed.declare().await.expect("a directory");
        let daemon = world.start("");
        Self { world, store, feed, daemon }
    }

    /// Changes with these numbers, of twelve keys.
    pub(crate) async fn emit(&self, numbers: std::ops::RangeInclusive<i64>) {
        let (first, last) = numbers.into_inner();
        let sql = format!(
            "SELECT relevo.emit('orders', 'k' || n % 12, 'Changed', jsonb_build_object('change', n)) \
             FROM generate_series({first}, {last}) n"
        );
        self.world.run(&sql).await;
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
            (self.world.database.url(), broker(&self.world), HEARTBEAT_TTL.as_millis().to_string());
        let mut command = Command::new(ledger);
        command.args(["--store", &store, "--broker", &broker, "--consumer", CONSUMER, "--member", name]);
        command.args(["--lanes", &LANES.to_string(), "--heartbeat-ttl-ms", &lasts]).args(more);
        let log = std::fs::File::create(self.world.directory.path().join(format!("{name}.log"))).expect("a directory");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("it runs");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Process { child, said }
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

    fn told(&self, name: &str) -> Option<f64> {
        self.daemon.value(&format!("{name}{{service=\"relevo\",outbox=\"shop\",consumer=\"{CONSUMER}\""))
    }

    /// Lanes whose breaker is told as open, and all that are told.
    fn breakers(&self) -> (Vec<String>, usize) {
        let begin = format!("inbox_breaker_open{{service=\"relevo\",outbox=\"shop\",consumer=\"{CONSUMER}\",lane=\"");
        let (_, body) = self.daemon.get("/metrics");
        let lanes: Vec<_> = body.lines().filter_map(|line| line.strip_prefix(&begin)?.split_once("\"} ")).collect();
        let open = lanes.iter().filter(|(_, value)| *value == "1").map(|(lane, _)| (*lane).to_owned());
        (open.collect(), lanes.len())
    }
}

fn broker(world: &TestOutbox) -> String {
    format!("embedded:{}", world.directory.path().join("shop.db").display())
}

/// A member that can be killed; it is when it is dropped.
pub(crate) struct Process {
    child: Child,
    said: Receiver<String>,
}

impl Process {
    /// Waits until it says this; without it, until it ends.
    fn says(&mut self, line: &str) -> bool {
        self.lines().any(|said| said == line)
    }

    /// Waits for a line that begins so, and gives the rest of it.
    pub(crate) fn hears(&mut self, begin: &str) -> String {
        self.lines().find_map(|said| said.strip_prefix(begin).map(str::to_owned)).expect("it says so before it ends")
    }

    /// What it says from now on, until it ends.
    fn lines(&self) -> impl Iterator<Item = String> {
        let end = Instant::now() + DEADLINE;
        std::iter::from_fn(move || match self.said.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it neither says so nor ends"),
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
        // One that has ended is no problem.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Something is wrong with the handler, or with what it needs, until it is mended.
struct Ill<F> {
    is_ill: Arc<AtomicBool>,
    how: F,
}

impl<F> Ill<F> {
    fn new(how: F) -> (Arc<Self>, Arc<AtomicBool>) {
        let is_ill = Arc::new(AtomicBool::new(true));
        (Arc::new(Self { is_ill: Arc::clone(&is_ill), how }), is_ill)
    }
}

#[async_trait]
impl<F: Fn(PointReached<'_>) -> HandlerResult + Send + Sync> Behaviour for Ill<F> {
    async fn at(&self, reached: PointReached<'_>) -> HandlerResult {
        if reached.point == Point::During && self.is_ill.load(Ordering::SeqCst) {
            return (self.how)(reached);
        }
        Ok(Verdict::Done)
    }
}

fn key<'a>(reached: &PointReached<'a>) -> &'a str {
    reached.incoming.expect("a handler has it").key()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_consumer_falls_silent_and_another_goes_on_with_what_it_had() {
    let scene = Scene::set().await;
    let mut first = scene.process("first", &["--wait-at", "committed"]);
    assert!(first.says("ready"));
    scene.emit(1..=24).await;
    assert!(first.says("at committed"), "something is committed that the broker does not know");
    until("it is heard of", || {
        scene.told("inbox_members") == Some(1.0) && scene.told("inbox_heartbeat_age_seconds") < Some(0.6)
    });
    first.kill9();
    until("it is heard of no more", || {
        scene.told("inbox_members") == Some(0.0) && scene.told("inbox_heartbeat_age_seconds") > Some(2.0)
    });
    let listed = said(&scene.world, &["consumer", "list"]);
    assert!(listed.contains(CONSUMER) && listed.contains("no members"), "{listed}");
    let before = scene.effects().await.len();
    assert!(before > 0, "something was committed");

    let mut second = scene.process("second", &[]);
    assert!(second.says("ready"));
    scene.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("it is heard of again", || {
        scene.told("inbox_members") == Some(1.0) && scene.told("inbox_heartbeat_age_seconds") < Some(0.6)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_again_and_again_leaves_a_dead_letter_until_it_is_redriven() {
    let scene = Scene::set().await;
    let (ill, is_ill) = Ill::new(|reached: PointReached<'_>| {
        assert_ne!(reached.change, 7, "no such street");
        Ok(Verdict::Done)
    });
    let member = scene.member(ill).await;
    scene.emit(1..=24).await;
    until("it is seen", || scene.told("mq_dlq_total") == Some(1.0));
    assert_eq!(member.status().handler_failures(), u64::from(TRIES), "it was tried again before");
    // 19 is of the same key, and waits.
    let others: Vec<i64> = (1..=24).filter(|change| ![7, 19].contains(change)).collect();
    scene.has_effects(&others).await;
    let listed = said(&scene.world, &["dead-letter", "list", "-o", "json"]);
    let letter: serde_json::Value = serde_json::from_str(listed.lines().next().expect("a letter")).expect("JSON");
    assert_eq!((&letter["class"], &letter["key"]), (&"panic".into(), &"k7".into()), "{letter}");
    let id = letter["id"].as_str().expect("an id");
    let shown = said(&scene.world, &["dead-letter", "show", id]);
    assert!(shown.contains("no such street") && shown.contains("\nbacktrace:\n"), "{shown}");
    assert_eq!(said(&scene.world, &["dead-letter", "show", id, "--raw"]), r#"{"change": 7}"#);

    is_ill.store(false, Ordering::SeqCst);
    said(
        &scene.world,
        &["dead-letter", "redrive", "--consumer", CONSUMER, "--all", "--yes", "--reason", "the street is there now"],
    );
    scene.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("nothing is left", || scene.told("mq_dlq_total") == Some(0.0));
    member.stop().await.expect("it stops in good order");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_calls_is_away_and_pauses_its_lane_alone_until_it_is_back() {
    let scene = Scene::set().await;
    let (ill, is_ill) = Ill::new(|reached: PointReached<'_>| match key(&reached) {
        "k1" => Err(HandlerError::unavailable("the post is closed").into()),
        _ => Ok(Verdict::Done),
    });
    let member = scene.member(ill).await;
    scene.emit(1..=24).await;
    // A member that was not heard of for a moment has no open breaker: all of it is of one look.
    let mut lane = String::new();
    until("it is seen, of one lane", || {
        let (mut open, told) = scene.breakers();
        lane = open.pop().unwrap_or_default();
        !lane.is_empty() && open.is_empty() && told > 1
    });
    let mut shown = String::new();
    until("it is shown", || {
        shown = said(&scene.world, &["consumer", "show", CONSUMER]);
        shown.contains("the post is closed")
    });
    let row = shown.lines().find(|line| line.contains("the post is closed")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.trim_start().starts_with(&lane), "{row}");
    // Keys of other lanes go on.
    scene.emit(25..=48).await;
    let end = Instant::now() + DEADLINE;
    while !scene.effects().await.iter().any(|change| *change > 24) {
        assert!(Instant::now() < end, "{:?}", scene.effects().await);
    }
    assert!(scene.effects().await.iter().all(|change| change % 12 != 1));

    is_ill.store(false, Ordering::SeqCst);
    scene.has_effects(&(1..=48).collect::<Vec<_>>()).await;
    until("it is closed", || scene.breakers() == (Vec::new(), usize::from(LANES)));
    assert_eq!((member.status().handler_failures(), scene.told("mq_dlq_total")), (0, Some(0.0)), "nothing was counted");
    member.stop().await.expect("it stops in good order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_kills_its_process_is_given_up_and_the_others_go_on() {
    let scene = Scene::set().await;
    scene.emit(1..=24).await;
    let mut crashes = 0;
    loop {
        let mut process = scene.process(&format!("m{crashes}"), &["--abort-at", "during@7"]);
        // It may die before it can say that it is ready.
        until("it dies, or gives the message up", || process.has_ended() || scene.told("mq_dlq_total") == Some(1.0));
        if !process.has_ended() {
            // 19 is of the same key, and waits for a person.
            let others: Vec<i64> = (1..=24).filter(|change| ![7, 19].contains(change)).collect();
            scene.has_effects(&others).await;
            break;
        }
        assert!(process.has_aborted(), "it ended by itself");
        crashes += 1;
        assert!(crashes < 20, "it was never given up");
    }
    // Five starts are noted; the first delivery is not, because nothing is written before it.
    assert!((5..=6).contains(&crashes), "{crashes}");
    let listed = said(&scene.world, &["dead-letter", "list"]);
    let row = listed.lines().find(|line| line.contains("k7")).unwrap_or_else(|| panic!("{listed}"));
    assert!(row.contains("crash") && row.contains(CONSUMER), "{listed}");
    // Its handler is mended.
    let mut mended = scene.process("mended", &[]);
    assert!(mended.says("ready"));
    said(
        &scene.world,
        &["dead-letter", "redrive", "--consumer", CONSUMER, "--all", "--yes", "--reason", "the handler is mended"],
    );
    scene.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("nothing is left", || scene.told("mq_dlq_total") == Some(0.0));
}
