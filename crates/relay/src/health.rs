//! Tracks whether the broker is reachable, and which messages break its connection.

use std::time::Duration;

use tokio::time::Instant;

/// The state of the broker, as far as the relay knows.
#[derive(Debug)]
pub(crate) struct Health {
    state: State,
    pauses: u32,
    /// Items that must be sent with nothing else in flight, in order.
    suspects: Vec<usize>,
    /// Items whose confirmation was lost although they were sent alone. They are quarantined as soon as another message
    /// succeeds.
    accused: Vec<usize>,
    /// The item that is in flight alone.
    alone: Option<usize>,
}

#[derive(Debug)]
enum State {
    Up,
    /// Send nothing before this time, then one message.
    Down(Instant),
    /// One message is in flight as a probe.
    Probing,
}

/// What the relay may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    /// As many messages as fit.
    All,
    /// The first ready message only.
    One,
    /// This item, alone.
    Alone(usize),
    /// Nothing.
    Nothing,
}

impl Health {
    pub(crate) const fn new() -> Self {
        Self { state: State::Up, pauses: 0, suspects: Vec::new(), accused: Vec::new(), alone: None }
    }

    /// What may be sent now. `ready` is whether a message waits that is not suspected.
    pub(crate) fn may_send(&mut self, now: Instant, in_flight: usize, ready: bool) -> May {
        match self.state {
            State::Probing => return May::Nothing,
            State::Down(until) if now < until || in_flight > 0 => return May::Nothing,
            // Probe with an unsuspected message first. If only suspects were sent, each could fail because of its own
            // fault, and the outage would never end.
            State::Down(_) if ready || self.suspects.is_empty() => return May::One,
            State::Up | State::Down(_) => {}
        }
        match self.suspects.first() {
            None if self.alone.is_some() => May::Nothing,
            None => May::All,
            Some(_) if in_flight > 0 => May::Nothing,
            Some(&item) => May::Alone(item),
        }
    }

    /// Records that a probe was sent while the broker seemed unreachable.
    pub(crate) fn probe_sent(&mut self) {
        self.state = State::Probing;
    }

    pub(crate) fn sent_alone(&mut self, item: usize) {
        self.suspects.retain(|suspect| *suspect != item);
        self.alone = Some(item);
        if matches!(self.state, State::Down(_)) {
            self.state = State::Probing;
        }
    }

    /// Records a success. Returns the items that must have failed on their own, because the broker works.
    pub(crate) fn passed(&mut self, item: usize) -> Vec<usize> {
        self.state = State::Up;
        self.pauses = 0;
        self.clear(item);
        std::mem::take(&mut self.accused)
    }

    /// Records a response other than an outage. The broker is reachable, even if it rejected this message.
    pub(crate) fn answered(&mut self, item: usize) {
        self.state = State::Up;
        self.pauses = 0;
        self.clear(item);
    }

    /// Records an outage. The pause doubles each time. Returns whether the broker was up before.
    pub(crate) fn away(&mut self, item: usize, now: Instant, min: Duration, max: Duration) -> bool {
        self.clear(item);
        let news = matches!(self.state, State::Up);
        if let State::Down(until) = self.state
            && now < until
        {
            return false;
        }
        let pause = 2u32.checked_pow(self.pauses).and_then(|times| min.checked_mul(times)).unwrap_or(max).min(max);
        self.pauses = self.pauses.saturating_add(1);
        self.state = State::Down(now + pause);
        news
    }

    /// Records a lost confirmation, which proves nothing. If the item was the probe of an outage, the outage continues.
    pub(crate) fn unanswered(&mut self, item: usize, now: Instant, min: Duration, max: Duration) {
        self.clear(item);
        if matches!(self.state, State::Probing) {
            self.away(item, now, min, max);
        }
    }

