//! How long inboxes remember, against how long outboxes and brokers can send a message again.

use std::time::Duration;

use anyhow::Result;
use relevo_broker_nats::Retention;
use relevo_core::RetryPolicy;
use relevo_core::finding::{Finding, Severity};
use relevo_core::inbox::retention_check::{self, RedeliveryWindow};
use relevo_core::store::StoreError;

use super::Examined;
use crate::config::{self, Broker};
use crate::outbox::Place;

/// What one place adds to the comparison.
#[derive(Default)]
pub(super) struct Memory {
    /// From here messages can come again.
    pub(super) horizons: Vec<RedeliveryWindow>,
    /// Here inboxes may be.
    pub(super) place: Option<Place>,
}

/// What an outbox keeps can be sent once more, by a destination that starts with the oldest, and then takes its retries.
pub(super) fn of_outbox(retention: Duration) -> RedeliveryWindow {
    let lasts = retention.saturating_add(RetryPolicy::default().total_delay_max());
    RedeliveryWindow { source: "this outbox".to_owned(), duration: Some(lasts) }
}

/// The same with the name and the retries that a configuration has for it.
pub(super) fn name(horizons: &mut [RedeliveryWindow], outbox: &config::Outbox) {
    let routes = outbox.destinations.iter().flat_map(|destination| destination.relay.routes.iter());
    let longest = routes.map(|route| route.policy.total_delay_max()).max().unwrap_or_default();
    for horizon in horizons {
        horizon.source = format!("outbox `{}`", outbox.name);
        let retention = horizon.duration.map(|lasts| lasts.saturating_sub(RetryPolicy::default().total_delay_max()));
        horizon.duration = retention.map(|retention| retention.saturating_add(longest));
    }
}

/// What a broker keeps although it was acknowledged. Queues of RabbitMQ keep nothing of that kind, and neither do streams that
/// a message leaves with its acknowledgement.
pub(super) fn of_broker(broker: &Broker) -> Vec<RedeliveryWindow> {
    match broker {
        Broker::Embedded { path, .. } => {
            let keep = relevo_broker_embedded::Config::new(path).retention;
            vec![RedeliveryWindow { source: format!("the embedded broker `{}`", path.display()), duration: Some(keep) }]
        }
        Broker::Nats(nats) => {
            let streams = nats.topology.streams.iter().filter(|stream| stream.retention == Retention::Limits);
            let horizon = |name: &str, lasts| RedeliveryWindow { source: format!("stream `{name}`"), duration: lasts };
            streams.map(|stream| horizon(&stream.name, stream.max_age)).collect()
        }
        Broker::Rabbitmq(_) => Vec::new(),
    }
}

/// Compares every inbox with everything that can send to it.
pub(super) async fn compare(all: &mut [Examined]) -> Result<()> {
    let horizons: Vec<RedeliveryWindow> = all.iter().flat_map(|it| it.memory.horizons.iter().cloned()).collect();
    for examined in all {
        if let Some(place) = &examined.memory.place {
            examined.findings.extend(inboxes(place, &horizons).await?);
        }
    }
    Ok(())
}

async fn inboxes(place: &Place, horizons: &[RedeliveryWindow]) -> Result<Vec<Finding>> {
    match place.consumers().await?.list_consumers().await {
        Ok(consumers) => {
            Ok(consumers.iter().map(|consumer| retention_check::check_retention(consumer, horizons)).collect())
        }
        // The schema's own finding says that it is old; a role that may not look is told so.
        Err(StoreError::SchemaMismatch { .. }) => Ok(Vec::new()),
        Err(StoreError::Refused { reason }) => {
            let (subject, detail) = ("inbox retention".to_owned(), format!("not looked at: {reason}"));
            Ok(vec![Finding { severity: Severity::Note, subject, detail, fix: None }])
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use relevo_broker_nats::{Config, Stream};

    use super::*;

    #[test]
    fn a_stream_is_counted_if_messages_outlive_their_acknowledgement() {
        let mut config = Config::new("nats://localhost");
        let week = Duration::from_hours(7 * 24);
        config.topology.streams = vec![
            Stream { max_age: Some(week), ..Stream::new("ORDERS", ["orders.>"]) },
            Stream::new("EVENTS", ["events.>"]),
            Stream { retention: Retention::WorkQueue, max_age: Some(week), ..Stream::new("WORK", ["work.>"]) },
            Stream { retention: Retention::Interest, ..Stream::new("NEWS", ["news.>"]) },
        ];
        let horizons = of_broker(&Broker::Nats(Box::new(config)));
        let told: Vec<_> = horizons.iter().map(|it| (it.source.as_str(), it.duration)).collect();
        assert_eq!(told, [("stream `ORDERS`", Some(week)), ("stream `EVENTS`", None)]);
    }

    #[test]
    fn an_outbox_can_send_what_it_keeps_and_then_retry() {
        let day = Duration::from_hours(24);
        let horizon = of_outbox(day);
        assert!(horizon.duration.is_some_and(|lasts| lasts > day), "{horizon:?}");
    }
}
