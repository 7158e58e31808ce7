//! Whether the destination can be reached, and which messages take it down.

use std::time::Duration;

use tokio::time::Instant;

/// The destination, as far as the relay knows.
#[derive(Debug)]
pub(crate) struct Health {
    state: State,
    pauses: u32,
    /// Items that are to be sent with nothing else in flight, in order.
    suspects: Vec<usize>,
    /// Items whose answer was lost although they were alone: quarantined as soon as another message passes.
    accused: Vec<usize>,
    /// The item that flies alone.
    alone: Option<usize>,
}

#[derive(Debug)]
enum State {
    Up,
    /// Nothing is sent before this time, then one message.
    Down(Instant),
    /// One message is on its way to find out.
    Probing,
}

/// What may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    /// As many as fit.
    All,
    /// One message, whichever is first.
    One,
    /// This one, alone.
    Alone(usize),
    /// Nothing.
    Nothing,
}

impl Health {
    pub(crate) const fn new() -> Self {
        Self { state: State::Up, pauses: 0, suspects: Vec::new(), accused: Vec::new(), alone: None }
    }

    /// What may be sent, if `ready` says whether a message waits that nobody suspects.
    pub(crate) fn may_send(&mut self, now: Instant, in_flight: usize, ready: bool) -> May {
        match self.state {
            State::Probing => return May::Nothing,
            State::Down(until) if now < until || in_flight > 0 => return May::Nothing,
            // An unsuspected message finds out first: suspects among themselves would accuse each other for ever.
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

    /// One message is on its way while the destination was thought away.
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

    /// A message passed. Returns the items that are now known to fail by themselves.
    pub(crate) fn passed(&mut self, item: usize) -> Vec<usize> {
        self.state = State::Up;
        self.pauses = 0;
        self.clear(item);
        std::mem::take(&mut self.accused)
    }

    /// Something other than an outage came back: the destination is there, whatever it said of this message.
    pub(crate) fn answered(&mut self, item: usize) {
        self.state = State::Up;
        self.pauses = 0;
        self.clear(item);
    }

    /// The destination cannot be reached: pause, doubled each time.
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

    /// An answer was lost, which says nothing; if it was the probe of an outage, that goes on.
    pub(crate) fn unanswered(&mut self, item: usize, now: Instant, min: Duration, max: Duration) {
        self.clear(item);
        if matches!(self.state, State::Probing) {
            self.away(item, now, min, max);
        }
    }

    /// An answer was lost once too often: the message will be sent alone; if it was alone already, it is accused.
    /// Returns whether it was alone.
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

    /// Whether a message waits for another one to bear witness.
    pub(crate) const fn is_accusing(&self) -> bool {
        !self.accused.is_empty()
    }

    /// An accused message for which no other could bear witness is tried alone again.
    pub(crate) fn retry_accused(&mut self, item: usize) {
        if let Some(at) = self.accused.iter().position(|accused| *accused == item) {
            self.accused.remove(at);
            self.suspects.push(item);
        }
    }

    /// Forgets every item. What is known of the destination stays: that the database went away says nothing about it.
    pub(crate) fn forget(&mut self, now: Instant) {
        let state = match self.state {
            State::Up => State::Up,
            State::Down(until) => State::Down(until),
            // The answer to the probe is never heard: the next message is one.
            State::Probing => State::Down(now),
        };
        *self = Self { state, pauses: self.pauses, ..Self::new() };
    }

    /// Whether the destination is told as there: it was when it was last heard of, or its pause has ended and this relay,
    /// `idle`, has nothing to find out with. Only a message ends an outage, and none may ever come.
    pub(crate) fn seems_up(&self, now: Instant, idle: bool) -> bool {
        match self.state {
            State::Up => true,
            State::Down(until) => idle && until <= now && self.suspects.is_empty() && self.accused.is_empty(),
            State::Probing => false,
        }
    }

    /// Whether the destination is there, or it is time to find out.
    pub(crate) fn is_worth_trying(&self, now: Instant) -> bool {
        match self.state {
            State::Up => true,
            State::Down(until) => until <= now,
            State::Probing => false,
        }
    }

    /// When a pause ends; nothing to wait for unless something is there to be sent then.
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
