//! `/health`: whether tickets are accepted, events are published and e-mails are sent.
//!
//! If a broker or a worker is unreachable, nothing is lost: events wait in the database. The API is then *degraded* and continues.
//! Without its database it is *down*. A worker with an open breaker is *degraded*: it runs, and its events wait.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use jiff::{Timestamp, Unit};
use relevo::core::outbox::sample::ConsumerSample;
use serde::Serialize;
use tokio::time::timeout;

use crate::api;
use crate::desk::{Desk, DeskError};
use crate::flow::{METRICS, NOTIFICATIONS};
use crate::observe::{Metrics, Sampler};

/// The timeout of the database's ping: as long as a request waits for a connection.
const DEADLINE: Duration = Duration::from_secs(3);

/// The status of the service and of each part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst relevant status of the parts.
    pub status: Status,
    /// The parts.
    pub checks: Checks,
}

/// A status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It works.
    Ok,
    /// It works partly: some messages wait.
    Degraded,
    /// It does not work.
    Down,
}

/// The parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checks {
    /// The database.
    pub database: Check,
    /// The broker.
    pub broker: BrokerCheck,
    /// The workers of all processes.
    pub worker: WorkerCheck,
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its status.
    pub status: Status,
}

/// The broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokerCheck {
    /// Its status.
    pub status: Status,
    /// Since when it has been unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The reason if it rejects this service. An operator must fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The workers, from their records in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerCheck {
    /// Their status.
    pub status: Status,
    /// The number of live members.
    pub members: u64,
    /// The newest heartbeat.
    pub last_beat: Option<Timestamp>,
    /// When a member last received a message.
    pub last_message: Option<Timestamp>,
    /// Why events wait although the workers are alive, or why their status is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The probes of a process.
pub struct Process {
    /// Its health.
    pub health: Health,
    /// Its metrics.
    pub metrics: Metrics,
}

#[async_trait]
impl api::Health for Process {
    async fn check(&self) -> api::Checkup {
        let report = self.health.report().await;
        // Text and numbers can always be serialized.
        let body = serde_json::to_value(&report).unwrap_or_default();
        api::Checkup { is_down: report.status == Status::Down, body }
    }

    async fn metrics(&self) -> String {
        self.metrics.text()
    }

    async fn flow(&self) -> anyhow::Result<api::Flow> {
        self.health.sampler.flow().context("the database does not respond")
    }
}

/// `/health` and `/metrics` alone, for a process without the API.
pub fn router(process: Arc<Process>) -> Router {
    let metrics = Arc::clone(&process);
    let health = move || async move {
        let api::Checkup { is_down, body } = api::Health::check(&*process).await;
        let status = if is_down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (status, Json(body))
    };
    let metrics = move || async move {
        ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.metrics.text())
    };
    Router::new().route("/health", get(health)).route("/metrics", get(metrics))
}

/// The health of a process.
#[derive(Clone)]
pub struct Health {
    desk: Arc<dyn Desk>,
    sampler: Arc<Sampler>,
}

impl Health {
    /// From this desk's response and this sampler's samples.
    pub const fn new(desk: Arc<dyn Desk>, sampler: Arc<Sampler>) -> Self {
        Self { desk, sampler }
    }

    /// The current status. Waits for the database until the timeout.
    pub async fn report(&self) -> Report {
        let database = answering(self.desk.ping()).await;
        let since = self.sampler.broker_down_since();
        let consumers = self.sampler.outbox_sample().map(|sample| sample.consumers);
        let mut report = judge(database, consumers.as_deref(), since, Timestamp::now());
        report.checks.broker.why = since.and_then(|_| self.sampler.broker_refusal());
        report
    }
}

/// A database that is slower than the timeout is down for requests too.
async fn answering(ping: impl Future<Output = Result<(), DeskError>>) -> Status {
    match timeout(DEADLINE, ping).await {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(_)) | Err(_) => Status::Down,
    }
}

fn judge(database: Status, consumers: Option<&[ConsumerSample]>, since: Option<Timestamp>, now: Timestamp) -> Report {
    let broker = BrokerCheck { status: if since.is_some() { Status::Down } else { Status::Ok }, since, why: None };
    let worker = consumers.map_or_else(unknown, |consumers| workers(consumers, now));
    let status = match (database, broker.status, worker.status) {
        (Status::Down | Status::Degraded, _, _) => Status::Down,
        (Status::Ok, Status::Ok, Status::Ok) => Status::Ok,
        (Status::Ok, _, _) => Status::Degraded,
    };
    Report { status, checks: Checks { database: Check { status: database }, broker, worker } }
}

