//! Every limit and pause of a relay.

use std::time::Duration;

use relevo_core::{Routes, Traces};

use crate::relay::RelayError;

/// How a relay works. The defaults suit a broker on the same network.
#[derive(Clone, Debug)]
pub struct Config {
    /// The relay's name, for people.
    pub name: String,
    /// From messages to addresses.
    pub routes: Routes,
    /// How long a lease lasts; another relay takes over this long after one dies.
    pub lease: Duration,
    /// How often leases are asked for: so soon shards are taken that another relay left.
    pub lease_every: Duration,
    /// How much of a lease is never used for publishing, for clocks that run apart and slow answers.
    pub lease_margin: Duration,
    /// Messages read at once.
    pub page_messages: usize,
    /// Pages' worth of messages in memory, being published or read ahead.
    pub pages_max: usize,
    /// About how many bytes of messages may be in memory before no further page is read.
    pub bytes_max: usize,
    /// Messages handed to the broker in one call.
    pub batch_max: usize,
    /// Messages that wait for their confirmation.
    pub in_flight_max: usize,
    /// No publish takes longer; what is not confirmed by then may have arrived. Shorter than the lease.
    pub publish_deadline: Duration,
    /// The first pause between reads when there is nothing to do; doubled up to `idle_max`.
    pub idle_min: Duration,
    /// The longest pause between reads while there is nothing to do.
    pub idle_max: Duration,
    /// How often parked keys and operators' marks are looked for.
    pub due_every: Duration,
    /// Parked keys tried at once.
    pub runs_max: usize,
    /// Messages of one parked key taken at once.
    pub run_messages: usize,
    /// Parked keys that one relay remembers; above it, it reads no further.
    pub parked_keys_max: usize,
    /// How often partitions and retention are looked after.
    pub maintain_every: Duration,
    /// The least time between two settlements while there is room in memory.
    pub settle_min: Duration,
    /// How long progress may stay unsettled while nothing else is to be settled.
    pub settle_every: Duration,
    /// The first pause of an outage, doubled up to `outage_max`.
    pub outage_min: Duration,
    /// The longest pause of an outage.
    pub outage_max: Duration,
    /// How often a blocked address is probed.
    pub hold_probe: Duration,
    /// How often a quarantined message is tried, alone.
    pub quarantine_probe: Duration,
    /// After so many lost answers in a row a message is sent alone; at least 1.
    pub unknown_max: u32,
    /// How long a relay that is told to stop waits for what is in flight.
    pub grace: Duration,
    /// Who is told what is done with messages.
    pub traces: Traces,
}

impl Config {
    /// Refuses limits with which a relay could do nothing. Each limit is named in the error.
    pub fn validate(&self) -> Result<(), RelayError> {
        let limits = [
            ("page_messages", self.page_messages),
            ("pages_max", self.pages_max),
            ("bytes_max", self.bytes_max),
            ("batch_max", self.batch_max),
            ("in_flight_max", self.in_flight_max),
            ("runs_max", self.runs_max),
            ("run_messages", self.run_messages),
            ("parked_keys_max", self.parked_keys_max),
            ("unknown_max", self.unknown_max as usize),
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
            lease: Duration::from_secs(10),
            lease_every: Duration::from_millis(500),
            lease_margin: Duration::from_secs(2),
            page_messages: 2000,
            pages_max: 4,
            bytes_max: 16 << 20,
            batch_max: 1000,
            in_flight_max: 8000,
            publish_deadline: Duration::from_secs(5),
            idle_min: Duration::from_millis(1),
            idle_max: Duration::from_millis(40),
            due_every: Duration::from_millis(200),
            runs_max: 200,
            run_messages: 100,
            parked_keys_max: 1_000_000,
            maintain_every: Duration::from_secs(5),
            settle_min: Duration::from_millis(10),
            settle_every: Duration::from_secs(1),
            outage_min: Duration::from_millis(100),
            outage_max: Duration::from_secs(5),
            hold_probe: Duration::from_secs(30),
            quarantine_probe: Duration::from_mins(5),
            unknown_max: 3,
            grace: Duration::from_secs(10),
            traces: Traces::off(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_zero_is_refused_by_name() {
        assert!(Config::default().validate().is_ok());
        let refused = Config { unknown_max: 0, ..Config::default() }.validate().expect_err("it cannot work");
        assert!(refused.to_string().contains("`unknown_max` is 0"), "{refused}");
        assert!(Config { in_flight_max: 0, ..Config::default() }.validate().is_err());
    }
}
