//! Tracks whether the broker is reachable, and which messages break its connection.

use std::time::Duration;

use relevo_core::retry::{ExponentialBackoff, Jitter};
use tokio::time::Instant;

use crate::buffer::BufferId;

/// The state of the broker, as far as the relay knows.
#[derive(Debug)]
pub(crate) struct BrokerHealth {
    state: BrokerState,
    /// The pauses of an outage.
    backoff: ExponentialBackoff,
    /// Messages that must be sent with nothing else in flight, in order.
    to_isolate: Vec<BufferId>,
    /// Messages whose confirmation was lost although they were sent alone. They are quarantined as soon as another message
    /// succeeds.
    quarantine_candidates: Vec<BufferId>,
    /// The message that is in flight alone.
    isolated: Option<BufferId>,
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
    /// This message, alone.
    Isolated(BufferId),
    /// Nothing.
    Wait,
}

impl BrokerHealth {
    pub(crate) fn new(backoff_min: Duration, backoff_max: Duration) -> Self {
        Self {
            state: BrokerState::Up,
            backoff: ExponentialBackoff::new(backoff_min, backoff_max),
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
            Some(&id) => SendPermit::Isolated(id),
        }
    }

    /// Records that a probe was sent while the broker seemed unreachable.
    pub(crate) fn probe_sent(&mut self) {
        self.state = BrokerState::Probing;
    }

    pub(crate) fn isolated_sent(&mut self, id: BufferId) {
        self.to_isolate.retain(|other| *other != id);
        self.isolated = Some(id);
        if matches!(self.state, BrokerState::Down(_)) {
            self.state = BrokerState::Probing;
        }
    }

    /// Records a success. Returns the messages that must have failed on their own, because the broker works.
    pub(crate) fn on_success(&mut self, id: BufferId) -> Vec<BufferId> {
        self.state = BrokerState::Up;
        self.backoff.reset();
        self.clear_isolated(id);
        std::mem::take(&mut self.quarantine_candidates)
    }

    /// Records a response other than an outage. The broker is reachable, even if it rejected this message.
    pub(crate) fn on_rejection(&mut self, id: BufferId) {
        self.state = BrokerState::Up;
        self.backoff.reset();
        self.clear_isolated(id);
    }

    /// Records an outage. The pause doubles each time. Returns whether the broker was up before.
    pub(crate) fn on_outage(&mut self, id: BufferId, now: Instant) -> bool {
        self.clear_isolated(id);
        let was_up = matches!(self.state, BrokerState::Up);
        if let BrokerState::Down(until) = self.state
            && now < until
        {
            return false;
        }
        self.state = BrokerState::Down(now + self.backoff.next(Jitter::NONE));
        was_up
    }

    /// Records a lost confirmation, which proves nothing. If the message was the probe of an outage, the outage continues.
    pub(crate) fn on_lost_confirm(&mut self, id: BufferId, now: Instant) {
        self.clear_isolated(id);
        if matches!(self.state, BrokerState::Probing) {
            self.on_outage(id, now);
        }
    }

    /// Records too many lost confirmations of a message. It will be sent alone. If it already was alone, it waits for
    /// quarantine. Returns whether it was alone.
    pub(crate) fn isolate(&mut self, id: BufferId) -> bool {
        if self.isolated == Some(id) {
            self.isolated = None;
            self.quarantine_candidates.push(id);
            true
        } else {
            self.to_isolate.push(id);
            false
        }
    }

    /// Whether a message waits for another message to succeed before it is quarantined.
    pub(crate) const fn has_quarantine_candidates(&self) -> bool {
        !self.quarantine_candidates.is_empty()
    }

    /// Sends a message alone again, because no other message was available to prove that the broker works.
    pub(crate) fn retry_candidate(&mut self, id: BufferId) {
        if let Some(index) = self.quarantine_candidates.iter().position(|other| *other == id) {
            self.quarantine_candidates.remove(index);
            self.to_isolate.push(id);
        }
    }

    /// Removes every message. The broker's state stays, because a database outage says nothing about the broker.
    pub(crate) fn reset(&mut self, now: Instant) {
        if matches!(self.state, BrokerState::Probing) {
            // The relay will not receive the probe's outcome, so the next message becomes the probe.
            self.state = BrokerState::Down(now);
        }
        self.to_isolate.clear();
        self.quarantine_candidates.clear();
        self.isolated = None;
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
    pub(crate) fn wake_at(&self, ready: bool) -> Option<Instant> {
        match self.state {
            BrokerState::Down(until) if ready || !self.to_isolate.is_empty() => Some(until),
            BrokerState::Up | BrokerState::Down(_) | BrokerState::Probing => None,
        }
    }

    fn clear_isolated(&mut self, id: BufferId) {
        if self.isolated == Some(id) {
            self.isolated = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn an_outage_survives_a_reset_and_one_success_ends_it() {
        let now = Instant::now();
        let mut health = BrokerHealth::new(PAUSE, PAUSE);
        health.isolate(7.into());
        assert!(health.on_outage(3.into(), now));
        health.reset(now);
        assert!(!health.is_reported_up(now, false), "a database outage does not change the broker's state");
        assert_eq!(health.may_send(now, 0, true), SendPermit::Wait);
        assert_eq!(health.may_send(now + PAUSE, 0, false), SendPermit::Probe, "no message is suspected after a reset");
        health.probe_sent();
        health.reset(now + PAUSE);
        assert_eq!(
            (health.is_reported_up(now + PAUSE, false), health.may_send(now + PAUSE, 0, true)),
            (false, SendPermit::Probe),
            "the outcome of the first probe is lost"
        );
        health.on_success(0.into());
        assert!(health.is_reported_up(now + PAUSE, false));
    }

    #[test]
    fn an_outage_is_reported_while_a_message_waits() {
        let now = Instant::now();
        let mut health = BrokerHealth::new(PAUSE, PAUSE);
        assert!(health.on_outage(3.into(), now));
        assert!(!health.is_reported_up(now, true), "the pause has just begun");
        assert!(!health.is_reported_up(now + PAUSE, false), "a message waits, and its attempt decides");
        assert!(health.is_reported_up(now + PAUSE, true), "without a message, no attempt would ever end the outage");
        assert_eq!(health.may_send(now + PAUSE, 0, true), SendPermit::Probe);
        health.probe_sent();
        assert!(!health.is_reported_up(now + PAUSE, true), "the probe has no outcome yet");
        health.on_outage(4.into(), now + PAUSE);
        health.isolate(4.into());
        assert!(!health.is_reported_up(now + 3 * PAUSE, true), "a message waits to be sent alone");
    }
}
