//! `/health` for each unreachable part.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relevo_testkit::proxy::CutProxy;
use serde_json::Value;
use sqlx::Connection as _;
use ticketflow::config::{Broker, Database, Role, Secret};

use crate::stage::{ANA, Running, Stage, so, until};

/// Waits until it is so, and returns what was seen then.
async fn becomes(running: &Running, status: u16, word: &str, part: &str, of_part: &str) -> Value {
    until(async || {
        let (seen, health) = running.health().await;
        let is_so = seen == status && health["status"] == word && health["checks"][part]["status"] == of_part;
        if is_so { Ok(health) } else { Err(health.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_missing_database_ends_the_service() {
    let mut stage = Stage::new().await;
    let options = stage.database.options();
    let database =
        CutProxy::start(format!("{}:{}", options.get_host(), options.get_port()).parse().expect("one")).await;
    let url = stage.database.url();
    let at = format!("{}:{}", options.get_host(), options.get_port());
    stage.config.database = Database::Postgres(Secret::new(url.replace(&at, &database.addr().to_string())));
    let Broker::RabbitMq { url, .. } = &mut stage.config.broker else { panic!("no RabbitMQ") };
    let amqp = url.expose().to_owned();
    let host = amqp.rsplit('@').next().and_then(|rest| rest.split('/').next()).expect("a host").to_owned();
    let broker = CutProxy::start(host.parse().expect("an address")).await;
    *url = Secret::new(amqp.replace(&host, &broker.addr().to_string()));

    let api = stage.start(Role::Api).await;
    becomes(&api, 200, "degraded", "worker", "down").await;
    let worker = stage.start(Role::Worker).await;
    let health = becomes(&api, 200, "ok", "worker", "ok").await;
    becomes(&worker, 200, "ok", "worker", "ok").await;
    assert_eq!(health["checks"]["worker"]["members"], 1, "{health}");
    assert!(health["checks"]["worker"]["last_beat"].is_string(), "{health}");
    assert!(health["checks"]["worker"]["last_message"].is_null(), "there was none yet: {health}");
    let before = Timestamp::now();
    api.open(ANA, "a message").await;
    until(async || {
        let (_, health) = api.health().await;
        let last = health["checks"]["worker"]["last_message"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        // It is reported as an age by another clock.
        so(last.is_some_and(|at| at > before - Duration::from_secs(2)), health)
    })
    .await;

    broker.block().await;
    let health = becomes(&api, 200, "degraded", "broker", "down").await;
    assert!(health["checks"]["broker"]["since"].is_string(), "{health}");
    broker.unblock();
    becomes(&api, 200, "ok", "broker", "ok").await;

    database.block().await;
    becomes(&api, 503, "down", "database", "down").await;
    becomes(&worker, 503, "down", "database", "down").await;
    database.unblock();
    becomes(&api, 200, "ok", "database", "ok").await;
    // One that keeps its connections and says nothing is not waited for.
    database.freeze();
    for running in [&api, &worker] {
        let asked = Instant::now();
        let (status, health) = running.health().await;
        assert_eq!((status, &health["checks"]["database"]["status"]), (503, &"down".into()), "{health}");
        assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    }
    database.thaw();
    becomes(&api, 200, "ok", "database", "ok").await;
    worker.stop().await;
    becomes(&api, 200, "degraded", "worker", "down").await;
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_mail_server_is_unreachable_is_degraded_with_the_reason() {
    let mut stage = Stage::new().await;
    let (api, worker) = (stage.start(Role::Api).await, stage.start(Role::Worker).await);
    becomes(&api, 200, "ok", "worker", "ok").await;
    stage.smtp.kill9();
    api.open(ANA, "no post today").await;
    for running in [&api, &worker] {
        let health = becomes(running, 200, "degraded", "worker", "degraded").await;
        let why = health["checks"]["worker"]["why"].as_str().unwrap_or_default();
        assert!(why.contains("`notifications`") && !why.contains("`metrics`"), "{health}");
    }
    stage.smtp.start_again();
    let health = becomes(&api, 200, "ok", "worker", "ok").await;
    assert!(health["checks"]["worker"].get("why").is_none(), "{health}");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_accepts_tickets_is_up_although_its_workers_cannot_be_sampled() {
    let stage = Stage::new().await;
    let api = stage.start(Role::Api).await;
    becomes(&api, 200, "degraded", "worker", "down").await;
    let mut session = stage.session().await;
    let mut tx = session.begin().await.expect("it is there");
    let lock = "LOCK TABLE relevo.inbox_member IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *tx).await.expect("no other session has it");
    until(async || {
        let (status, health) = api.health().await;
        assert_eq!((status, &health["checks"]["database"]["status"]), (200, &"ok".into()), "{health}");
        let why = health["checks"]["worker"]["why"].as_str().unwrap_or_default();
        so(why.contains("unknown"), &health)
    })
    .await;
    api.open(ANA, "meanwhile").await;
    tx.rollback().await.expect("it is there");
    becomes(&api, 200, "degraded", "worker", "down").await;
    api.stop().await;
}
