//! The topology at the broker: one exchange, two queues, and a dead-letter queue for each.

use std::time::Duration;

use relevo::brokers::{embedded, rabbitmq};
use relevo::core::{Route, Routes};

use crate::domain::event::What;

/// The exchange to which all events are published.
pub const EXCHANGE: &str = "tickets";
/// The queue of the e-mails, and the name of their consumer.
pub const NOTIFICATIONS: &str = "notifications";
/// The queue of the figures, and the name of their consumer.
pub const METRICS: &str = "metrics";

/// The delivery limit of the queues, too high to be reached. RabbitMQ 4 has a limit of 20 by default, and a message is redelivered
/// whenever `consumer_timeout` passes behind an open breaker: in a long outage the broker would dead-letter e-mails, and the inbox
/// would not know.
const DELIVERY_LIMIT: u32 = 1_000_000;

/// The name of the dead-letter queue.
pub fn dead_queue(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// The topics of a queue. The figures need comments too, because a comment may be the first response; it causes no e-mail.
fn wanted(queue: &str) -> &'static [&'static str] {
    let [all @ .., _commented] = &What::NAMES;
    if queue == METRICS { &What::NAMES } else { all }
}

/// The topology in RabbitMQ. E-mails wait at the broker between attempts, in one retry queue per delay. Figures are counted in
/// order, by one consumer at a time, and wait in the database.
pub fn topology(ladder: &[Duration]) -> rabbitmq::Topology {
    let queue = |name: &str| {
        let (dead_letters, delivery_limit) = (Some(dead_queue(name)), Some(DELIVERY_LIMIT));
        rabbitmq::Queue { dead_letter_queue: dead_letters, delivery_limit, ..rabbitmq::Queue::new(name) }
    };
    let bound = |queue: &'static str| {
        wanted(queue).iter().map(move |topic| rabbitmq::Binding::to_queue(EXCHANGE, *topic, queue))
    };
    rabbitmq::Topology {
        exchanges: vec![rabbitmq::Exchange::new(EXCHANGE)],
        queues: vec![
            rabbitmq::Queue { single_active_consumer: false, retry_delays: ladder.to_vec(), ..queue(NOTIFICATIONS) },
            rabbitmq::Queue { retry_delays: Vec::new(), ..queue(METRICS) },
        ],
        bindings: bound(NOTIFICATIONS).chain(bound(METRICS)).collect(),
        policies: Vec::new(),
    }
}

/// The same at the embedded broker, where queues are groups.
pub(super) fn groups() -> [embedded::Group; 2] {
    [NOTIFICATIONS, METRICS].map(|queue| {
        let addresses = wanted(queue).iter().map(|topic| format!("{EXCHANGE}/{topic}"));
        embedded::Group::new(queue, addresses)
    })
}

/// From events to addresses.
pub(super) fn routes() -> Routes {
    let (name, address) = (EXCHANGE.to_owned(), format!("{EXCHANGE}/{{topic}}"));
    Routes::new(vec![Route { name, topic: "ticket.**".to_owned(), address, ..Route::catch_all() }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_have_the_required_names() {
        let ladder = [60, 300, 900].map(Duration::from_secs);
        let declared = topology(&ladder).declarations();
        let names: Vec<_> = declared.queues.iter().map(|queue| queue.name.as_str()).collect();
        let expected = [
            "notifications.dlq",
            "notifications",
            "notifications.retry.60000",
            "notifications.retry.300000",
            "notifications.retry.900000",
            "metrics.dlq",
            "metrics",
        ];
        assert_eq!(names, expected);
        assert!(topology(&ladder).validate().is_ok());
    }

    #[test]
    fn the_broker_dead_letters_nothing_during_a_long_outage() {
        let limits = topology(&[]).queues.into_iter().map(|queue| (queue.name, queue.delivery_limit));
        let never = |name: &str| (name.to_owned(), Some(1_000_000));
        assert_eq!(limits.collect::<Vec<_>>(), [never(NOTIFICATIONS), never(METRICS)]);
    }

    #[test]
    fn only_the_figures_receive_comments() {
        let bound = |queue: &str| {
            let bindings = topology(&[]).bindings.into_iter();
            let to = rabbitmq::BindingTarget::Queue(queue.to_owned());
            bindings.filter(|binding| binding.to == to).map(|binding| binding.key).collect::<Vec<_>>()
        };
        assert_eq!(bound(NOTIFICATIONS), ["ticket.created", "ticket.status.changed", "ticket.assigned"]);
        assert_eq!(bound(METRICS), What::NAMES);
        let patterns = groups().map(|group| group.patterns.len());
        assert_eq!(patterns, [3, 4]);
    }
}