/// A worker has a member in each of the two consumers.
fn workers(consumers: &[ConsumerSample], now: Timestamp) -> WorkerCheck {
    let ours = || consumers.iter().filter(|consumer| [NOTIFICATIONS, METRICS].contains(&consumer.name.as_str()));
    // Milliseconds are precise enough.
    let ago = |age: Duration| now.checked_sub(age).ok()?.round(Unit::Millisecond).ok();
    let all_there = ours().filter(|consumer| consumer.members > 0).count() == 2;
    let open: Vec<_> = ours().filter(|consumer| consumer.breakers.iter().any(|(_, is_open)| *is_open)).collect();
    WorkerCheck {
        status: match (all_there, open.is_empty()) {
            (true, true) => Status::Ok,
            (true, false) => Status::Degraded,
            (false, _) => Status::Down,
        },
        members: ours().map(|consumer| consumer.members).max().unwrap_or(0),
        last_beat: ours().filter_map(|consumer| consumer.heartbeat_age).min().and_then(ago),
        last_message: ours().filter_map(|consumer| consumer.last_message_age).min().and_then(ago),
        why: (!open.is_empty())
            .then(|| open.iter().map(|consumer| waits(&consumer.name)).collect::<Vec<_>>().join("; ")),
    }
}

fn waits(consumer: &str) -> String {
    let what = if consumer == NOTIFICATIONS { "e-mails wait" } else { "figures wait" };
    format!("{what}: a breaker of `{consumer}` is open; hint: the worker's log has the reason")
}

/// The database did not respond in time. Whether it is reachable is a separate check.
fn unknown() -> WorkerCheck {
    let why = Some("the status of the workers is unknown: the database does not respond".to_owned());
    WorkerCheck { status: Status::Degraded, members: 0, last_beat: None, last_message: None, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(name: &str, members: u64) -> ConsumerSample {
        ConsumerSample {
            name: name.to_owned(),
            members,
            heartbeat_age: Some(Duration::from_secs(1)),
            last_message_age: (name == METRICS).then_some(Duration::from_mins(1)),
            waiting: 0,
            dead: 0,
            breakers: Vec::new(),
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn only_an_unreachable_database_means_down() {
        let now = at("2026-11-16T12:00:00Z");
        let both = [consumer(NOTIFICATIONS, 2), consumer(METRICS, 2)];
        let one = [consumer(NOTIFICATIONS, 1), consumer(METRICS, 0)];
        for (database, consumers, since, expected) in [
            (Status::Ok, Some(&both[..]), None, Status::Ok),
            (Status::Ok, Some(&both[..]), Some(now), Status::Degraded),
            (Status::Ok, Some(&one[..]), None, Status::Degraded),
            (Status::Ok, Some(&[]), None, Status::Degraded),
            (Status::Ok, None, None, Status::Degraded),
            (Status::Down, Some(&both[..]), None, Status::Down),
            (Status::Down, None, None, Status::Down),
        ] {
            assert_eq!(judge(database, consumers, since, now).status, expected, "{database:?} {consumers:?} {since:?}");
        }
    }

    #[tokio::test]
    async fn a_database_that_does_not_respond_is_down_after_the_timeout() {
        let status = timeout(2 * DEADLINE, answering(std::future::pending())).await;
        assert_eq!(status, Ok(Status::Down));
        assert_eq!(answering(std::future::ready(Ok(()))).await, Status::Ok);
        assert_eq!(answering(std::future::ready(Err(sqlx::Error::PoolTimedOut.into()))).await, Status::Down);
    }

    #[test]
    fn a_worker_with_an_open_breaker_is_degraded_and_names_it() {
        let now = at("2026-11-16T12:00:00Z");
        let mut both = [consumer(NOTIFICATIONS, 1), consumer(METRICS, 1)];
        both[0].breakers = vec![("0".to_owned(), false), ("1".to_owned(), true)];
        both[1].breakers = vec![("0".to_owned(), false)];
        let check = workers(&both, now);
        assert_eq!(check.status, Status::Degraded);
        assert_eq!(check.why, Some(waits(NOTIFICATIONS)));
        // A consumer without members is worse.
        both[1].members = 0;
        assert_eq!(workers(&both, now).status, Status::Down);
        both[0].breakers[1].1 = false;
        assert_eq!(workers(&both, now).why, None);
    }

    #[test]
    fn a_report_has_these_fields() {
        let both = [consumer(NOTIFICATIONS, 2), consumer(METRICS, 2), consumer("another", 9)];
        let report = judge(Status::Ok, Some(&both), Some(at("2026-11-16T11:59:00Z")), at("2026-11-16T12:00:00Z"));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"status":"degraded","checks":{"database":{"status":"ok"},"#,
                r#""broker":{"status":"down","since":"2026-11-16T11:59:00Z"},"#,
                r#""worker":{"status":"ok","members":2,"last_beat":"2026-11-16T11:59:59Z","#,
                r#""last_message":"2026-11-16T11:59:00Z"}}}"#
            )
        );
    }
}
