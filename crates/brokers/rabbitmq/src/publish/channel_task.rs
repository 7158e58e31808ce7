//! The task that owns a channel of one exchange.
//!
//! Each exchange has its own channels. If the server closes a channel because an exchange is missing or not permitted,
//! other exchanges are not affected.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{Channel, ConnectionState, ErrorKind};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::call::{ConfirmResult, QueuedMessage, report_all};
use super::connection_task::{BrokerConnection, LiveConnection};
use super::unconfirmed::UnconfirmedMessages;
use crate::classify::Error;
use crate::config::Config;

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(50);
/// A channel without any confirm for this long is replaced.
const SILENT_CHANNEL_MAX: Duration = Duration::from_secs(30);

/// The maximum number of messages that test whether a silent channel gets confirms again.
const PROBES_MAX: usize = 16;

/// The task that owns one channel of one exchange.
pub(crate) struct ChannelTask {
    config: Arc<Config>,
    exchange: ShortString,
    connection: watch::Receiver<BrokerConnection>,
    jobs: mpsc::Receiver<Vec<QueuedMessage>>,
    backlog: VecDeque<QueuedMessage>,
    unconfirmed: Option<(u64, UnconfirmedMessages)>,
    /// Since when the last channel had no confirm.
    silent_since: Option<Instant>,
}

impl ChannelTask {
    pub(crate) fn new(
        config: Arc<Config>,
        exchange: ShortString,
        connection: watch::Receiver<BrokerConnection>,
        jobs: mpsc::Receiver<Vec<QueuedMessage>>,
    ) -> Self {
        Self { config, exchange, connection, jobs, backlog: VecDeque::new(), unconfirmed: None, silent_since: None }
    }

