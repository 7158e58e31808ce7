//! The limits and intervals of a relay.

use std::time::Duration;

use relevo_config::{Checks, DurationText, Problem, Section, SizeText};
use relevo_core::{Routes, Tracer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::relay::RelayError;

/// How every relay works. The defaults suit a broker on the same network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The relay's name, for operators.
    #[serde(skip)]
    pub name: String,
    /// The routes from messages to addresses.
    #[serde(skip)]
    pub routes: Routes,
    /// The tracer for operations on messages.
    #[serde(skip)]
    pub tracer: Tracer,
    /// The lease duration. If a relay crashes, another one takes over after this time.
    #[serde(with = "DurationText")]
    pub lease_duration: Duration,
    /// The maximum time for a publish call. Messages that are unconfirmed after it may have arrived. Together with
    /// `advanced.lease_margin` it must be shorter than the lease.
    #[serde(with = "DurationText")]
    pub publish_timeout: Duration,
    /// The longest delay between reads when there is nothing to do.
    #[serde(with = "DurationText")]
    pub poll_interval_max: Duration,
    /// The maximum number of messages per call to the broker.
    pub batch_messages_max: usize,
    /// The maximum number of messages that wait for a confirmation.
    pub in_flight_messages_max: usize,
    /// Approximate memory limit. Reading pauses above it.
    #[serde(with = "SizeText")]
    pub memory_max: usize,
    /// The longest delay during an outage.
    #[serde(with = "DurationText")]
    pub outage_backoff_max: Duration,
    /// How long a stopping relay waits for messages in flight.
    #[serde(with = "DurationText")]
    pub shutdown_grace: Duration,
    /// Settings that rarely need a change.
    pub advanced: Advanced,
}

/// Settings of a relay that rarely need a change.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Advanced {
    /// How often the relay renews leases and claims free shards. At most a third of the lease duration.
    #[serde(with = "DurationText")]
    pub lease_renew_interval: Duration,
    /// The last part of each lease, in which the relay does not publish. It covers clock differences and slow replies.
    #[serde(with = "DurationText")]
    pub lease_margin: Duration,
    /// The maximum number of messages per read.
    pub page_messages: usize,
    /// The maximum number of messages in memory, in flight or read ahead, as a multiple of `page_messages`.
    pub pages_max: usize,
    /// The first delay between reads when there is nothing to do. It doubles up to `poll_interval_max`.
    #[serde(with = "DurationText")]
    pub poll_interval_min: Duration,
    /// How often the relay polls for due parked keys and operator marks.
    #[serde(with = "DurationText")]
    pub parked_poll_interval: Duration,
    /// The maximum number of parked keys that are retried at once.
    pub parked_keys_per_poll: usize,
    /// The maximum number of messages per parked key that are read at once.
    pub parked_messages_per_key: usize,
    /// The maximum number of parked keys in memory. Above it, the relay stops reading.
    pub parked_keys_max: usize,
    /// The interval of partition and retention maintenance.
    #[serde(with = "DurationText")]
    pub maintenance_interval: Duration,
    /// The minimum time between two settlements while there is room in memory.
    #[serde(with = "DurationText")]
    pub settle_interval_min: Duration,
    /// How often the relay settles the progress of unfinished and empty pages.
    #[serde(with = "DurationText")]
    pub settle_interval_max: Duration,
    /// The first delay after an outage. It doubles up to `outage_backoff_max`.
    #[serde(with = "DurationText")]
    pub outage_backoff_min: Duration,
    /// How often a blocked address is probed.
    #[serde(with = "DurationText")]
    pub blocked_probe_interval: Duration,
    /// How often a quarantined message is sent, alone.
    #[serde(with = "DurationText")]
    pub quarantine_probe_interval: Duration,
    /// The number of consecutive lost confirmations after which a message is sent alone. At least 1.
    pub lost_confirms_max: u32,
}

impl Config {
    /// Returns an error if a limit is 0, because the relay could make no progress. The error names the limit.
    pub fn validate(&self) -> Result<(), RelayError> {
        match self.limits().into_iter().find(|(_, limit)| *limit == 0) {
            Some((key, _)) => Err(RelayError::Config(zero(key))),
            None => Ok(()),
        }
    }

    /// The longest time after which a published message may be published again, not counting outages: as a quarantined
    /// message, or by the relay that takes over.
    pub fn resend_window(&self) -> Duration {
        let lost = self.publish_timeout * self.advanced.lost_confirms_max;
        let takeover = self.advanced.settle_interval_max + self.lease_duration + self.advanced.lease_renew_interval;
        self.publish_timeout + self.advanced.quarantine_probe_interval.max(lost + takeover)
    }

