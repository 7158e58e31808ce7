//! The task that owns a channel of one exchange.
//!
//! Each exchange has its own channels. If the server closes a channel because an exchange is missing or not permitted,
//! other exchanges are not affected.

mod call;
mod flight;
mod parcel;
mod returns;
mod sort;
mod wakes;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{Channel, ConnectionState, ErrorKind};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use call::Told;
pub(crate) use call::{Call, Item, Ticket, tell_all};
use flight::Flight;
pub(crate) use sort::{Share, sort};

use crate::classify::Error;
use crate::config::Config;
use crate::keeper::{Line, State};

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(50);
/// A channel without any confirm for this long is replaced.
const MUTE_MAX: Duration = Duration::from_secs(30);

/// The maximum number of messages that test whether a silent channel gets confirms again.
const PROBES_MAX: usize = 16;

/// The task that owns one channel of one exchange.
pub(crate) struct Owner {
    config: Arc<Config>,
    exchange: ShortString,
    state: watch::Receiver<State>,
    jobs: mpsc::Receiver<Vec<Item>>,
    backlog: VecDeque<Item>,
    flight: Option<(u64, Flight)>,
    /// Since when the last channel had no confirm.
    mute: Option<Instant>,
}

impl Owner {
    pub(crate) fn new(
        config: Arc<Config>,
        exchange: ShortString,
        state: watch::Receiver<State>,
        jobs: mpsc::Receiver<Vec<Item>>,
    ) -> Self {
        Self { config, exchange, state, jobs, backlog: VecDeque::new(), flight: None, mute: None }
    }

    /// Runs until all senders are dropped.
    pub(crate) async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.step().await;
            if self.flight.as_ref().is_some_and(|(_, flight)| flight.wants_round()) {
                tokio::task::yield_now().await;
                continue;
            }
            let idle = self.backlog.is_empty() && self.flight.as_ref().is_none_or(|(_, flight)| !flight.is_busy());
            let room = self.backlog.len() < self.config.in_flight_max;
            let wakes = self.flight.as_ref().map(|(_, flight)| flight.wakes());
            let woken = async {
                match wakes {
                    Some(wakes) => wakes.ready().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.state.changed() => if changed.is_err() { return },
                () = woken => {}
                job = self.jobs.recv(), if room => match job {
                    Some(items) => self.backlog.extend(items),
                    None => return,
                },
                _ = tick.tick(), if !idle => {}
            }
        }
    }

    /// Receives new messages, reports overdue ones, and sends as many as possible.
    async fn step(&mut self) {
        while self.backlog.len() < self.config.in_flight_max {
            // Confirms must not delay new messages.
            match self.jobs.try_recv() {
                Ok(items) => self.backlog.extend(items),
                Err(_) => break,
            }
        }
        let mut told = Vec::new();
        self.settle(&mut told);
        self.give_up_late(&mut told);
        // Report outcomes before opening a channel, so that callers do not wait for it.
        tell_all(std::mem::take(&mut told));
        self.fill(&mut told).await;
        tell_all(told);
    }

    fn settle(&mut self, told: &mut Vec<Told>) {
        let Some((number, flight)) = &mut self.flight else { return };
        let broken = flight.settle(told);
        let gone = match &*self.state.borrow() {
            State::Up(line) => line.number != *number,
            State::Connecting | State::Down(_) => false,
            State::Closed => true,
        };
        let silent = !flight.is_open() && !flight.is_busy();
        if let Some(error) = broken {
            self.end_flight(&error, told);
        } else if gone || silent {
            self.end_flight(&ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(), told);
        }
    }

    /// Ends the channel after it or the connection was lost. An error of the exchange applies to all messages that wait
    /// for it.
    fn end_flight(&mut self, error: &lapin::Error, told: &mut Vec<Told>) {
        let Some((_, flight)) = self.flight.take() else { return };
        self.mute = flight.mute();
        match Error::of_channel(error.clone()) {
            why @ (Error::Missing(_) | Error::Forbidden(_)) => {
                let refused = Refused::of(&why);
                let verdict =
                    |key: &str| if refused.concerns(key) { why.clone() } else { Error::Broken(error.clone()) };
                flight.end(|key, _| verdict(key), told);
                self.answer(&why, |key| refused.concerns(key), told);
            }
            Error::Differs(text) => {
                let max = size_limit(&text);
                flight.end(
                    |_, bytes| match max {
                        Some(max) if bytes > max => Error::TooLarge { bytes, max },
                        _ => Error::Broken(error.clone()),
                    },
                    told,
                );
            }
            _ => flight.end(|_, _| Error::Broken(error.clone()), told),
        }
    }

    fn give_up_late(&mut self, told: &mut Vec<Told>) {
        let (now, deadline) = (Instant::now(), self.config.confirm_deadline);
        let mut flows = false;
        if let Some((_, flight)) = &mut self.flight {
            flight.give_up_late(now, deadline, told);
            let crowded = 2 * flight.given_up() > self.config.in_flight_max;
            flows = flight.live() > 0 && flight.mute().is_none();
            if flight.mute().is_some_and(|since| now - since > MUTE_MAX) && flight.live() == 0 {
                // All remaining messages have expired, so no outcome is left to report.
                self.mute = Some(now);
                self.flight = None;
            } else if crowded {
                // Expired messages would leave no capacity for new ones.
                self.end_flight(&ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(), told);
            }
        }
        while let Some(item) = self.backlog.front() {
            let call = item.ticket.call();
            let late = now >= call.began() + deadline;
            if !late && !call.is_abandoned() {
                return;
            }
            if let Some(item) = self.backlog.pop_front() {
                let why = if flows { Error::Slow(deadline) } else { Error::Silent(deadline) };
                told.push((item.ticket, Err(why)));
            }
        }
    }

    async fn fill(&mut self, told: &mut Vec<Told>) {
        if self.backlog.is_empty() {
            return;
        }
        let state = self.state.borrow().clone();
        let line = match state {
            State::Connecting => return,
            State::Down(why) => return self.answer_all(&why, told),
            State::Closed => return self.answer_all(&Error::Closed, told),
            State::Up(Line { alarm: Some(reason), .. }) => {
                return self.answer_all(&Error::Alarm(reason.to_string()), told);
            }
            State::Up(line) => line,
        };
        if self.flight.is_none() {
            let waited = self.backlog.front().map_or(Duration::ZERO, |item| item.ticket.call().began().elapsed());
            match open(&line, self.config.confirm_deadline.saturating_sub(waited).max(TICK)).await {
                Ok(channel) => {
                    self.flight = Some((line.number, Flight::new(channel, self.exchange.clone(), self.mute)));
                }
                Err(why) => return self.answer_all(&why, told),
            }
        }
        self.send(told);
    }

    fn send(&mut self, told: &mut Vec<Told>) {
        let Some((_, flight)) = &mut self.flight else { return };
        // On a silent channel, one message per routing key tests for confirms, because their queues may differ.
        let mut probing = flight.mute().map(|_| flight.live_keys());
        while flight.is_open() && flight.unconfirmed() < self.config.in_flight_max {
            let Some(item) = self.backlog.pop_front() else { return };
            let due = item.ticket.call().began() + self.config.confirm_deadline;
            let is_not_probed = |keys: &mut HashSet<ShortString>| {
                keys.contains(&item.parcel.key) || keys.len() == PROBES_MAX || !keys.insert(item.parcel.key.clone())
            };
            if item.ticket.call().is_abandoned() {
                told.push((item.ticket, Err(Error::Closed)));
            } else if probing.as_mut().is_some_and(is_not_probed) {
                told.push((item.ticket, Err(Error::Silent(self.config.confirm_deadline))));
            } else {
                flight.send(item, due);
            }
        }
    }

    fn answer_all(&mut self, why: &Error, told: &mut Vec<Told>) {
        self.answer(why, |_| true, told);
    }

    /// Reports an error for waiting messages with matching routing keys.
    fn answer(&mut self, why: &Error, which: impl Fn(&str) -> bool, told: &mut Vec<Told>) {
        for item in std::mem::take(&mut self.backlog) {
            if which(item.parcel.key.as_str()) {
                told.push((item.ticket, Err(why.clone())));
            } else {
                self.backlog.push_back(item);
            }
        }
    }
}

