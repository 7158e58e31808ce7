//! One connection for publishing, until it is lost.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Client, Event, ServerAddr, ServerError, Subject, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::acks::Acks;
use super::answer;
use super::atomic::Ability;
use crate::classify::Error;
use crate::config::Config;
use crate::{link, tls};

/// How often overdue acknowledgements are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long messages for a denied subject are not sent: the server would report each one.
const DENIED_FOR: Duration = Duration::from_millis(500);
const DENIED_MAX: usize = 1_024;
/// The maximum number of acknowledgements that are processed together.
const TOGETHER: usize = 256;

/// One connection. It is never restored when it is lost: messages in flight would wait for acknowledgements that cannot
/// arrive.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) acks: Acks,
    pub(crate) ability: Ability,
    inbox: String,
    denied: Mutex<BTreeMap<String, Instant>>,
}

/// The inputs of a session.
pub(crate) struct Ears {
    events: mpsc::Receiver<Event>,
    answers: Subscriber,
    /// Whether the server returned the settings of the stream.
    answered: bool,
}

impl Session {
    /// Connects to this server.
    pub(crate) async fn open(config: &Config, server: &ServerAddr) -> Result<(Self, Ears), Error> {
        let (sender, events) = mpsc::channel(256);
        let options = link::options(config)?
            // A restored connection would silently lose messages that were not written yet. The library tries once, and
            // stops when it finds that its handle was dropped.
            .max_reconnects(1)
            .ignore_discovered_servers()
            .skip_subject_validation(true)
            .subscription_capacity(config.in_flight_max + TOGETHER)
            .event_callback(move |event| {
                // Events beyond the capacity are repeated denials; a lost connection is also detected in other ways.
                sender.try_send(event).ok();
                std::future::ready(())
            });
        let client = options.connect(server.clone()).await.map_err(tls::refused)?;
        let inbox = client.new_inbox() + ".";
        // This fails only if the connection is already lost.
        let answers = client.subscribe(format!("{inbox}*")).await.map_err(|_| Error::Disconnected)?;
        let clustered = client.server_info().cluster.is_some();
        let acks = Acks::new(config.in_flight_max, config.ack_deadline, clustered);
        let ability = Ability::default();
        let answered = ability.ask(&client, config).await;
        Ok((Self { client, acks, ability, inbox, denied: Mutex::default() }, Ears { events, answers, answered }))
    }

    /// Runs until the connection is lost, and returns the cause. Every waiting message has an outcome by then.
    pub(crate) async fn run(&self, ears: Ears, config: &Config) -> Error {
        let answered = ears.answered;
        let mut listening = pin!(self.listen(ears));
        if answered {
            return listening.await;
        }
        tokio::select! {
            why = &mut listening => why,
            () = self.ability.learn(&self.client, config) => listening.await,
        }
    }

    async fn listen(&self, ears: Ears) -> Error {
        let Ears { mut events, answers, .. } = ears;
        let mut answers = answers.ready_chunks(TOGETHER);
        let mut look = tokio::time::interval(LOOK_EVERY);
        let why = loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(Event::Disconnected | Event::Closed) | None => break Error::Disconnected,
                    Some(Event::ServerError(error)) => if let Some(error) = self.heard(&error) { break error },
                    Some(_) => {}
                },
                some = answers.next() => match some {
                    Some(some) => self.acks.settle(some.iter().filter_map(|message| {
                        let token = message.subject.strip_prefix(self.inbox.as_str())?.parse().ok()?;
                        Some((token, answer::read(message)))
                    })),
                    None => break Error::Disconnected,
                },
                now = look.tick() => self.acks.expire(now.into_std()),
            }
        };
        self.acks.lose();
        why
    }

    /// The reply subject of a token.
    pub(crate) fn reply(&self, token: u64) -> Subject {
        format!("{}{token}", self.inbox).into()
    }

    /// Whether the server recently refused a publish to this subject.
    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        !denied.is_empty() && denied.get(subject).is_some_and(|since| since.elapsed() < DENIED_FOR)
    }

    /// Handles a server error, which does not name a message. Returns an error if the connection is unusable.
    fn heard(&self, error: &ServerError) -> Option<Error> {
        let ServerError::Other(text) = error else { return None };
        match link::violation(text)? {
            Error::NotPermitted(subject) => {
                let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
                denied.retain(|_, since| since.elapsed() < DENIED_FOR);
                if denied.len() < DENIED_MAX {
                    denied.insert(subject.clone(), Instant::now());
                }
                drop(denied);
                self.acks.deny(&subject);
                None
            }
            error => Some(error),
        }
    }
}

/// The state of the connection, as publishers see it.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Connected.
    Up(Arc<Session>),
    /// Not connected, with the cause.
    Down(Arc<Error>),
}
