//! The relay, in the process of the API.

use std::sync::Arc;

use relevo::core;
use relevo::relay::{Advanced, Config, Relay, RelayError};

use super::outbox::Outbox;
use super::topology::routes;
use crate::config;

/// A relay that publishes the outbox to the broker. Any number of relays share the work.
pub fn relay(outbox: &Outbox, broker: Arc<dyn core::Broker>, config: &config::Outbox) -> Result<Relay, RelayError> {
    Relay::new(Arc::clone(&outbox.store), broker, settings(config))
}

fn settings(config: &config::Outbox) -> Config {
    Config {
        name: "ticketflow".to_owned(),
        routes: routes(),
        // Limits: a relay with work to do does not wait.
        poll_interval_max: config.dispatch_interval,
        batch_messages_max: config.batch,
        advanced: Advanced { page_messages: config.batch, ..Advanced::default() },
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn with(environment: &[(&str, &str)]) -> Config {
        let get = |wanted: &str| {
            let found = environment.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        settings(&config::read("", Path::new("data"), &get).unwrap().outbox)
    }

    #[test]
    fn interval_and_batch_are_the_configured_limits() {
        let bounds =
            |config: Config| (config.poll_interval_max, config.advanced.page_messages, config.batch_messages_max);
        assert_eq!(bounds(with(&[])), (Duration::from_millis(500), 100, 100));
        let set = with(&[("OUTBOX_DISPATCH_INTERVAL_MS", "250"), ("OUTBOX_BATCH", "7")]);
        assert_eq!(bounds(set), (Duration::from_millis(250), 7, 7));
    }
}
