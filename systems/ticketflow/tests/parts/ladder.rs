//! E-mails that wait at the broker between their tries.

use std::time::Duration;

use ticketflow::config::{Broker, Role};

use crate::stage::{Stage, depth, so, take, until};

#[tokio::test]
async fn an_email_waits_in_each_retry_queue_and_ends_in_the_dead_letter_queue() {
    let mut stage = Stage::new().await;
    if let Broker::RabbitMq { ladder, .. } = &mut stage.config.broker {
        // No rung is a multiple of the one before it by the same number.
        *ladder = [200, 300, 900].map(Duration::from_millis).to_vec();
    }
    stage.config.worker.retries = vec![Duration::from_millis(20)];
    let all = stage.start(Role::All).await;
    let pia = all.person("later@example.org").await;
    all.open(&pia, "not now").await;
    stage.has_queues().await;
    let (_connection, channel) = stage.channel().await;
    until(async || so(depth(&channel, "notifications.dlq").await == 1, stage.smtp.events())).await;
    let asked = stage.asked_at("later@example.org");
    assert_eq!(asked.len(), 5, "once, once from memory, and once behind each rung");
    for (gap, pause) in asked.windows(2).zip([20, 200, 300, 900].map(Duration::from_millis)) {
        assert!(gap[1] >= gap[0] + pause, "{pause:?} in {asked:?}");
    }
    for rung in [200, 300, 900] {
        assert_eq!(depth(&channel, &format!("notifications.retry.{rung}")).await, 0);
    }
    let copy = take(&channel, "notifications.dlq").await;
    assert_eq!((copy["dead-letter-class"].as_str(), copy["dead-letter-attempts"].as_str()), ("greylisted", "5"));
    assert_eq!(copy["relevo-retries"], "3", "each rung was a pause of its own");
    let death = &copy["x-death"];
    assert!(death.contains("notifications.retry.900") && !death.contains("notifications.retry.300"), "{death}");
    all.stop().await;
}
