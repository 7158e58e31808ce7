//! `relevo dev`: a shop with an outbox, the production relay, a durable broker and a consumer with an inbox, in one
//! process and one directory. It can be killed and started again: no message is lost, and no effect happens twice.

mod check;
mod data;
mod flow;
mod forgetful;
pub(crate) mod interrupts;
mod moods;
mod operator;
mod page;
mod screen;
mod shipping;
mod shop;
mod trouble;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_broker_embedded::{BrokerFile, ConsumerOptions};
use relevo_core::{RetryPolicy, Route, Routes};
use relevo_inbox::ConsumerStatus;
use relevo_relay::{Config, Relay};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use self::check::Check;
use self::data::{Data, GROUP};
use self::flow::Flow;
use self::interrupts::Interrupts;
use self::moods::Moods;
use self::operator::Operator;
use self::screen::Screen;
use self::shop::{ORDERS, ROLLBACKS, Shop};
use crate::args::Dev;
use relevo_core::random::SplitMix64;

/// How often the operator acts and events are shown.
const BEAT: Duration = Duration::from_millis(250);
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// The first delay before a rejected message is retried. It doubles each time.
const RETRY_BASE: Duration = Duration::from_millis(600);
/// The longest delay. Attempts are counted across restarts of the demo, but its rejections begin again with each start.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// Short, so that a restarted demo soon takes over from one that was killed.
const LEASE: Duration = Duration::from_secs(3);
/// At the end, the demo waits for messages in progress until none was applied for this time. It is longer than every
/// retry delay, and than the leases of a demo that was killed.
const STALLED: Duration = Duration::from_secs(8);

/// Runs until Ctrl-C or until its time is over. Returns an error if a guarantee was broken.
pub(crate) async fn run(dev: &Dev) -> Result<()> {
    let stop = CancellationToken::new();
    let mut watch = JoinSet::new();
    watch.spawn(Interrupts::new()?.watch(stop.clone()));

    let page = page::listen(dev.port).await?;
    let demo = async { Demo::start(dev, Data::open(&dev.data).await?, page).await };
    let mut demo = demo.await.map_err(trouble::advise)?;
    let ended = demo.play(dev, stop).await.map_err(trouble::advise);
    if ended.is_err() {
        demo.screen.end_live()?;
    }
    ended
}

impl Demo {
    async fn play(&mut self, dev: &Dev, stop: CancellationToken) -> Result<()> {
        let why = tokio::select! {
            biased;
            () = stop.cancelled() => "interrupted",
            () = time_is_up(dev.seconds) => "time is up",
            ended = self.go_on() => { ended?; "ended by itself" }
        };
        self.screen.line(format_args!("{why}: the shop stops, waiting for messages in progress"))?;
        self.carry_out().await?;
        self.summary().await
    }
}

/// Waits until the time of the demo is over. Without a limit it waits for ever.
async fn time_is_up(seconds: u32) {
    if seconds == 0 {
        std::future::pending::<()>().await;
    }
    sleep(Duration::from_secs(seconds.into())).await;
}

/// The running parts of the demo.
struct Demo {
    data: Data,
    flow: Arc<Flow>,
    broker: BrokerFile,
    operator: Operator,
    /// The statistics of the consumer in this run.
    shipping: Arc<ConsumerStatus>,
    shop: JoinSet<Result<()>>,
    close_shop: CancellationToken,
    /// Relay, consumer and page. None of them should end before `stop_others` is cancelled.
    others: JoinSet<Result<()>>,
    stop_others: CancellationToken,
    screen: Screen<io::Stdout>,
    looked: Instant,
}

impl Demo {
    async fn start(dev: &Dev, data: Data, page: TcpListener) -> Result<Self> {
        let (changes, shipments) = data.so_far().await?;
        let before = Check::of(&changes, &shipments);
        let flow = Arc::new(Flow::new(data.ask(), changes, before.applied));
        let store = Arc::new(data.store().await?);
        let broker = data.broker().await?;
        let address = page.local_addr()?;
        let mut demo = Self {
            operator: Operator::new(data.operator().await?, data.consumers().await?, Arc::clone(&flow)),
            flow,
            shipping: Arc::default(),
            shop: JoinSet::new(),
            close_shop: CancellationToken::new(),
            others: JoinSet::new(),
            stop_others: CancellationToken::new(),
            screen: Screen::stdout(),
            looked: Instant::now(),
            data,
            broker,
        };
        demo.introduce(&before, &format!("http://{address}/"))?;
        let relay =
            Relay::new(store, Arc::new(Moods::new(demo.broker.clone(), Arc::clone(&demo.flow))), relay_config())?;
        demo.others.spawn(relay_runs(relay, demo.stop_others.clone()));
        let membership = ConsumerOptions { name: "dev".to_owned(), lease: LEASE, ..ConsumerOptions::default() };
        let consumer = demo.broker.consumer(GROUP, membership).await?;
        let shipping = shipping::runtime(demo.data.inbox().await?, consumer, &demo.flow);
        demo.shipping = shipping.status();
        let end = demo.stop_others.clone();
        demo.others.spawn(async move { shipping.run(end).await.context("shipping failed") });
        demo.others.spawn(page::serve(page, Arc::clone(&demo.flow), demo.stop_others.clone()));
        let shop = Shop {
            connection: demo.data.shop().await?,
            flow: Arc::clone(&demo.flow),
            random: SplitMix64::new(u64::from(std::process::id())),
            period: Duration::from_secs(1) / dev.rate,
        };
        demo.shop.spawn(shop.run(demo.close_shop.clone()));
        Ok(demo)
    }

