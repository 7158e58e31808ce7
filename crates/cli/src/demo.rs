//! `relevo dev`: an outbox, the production relay and a broker in one process, with sample traffic and failures on
//! purpose. At the end it checks the promises on what happened.

mod interrupts;
mod ledger;
mod orders;
mod promises;
mod random;
mod screen;
mod trouble;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_broker_memory::{MemoryBroker, Settings as BrokerSettings};
use relevo_core::{Policy, Route, Routes};
use relevo_relay::{Config, Relay, Stats};
use relevo_store_memory::{MAIN, Outbox, Settings as OutboxSettings};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::interrupts::Interrupts;
use self::ledger::{Ledger, Sums};
use self::orders::{ORDERS, Orders, ROLLBACKS, Writer};
use self::random::Random;
use self::screen::{Millis, Screen, Status};
use self::trouble::Trouble;
use crate::args::Dev;

const WRITERS: u32 = 4;
/// How often trouble is made and noticed.
const BEAT: Duration = Duration::from_millis(100);
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// The first pause before a refused message is tried again; doubled each time.
const RETRY_BASE: Duration = Duration::from_millis(600);
/// How long delivered messages are kept.
const RETENTION: Duration = Duration::from_secs(10);
/// At the end, what is under way is waited for as long as something arrives this often. Longer than any retry's pause.
const STALLED: Duration = Duration::from_secs(3);

/// Runs until Ctrl-C or its time is up; an error if a promise was broken.
pub(crate) async fn run(dev: &Dev) -> Result<()> {
    let interrupts = Interrupts::new()?;
    let stop = CancellationToken::new();
    let mut watch = JoinSet::new();
    watch.spawn(interrupts.watch(stop.clone()));

    let mut demo = Demo::start(dev);
    demo.introduce()?;
    let why = tokio::select! {
        biased;
        () = stop.cancelled() => "interrupted",
        () = demo.time_is_up(dev.seconds) => "time is up",
        ended = demo.go_on() => { ended?; "ended by itself" }
    };
    demo.screen.line(format_args!("{why}: the writers stop, the relay carries out what is under way"))?;
    demo.carry_out().await?;
    demo.summary()
}

/// Everything that is on stage.
struct Demo {
    started: Instant,
    ledger: Arc<Ledger>,
    trouble: Trouble,
    stats: Arc<Stats>,
    writers: JoinSet<Result<()>>,
    stop_writers: CancellationToken,
    relay: JoinSet<Result<()>>,
    stop_relay: CancellationToken,
    screen: Screen<io::Stdout>,
    looked: Instant,
}

impl Demo {
    fn start(dev: &Dev) -> Self {
        let started_at = jiff::Timestamp::now();
        let outbox = Outbox::new(OutboxSettings { started_at, retention: RETENTION, ..OutboxSettings::default() });
        let broker = MemoryBroker::new(BrokerSettings { records: false, ..BrokerSettings::default() });
        let ledger = Arc::new(Ledger::default());
        let receives = Arc::clone(&ledger);
        broker.on_receipt(move |publication| receives.received(publication.message.id));

        let trouble = Trouble::new(&outbox, &broker, &ledger);
        let relay = Relay::new(Arc::new(outbox.destination(MAIN)), Arc::new(broker), relay_config());
        let now = Instant::now();
        let mut demo = Self {
            started: now,
            ledger,
            trouble,
            stats: relay.stats(),
            writers: JoinSet::new(),
            stop_writers: CancellationToken::new(),
            relay: JoinSet::new(),
            stop_relay: CancellationToken::new(),
            screen: Screen::stdout(),
            looked: now,
        };
        let stop = demo.stop_relay.clone();
        demo.relay.spawn(async move { Ok(relay.run(stop).await?) });
        demo.start_writers(&outbox, dev.rate);
        demo
    }

    fn start_writers(&mut self, outbox: &Outbox, rate: u32) {
        let orders = Arc::new(Orders::default());
        for number in 0..WRITERS {
            let writer = Writer {
                outbox: outbox.clone(),
                orders: Arc::clone(&orders),
                ledger: Arc::clone(&self.ledger),
                poisoner: self.trouble.poisoner(),
                random: Random::new(number.into()),
                period: Duration::from_secs(1) * WRITERS / rate,
                // A quick writer cannot be slow often.
                slow_one_in: (rate / 100).max(5),
            };
            self.writers.spawn(writer.run(self.stop_writers.clone()));
        }
    }

