//! One run: its processes and servers, and its course.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerKind};
use crate::consumers::{self, FORGETFUL_CONSUMER, GROUPS};
use crate::database::Database;
use crate::operator::{Operator, SampledMarks};
use crate::oracle::{Change, ConsumerFindings, check_deliveries, check_effects};
use crate::process::Process;
use crate::producers::{Producer, Progress};
use crate::relays;
use crate::report::{FaultCounts, Report};
use crate::server::Server;
use relevo_core::random::SplitMix64;

const RELAYS: usize = 3;
const SHARDS: u16 = 8;
pub(crate) const DESTINATION: &str = "main";

/// The store under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A private PostgreSQL server.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

impl StoreKind {
    /// The display name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        }
    }
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary under test.
    pub relevo: PathBuf,
    /// The binary `ledger`, if the run includes consumers.
    pub ledger: Option<PathBuf>,
    /// The store.
    pub store: StoreKind,
    /// The broker.
    pub broker: BrokerKind,
    /// The seed of all random choices.
    pub seed: u64,
    /// Minimum time for which producers write.
    pub write_for: Duration,
    /// Minimum number of committed messages. If it is not 0, producers write without pauses.
    pub messages: u64,
    /// Minimum number of injected faults.
    pub faults: u32,
    /// Breaks the consumers: one loses its inbox, the other acknowledges before it commits. The oracle must
    /// detect both.
    pub broken_consumers: bool,
}

/// Executes a plan. Returns an error only if it could not be executed, or if a process ended by itself.
pub async fn torture(plan: &Plan) -> Result<Report> {
    let directory = Scratch::new(plan)?;
    let mut run = Run::start(plan, &directory.0).await?;
    let mut result = run.execute(plan).await;
    if !plan.broken_consumers && !result.as_ref().is_ok_and(Report::is_sound) {
        // Keep the directory: the logs of the processes show the cause.
        result = result.map(|report| Report { logs: Some(directory.0.clone()), ..report });
        std::mem::forget(directory);
    }
    result
}

/// The run's own directory. It is deleted if the run ends well.
struct Scratch(PathBuf);

