//! `relevo dev`: a shop with an outbox, the production relay, a durable broker and a consumer with an inbox, in one
//! process and one directory. It can be killed and started again: no message is lost, and no effect happens twice.

mod data_dir;
mod faulty_broker;
mod lossy_consumer;
mod operator;
mod orders;
mod page;
mod relay;
mod shipping;
mod state;
mod terminal;
mod verify;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_broker_embedded::{BrokerFile, ConsumerOptions};
use relevo_core::random::SplitMix64;
use relevo_inbox::ConsumerStatus;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::data_dir::{DataDir, GROUP, SHARDS, add_hint};
use self::faulty_broker::FaultyBroker;
use self::operator::Operator;
use self::orders::{ORDERS, OrderService};
use self::page::{Action, ActionRequest};
use self::relay::RelaySupervisor;
use self::state::{DemoState, RelayState};
use self::terminal::Terminal;
use self::verify::{Consistency, Verifier};
use crate::args::Dev;
use relevo_host::Signals;

/// How often the operator acts and events are shown.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// How often rates are sampled, guarantees are checked and the status is printed.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Short, so that a new relay soon takes over from one that crashed.
const LEASE: Duration = Duration::from_secs(3);
/// Short, so that the demo continues soon after the broker is started.
const OUTAGE_BACKOFF_MAX: Duration = Duration::from_millis(800);
/// At the end, the demo waits for messages in progress until none was applied for this time. It is longer than every
/// retry delay, and than the leases of a demo that was killed.
const STALL_TIMEOUT: Duration = Duration::from_secs(8);

/// Runs until Ctrl-C or until its time is over. Returns an error if a guarantee was broken.
pub(crate) async fn run(dev: &Dev) -> Result<()> {
    let stop = CancellationToken::new();
    let mut watch = JoinSet::new();
    watch.spawn(Signals::interrupts()?.cancel_on_stop(stop.clone()));

    let page = page::listen(dev.port).await?;
    let demo = async { Demo::start(dev, DataDir::open(&dev.data).await?, page).await };
    let mut demo = demo.await.map_err(add_hint)?;
    let ended = demo.run(dev, &stop).await.map_err(add_hint);
    if ended.is_err() {
        demo.terminal.end_live()?;
    }
    ended
}

/// The running parts of the demo.
struct Demo {
    data: DataDir,
    state: Arc<DemoState>,
    broker: BrokerFile,
    operator: Operator,
    verifier: Verifier,
    relay: RelaySupervisor,
    /// The relay that crashed last, until its leases have expired.
    crashed: Option<String>,
    /// The statistics of the consumer in this run.
    shipping: Arc<ConsumerStatus>,
    orders: JoinSet<Result<()>>,
    stop_orders: CancellationToken,
    /// Consumer and page. None of them should end before `stop_others` is cancelled.
    others: JoinSet<Result<()>>,
    stop_others: CancellationToken,
    /// Actions that visitors of the page request.
    requests: mpsc::Receiver<ActionRequest>,
    terminal: Terminal<io::Stdout>,
    sampled_at: Instant,
}

impl Demo {
    async fn start(dev: &Dev, data: DataDir, listener: TcpListener) -> Result<Self> {
        let mut verifier = Verifier::open(&data).await?;
        let (changes, before) = verifier.totals().await?;
        let commands = vec![data.list_command(), data.consumer_command()];
        let state = Arc::new(DemoState::new(commands, changes, before));
        let broker = data.broker().await?;
        let mut terminal = Terminal::stdout();
        introduce(&mut terminal, &data, &before, &format!("http://{}/", listener.local_addr()?))?;

        let relay = RelaySupervisor::start(&data, FaultyBroker::new(broker.clone(), Arc::clone(&state))).await?;
        let membership = ConsumerOptions { name: "dev".to_owned(), lease: LEASE, ..ConsumerOptions::default() };
        let consumer = broker.consumer(GROUP, membership).await?;
        let runtime = shipping::runtime(data.inbox().await?, consumer, &state);
        let shipping = runtime.status();
        let (mut others, stop_others) = (JoinSet::new(), CancellationToken::new());
        let stop = stop_others.clone();
        others.spawn(async move { runtime.run(stop).await.context("shipping failed") });
        let (page, requests) = page::page(Arc::clone(&state));
        others.spawn(page.serve(listener, stop_others.clone()));
        let service = OrderService {
            connection: data.orders().await?,
            state: Arc::clone(&state),
            random: SplitMix64::new(u64::from(std::process::id())),
            period: Duration::from_secs(1) / dev.rate,
        };
        let (mut orders, stop_orders) = (JoinSet::new(), CancellationToken::new());
        orders.spawn(service.run(stop_orders.clone()));
        Ok(Self {
            operator: Operator::new(data.operator().await?, data.consumers().await?, Arc::clone(&state)),
            data,
            state,
            broker,
            verifier,
            relay,
            crashed: None,
            shipping,
            orders,
            stop_orders,
            others,
            stop_others,
            requests,
            terminal,
            sampled_at: Instant::now(),
        })
    }

