//! RabbitMQ is down, and requesters do not notice.

use relevo_testkit::rabbitmq::Private;
use ticketflow::config::Role;
use tokio::task::JoinSet;

use crate::http::ask;
use crate::stage::{ANA, Stage, number, so, until};

const TICKETS: usize = 1_000;
const CLIENTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tickets_are_opened_without_rabbitmq_and_every_email_is_sent_once() {
    let rabbit = Private::start().await;
    let stage = Stage::with(rabbit.vhost().await, None).await;
    let (api, worker) = (stage.start(Role::Api).await, stage.start(Role::Worker).await);
    until(async || so(api.health().await.1["status"] == "ok", api.health().await)).await;
    rabbit.stop().await;

    let mut clients = JoinSet::new();
    let address = api.address;
    for client in 0..CLIENTS {
        clients.spawn(async move {
            for ticket in 0..TICKETS / CLIENTS {
                let headers = [format!("authorization: Bearer {ANA}")];
                let body = format!("{{\"title\": \"{client}-{ticket}\", \"description\": \"x\"}}");
                let answer = ask(address, "POST", "/api/tickets", &headers, &body).await;
                assert_eq!(answer.status, 201, "{}", answer.text);
            }
        });
    }
    clients.join_all().await;
    let (status, health) = api.health().await;
    assert_eq!(
        (status, &health["status"], &health["checks"]["broker"]["status"]),
        (200, &"degraded".into(), &"down".into())
    );
    until(async || {
        let pending = api.sampled("outbox_pending_total", "").await;
        so(pending.is_some_and(|pending| (pending - 1_000.0).abs() < 0.5), pending)
    })
    .await;
    assert!(stage.smtp.mails().is_empty());

    rabbit.start_again().await;
    let mut session = stage.session().await;
    until(async || {
        let sent = number(&mut session, "SELECT count(*) FROM ticketflow.email").await;
        so(sent == 1_000, sent)
    })
    .await;
    until(async || {
        let pending = api.sampled("outbox_pending_total", "").await;
        so(pending.is_some_and(|pending| pending < 0.5), pending)
    })
    .await;
    until(async || so(api.figures().await["by_status"]["open"] == 1_000, api.figures().await)).await;
    let ids = stage.message_ids();
    assert_eq!((ids.len(), ids.values().sum::<usize>()), (TICKETS, TICKETS), "each once");
    until(async || so(api.health().await.1["status"] == "ok", api.health().await)).await;
    worker.stop().await;
    api.stop().await;
}
