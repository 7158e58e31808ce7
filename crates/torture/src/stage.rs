//! One run: who is on stage, and how it goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_testkit::postgres::{PgVersion, Private};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use crate::far::{Broker, Far};
use crate::oracle::judge;
use crate::process::Process;
use crate::producers::{Done, Producer};
use crate::random::Random;
use crate::relays::{self, LEASE};
use crate::report::{Deeds, Report};

const RELAYS: usize = 3;
const SHARDS: u16 = 8;
/// What has not arrived so long after the last deed is lost.
const DRAINS_WITHIN: Duration = Duration::from_mins(2);
const DESTINATION: &str = "main";

/// Which store is tortured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A PostgreSQL server of the run's own.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary under test.
    pub relevo: PathBuf,
    /// Which store.
    pub victim: Victim,
    /// Which broker.
    pub far: Far,
    /// Chooses what happens when.
    pub seed: u64,
    /// How long producers write at least.
    pub write_for: Duration,
    /// And until so many messages are committed; more than none makes the producers write without a pause.
    pub messages: u64,
    /// And until so many harms are done.
    pub faults: u32,
}

/// Carries a plan out; an error only if it could not be carried out, or a relay ended by itself.
pub async fn torture(plan: &Plan) -> Result<Report> {
    let directory = Scratch::new(plan)?;
    let mut stage = Stage::set(plan, &directory.0).await?;
    let ended = stage.play(plan).await;
    if ended.is_err() {
        // The logs of the relays tell why.
        std::mem::forget(directory);
    }
    ended
}

/// A directory of the run's own, gone when it ends well.
struct Scratch(PathBuf);

impl Scratch {
    fn new(plan: &Plan) -> Result<Self> {
        let name = format!("relevo-torture-{}-{:?}-{:?}-{}", std::process::id(), plan.victim, plan.far, plan.seed);
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("`{}` cannot be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Changes of one transaction at most, where many messages are asked for: commits are what takes time.
const BURST: u32 = 100;

/// Everything that is on stage.
pub(crate) struct Stage {
    pub(crate) server: Option<Private>,
    database: Database,
    pub(crate) broker: Broker,
    pub(crate) relays: Vec<Process>,
    pub(crate) random: Random,
    pub(crate) deeds: Deeds,
}

impl Stage {
    /// A database with an outbox, the producers' tables, and relays that run.
    async fn set(plan: &Plan, directory: &Path) -> Result<Self> {
        let (server, database, url) = match plan.victim {
            Victim::Postgres => {
                let server = Private::start(PgVersion::V15).await;
                let options = server.options();
                let url = server.url();
                (Some(server), Database::Postgres(Box::new(options)), url)
            }
            Victim::Sqlite => {
                let file = directory.join("outbox.db");
                let url = format!("sqlite:{}", file.display());
                (None, Database::Sqlite(file), url)
            }
        };
        database.make_outbox(DESTINATION, SHARDS).await?;
        database.prepare().await?;
        let broker = Broker::start(plan.far, directory).await?;
        let mut stage = Self {
            server,
            database,
            broker,
            relays: Vec::new(),
            random: Random::new(plan.seed),
            deeds: Deeds::default(),
        };
        let destination = stage.broker.config(DESTINATION);
        for number in 0..RELAYS {
            stage.relays.push(relays::start(&plan.relevo, directory, number, &url, &destination)?);
        }
        Ok(stage)
    }

    async fn play(&mut self, plan: &Plan) -> Result<Report> {
        let done = Arc::new(Done::default());
        let stop = CancellationToken::new();
        let mut producers = JoinSet::new();
        let (count, pause_ms) = match plan.victim {
            Victim::Postgres => (6, 8),
            Victim::Sqlite => (3, 12),
        };
        let (pause_ms, burst_max) = if plan.messages > 0 { (0, BURST) } else { (pause_ms, 1) };
        for number in 0..count {
            let producer = Producer {
                name: format!("p{number}"),
                database: self.database.clone(),
                done: Arc::clone(&done),
                random: self.random.fork(),
                pause_ms,
                burst_max,
            };
            producers.spawn(producer.run(stop.clone()));
        }
        let began = Instant::now();
        let end = began + plan.write_for;
        let mut round = 0;
        loop {
            let (committed, deeds) = (done.committed.load(Ordering::Relaxed), self.deeds.all());
            if Instant::now() >= end && committed >= plan.messages && deeds >= plan.faults {
                break;
            }
            sleep(Duration::from_millis(u64::from(200 + self.random.below(700)))).await;
            self.mend()?;
            // Where both are asked for, the harms are spread over the messages.
            let early = u64::from(deeds) * plan.messages > committed * u64::from(plan.faults);
            if plan.faults == 0 || !early || committed >= plan.messages {
                self.harm(round).await?;
                round += 1;
            }
        }
        stop.cancel();
        while let Some(ended) = producers.join_next().await {
            ended??;
        }
        let wrote_for = began.elapsed();
        let drained_in = self.drain().await?;
        for relay in &mut self.relays {
            relay.leave().await?;
        }
        let committed = self.database.changes().await?;
        let arrived = self.broker.arrivals().await?;
        Ok(Report {
            store: match plan.victim {
                Victim::Postgres => "PostgreSQL",
                Victim::Sqlite => "SQLite",
            },
            broker: plan.far.name(),
            seed: plan.seed,
            wrote_for,
            drained_in,
            deeds: self.deeds,
            unhappy: [&done.rolled_back, &done.vanished, &done.unknown].map(|count| count.load(Ordering::Relaxed)),
            judgement: judge(&committed, &arrived),
        })
    }

    /// Continues who was stopped for long enough, and starts some of those who are gone.
    fn mend(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            relay.expect_alive()?;
            relay.thaw(Instant::now())?;
            if relay.is_gone() && self.random.one_in(2) {
                relay.start_again()?;
            }
        }
        Ok(())
    }

    /// Lets everybody work in peace until nothing waits; says how long that took.
    async fn drain(&mut self) -> Result<Duration> {
        let began = Instant::now();
        for relay in &mut self.relays {
            relay.thaw(began + LEASE * 2)?;
            if relay.is_gone() {
                relay.start_again()?;
            }
        }
        loop {
            let backlog = self.database.inspect(DESTINATION).await?.backlog().await?;
            if backlog.pending == 0 && backlog.parked == 0 {
                return Ok(began.elapsed());
            }
            if began.elapsed() > DRAINS_WITHIN {
                bail!("{} pending and {} parked messages do not arrive", backlog.pending, backlog.parked);
            }
            for relay in &mut self.relays {
                relay.expect_alive()?;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}
