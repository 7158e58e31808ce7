//! One connection for publishing, from its beginning to its loss.

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

/// How often it is looked for acknowledgements that are overdue.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For so long nothing is sent to a subject that we may not publish to: the server answers each with a line of its own.
const DENIED_FOR: Duration = Duration::from_millis(500);
const DENIED_MAX: usize = 1_024;
/// Acknowledgements that are settled together.
const TOGETHER: usize = 256;

/// One connection. It is not made again when it is lost: what waits for an acknowledgement then would wait in vain.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) acks: Acks,
    pub(crate) ability: Ability,
    inbox: String,
    denied: Mutex<BTreeMap<String, Instant>>,
}

/// What a session listens to.
pub(crate) struct Ears {
    events: mpsc::Receiver<Event>,
    answers: Subscriber,
    /// Whether the server said what its stream can do.
    answered: bool,
}

impl Session {
    /// Connects to this server.
    pub(crate) async fn open(config: &Config, server: &ServerAddr) -> Result<(Self, Ears), Error> {
        let (sender, events) = mpsc::channel(256);
        let options = link::options(config)?
            // One that the library makes again would take what still waited to be written with it, unnoticed. It tries
            // once, and ends as soon as it finds that nobody holds its handle any more.
            .max_reconnects(1)
            .ignore_discovered_servers()
            .skip_subject_validation(true)
            .subscription_capacity(config.in_flight_max + TOGETHER)
            .event_callback(move |event| {
                // Events that find no room are repeated denials; a lost connection is noticed in other ways too.
                sender.try_send(event).ok();
                std::future::ready(())
            });
        let client = options.connect(server.clone()).await.map_err(tls::refused)?;
        let inbox = client.new_inbox() + ".";
        // It fails only where the connection is gone again.
        let answers = client.subscribe(format!("{inbox}*")).await.map_err(|_| Error::Disconnected)?;
        let clustered = client.server_info().cluster.is_some();
        let acks = Acks::new(config.in_flight_max, config.ack_deadline, clustered);
        let ability = Ability::default();
        let answered = ability.ask(&client, config).await;
        Ok((Self { client, acks, ability, inbox, denied: Mutex::default() }, Ears { events, answers, answered }))
    }

    /// Listens until the connection is lost, and says why; then everything that waited has its outcome.
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

    /// Where the acknowledgement of a token goes.
    pub(crate) fn reply(&self, token: u64) -> Subject {
        format!("{}{token}", self.inbox).into()
    }

    /// Whether the server said a moment ago that we may not publish there.
    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        !denied.is_empty() && denied.get(subject).is_some_and(|since| since.elapsed() < DENIED_FOR)
    }

    /// The server complains, without saying about which message; an error if the connection is of no use.
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

/// What publishers see of the connection.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// There is one.
    Up(Arc<Session>),
    /// There is none, and why.
    Down(Arc<Error>),
}
