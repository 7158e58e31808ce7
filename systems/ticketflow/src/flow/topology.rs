//! What is at the broker: one exchange, two queues, and where the dead letters of each go.

use std::time::Duration;

use relevo::brokers::{embedded, rabbitmq};
use relevo::core::{Route, Routes};

use crate::domain::event::What;

/// Where all events are published to.
pub const EXCHANGE: &str = "tickets";
/// The queue of the e-mails, and the name of their consumer.
pub const NOTIFICATIONS: &str = "notifications";
/// The queue of the figures, and the name of their consumer.
pub const METRICS: &str = "metrics";

/// How often a message may come back, and it never does so often. RabbitMQ 4 counts to 20 where nobody says anything, and a message
/// comes back whenever `consumer_timeout` passes behind an open breaker: a long outage would have the broker give e-mails up, and
/// the inbox would not know.
const DELIVERY_LIMIT: u32 = 1_000_000;

/// The queue of what was given up.
pub fn dead_queue(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// What a queue wants to know. A comment may be the first response, so the figures want it; nobody gets an e-mail about it.
fn wanted(queue: &str) -> &'static [&'static str] {
    let [all @ .., _commented] = &What::NAMES;
    if queue == METRICS { &What::NAMES } else { all }
}

/// At RabbitMQ. E-mails wait at the broker between their tries, one queue a rung of the ladder; figures are counted in order, by
/// one consumer at a time, and wait in the database.
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
    fn the_queues_have_the_names_that_were_asked_for() {
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
    fn an_outage_of_days_gives_nothing_up_behind_the_inboxs_back() {
        let limits = topology(&[]).queues.into_iter().map(|queue| (queue.name, queue.delivery_limit));
        let never = |name: &str| (name.to_owned(), Some(1_000_000));
        assert_eq!(limits.collect::<Vec<_>>(), [never(NOTIFICATIONS), never(METRICS)]);
    }

    #[test]
    fn only_the_figures_hear_of_comments() {
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