/// The scope of a refusal that closed the channel.
enum Refused<'a> {
    /// The exchange.
    All,
    /// One routing key, or the part of it in the server's shortened text.
    Key { start: &'a str, whole: bool },
}

impl<'a> Refused<'a> {
    /// Parses `access to topic 'orders.eu' in exchange 'shop' in vhost '/' refused for user 'guest'`.
    fn of(why: &'a Error) -> Self {
        let Error::Forbidden(text) = why else { return Self::All };
        let Some((_, rest)) = text.split_once("access to topic '") else { return Self::All };
        match rest.rsplit_once("' in exchange '") {
            Some((key, _)) => Self::Key { start: key, whole: true },
            None => Self::Key { start: rest.trim_end_matches('.'), whole: false },
        }
    }

    fn concerns(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Key { start, whole: true } => key == *start,
            Self::Key { start, whole: false } => key.starts_with(start),
        }
    }
}

/// Opens a channel with publisher confirms.
async fn open(line: &Line, deadline: Duration) -> Result<Channel, Error> {
    let opened = async {
        let channel = line.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    match timeout(deadline, opened).await {
        Ok(opened) => opened.map_err(Error::of_channel),
        Err(_) => Err(Error::Silent(deadline)),
    }
}

/// The server's `max_message_size`, from its refusal: `message size 6 is larger than configured max size 5`.
fn size_limit(text: &str) -> Option<usize> {
    let (_, size) = text.split_once("larger than configured max size ")?;
    size.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_size_limit_is_read_from_its_refusal() {
        let text = "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000";
        assert_eq!(size_limit(text), Some(1_000));
        assert_eq!(size_limit("PRECONDITION_FAILED - something else"), None);
    }

    #[test]
    fn a_topic_that_is_not_permitted_concerns_its_routing_key_only() {
        let said = |text: &str| Error::Forbidden(format!("ACCESS_REFUSED - {text}"));
        let topic = said("access to topic 'a.'b' in exchange 'shop' in vhost '/' refused for user 'guest'");
        assert!(Refused::of(&topic).concerns("a.'b") && !Refused::of(&topic).concerns("a.b"));
        let cut = said("access to topic 'aaaa...");
        assert!(Refused::of(&cut).concerns("aaaab") && !Refused::of(&cut).concerns("b"));
        let exchange = said("access to exchange 'shop' in vhost '/' refused for user 'guest'");
        assert!(Refused::of(&exchange).concerns("a.b"));
        assert!(Refused::of(&Error::Missing("no exchange".to_owned())).concerns("a.b"));
    }
}