    const fn limits(&self) -> [(&'static str, usize); 9] {
        let advanced = &self.advanced;
        [
            ("memory_max", self.memory_max),
            ("batch_messages_max", self.batch_messages_max),
            ("in_flight_messages_max", self.in_flight_messages_max),
            ("advanced.page_messages", advanced.page_messages),
            ("advanced.pages_max", advanced.pages_max),
            ("advanced.parked_keys_per_poll", advanced.parked_keys_per_poll),
            ("advanced.parked_messages_per_key", advanced.parked_messages_per_key),
            ("advanced.parked_keys_max", advanced.parked_keys_max),
            ("advanced.lost_confirms_max", advanced.lost_confirms_max as usize),
        ]
    }
}

fn zero(key: &str) -> String {
    format!("`{key}` is 0, must be at least 1")
}

impl Section for Config {
    fn validate(&self, checks: &mut Checks<'_>) {
        for (key, _) in self.limits().into_iter().filter(|(_, limit)| *limit == 0) {
            checks.report(key, Problem::new(zero(key)));
        }
        let advanced = &self.advanced;
        let intervals = [
            ("lease_duration", self.lease_duration),
            ("publish_timeout", self.publish_timeout),
            ("poll_interval_max", self.poll_interval_max),
            ("advanced.lease_renew_interval", advanced.lease_renew_interval),
            ("advanced.poll_interval_min", advanced.poll_interval_min),
            ("advanced.parked_poll_interval", advanced.parked_poll_interval),
            ("advanced.maintenance_interval", advanced.maintenance_interval),
            ("advanced.settle_interval_max", advanced.settle_interval_max),
            ("advanced.outage_backoff_min", advanced.outage_backoff_min),
            ("advanced.blocked_probe_interval", advanced.blocked_probe_interval),
            ("advanced.quarantine_probe_interval", advanced.quarantine_probe_interval),
        ];
        for (key, _) in intervals.into_iter().filter(|(_, interval)| interval.is_zero()) {
            checks.report(key, Problem::new(format!("`{key}` must be longer than 0s")));
        }
        let rules: [(bool, &[&str], &str); 5] = [
            (
                self.publish_timeout + advanced.lease_margin < self.lease_duration,
                &["publish_timeout", "advanced.lease_margin", "lease_duration"],
                "`lease_duration` must be longer than `publish_timeout` and `advanced.lease_margin` together: otherwise a \
                 message could be published after another relay took over",
            ),
            (
                3 * advanced.lease_renew_interval <= self.lease_duration,
                &["advanced.lease_renew_interval", "lease_duration"],
                "`advanced.lease_renew_interval` must be at most a third of `lease_duration`: otherwise one slow reply \
                 loses the leases",
            ),
            (
                advanced.poll_interval_min <= self.poll_interval_max,
                &["poll_interval_max", "advanced.poll_interval_min"],
                "`poll_interval_max` is less than `advanced.poll_interval_min`",
            ),
            (
                advanced.outage_backoff_min <= self.outage_backoff_max,
                &["outage_backoff_max", "advanced.outage_backoff_min"],
                "`outage_backoff_max` is less than `advanced.outage_backoff_min`",
            ),
            (
                self.batch_messages_max <= self.in_flight_messages_max,
                &["in_flight_messages_max", "batch_messages_max"],
                "`in_flight_messages_max` is less than `batch_messages_max`",
            ),
        ];
        for (_, keys, reason) in rules.into_iter().filter(|(holds, ..)| !holds) {
            checks.report_any(keys, Problem::new(reason));
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "relay".to_owned(),
            routes: Routes::default(),
            tracer: Tracer::off(),
            lease_duration: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(5),
            poll_interval_max: Duration::from_millis(40),
            batch_messages_max: 1000,
            in_flight_messages_max: 8000,
            memory_max: 16 << 20,
            outage_backoff_max: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
            advanced: Advanced::default(),
        }
    }
}

impl Default for Advanced {
    fn default() -> Self {
        Self {
            lease_renew_interval: Duration::from_millis(500),
            lease_margin: Duration::from_secs(2),
            page_messages: 2000,
            pages_max: 4,
            poll_interval_min: Duration::from_millis(1),
            parked_poll_interval: Duration::from_millis(200),
            parked_keys_per_poll: 200,
            parked_messages_per_key: 100,
            parked_keys_max: 1_000_000,
            maintenance_interval: Duration::from_secs(5),
            settle_interval_min: Duration::from_millis(10),
            settle_interval_max: Duration::from_secs(1),
            outage_backoff_min: Duration::from_millis(100),
            blocked_probe_interval: Duration::from_secs(30),
            quarantine_probe_interval: Duration::from_mins(5),
            lost_confirms_max: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_zero_is_rejected_by_name() {
        assert!(Config::default().validate().is_ok());
        let advanced = Advanced { lost_confirms_max: 0, ..Advanced::default() };
        let error = Config { advanced, ..Config::default() }.validate().expect_err("a limit of zero");
        assert!(error.to_string().contains("`advanced.lost_confirms_max` is 0"), "{error}");
        assert!(Config { in_flight_messages_max: 0, ..Config::default() }.validate().is_err());
    }
}