    async fn run(&mut self, dev: &Dev, stop: &CancellationToken) -> Result<()> {
        let reason = self.until_stopped(dev.seconds, stop).await?;
        self.terminal.line(format_args!("{reason}: the shop stops, waiting for messages in progress"))?;
        self.drain().await?;
        self.summary().await
    }

    /// Shows events and performs actions until the demo is stopped, its time is over, or a part of it ends unexpectedly.
    /// Returns the reason.
    async fn until_stopped(&mut self, seconds: u32, stop: &CancellationToken) -> Result<&'static str> {
        let mut ticks = interval(REFRESH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = Instant::now() + Duration::from_secs(seconds.into());
        loop {
            let mut performed = None;
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok("interrupted"),
                () = sleep_until(end), if seconds > 0 => return Ok("time is up"),
                Some(ended) = self.orders.join_next() => {
                    ended?.context("the shop failed")?;
                    bail!("the shop ended too early");
                }
                ended = self.relay.ended() => {
                    ended?;
                    bail!("the relay ended too early");
                }
                Some(ended) = self.others.join_next() => {
                    ended??;
                    bail!("a part of the demo ended too early");
                }
                Some(request) = self.requests.recv() => {
                    performed = Some((self.perform(request.action).await?, request.done));
                }
                _ = ticks.tick() => {}
            }
            self.operator.redrive_due().await?;
            self.refresh().await?;
            if let Some((result, done)) = performed {
                // The visitor may have closed the page.
                done.send(result).ok();
            }
        }
    }

    /// Performs an action. Returns a sentence about its effect.
    async fn perform(&mut self, action: Action) -> Result<String> {
        if self.state.end_automatic() {
            self.state.event("you have the controls: the demo rejects and redrives nothing by itself any more");
        }
        let result = match action {
            Action::StopBroker => {
                self.state.set_broker_up(false);
                "the broker is stopped: messages wait in the outbox".to_owned()
            }
            Action::StartBroker => {
                self.state.set_broker_up(true);
                "the broker is started: the relay publishes the backlog".to_owned()
            }
            Action::CrashRelay => {
                let name = self.relay.name();
                let shards = self.relay.crash(&self.data).await?;
                self.crashed = Some(name.clone());
                format!("{name} crashed with {shards} leases: {} waits until they expire", self.relay.name())
            }
            Action::RejectMessage => {
                self.state.reject_next();
                "the broker rejects the next message for good".to_owned()
            }
            Action::Redrive => match self.operator.redrive_all().await? {
                0 => "there is no dead letter: reject a message first".to_owned(),
                1 => "the dead letter is redriven".to_owned(),
                letters => format!("{letters} dead letters are redriven"),
            },
        };
        self.state.event(result.clone());
        Ok(result)
    }

    /// Updates the state. Prints events and, once a second, the status.
    async fn refresh(&mut self) -> Result<()> {
        self.operator.refresh(self.lag().await?).await?;
        self.refresh_relay().await?;
        self.state.set_handled(self.shipping.done(), self.shipping.duplicates());
        for event in self.state.take_unprinted() {
            self.terminal.line(format_args!("        {event}"))?;
        }
        if self.sampled_at.elapsed() >= SAMPLE_INTERVAL {
            self.sampled_at += SAMPLE_INTERVAL;
            let (_, consistency) = self.verifier.totals().await?;
            self.state.set_consistency(consistency);
            self.terminal.status(self.state.uptime(), &self.state.sample())?;
        }
        Ok(())
    }

    async fn refresh_relay(&mut self) -> Result<()> {
        let (name, shards) = (self.relay.name(), self.relay.shards());
        if shards > 0
            && let Some(crashed) = self.crashed.take()
        {
            self.state
                .event(format!("{name} has leased {shards} of {SHARDS} shards: it continues where {crashed} stopped"));
        }
        let lease_remaining_ms = match self.crashed {
            Some(_) => Some(u64::try_from(self.operator.lease_remaining().await?.as_millis()).unwrap_or(u64::MAX)),
            None => None,
        };
        let relay = RelayState { name, shards, lease_remaining_ms };
        self.state.set_relay(relay, self.relay.sent(), self.relay.published());
        Ok(())
    }

    /// The number of messages at the broker that shipping has not settled.
    async fn lag(&self) -> Result<i64> {
        let groups = self.broker.groups().await.context("the broker does not respond")?;
        let shipping = groups.iter().filter(|group| group.name == GROUP);
        Ok(shipping.map(|group| (group.lag + group.outstanding + group.ready).cast_signed()).sum())
    }

    /// Stops the shop after its current transaction, waits until every committed message is applied, and stops the other
    /// parts. Starts the broker if it is stopped.
    async fn drain(&mut self) -> Result<()> {
        self.requests.close();
        self.stop_orders.cancel();
        while let Some(ended) = self.orders.join_next().await {
            ended?.context("the shop failed")?;
        }
        self.state.set_broker_up(true);
        let (closing, _) = self.verifier.totals().await?;
        let (mut applied, mut applied_at) = (self.state.counts().applied, Instant::now());
        loop {
            self.operator.redrive_all().await?;
            self.refresh().await?;
            // Another demo may use the same directory. Wait only for messages that were committed when this shop stopped.
            if self.verifier.check(&closing).await?.missing == 0 || applied_at.elapsed() > STALL_TIMEOUT {
                break;
            }
            tokio::select! {
                biased;
                ended = self.relay.ended() => { ended?; bail!("the relay ended too early") }
                Some(ended) = self.others.join_next() => { ended??; bail!("a part of the demo ended too early") }
                () = sleep(REFRESH_INTERVAL) => {}
            }
            if self.state.counts().applied != applied {
                (applied, applied_at) = (self.state.counts().applied, Instant::now());
            }
        }
        self.relay.stop().await?;
        self.stop_others.cancel();
        while let Some(ended) = self.others.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Prints what happened. Returns an error if a guarantee was broken.
    async fn summary(&mut self) -> Result<()> {
        self.terminal.end_live()?;
        let (_, consistency) = self.verifier.totals().await?;
        let counts = self.state.counts();
        self.terminal.line(format_args!(
            "\nthis run: {} transactions rolled back, {} repeats recognised by the inbox",
            counts.rolled_back, counts.duplicates
        ))?;
        self.terminal.line(format_args!("in all:   {consistency}"))?;
        if !consistency.is_sound() {
            bail!("a guarantee was broken: {consistency}");
        }
        Ok(())
    }
}

/// Prints the first screen.
fn introduce(
    terminal: &mut Terminal<io::Stdout>,
    data: &DataDir,
    before: &Consistency,
    address: &str,
) -> io::Result<()> {
    terminal.line(format_args!(
        "The Relevo demo runs. Open it in a browser:\n\
         \n\
         \x20   {address}\n\
         \n\
         A shop changes {ORDERS} orders. Each change commits together with a message in its outbox. A relay publishes the\n\
         messages to a broker, and shipping applies each one once, in the order of its key.\n\
         \n\
         try      the four buttons of the page: stop the broker, crash the relay, reject a message, redrive\n\
         \x20        kill -9 {}, then start the demo again: no message is lost, none is applied twice\n\
         inspect  {}\n\
         \x20        {}\n\
         data     {}",
        std::process::id(),
        data.list_command(),
        data.consumer_command(),
        data.description(),
    ))?;
    if before.committed > 0 {
        terminal.line(format_args!("before   {before}"))?;
    }
    terminal.line("stop     Ctrl-C\n")
}