    /// Runs until all senders are dropped.
    pub(crate) async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.step().await;
            if self.unconfirmed.as_ref().is_some_and(|(_, unconfirmed)| unconfirmed.needs_round()) {
                tokio::task::yield_now().await;
                continue;
            }
            let idle = self.backlog.is_empty()
                && self.unconfirmed.as_ref().is_none_or(|(_, unconfirmed)| !unconfirmed.is_busy());
            let has_room = self.backlog.len() < self.config.in_flight_max;
            let ready_queue = self.unconfirmed.as_ref().map(|(_, unconfirmed)| unconfirmed.ready_queue());
            let woken = async {
                match ready_queue {
                    Some(ready_queue) => ready_queue.wait_ready().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.connection.changed() => if changed.is_err() { return },
                () = woken => {}
                job = self.jobs.recv(), if has_room => match job {
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
        let mut results = Vec::new();
        self.settle(&mut results);
        self.expire(&mut results);
        // Report outcomes before opening a channel, so that callers do not wait for it.
        report_all(std::mem::take(&mut results));
        self.send_backlog(&mut results).await;
        report_all(results);
    }

    fn settle(&mut self, results: &mut Vec<ConfirmResult>) {
        let Some((number, unconfirmed)) = &mut self.unconfirmed else { return };
        let channel_error = unconfirmed.settle(results);
        let is_replaced = match &*self.connection.borrow() {
            BrokerConnection::Up(live) => live.number != *number,
            BrokerConnection::Connecting | BrokerConnection::Down(_) => false,
            BrokerConnection::Closed => true,
        };
        let is_idle = !unconfirmed.is_open() && !unconfirmed.is_busy();
        if let Some(error) = channel_error {
            self.end_channel(&error, results);
        } else if is_replaced || is_idle {
            self.end_channel(&ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(), results);
        }
    }

    /// Ends the channel after it or the connection was lost. An error of the exchange applies to all messages that wait
    /// for it.
    fn end_channel(&mut self, error: &lapin::Error, results: &mut Vec<ConfirmResult>) {
        let Some((_, unconfirmed)) = self.unconfirmed.take() else { return };
        self.silent_since = unconfirmed.silent_since();
        match Error::from_channel_error(error.clone()) {
            refusal @ (Error::NotFound(_) | Error::AccessRefused(_)) => {
                let scope = RefusalScope::from_error(&refusal);
                let error_of = |key: &str| {
                    if scope.applies_to(key) { refusal.clone() } else { Error::ConnectionLost(error.clone()) }
                };
                unconfirmed.fail_all(|key, _| error_of(key), results);
                self.fail_matching(&refusal, |key| scope.applies_to(key), results);
            }
            Error::Mismatch(text) => {
                let max = size_limit(&text);
                unconfirmed.fail_all(
                    |_, bytes| match max {
                        Some(max) if bytes > max => Error::TooLarge { bytes, max },
                        _ => Error::ConnectionLost(error.clone()),
                    },
                    results,
                );
            }
            _ => unconfirmed.fail_all(|_, _| Error::ConnectionLost(error.clone()), results),
        }
    }

    fn expire(&mut self, results: &mut Vec<ConfirmResult>) {
        let (now, limit) = (Instant::now(), self.config.confirm_timeout);
        let mut is_confirming = false;
        if let Some((_, unconfirmed)) = &mut self.unconfirmed {
            unconfirmed.expire(now, limit, results);
            let is_crowded = 2 * unconfirmed.expired() > self.config.in_flight_max;
            is_confirming = unconfirmed.awaiting() > 0 && unconfirmed.silent_since().is_none();
            if unconfirmed.silent_since().is_some_and(|since| now - since > SILENT_CHANNEL_MAX)
                && unconfirmed.awaiting() == 0
            {
                // All remaining messages have expired, so no outcome is left to report.
                self.silent_since = Some(now);
                self.unconfirmed = None;
            } else if is_crowded {
                // Expired messages would leave no capacity for new ones.
                self.end_channel(&ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(), results);
            }
        }
        while let Some(item) = self.backlog.front() {
            let call = item.pending.call();
            let is_late = now >= call.started_at() + limit;
            if !is_late && !call.is_abandoned() {
                return;
            }
            if let Some(item) = self.backlog.pop_front() {
                let error = if is_confirming { Error::SendTimeout(limit) } else { Error::NoResponse(limit) };
                results.push((item.pending, Err(error)));
            }
        }
    }

    async fn send_backlog(&mut self, results: &mut Vec<ConfirmResult>) {
        if self.backlog.is_empty() {
            return;
        }
        let state = self.connection.borrow().clone();
        let live = match state {
            BrokerConnection::Connecting => return,
            BrokerConnection::Down(error) => return self.fail_all(&error, results),
            BrokerConnection::Closed => return self.fail_all(&Error::Closed, results),
            BrokerConnection::Up(LiveConnection { alarm: Some(reason), .. }) => {
                return self.fail_all(&Error::ResourceAlarm(reason.to_string()), results);
            }
            BrokerConnection::Up(live) => live,
        };
        if self.unconfirmed.is_none() {
            let waited = self.backlog.front().map_or(Duration::ZERO, |item| item.pending.call().started_at().elapsed());
            match open_confirm_channel(&live, self.config.confirm_timeout.saturating_sub(waited).max(TICK)).await {
                Ok(channel) => {
                    self.unconfirmed = Some((
                        live.number,
                        UnconfirmedMessages::new(channel, self.exchange.clone(), self.silent_since),
                    ));
                }
                Err(error) => return self.fail_all(&error, results),
            }
        }
        self.send(results);
    }

    fn send(&mut self, results: &mut Vec<ConfirmResult>) {
        let Some((_, unconfirmed)) = &mut self.unconfirmed else { return };
        // On a silent channel, one message per routing key tests for confirms, because their queues may differ.
        let mut probing = unconfirmed.silent_since().map(|_| unconfirmed.awaiting_keys());
        while unconfirmed.is_open() && unconfirmed.unconfirmed() < self.config.in_flight_max {
            let Some(item) = self.backlog.pop_front() else { return };
            let due = item.pending.call().started_at() + self.config.confirm_timeout;
            let is_not_probed = |keys: &mut HashSet<ShortString>| {
                keys.contains(&item.message.routing_key)
                    || keys.len() == PROBES_MAX
                    || !keys.insert(item.message.routing_key.clone())
            };
            if item.pending.call().is_abandoned() {
                results.push((item.pending, Err(Error::Closed)));
            } else if probing.as_mut().is_some_and(is_not_probed) {
                results.push((item.pending, Err(Error::NoResponse(self.config.confirm_timeout))));
            } else {
                unconfirmed.send(item, due);
            }
        }
    }

    fn fail_all(&mut self, error: &Error, results: &mut Vec<ConfirmResult>) {
        self.fail_matching(error, |_| true, results);
    }

    /// Reports an error for waiting messages with matching routing keys.
    fn fail_matching(&mut self, error: &Error, matches: impl Fn(&str) -> bool, results: &mut Vec<ConfirmResult>) {
        for item in std::mem::take(&mut self.backlog) {
            if matches(item.message.routing_key.as_str()) {
                results.push((item.pending, Err(error.clone())));
            } else {
                self.backlog.push_back(item);
            }
        }
    }
}

/// The scope of a refusal that closed the channel.
enum RefusalScope<'a> {
    /// The exchange.
    All,
    /// One routing key, or the part of it in the server's shortened text.
    Key { prefix: &'a str, exact: bool },
}

impl<'a> RefusalScope<'a> {
    /// Parses `access to topic 'orders.eu' in exchange 'shop' in vhost '/' refused for user 'guest'`.
    fn from_error(error: &'a Error) -> Self {
        let Error::AccessRefused(text) = error else { return Self::All };
        let Some((_, rest)) = text.split_once("access to topic '") else { return Self::All };
        match rest.rsplit_once("' in exchange '") {
            Some((key, _)) => Self::Key { prefix: key, exact: true },
            None => Self::Key { prefix: rest.trim_end_matches('.'), exact: false },
        }
    }

    fn applies_to(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Key { prefix, exact: true } => key == *prefix,
            Self::Key { prefix, exact: false } => key.starts_with(prefix),
        }
    }
}

/// Opens a channel with publisher confirms.
async fn open_confirm_channel(live: &LiveConnection, limit: Duration) -> Result<Channel, Error> {
    let opened = async {
        let channel = live.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    match timeout(limit, opened).await {
        Ok(opened) => opened.map_err(Error::from_channel_error),
        Err(_) => Err(Error::NoResponse(limit)),
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
    fn a_refused_topic_affects_its_routing_key_only() {
        let refusal = |text: &str| Error::AccessRefused(format!("ACCESS_REFUSED - {text}"));
        let topic = refusal("access to topic 'a.'b' in exchange 'shop' in vhost '/' refused for user 'guest'");
        assert!(
            RefusalScope::from_error(&topic).applies_to("a.'b") && !RefusalScope::from_error(&topic).applies_to("a.b")
        );
        let cut = refusal("access to topic 'aaaa...");
        assert!(RefusalScope::from_error(&cut).applies_to("aaaab") && !RefusalScope::from_error(&cut).applies_to("b"));
        let exchange = refusal("access to exchange 'shop' in vhost '/' refused for user 'guest'");
        assert!(RefusalScope::from_error(&exchange).applies_to("a.b"));
        assert!(RefusalScope::from_error(&Error::NotFound("no exchange".to_owned())).applies_to("a.b"));
    }
}
