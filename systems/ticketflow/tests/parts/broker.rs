//! RabbitMQ is not there when the service starts, or does not let it in.

use relevo_testkit::rabbitmq::{Private, Settings};
use serde_json::Value;
use ticketflow::config::{Broker, Role, Secret};

use crate::stage::{ANA, Stage, so, until};

/// As `user` with this password, at the same virtual host.
fn log_in_as(stage: &mut Stage, user: &str, password: &str) {
    let Broker::RabbitMq { url, .. } = &mut stage.config.broker else { panic!("no RabbitMQ") };
    let (_, rest) = url.expose().split_once('@').expect("a login");
    *url = Secret::new(format!("amqp://{user}:{password}@{rest}"));
}

async fn broker_check(running: &crate::stage::Running) -> Value {
    let (status, health) = running.health().await;
    assert_eq!(status, 200, "{health}");
    health["checks"]["broker"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_login_does_not_stop_tickets_and_is_retried() {
    let rabbit = Private::start_with(Settings::new()).await;
    let vhost = rabbit.vhost().await;
    rabbit.ctl(&["add_user", "us", "right"]).await;
    rabbit.ctl(&["set_permissions", "-p", vhost.name(), "us", ".*", ".*", ".*"]).await;
    let mut stage = Stage::with(vhost, None).await;
    log_in_as(&mut stage, "us", "wrong");
    let all = stage.start(Role::All).await;
    all.open(ANA, "meanwhile").await;
    let check = until(async || {
        let check = broker_check(&all).await;
        if check["why"].is_string() { Ok(check) } else { Err(check.to_string()) }
    })
    .await;
    assert!(check["why"].as_str().is_some_and(|why| why.contains("refuses the login of `us`")), "{check}");
    assert_eq!((&check["status"], all.health().await.1["status"].as_str()), (&"down".into(), Some("degraded")));
    assert!(!check.to_string().contains("wrong\"") && !check.to_string().contains(":wrong"), "{check}");
    rabbit.ctl(&["change_password", "us", "wrong"]).await;
    until(async || so(stage.smtp.mails().len() == 1, all.health().await)).await;
    until(async || so(all.health().await.1["status"] == "ok", all.health().await)).await;
    assert!(broker_check(&all).await.get("why").is_none());
    all.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_different_queue_is_reported_and_used_once_it_is_fixed() {
    let stage = Stage::new().await;
    let (_connection, channel) = stage.channel().await;
    let (options, none) = (lapin::options::QueueDeclareOptions::default(), lapin::types::FieldTable::default());
    channel.queue_declare("metrics".into(), options, none).await.expect("it is not there");
    let api = stage.start(Role::Api).await;
    api.open(ANA, "meanwhile").await;
    let check = until(async || {
        let check = broker_check(&api).await;
        if check["why"].is_string() { Ok(check) } else { Err(check.to_string()) }
    })
    .await;
    assert!(check["why"].as_str().is_some_and(|why| why.contains("metrics")), "{check}");
    channel.queue_delete("metrics".into(), lapin::options::QueueDeleteOptions::default()).await.expect("it is there");
    until(async || {
        let pending = api.sampled("outbox_pending_total", "").await;
        so(pending.is_some_and(|pending| pending < 0.5), (pending, api.health().await))
    })
    .await;
    until(async || so(broker_check(&api).await["status"] == "ok", api.health().await)).await;
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_starts_without_rabbitmq_works_once_it_is_reachable() {
    let rabbit = Private::start().await;
    let stage = Stage::with(rabbit.vhost().await, None).await;
    rabbit.stop().await;
    let all = stage.start(Role::All).await;
    all.open(ANA, "early").await;
    assert_eq!(broker_check(&all).await["status"], "down");
    rabbit.start_again().await;
    until(async || so(stage.smtp.mails().len() == 1, all.health().await)).await;
    until(async || so(all.figures().await["by_status"]["open"] == 1, all.figures().await)).await;
    until(async || so(all.health().await.1["status"] == "ok", all.health().await)).await;
    all.stop().await;
}