    /// Records too many lost confirmations of an item. It will be sent alone. If it already was alone, it waits for
    /// quarantine. Returns whether it was alone.
    pub(crate) fn suspect(&mut self, item: usize) -> bool {
        if self.alone == Some(item) {
            self.alone = None;
            self.accused.push(item);
            true
        } else {
            self.suspects.push(item);
            false
        }
    }

    /// Whether an item waits for another message to succeed before it is quarantined.
    pub(crate) const fn is_accusing(&self) -> bool {
        !self.accused.is_empty()
    }

    /// Sends an item alone again, because no other message was available to prove that the broker works.
    pub(crate) fn retry_accused(&mut self, item: usize) {
        if let Some(at) = self.accused.iter().position(|accused| *accused == item) {
            self.accused.remove(at);
            self.suspects.push(item);
        }
    }

    /// Removes every item. The broker's state stays, because a database outage says nothing about the broker.
    pub(crate) fn forget(&mut self, now: Instant) {
        let state = match self.state {
            State::Up => State::Up,
            State::Down(until) => State::Down(until),
            // The relay will not receive the probe's outcome, so the next message becomes the probe.
            State::Probing => State::Down(now),
        };
        *self = Self { state, pauses: self.pauses, ..Self::new() };
    }

    /// Whether to report the broker as up. Only a published message proves that an outage is over, so an idle relay
    /// reports "up" when the backoff ends.
    pub(crate) fn seems_up(&self, now: Instant, idle: bool) -> bool {
        match self.state {
            State::Up => true,
            State::Down(until) => idle && until <= now && self.suspects.is_empty() && self.accused.is_empty(),
            State::Probing => false,
        }
    }

    /// Whether the broker is up, or a probe is due.
    pub(crate) fn is_worth_trying(&self, now: Instant) -> bool {
        match self.state {
            State::Up => true,
            State::Down(until) => until <= now,
            State::Probing => false,
        }
    }

    /// When the pause ends. `None` if there is nothing to send then.
    pub(crate) fn wakes_at(&self, ready: bool) -> Option<Instant> {
        match self.state {
            State::Down(until) if ready || !self.suspects.is_empty() => Some(until),
            State::Up | State::Down(_) | State::Probing => None,
        }
    }

    fn clear(&mut self, item: usize) {
        if self.alone == Some(item) {
            self.alone = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_outlasts_what_was_in_memory_and_one_message_ends_it() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        let mut health = Health::new();
        health.suspect(7);
        assert!(health.away(3, now, pause, pause));
        health.forget(now);
        assert!(!health.seems_up(now, false), "the database went away, which says nothing about the destination");
        assert_eq!(health.may_send(now, 0, true), May::Nothing);
        assert_eq!(health.may_send(now + pause, 0, false), May::One, "nobody is suspected any more");
        health.probe_sent();
        health.forget(now + pause);
        assert_eq!(
            (health.seems_up(now + pause, false), health.may_send(now + pause, 0, true)),
            (false, May::One),
            "its answer is not heard"
        );
        health.passed(0);
        assert!(health.seems_up(now + pause, false));
    }

    #[test]
    fn an_outage_is_told_while_something_waits_to_be_sent_and_no_longer_than_its_pause_without() {
        let (now, pause) = (Instant::now(), Duration::from_secs(1));
        let mut health = Health::new();
        assert!(health.away(3, now, pause, pause));
        assert!(!health.seems_up(now, true), "the pause has just begun");
        assert!(!health.seems_up(now + pause, false), "a message waits, and its try will tell");
        assert!(health.seems_up(now + pause, true), "nothing will be tried, so nothing would ever end the outage");
        assert_eq!(health.may_send(now + pause, 0, true), May::One, "one message finds out all the same");
        health.probe_sent();
        assert!(!health.seems_up(now + pause, true), "its answer is awaited");
        health.away(4, now + pause, pause, pause);
        health.suspect(4);
        assert!(!health.seems_up(now + 3 * pause, true), "a message waits to be sent alone");
    }
}