impl Scratch {
    fn new(plan: &Plan) -> Result<Self> {
        let suffix = if plan.ledger.is_some() { "-consumers" } else { "" };
        let (process, Plan { store, broker, seed, .. }) = (std::process::id(), plan);
        let path = std::env::temp_dir().join(format!("relevo-torture-{process}-{store:?}-{broker:?}{suffix}-{seed}"));
        std::fs::create_dir_all(&path).with_context(|| format!("`{}` cannot be created", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// How far producers may be ahead of consumers: normally, and when the plan sets a number of messages. A longer queue
/// only prolongs the end of the run.
const AHEAD_MAX: [u64; 2] = [500, 5000];
/// Maximum number of changes in one transaction when the plan sets a number of messages: commits take most of the time.
const BURST: u32 = 100;

/// Minimum number of commits in any plan. A suspended process that holds the lock of a SQLite file blocks
/// all writers, and fewer commits would prove little.
const COMMITTED_MIN: u64 = 101;

/// All processes and servers of a run.
pub(crate) struct Run {
    pub(crate) server: Option<Server>,
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    pub(crate) relays: Vec<Process>,
    pub(crate) consumers: Vec<Process>,
    /// Whether the consumers are broken on purpose.
    pub(crate) broken_consumers: bool,
    pub(crate) random: SplitMix64,
    pub(crate) fault_counts: FaultCounts,
}

impl Run {
    /// Prepares a database with an outbox and the producers' tables, and starts relays and consumers.
    async fn start(plan: &Plan, directory: &Path) -> Result<Self> {
        let (server, database, url) = match plan.store {
            StoreKind::Postgres => {
                let server = Server::start().await;
                let (options, url) = (server.options(), server.url());
                (Some(server), Database::Postgres(Box::new(options)), url)
            }
            StoreKind::Sqlite => {
                let file = directory.join("outbox.db");
                let url = format!("sqlite:{}", file.display());
                (None, Database::Sqlite(file), url)
            }
        };
        database.create_outbox(DESTINATION, SHARDS).await?;
        database.prepare().await?;
        crate::ledger::prepare(&database.ledger()).await?;
        let groups = if plan.ledger.is_some() { &GROUPS[..] } else { &[] };
        let broker = Broker::start(plan.broker, directory, groups).await?;
        let mut run = Self {
            server,
            database,
            broker,
            relays: Vec::new(),
            consumers: Vec::new(),
            broken_consumers: plan.broken_consumers,
            random: SplitMix64::new(plan.seed),
            fault_counts: FaultCounts::default(),
        };
        let destination = run.broker.config(DESTINATION);
        for number in 0..RELAYS {
            run.relays.push(relays::start(&plan.relevo, directory, number, &url, &destination)?);
        }
        for (ledger, group) in plan.ledger.iter().flat_map(|ledger| groups.iter().map(move |group| (ledger, *group))) {
            let feed = run.broker.spec(group);
            run.consumers.extend(consumers::start(ledger, directory, group, &url, &feed, plan.broken_consumers)?);
        }
        Ok(run)
    }

    async fn execute(&mut self, plan: &Plan) -> Result<Report> {
        let done = Arc::new(Progress::default());
        let stop = CancellationToken::new();
        let mut producers = self.start_producers(plan, &done, &stop);
        let mut operators = JoinSet::new();
        if !self.consumers.is_empty() {
            let forgets = plan.broken_consumers.then_some(FORGETFUL_CONSUMER);
            let operator = Operator::new(&self.database, self.random.fork(), Arc::clone(&done), forgets);
            operators.spawn(operator.run(stop.clone()));
        }
        let start = Instant::now();
        self.inject_faults(plan, &done).await?;
        stop.cancel();
        while let Some(ended) = producers.join_next().await {
            ended??;
        }
        let sampled_marks = operators.join_next().await.transpose()?.unwrap_or_default();
        let wrote_for = start.elapsed();
        let drained_in = self.drain().await?;
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.leave().await?;
        }
        let committed = self.database.changes().await?;
        let arrived = self.broker.stored_messages().await?;
        Ok(Report {
            store: plan.store.name(),
            broker: plan.broker.name(),
            seed: plan.seed,
            wrote_for,
            drained_in,
            fault_counts: self.fault_counts,
            not_committed: [&done.rolled_back, &done.disconnected, &done.unknown]
                .map(|count| count.load(Ordering::Relaxed)),
            broker_findings: check_deliveries(&committed, &arrived),
            consumer_findings: self.check_consumers(&committed, &sampled_marks).await?,
            logs: None,
        })
    }

    fn start_producers(&mut self, plan: &Plan, done: &Arc<Progress>, stop: &CancellationToken) -> JoinSet<Result<()>> {
        let mut producers = JoinSet::new();
        let (count, pause_ms) = match plan.store {
            StoreKind::Postgres => (6, 8),
            StoreKind::Sqlite => (3, 12),
        };
        let (pause_ms, burst_max) = if plan.messages > 0 { (0, BURST) } else { (pause_ms, 1) };
        for number in 0..count {
            let producer = Producer {
                name: format!("p{number}"),
                database: self.database.clone(),
                done: Arc::clone(done),
                random: self.random.fork(),
                pause_ms,
                burst_max,
                ahead_max: plan.ledger.is_some().then_some(AHEAD_MAX[usize::from(plan.messages > 0)]),
            };
            producers.spawn(producer.run(stop.clone()));
        }
        producers
    }

    /// Injects faults until the plan is complete.
    async fn inject_faults(&mut self, plan: &Plan, done: &Progress) -> Result<()> {
        let end = Instant::now() + plan.write_for;
        let enough = plan.messages.max(COMMITTED_MIN);
        let mut round = 0;
        loop {
            let (committed, fault_counts) = (done.committed.load(Ordering::Relaxed), self.fault_counts.all());
            if Instant::now() >= end && committed >= enough && fault_counts >= plan.faults {
                return Ok(());
            }
            sleep(Duration::from_millis(u64::from(200 + self.random.below(700)))).await;
            self.recover()?;
            // If the plan sets both numbers, the faults are spread over the messages.
            let early = u64::from(fault_counts) * plan.messages > committed * u64::from(plan.faults);
            if plan.faults == 0 || !early || committed >= plan.messages {
                self.fault(round).await?;
                round += 1;
            }
        }
    }

    /// Resumes processes that were suspended for long enough, and restarts some of those that have ended.
    fn recover(&mut self) -> Result<()> {
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.expect_alive()?;
            process.thaw(Instant::now())?;
            if process.has_ended() && self.random.one_in(2) {
                process.start_again()?;
            }
        }
        Ok(())
    }

    async fn check_consumers(
        &self,
        committed: &[Change],
        sampled_marks: &SampledMarks,
    ) -> Result<Vec<ConsumerFindings>> {
        let mut consumer_findings = Vec::new();
        for group in GROUPS.iter().filter(|_| !self.consumers.is_empty()) {
            let marks = sampled_marks.get(group.name).map_or(&[][..], Vec::as_slice);
            let state = self.database.consumer_state(group.name, marks).await?;
            consumer_findings.push(check_effects(group.name, group.ordered, committed, &state));
        }
        Ok(consumer_findings)
    }
}
