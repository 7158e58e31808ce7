//! Metrics and probes of a service that runs consumers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use relevo_admin::{Check, Observe, Report, Server, Token};
use relevo_inbox::{ConsumerStatus, RunState};
use tokio_util::sync::CancellationToken;

use super::Consumers;
use crate::exposition::Exposition;

/// Number of consecutive failures to read the lag before the broker counts as unreachable. One call may fail by chance.
const LAG_FAILURES_MAX: u64 = 2;

/// Metrics and probes of a process that runs consumers. All answers come from memory.
///
/// Create it before the consumers run, and serve it next to them:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use relevo_core::inbox::Inbox;
/// # use relevo_inbox::ConsumerRuntime;
/// # use tokio_util::sync::CancellationToken;
/// # async fn example<I: Inbox + 'static>(runtime: ConsumerRuntime<I>) -> Result<(), Box<dyn std::error::Error>>
/// # where I::Transaction: 'static {
/// use relevo_observe::consumer::Service;
///
/// let stop = CancellationToken::new();
/// let service = Service::new("shop", [runtime.status()]);
/// let served = service.serve("0.0.0.0:9465".parse()?, None, stop.clone());
/// let handled = runtime.run(stop.clone());
/// tokio::try_join!(async { Ok(served.await?) }, async { Ok(handled.await?) }).map(drop)
/// # }
/// ```
#[derive(Debug)]
pub struct Service {
    exposition: Exposition,
    consumers: Consumers,
}

/// The reason why metrics and probes cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port cannot be opened.
    #[error(transparent)]
    Port(#[from] relevo_admin::Error),
    /// The port was open, and then failed.
    #[error("the admin port failed")]
    Lost(#[source] io::Error),
}

impl Service {
    /// Serves these consumers, from the status that [`ConsumerRuntime::status`](relevo_inbox::ConsumerRuntime::status) returns before
    /// they run. Every series has the name of the service as a label.
    pub fn new(service: &str, consumers: impl IntoIterator<Item = Arc<ConsumerStatus>>) -> Self {
        let consumers = Consumers::new(consumers);
        let exposition = Exposition::new(service, env!("CARGO_PKG_VERSION")).collector(consumers.clone());
        Self { exposition, consumers }
    }

    /// Adds another collector, for the service's own metrics.
    #[must_use]
    pub fn with(self, collector: impl Collector) -> Self {
        Self { exposition: self.exposition.collector(collector), ..self }
    }

    /// Opens a port and serves `/metrics`, `/livez`, `/readyz` and `/startupz` until `stop` is cancelled. With a token,
    /// only callers that send it get metrics, and details in probes.
    pub async fn serve(
        self,
        address: SocketAddr,
        token: Option<Token>,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let server = Server::bind(address).await?;
        server.run(Arc::new(self), token, stop).await.map_err(ServeError::Lost)
    }

    fn report(&self, check: impl Fn(&ConsumerStatus) -> (bool, String)) -> Report {
        let checks = self.consumers.members().iter().map(|stats| {
            let (ok, seen) = check(stats);
            Check::of_consumer(stats.consumer(), ok, seen)
        });
        Report::of(checks.collect())
    }
}

impl Observe for Service {
    fn live(&self) -> Report {
        self.report(|stats| match stats.run_state() {
            RunState::Failed => (false, "it stopped unexpectedly and receives no messages".to_owned()),
            RunState::New => (true, "it has not started".to_owned()),
            RunState::Running => (true, "it is running".to_owned()),
            RunState::Stopped => (true, "it was stopped".to_owned()),
        })
    }

    fn ready(&self) -> Report {
        self.report(readiness)
    }

    fn metrics(&self) -> String {
        self.exposition.text()
    }
}

/// Whether a member does its work. An unreachable broker, an open breaker and a waiting key are reported, but do not
/// make it unready. The member waits for them, and a restart would not help.
fn readiness(stats: &ConsumerStatus) -> (bool, String) {
    match stats.run_state() {
        RunState::New => return (false, "it has not started".to_owned()),
        RunState::Stopped | RunState::Failed => return (false, "it is not running".to_owned()),
        RunState::Running => {}
    }
    let age = stats.heartbeat_age().as_secs();
    if !stats.is_alive() {
        let seen = match stats.heartbeats() {
            0 => format!("the database has accepted no heartbeat for {age} s"),
            _ => format!("the database accepted the last heartbeat {age} s ago"),
        };
        return (false, seen);
    }
    if stats.receive_failures() > 0 || stats.lag_failures() >= LAG_FAILURES_MAX {
        return (true, "it works, but the broker is unreachable".to_owned());
    }
    let open = stats.open_breakers();
    let Some((lane, why)) = open.first() else { return (true, "it works".to_owned()) };
    (true, format!("it works, {} breakers are open: lane {lane} because {why}", open.len()))
}