    fn introduce(&mut self) -> io::Result<()> {
        self.screen.line(format_args!(
            "relevo dev: {WRITERS} writers change {ORDERS} orders; each change commits with a message in the outbox,\n\
             and a relay carries the messages to a broker, in order for each order.\n\
             Outbox and broker are in memory in this version: nothing to install, and nothing stays.\n\
             On purpose, one transaction in {ROLLBACKS} rolls back, now and then a key is refused twice and is parked,\n\
             and now and then a message is refused for good and becomes a dead letter, which an operator looks after.\n\
             Latency is from commit to receipt, in the last second, parked messages included. Ctrl-C ends it.\n"
        ))
    }

    /// Makes trouble and shows what happens; returns only if a writer or the relay ends, which neither should.
    async fn go_on(&mut self) -> Result<()> {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.writers.join_next() => return ended?.context("a writer failed"),
                Some(ended) = self.relay.join_next() => return ended?,
                _ = beat.tick() => {}
            }
            for event in self.trouble.step().await? {
                self.screen.line(format_args!("        {event}"))?;
            }
            if self.looked.elapsed() >= STATUS_EVERY {
                self.show_status()?;
            }
        }
    }

    /// Waits for the end of the demo's time; for ever if it has none.
    fn time_is_up(&self, seconds: u32) -> impl Future<Output = ()> + use<> {
        let end = self.started + Duration::from_secs(seconds.into());
        async move {
            if seconds == 0 {
                std::future::pending::<()>().await;
            }
            sleep_until(end).await;
        }
    }

    fn show_status(&mut self) -> io::Result<()> {
        let (count, latency) = self.ledger.look();
        let elapsed = self.looked.elapsed();
        self.looked = Instant::now();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.screen.status(Status {
            since_start: self.started.elapsed(),
            per_second: f64::from(count) / elapsed.as_secs_f64(),
            published: self.stats.published(),
            waiting: self.trouble.waiting(),
            backlog: self.ledger.backlog(),
            latency,
        })
    }

    /// Writers end with their transactions, what is under way arrives, and the relay leaves politely.
    async fn carry_out(&mut self) -> Result<()> {
        self.stop_writers.cancel();
        while let Some(ended) = self.writers.join_next().await {
            ended?.context("a writer failed")?;
        }
        let mut receipts = self.ledger.receipts();
        let mut last_receipt = Instant::now();
        while self.ledger.backlog() > 0 && last_receipt.elapsed() < STALLED && !self.relay.is_empty() {
            // A message that is refused for good just now becomes a dead letter a little later.
            self.trouble.end().await?;
            sleep(BEAT).await;
            if self.ledger.receipts() != receipts {
                receipts = self.ledger.receipts();
                last_receipt = Instant::now();
            }
            if self.looked.elapsed() >= STATUS_EVERY {
                self.show_status()?;
            }
        }
        self.trouble.end().await?;
        self.show_status()?;
        self.stop_relay.cancel();
        while let Some(ended) = self.relay.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Tells what happened and whether the promises held; an error if one did not.
    fn summary(&mut self) -> Result<()> {
        self.screen.end_live()?;
        let Sums { record, latency, redriven } = self.ledger.close();
        let repeats = record.received.len() - record.received.iter().collect::<std::collections::BTreeSet<_>>().len();
        self.screen.line(format_args!(
            "\n{} committed, {} rolled back, {} received ({repeats} repeats), {} parked, {} dead letters ({redriven} redriven, {} discarded)",
            record.committed.len(),
            record.rolled_back.len(),
            record.received.len(),
            self.stats.parked(),
            self.stats.buried(),
            record.discarded.len(),
        ))?;
        self.screen.line(format_args!(
            "commit to receipt: p50 {}, p99 {}",
            Millis(latency.p50),
            Millis(latency.p99)
        ))?;
        let promises = promises::check(&record);
        for promise in &promises {
            self.screen.line(promise)?;
        }
        let broken: Vec<_> = promises.iter().filter(|promise| !promise.held).map(|promise| promise.name).collect();
        if !broken.is_empty() {
            bail!("broken promises: {}", broken.join(", "));
        }
        self.screen.line("all promises held")?;
        Ok(())
    }
}

fn relay_config() -> Config {
    let route = Route {
        name: "orders".to_owned(),
        topic: "orders".to_owned(),
        policy: Policy { base: RETRY_BASE, ..Policy::default() },
        ..Route::everything()
    };
    Config { name: "dev".to_owned(), routes: Routes::new(vec![route]), ..Config::default() }
}
