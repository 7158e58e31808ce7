//! A process: its parts, and how they start and stop.
//!
//! If one part fails permanently, the process ends with its error. An outage, or a broker that rejects this service, is not a
//! permanent failure. At a shutdown every part finishes its current work.

mod opening;
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::Router;
use relevo::admin::{ConnectionLimits, LimitedListener};
use relevo::observe::{RelayLabels, RelayMonitor};
use relevo::relay::Relay;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::opening::patiently;
use self::upkeep::Upkeep;
use crate::config::Config;
use crate::desk::{self, Desk, DeskError, Kind};
use crate::flow::{self, Broker};
use crate::health::Health;
use crate::observe::{Metrics, Sampler};
use crate::page::Face;
use crate::worker::Worker;
use crate::{api, health, sample};

/// How long the consumers wait for the topology of the broker. If the broker is unreachable or rejects this service, they start, and
/// the topology is retried beside them.
const PREPARE: Duration = Duration::from_secs(2);
/// A process often has 1024 file descriptors: half of them are for callers. A request times out after ten seconds, before its
/// caller does.
const CONNECTIONS: ConnectionLimits = ConnectionLimits { connections_max: 512, idle_timeout: Duration::from_secs(30) };
/// How long a shutdown waits for running requests.
const GRACE: Duration = Duration::from_secs(5);

/// A process that accepts requests.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Its address.
    pub address: SocketAddr,
    /// The sample users; empty for a real installation.
    pub faces: Vec<Face>,
}

/// Runs the parts of a role until `stop` is cancelled or one of them fails. Calls `serves` once requests are accepted. With `sample`
/// there are users with public tokens: never together with real ones, and never for other machines.
pub async fn run(
    mut config: Config,
    sample: bool,
    serves: impl FnOnce(&Serving),
    stop: CancellationToken,
) -> Result<()> {
    if sample && !config.listen.ip().is_loopback() {
        bail!(
            "the sample's tokens are known to everybody, so it listens on this machine only, not on {}; hint: set \
             TicketFlow up with `--config FILE`",
            config.listen
        );
    }
    for doubt in config.check()? {
        warn!(setting = doubt.setting, why = doubt.why, "a setting looks wrong");
    }
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = listener.local_addr()?;
    if sample {
        config.letters.base_url = format!("http://{address}");
    }
    let opened = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        opened = Parts::open(&config, sample) => opened?,
    };
    serves(&Serving { address, faces: opened.faces.clone() });
    opened.run(&config, listener, stop).await
}

/// The open connections of all parts. Nothing runs yet.
struct Parts {
    desk: Arc<dyn Desk>,
    broker: Broker,
    relay: Option<Relay>,
    worker: Option<Worker>,
    sampler: Arc<Sampler>,
    metrics: Metrics,
    faces: Vec<Face>,
}

impl Parts {
    async fn open(config: &Config, sample: bool) -> Result<Self> {
        config.make_folders()?;
        patiently("the database", || async { Ok(desk::migrate(&config.database).await?) }).await?;
        let desk = patiently("the database", || async { Ok(desk::open(&config.database).await?) }).await?;
        let faces = patiently("the database", || async { Ok(faces(&*desk, sample).await?) }).await?;
        let outbox = patiently("the database", || flow::open_outbox(&config.database, &config.outbox)).await?;
        let broker = Broker::open(&config.broker).await?;
        if let Ok(prepared) = timeout(PREPARE, broker.prepare()).await {
            prepared?;
        }
        let relay = config.role.serves().then(|| flow::relay(&outbox, broker.publisher(), &config.outbox));
        let relay = relay.transpose()?;
        let name = format!("ticketflow-{}", std::process::id());
        let worker = if config.role.works() {
            Some(patiently("the database", || Worker::open(config, &broker, &name)).await?)
        } else {
            None
        };
        let watched = relay.as_ref().map(|relay| {
            let [outbox, destination] = ["tickets", flow::DESTINATION].map(str::to_owned);
            let (broker, location) = (broker.kind().to_owned(), broker.kind().to_owned());
            let monitor =
                RelayMonitor::new(RelayLabels { outbox, database: String::new(), destination, broker, location });
            monitor.attach(relay);
            Arc::new(monitor)
        });
        let stats = worker.as_ref().map(Worker::stats).unwrap_or_default();
        let metrics = Metrics::new(watched.as_ref(), &stats);
        let sampler = Arc::new(Sampler::new(outbox.operator, broker.clone(), watched));
        sampler.sample().await;
        Ok(Self { desk, broker, relay, worker, sampler, metrics, faces })
    }

