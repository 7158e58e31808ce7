//! Tracks whether the broker is reachable, and which messages break its connection.

use std::time::Duration;

use tokio::time::Instant;

/// The state of the broker, as far as the relay knows.
#[derive(Debug)]
pub(crate) struct BrokerHealth {
    state: BrokerState,
    backoff_count: u32,
    /// Items that must be sent with nothing else in flight, in order.
    to_isolate: Vec<usize>,
    /// Items whose confirmation was lost although they were sent alone. They are quarantined as soon as another message
    /// succeeds.
    quarantine_candidates: Vec<usize>,
    /// The item that is in flight alone.
    isolated: Option<usize>,
}

#[derive(Debug)]
enum BrokerState {
    Up,
    /// Send nothing before this time, then one message.
    Down(Instant),
    /// One message is in flight as a probe.
    Probing,
}

/// What the relay may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendPermit {
    /// As many messages as fit.
    Any,
    /// The first ready message only.
    Probe,
    /// This item, alone.
    Isolated(usize),
    /// Nothing.
    Wait,
}

impl BrokerHealth {
    pub(crate) const fn new() -> Self {
        Self {
            state: BrokerState::Up,
            backoff_count: 0,
            to_isolate: Vec::new(),
            quarantine_candidates: Vec::new(),
            isolated: None,
        }
    }

    /// What may be sent now. `ready` is whether a message waits that is not suspected.
    pub(crate) fn may_send(&mut self, now: Instant, in_flight: usize, ready: bool) -> SendPermit {
        match self.state {
            BrokerState::Probing => return SendPermit::Wait,
            BrokerState::Down(until) if now < until || in_flight > 0 => return SendPermit::Wait,
            // Probe with an unsuspected message first. If only suspects were sent, each could fail because of its own
            // fault, and the outage would never end.
            BrokerState::Down(_) if ready || self.to_isolate.is_empty() => return SendPermit::Probe,
            BrokerState::Up | BrokerState::Down(_) => {}
        }
        match self.to_isolate.first() {
            None if self.isolated.is_some() => SendPermit::Wait,
            None => SendPermit::Any,
            Some(_) if in_flight > 0 => SendPermit::Wait,
            Some(&item) => SendPermit::Isolated(item),
        }
    }

    /// Records that a probe was sent while the broker seemed unreachable.
    pub(crate) fn probe_sent(&mut self) {
        self.state = BrokerState::Probing;
    }

    pub(crate) fn isolated_sent(&mut self, item: usize) {
        self.to_isolate.retain(|suspect| *suspect != item);
        self.isolated = Some(item);
        if matches!(self.state, BrokerState::Down(_)) {
            self.state = BrokerState::Probing;
        }
    }

    /// Records a success. Returns the items that must have failed on their own, because the broker works.
    pub(crate) fn on_success(&mut self, item: usize) -> Vec<usize> {
        self.state = BrokerState::Up;
        self.backoff_count = 0;
        self.clear_isolated(item);
        std::mem::take(&mut self.quarantine_candidates)
    }

    /// Records a response other than an outage. The broker is reachable, even if it rejected this message.
    pub(crate) fn on_rejection(&mut self, item: usize) {
        self.state = BrokerState::Up;
        self.backoff_count = 0;
        self.clear_isolated(item);
    }

    /// Records an outage. The pause doubles each time. Returns whether the broker was up before.
    pub(crate) fn on_outage(&mut self, item: usize, now: Instant, min: Duration, max: Duration) -> bool {
        self.clear_isolated(item);
        let news = matches!(self.state, BrokerState::Up);
        if let BrokerState::Down(until) = self.state
            && now < until
        {
            return false;
        }
        let pause =
            2u32.checked_pow(self.backoff_count).and_then(|times| min.checked_mul(times)).unwrap_or(max).min(max);
        self.backoff_count = self.backoff_count.saturating_add(1);
        self.state = BrokerState::Down(now + pause);
        news
    }

    /// Records a lost confirmation, which proves nothing. If the item was the probe of an outage, the outage continues.
    pub(crate) fn on_lost_confirm(&mut self, item: usize, now: Instant, min: Duration, max: Duration) {
        self.clear_isolated(item);
        if matches!(self.state, BrokerState::Probing) {
            self.on_outage(item, now, min, max);
        }
    }

