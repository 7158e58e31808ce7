//! One member of a consumer whose effects are rows of a ledger, as a process that can be killed.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use relevo_admin::Server;
use relevo_inbox::{MessageOrder, RetryStorage};
use relevo_observe::ProcessMonitor;
use relevo_torture::ledger::{AckMistake, FailureRates, FaultAction, Feed, Member, OneTimeFault, RunningMember, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Database or broker may be down when the process starts. After this time, the start fails.
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);

/// Handles the messages of one group at a broker, each in a transaction that writes a row, until it is stopped. Prints
/// `ready` when it runs.
#[derive(Debug, Parser)]
struct Arguments {
    /// The database of inbox and ledger: `postgres://…` or `sqlite:PATH`.
    #[arg(long)]
    store: String,
    /// The source of messages: `embedded:PATH`, `amqp://…#QUEUE[?exchange=NAME&retry_ms=200,1000]` or
    /// `nats://…#STREAM`.
    #[arg(long)]
    broker: String,
    /// The name of the consumer, and of the group at brokers that name groups.
    #[arg(long)]
    consumer: String,
    /// The name of this process.
    #[arg(long)]
    member: String,
    /// The order of messages: `key` or `none`.
    #[arg(long, default_value = "key")]
    order: String,
    /// Number of lanes that publishers hash keys into. Without it, there are no lanes.
    #[arg(long)]
    lanes: Option<u16>,
    /// Number of handlers that run at the same time.
    #[arg(long, default_value_t = 4)]
    concurrency: usize,
    /// Maximum number of messages in one transaction.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Maximum number of unsettled messages of a lane.
    #[arg(long, default_value_t = 64)]
    prefetch: u16,
    /// Aborts when a message reaches a point: `before`, `called`, `during`, `committed`, or one with the number of the
    /// change, `during@7`.
    #[arg(long)]
    abort_at: Option<String>,
    /// Like `--abort-at`, but the message waits at the point: the process prints `at POINT`, and continues after a line
    /// on the standard input.
    #[arg(long, conflicts_with = "abort_at")]
    wait_at: Option<String>,
    /// How long the process counts as alive after a heartbeat.
    #[arg(long, default_value_t = 2_000)]
    heartbeat_ttl_ms: u64,
    /// Timeout of one attempt of a handler.
    #[arg(long, default_value_t = 2_000)]
    handler_timeout_ms: u64,
    /// PostgreSQL ends a transaction that is idle for this long. The default is twice the handler timeout.
    #[arg(long)]
    stall_ms: Option<u64>,
    /// Calls an external service for every message, and commits its response.
    #[arg(long)]
    call: bool,
    /// Breaks the process on purpose.
    #[arg(long, value_enum)]
    ack_mistake: Option<AckMistake>,
    /// Durable retries wait at the broker, not in the retry table. Only without order.
    #[arg(long)]
    retry_at_broker: bool,
    /// For one message in N, the first two attempts fail.
    #[arg(long, default_value_t = 0)]
    retry_one_in: u32,
    /// One message in N is poison, until the ledger's table of cures names the consumer.
    #[arg(long, default_value_t = 0)]
    poison_one_in: u32,
    /// Serves probes and metrics at this address, and prints `admin ADDRESS` before `ready`.
    #[arg(long)]
    admin: Option<SocketAddr>,
    /// The name of this service in the metrics.
    #[arg(long, default_value = "ledger")]
    service: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let arguments = Arguments::parse();
    let member = member(&arguments)?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut running = tokio::select! {
        running = open(member) => running?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let mut serving = JoinSet::new();
    if let Some(address) = arguments.admin {
        let server = Server::bind(address).await?;
        writeln!(std::io::stdout(), "admin {}", server.address())?;
        let service = ProcessMonitor::new(&arguments.service, env!("CARGO_PKG_VERSION"))
            .consumers([Arc::clone(running.status())]);
        serving.spawn(server.run(Arc::new(service), None, CancellationToken::new()));
    }
    writeln!(std::io::stdout(), "ready")?;
    std::io::stdout().flush()?;
    tokio::select! {
        ended = running.ended() => ended,
        _ = terminate.recv() => running.stop().await,
        _ = interrupt.recv() => running.stop().await,
    }
}

fn member(arguments: &Arguments) -> Result<Member> {
    let Arguments { store, broker, consumer, member, lanes, concurrency, .. } = arguments;
    let store: Store = store.parse()?;
    let order = match arguments.order.as_str() {
        "key" => MessageOrder::ByKey { concurrency: *concurrency },
        "none" => MessageOrder::None { concurrency: *concurrency },
        other => bail!("unknown order `{other}`; hint: `key` or `none`"),
    };
    let ordered = matches!(order, MessageOrder::ByKey { .. });
    let feed = Feed::new(broker, consumer, *lanes, ordered)?;
    let mut configured = Member::new(store, feed, consumer, member, Duration::from_millis(arguments.heartbeat_ttl_ms));
    configured.feed.prefetch = arguments.prefetch;
    configured.config.order = order;
    configured.config.batch_max = arguments.batch;
    configured.config.handler_timeout = Duration::from_millis(arguments.handler_timeout_ms);
    configured.stall_timeout = arguments.stall_ms.map_or(configured.config.handler_timeout * 2, Duration::from_millis);
    configured.config.retry_storage =
        if arguments.retry_at_broker { RetryStorage::Broker } else { RetryStorage::Inbox };
    configured.ack_mistake = arguments.ack_mistake;
    configured.calls = arguments.call;
    configured.failure_rates =
        FailureRates { retry_one_in: arguments.retry_one_in, poison_one_in: arguments.poison_one_in };
    let faults = [(FaultAction::Abort, &arguments.abort_at), (FaultAction::Wait, &arguments.wait_at)];
    for (action, point) in faults {
        if let Some(point) = point {
            configured.behaviour = Arc::new(OneTimeFault::new(action, point)?);
        }
    }
    Ok(configured)
}

/// Retries until database and broker are reachable.
async fn open(member: Member) -> Result<RunningMember> {
    let end = Instant::now() + OPEN_TIMEOUT;
    loop {
        match member.clone().start().await {
            Ok(running) => return Ok(running),
            Err(error) if Instant::now() < end => {
                writeln!(std::io::stderr(), "not yet: {error:#}")?;
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error).context("the consumer cannot start"),
        }
    }
}