    async fn run(self, config: &Config, listener: TcpListener, stop: CancellationToken) -> Result<()> {
        let Self { desk, broker, relay, worker, sampler, metrics, faces } = self;
        let mut parts: JoinSet<Result<()>> = JoinSet::new();
        let health =
            Arc::new(health::Process { health: Health::new(Arc::clone(&desk), Arc::clone(&sampler)), metrics });
        let router = if config.role.serves() {
            let limits = config.limits.clone();
            api::router(api::State { desk: Arc::clone(&desk), health, limits, faces })
        } else {
            health::router(health)
        };
        parts.spawn(serve(listener, CONNECTIONS, router, stop.clone()));
        parts.spawn(sampler.run(stop.clone()));
        parts.spawn(Upkeep::new(desk, config).run(stop.clone()));
        if let Some(relay) = relay {
            let (broker, stop) = (broker.clone(), stop.clone());
            parts.spawn(async move {
                prepared(&broker, &stop).await?;
                relay.run(stop).await.context("the relay failed")
            });
        }
        if let Some(worker) = worker {
            let (broker, stop) = (broker.clone(), stop.clone());
            parts.spawn(async move {
                prepared(&broker, &stop).await?;
                worker.run(stop).await.context("the worker failed")
            });
        }
        let ended = until_all_end(parts, &stop).await;
        if timeout(GRACE, broker.close()).await.is_err() {
            warn!("the broker did not close its connections in time");
        }
        ended
    }
}

/// The sample users. Without `sample` there are none, and a database of a sample is rejected.
async fn faces(desk: &dyn Desk, sample: bool) -> Result<Vec<Face>, DeskError> {
    if sample {
        return sample::people(desk).await;
    }
    desk.claim(Kind::Real).await?;
    Ok(Vec::new())
}

/// The first error stops the other parts, and is returned.
async fn until_all_end(mut parts: JoinSet<Result<()>>, stop: &CancellationToken) -> Result<()> {
    let mut ended = Ok(());
    while let Some(part) = parts.join_next().await {
        let part = part.context("a part panicked").and_then(|part| part);
        if part.is_err() {
            stop.cancel();
        }
        ended = ended.and(part);
    }
    ended
}

/// Waits for the broker's queues, or until a shutdown.
async fn prepared(broker: &Broker, stop: &CancellationToken) -> Result<()> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        prepared = broker.prepare() => prepared,
    }
}

/// Serves requests. A shutdown waits for the running ones. An idle connection is closed.
async fn serve(listener: TcpListener, limits: ConnectionLimits, router: Router, stop: CancellationToken) -> Result<()> {
    let listener = LimitedListener::new(listener, limits);
    let server = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = server => ended.context("the port failed"),
        () = late => {
            warn!("requests took too long and were cancelled");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn idle_connections_are_closed_and_block_no_other_caller() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let limits = ConnectionLimits { connections_max: 4, idle_timeout: Duration::from_secs(1) };
        let router = Router::new().route("/", axum::routing::get(async || "fine"));
        let mut parts = JoinSet::new();
        parts.spawn(serve(listener, limits, router, stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut honest = TcpStream::connect(address).await.unwrap();
        honest.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        honest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("fine"), "{answer}");
        for mut silent in silent {
            let closed = timeout(10 * limits.idle_timeout, silent.read(&mut [0])).await;
            assert_eq!(closed.expect("the connection is closed in time").unwrap(), 0);
        }
        stop.cancel();
        parts.join_next().await.unwrap().unwrap().unwrap();
    }
}