    /// Records too many lost confirmations of an item. It will be sent alone. If it already was alone, it waits for
    /// quarantine. Returns whether it was alone.
    pub(crate) fn isolate(&mut self, item: usize) -> bool {
        if self.isolated == Some(item) {
            self.isolated = None;
            self.quarantine_candidates.push(item);
            true
        } else {
            self.to_isolate.push(item);
            false
        }
    }

    /// Whether an item waits for another message to succeed before it is quarantined.
    pub(crate) const fn has_quarantine_candidates(&self) -> bool {
        !self.quarantine_candidates.is_empty()
    }

    /// Sends an item alone again, because no other message was available to prove that the broker works.
    pub(crate) fn retry_candidate(&mut self, item: usize) {
        if let Some(at) = self.quarantine_candidates.iter().position(|accused| *accused == item) {
            self.quarantine_candidates.remove(at);
            self.to_isolate.push(item);
        }
    }

    /// Removes every item. The broker's state stays, because a database outage says nothing about the broker.
    pub(crate) fn reset(&mut self, now: Instant) {
        let state = match self.state {
            BrokerState::Up => BrokerState::Up,
            BrokerState::Down(until) => BrokerState::Down(until),
            // The relay will not receive the probe's outcome, so the next message becomes the probe.
            BrokerState::Probing => BrokerState::Down(now),
        };
        *self = Self { state, backoff_count: self.backoff_count, ..Self::new() };
    }

    /// Whether to report the broker as up. Only a published message proves that an outage is over, so an idle relay
    /// reports "up" when the backoff ends.
    pub(crate) fn is_reported_up(&self, now: Instant, idle: bool) -> bool {
        match self.state {
            BrokerState::Up => true,
            BrokerState::Down(until) => {
                idle && until <= now && self.to_isolate.is_empty() && self.quarantine_candidates.is_empty()
            }
            BrokerState::Probing => false,
        }
    }

    /// Whether the broker is up, or a probe is due.
    pub(crate) fn is_worth_trying(&self, now: Instant) -> bool {
        match self.state {
            BrokerState::Up => true,
            BrokerState::Down(until) => until <= now,
            BrokerState::Probing => false,
        }
    }

    /// When the pause ends. `None` if there is nothing to send then.
    pub(crate) fn wakes_at(&self, ready: bool) -> Option<Instant> {
        match self.state {
            BrokerState::Down(until) if ready || !self.to_isolate.is_empty() => Some(until),
            BrokerState::Up | BrokerState::Down(_) | BrokerState::Probing => None,
        }
    }

    fn clear_isolated(&mut self, item: usize) {
        if self.isolated == Some(item) {
            self.isolated = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_survives_a_reset_and_one_message_ends_it() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        let mut health = BrokerHealth::new();
        health.isolate(7);
        assert!(health.on_outage(3, now, pause, pause));
        health.reset(now);
        assert!(!health.is_reported_up(now, false), "the database went away, which says nothing about the destination");
        assert_eq!(health.may_send(now, 0, true), SendPermit::Wait);
        assert_eq!(health.may_send(now + pause, 0, false), SendPermit::Probe, "nobody is suspected any more");
        health.probe_sent();
        health.reset(now + pause);
        assert_eq!(
            (health.is_reported_up(now + pause, false), health.may_send(now + pause, 0, true)),
            (false, SendPermit::Probe),
            "its answer is not heard"
        );
        health.on_success(0);
        assert!(health.is_reported_up(now + pause, false));
    }

    #[test]
    fn an_outage_is_reported_while_a_message_waits() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        let mut health = BrokerHealth::new();
        assert!(health.on_outage(3, now, pause, pause));
        assert!(!health.is_reported_up(now, true), "the pause has just begun");
        assert!(!health.is_reported_up(now + pause, false), "a message waits, and its try will tell");
        assert!(
            health.is_reported_up(now + pause, true),
            "nothing will be tried, so nothing would ever end the outage"
        );
        assert_eq!(health.may_send(now + pause, 0, true), SendPermit::Probe, "one message finds out all the same");
        health.probe_sent();
        assert!(!health.is_reported_up(now + pause, true), "its answer is awaited");
        health.on_outage(4, now + pause, pause, pause);
        health.isolate(4);
        assert!(!health.is_reported_up(now + 3 * pause, true), "a message waits to be sent alone");
    }
}
