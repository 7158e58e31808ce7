//! The limits and intervals of a relay.

use std::time::Duration;

use relevo_core::{Routes, Tracer};

use crate::relay::RelayError;

/// The configuration of a relay. The defaults suit a broker on the same network.
#[derive(Clone, Debug)]
pub struct Config {
    /// The relay's name, for operators.
    pub name: String,
    /// The routes from messages to addresses.
    pub routes: Routes,
    /// The lease duration. If a relay crashes, another one takes over after this time.
    pub lease_duration: Duration,
    /// How often the relay renews leases and claims free shards.
    pub lease_renew_interval: Duration,
    /// The last part of each lease, in which the relay does not publish. It covers clock differences and slow replies.
    pub lease_margin: Duration,
    /// The maximum number of messages per read.
    pub page_messages: usize,
    /// The maximum number of messages in memory, in flight or read ahead, as a multiple of `page_messages`.
    pub pages_max: usize,
    /// Approximate memory limit in bytes. Reading pauses above it.
    pub memory_max: usize,
    /// The maximum number of messages per call to the broker.
    pub batch_messages_max: usize,
    /// The maximum number of messages that wait for a confirmation.
    pub in_flight_messages_max: usize,
    /// The maximum time for a publish call. Messages that are unconfirmed after it may have arrived. Must be shorter
    /// than the lease.
    pub publish_timeout: Duration,
    /// The first delay between reads when there is nothing to do. It doubles up to `poll_interval_max`.
    pub poll_interval_min: Duration,
    /// The longest delay between reads when there is nothing to do.
    pub poll_interval_max: Duration,
    /// How often the relay polls for due parked keys and operator marks.
    pub parked_poll_interval: Duration,
    /// The maximum number of parked keys that are retried at once.
    pub parked_keys_per_poll: usize,
    /// The maximum number of messages per parked key that are read at once.
    pub parked_messages_per_key: usize,
    /// The maximum number of parked keys in memory. Above it, the relay stops reading.
    pub parked_keys_max: usize,
    /// The interval of partition and retention maintenance.
    pub maintenance_interval: Duration,
    /// The minimum time between two settlements while there is room in memory.
    pub settle_interval_min: Duration,
    /// How often the relay settles the progress of unfinished and empty pages.
    pub settle_interval_max: Duration,
    /// The first delay after an outage. It doubles up to `outage_backoff_max`.
    pub outage_backoff_min: Duration,
    /// The longest delay during an outage.
    pub outage_backoff_max: Duration,
    /// How often a blocked address is probed.
    pub blocked_probe_interval: Duration,
    /// How often a quarantined message is sent, alone.
    pub quarantine_probe_interval: Duration,
    /// The number of consecutive lost confirmations after which a message is sent alone. At least 1.
    pub lost_confirms_max: u32,
    /// How long a stopping relay waits for messages in flight.
    pub shutdown_grace: Duration,
    /// The tracer for operations on messages.
    pub tracer: Tracer,
}

impl Config {
    /// Returns an error if a limit is 0, because the relay could make no progress. The error names the limit.
    pub fn validate(&self) -> Result<(), RelayError> {
        let limits = [
            ("page_messages", self.page_messages),
            ("pages_max", self.pages_max),
            ("memory_max", self.memory_max),
            ("batch_messages_max", self.batch_messages_max),
            ("in_flight_messages_max", self.in_flight_messages_max),
            ("parked_keys_per_poll", self.parked_keys_per_poll),
            ("parked_messages_per_key", self.parked_messages_per_key),
            ("parked_keys_max", self.parked_keys_max),
            ("lost_confirms_max", self.lost_confirms_max as usize),
        ];
        match limits.into_iter().find(|(_, limit)| *limit == 0) {
            Some((name, _)) => Err(RelayError::Config(format!("`{name}` is 0, must be at least 1"))),
            None => Ok(()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "relay".to_owned(),
            routes: Routes::default(),
            lease_duration: Duration::from_secs(10),
            lease_renew_interval: Duration::from_millis(500),
            lease_margin: Duration::from_secs(2),
            page_messages: 2000,
            pages_max: 4,
            memory_max: 16 << 20,
            batch_messages_max: 1000,
            in_flight_messages_max: 8000,
            publish_timeout: Duration::from_secs(5),
            poll_interval_min: Duration::from_millis(1),
            poll_interval_max: Duration::from_millis(40),
            parked_poll_interval: Duration::from_millis(200),
            parked_keys_per_poll: 200,
            parked_messages_per_key: 100,
            parked_keys_max: 1_000_000,
            maintenance_interval: Duration::from_secs(5),
            settle_interval_min: Duration::from_millis(10),
            settle_interval_max: Duration::from_secs(1),
            outage_backoff_min: Duration::from_millis(100),
            outage_backoff_max: Duration::from_secs(5),
            blocked_probe_interval: Duration::from_secs(30),
            quarantine_probe_interval: Duration::from_mins(5),
            lost_confirms_max: 3,
            shutdown_grace: Duration::from_secs(10),
            tracer: Tracer::off(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_zero_is_rejected_by_name() {
        assert!(Config::default().validate().is_ok());
        let error = Config { lost_confirms_max: 0, ..Config::default() }.validate().expect_err("a limit of zero");
        assert!(error.to_string().contains("`lost_confirms_max` is 0"), "{error}");
        assert!(Config { in_flight_messages_max: 0, ..Config::default() }.validate().is_err());
    }
}