    fn introduce(&mut self, before: &Check, address: &str) -> io::Result<()> {
        self.screen.line(format_args!(
            "relevo dev: a shop changes {ORDERS} orders. Each change commits together with a message in the outbox.\n\
             A relay publishes the messages to a broker, and shipping applies each one once, in the sequence of its order.\n\
             The demo provokes failures: one transaction in {ROLLBACKS} rolls back, some messages are rejected and their\n\
             keys are parked, some become dead letters, and some acknowledgements of shipping are lost.\n\
             \n\
             watch    {address}\n\
             inspect  {}\n\
             \x20        {}\n\
             data     {}",
            self.data.ask(),
            self.data.ask_consumer(),
            self.data.shown(),
        ))?;
        if before.committed > 0 {
            self.screen.line(format_args!("before   {before}"))?;
        }
        self.screen.line("         Ctrl-C stops the demo. Or kill it with -9 and start it again.\n")
    }

    /// Shows events. Returns only if a part of the demo ends unexpectedly.
    async fn go_on(&mut self) -> Result<()> {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.shop.join_next() => return ended?.context("the shop failed"),
                Some(ended) = self.others.join_next() => return ended?,
                _ = beat.tick() => {}
            }
            self.operator.decide().await?;
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Result<()> {
        self.operator.look(self.lag().await?).await?;
        self.flow.handled(self.shipping.done(), self.shipping.duplicates());
        for event in self.flow.unshown() {
            self.screen.line(format_args!("        {event}"))?;
        }
        if self.looked.elapsed() >= STATUS_EVERY {
            self.looked = Instant::now();
            self.screen.status(self.flow.runs_for(), &self.flow.look())?;
        }
        Ok(())
    }

    /// The number of messages at the broker that shipping has not settled.
    async fn lag(&self) -> Result<i64> {
        let groups = self.broker.groups().await.context("the broker does not respond")?;
        let shipping = groups.iter().filter(|group| group.name == GROUP);
        Ok(shipping.map(|group| (group.lag + group.outstanding + group.ready).cast_signed()).sum())
    }

    /// Stops the shop after its current transaction, waits until every committed message is applied, and stops the other
    /// parts.
    async fn carry_out(&mut self) -> Result<()> {
        self.close_shop.cancel();
        while let Some(ended) = self.shop.join_next().await {
            ended?.context("the shop failed")?;
        }
        let (closing, _) = self.data.so_far().await?;
        let (mut applied, mut moved) = (self.flow.counts().applied, Instant::now());
        loop {
            self.operator.hurry().await?;
            self.look().await?;
            // Another demo may use the same directory. Wait only for messages that were committed when this shop stopped.
            let (_, shipments) = self.data.so_far().await?;
            if Check::of(&closing, &shipments).missing == 0 || moved.elapsed() > STALLED {
                break;
            }
            tokio::select! {
                biased;
                Some(ended) = self.others.join_next() => { ended??; bail!("a part of the demo ended too early") }
                () = sleep(BEAT) => {}
            }
            if self.flow.counts().applied != applied {
                (applied, moved) = (self.flow.counts().applied, Instant::now());
            }
        }
        self.stop_others.cancel();
        while let Some(ended) = self.others.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Prints what happened. Returns an error if a guarantee was broken.
    async fn summary(&mut self) -> Result<()> {
        self.screen.end_live()?;
        let (changes, shipments) = self.data.so_far().await?;
        let check = Check::of(&changes, &shipments);
        let counts = self.flow.counts();
        self.screen.line(format_args!(
            "\nthis run: {} transactions rolled back, {} repeats recognised by the inbox",
            counts.rolled_back, counts.repeats
        ))?;
        self.screen.line(format_args!("in all:   {check}"))?;
        if !check.is_sound() {
            bail!("a promise was broken: {check}");
        }
        Ok(())
    }
}

async fn relay_runs(relay: Relay, stop: CancellationToken) -> Result<()> {
    Ok(relay.run(stop).await?)
}

fn relay_config() -> Config {
    let route = Route {
        name: "orders".to_owned(),
        topic: "orders".to_owned(),
        policy: RetryPolicy { base: RETRY_BASE, max: RETRY_MAX, ..RetryPolicy::default() },
        ..Route::catch_all()
    };
    Config {
        name: "dev".to_owned(),
        routes: Routes::new(vec![route]),
        lease_duration: LEASE,
        lease_margin: LEASE / 6,
        publish_timeout: LEASE / 2,
        ..Config::default()
    }
}
