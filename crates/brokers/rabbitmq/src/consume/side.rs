//! Publishes retries over a separate connection.
//!
//! A server with a memory or disk alarm stops reading from every publishing connection. Acknowledgements use another
//! connection, so that consumers can still drain a full server.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use relevo_core::retry::ExponentialBackoff;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::classify::Error;
use crate::config::Config;
use crate::connection;

/// The capacity for calls that wait for the publishing task.
const JOBS_MAX: usize = 64;

/// A message for a retry queue.
pub(crate) struct Copy {
    pub(crate) queue: String,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

/// The outcome of each copy, in order.
type Verdicts = Vec<Result<(), Error>>;

struct Job {
    copies: Vec<Copy>,
    done: oneshot::Sender<Verdicts>,
}

/// The handle of the publishing task.
#[derive(Clone)]
pub(crate) struct Side {
    jobs: mpsc::Sender<Job>,
    config: Arc<Config>,
}

impl Side {
    /// Returns the handle and the future of the task, which ends when the last handle is dropped.
    pub(crate) fn new(config: Arc<Config>, name: String) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, jobs) = mpsc::channel(JOBS_MAX);
        let desk = Desk {
            config: Arc::clone(&config),
            name,
            connection: None,
            channel: None,
            rest: Rest { backoff: connection::backoff(), until: None },
        };
        (Self { jobs: sender, config }, desk.work(jobs))
    }

    /// Publishes copies and returns an outcome for each: `Ok` if the broker has confirmed it and routed it to its
    /// queue. After an error the copy may still have been stored.
    pub(crate) async fn publish(&self, copies: Vec<Copy>) -> Verdicts {
        let (count, (done, answer)) = (copies.len(), oneshot::channel());
        let all = |why: Error| vec![Err(why); count];
        // Other calls may be first, and a connection may have to be opened.
        let deadline = self.config.connect_timeout + self.config.confirm_timeout;
        let asked = timeout(deadline, async {
            self.jobs.send(Job { copies, done }).await.ok()?;
            answer.await.ok()
        });
        match asked.await {
            Ok(Some(verdicts)) => verdicts,
            Ok(None) => all(Error::Closed),
            Err(_) => all(Error::Unconfirmed(deadline)),
        }
    }
}

/// The time of the next attempt to connect, and the error of the last one.
struct Rest {
    backoff: ExponentialBackoff,
    until: Option<(Instant, Error)>,
}

/// The publishing task.
struct Desk {
    config: Arc<Config>,
    name: String,
    connection: Option<Connection>,
    /// Only a channel without open confirms may be used again. The library attaches a returned message to any confirm
    /// of its channel, even of another job.
    channel: Option<Channel>,
    rest: Rest,
}

impl Desk {
    async fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { copies, done }) = jobs.recv().await {
            // The caller was cancelled. Copies would be useless, because it will not acknowledge the originals.
            if done.is_closed() {
                continue;
            }
            let verdicts = self.carry(copies).await;
            // The caller may have been cancelled in the meantime; the copies stay.
            done.send(verdicts).ok();
        }
    }

    async fn carry(&mut self, copies: Vec<Copy>) -> Verdicts {
        let count = copies.len();
        let channel = match self.ready().await {
            Ok(channel) => channel,
            Err(error) => return vec![Err(error); count],
        };
        let (verdicts, whole) = send(&channel, copies, &self.config).await;
        if whole {
            self.channel = Some(channel);
            self.rest = Rest { backoff: connection::backoff(), until: None };
        }
        verdicts
    }

    /// Returns a channel without open confirms. The caller must put it back.
    async fn ready(&mut self) -> Result<Channel, Error> {
        if !self.connection.as_ref().is_some_and(|connection| connection.status().connected()) {
            (self.channel, self.connection) = (None, None);
            if let Some((_, error)) = self.rest.until.as_ref().filter(|(until, _)| *until > Instant::now()) {
                return Err(error.clone());
            }
            match connection::connect(&self.config, &self.name).await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => return Err(self.failed(error)),
            }
        }
        let connection = self.connection.as_ref().expect("it was made above");
        if connection.status().blocked() {
            return Err(Error::ResourceAlarm("retries wait until it has memory and disk again".to_owned()));
        }
        if let Some(channel) = self.channel.take().filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        match open(connection, &self.config).await {
            Ok(channel) => Ok(channel),
            Err(error) => {
                self.connection = None;
                Err(self.failed(error))
            }
        }
    }

    fn failed(&mut self, error: Error) -> Error {
        self.rest.until = Some((Instant::now() + connection::next_delay(&mut self.rest.backoff), error.clone()));
        error
    }
}

async fn open(connection: &Connection, config: &Config) -> Result<Channel, Error> {
    let open = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    let opened = timeout(config.connect_timeout, open).await;
    opened.map_err(|_| Error::NoResponse(config.connect_timeout))?.map_err(Error::from_channel_error)
}

/// Publishes the copies, and decides when every confirm has arrived or the deadline has passed. Also returns whether
/// all arrived, so that the channel can be used again.
///
/// The library attaches a returned message to any confirm. Only one job at a time uses the channel, so every returned
/// message belongs to this job. All copies for a queue with a returned message count as returned.
async fn send(channel: &Channel, copies: Vec<Copy>, config: &Config) -> (Verdicts, bool) {
    let deadline = Instant::now() + config.confirm_timeout;
    let late = || Error::Unconfirmed(config.confirm_timeout);
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut queues = Vec::with_capacity(copies.len());
    let mut answers: Vec<Option<Answer>> = vec![None; copies.len()];
    let mut confirms = FuturesUnordered::new();
    for (index, copy) in copies.into_iter().enumerate() {
        // The names were checked when the group was created.
        let key = copy.queue.as_str().into();
        queues.push(copy.queue);
        let sending = channel.basic_publish("".into(), key, options, &copy.payload, copy.properties);
        match timeout_at(deadline, sending).await {
            Ok(Ok(confirm)) => confirms.push(async move { (index, confirm.await) }),
            Ok(Err(error)) => answers[index] = Some(Answer::Failed(Error::ConnectionLost(error))),
            Err(_) => answers[index] = Some(Answer::Failed(late())),
        }
    }
    let mut came_back = BTreeSet::new();
    while let Ok(Some((index, answer))) = timeout_at(deadline, confirms.next()).await {
        answers[index] = Some(Answer::of(answer, &mut came_back));
    }
    // A confirmed copy may still have been returned, attached to a confirm that has arrived and was not processed.
    while let Some(Some((_, answer))) = confirms.next().now_or_never() {
        Answer::of(answer, &mut came_back);
    }
    let whole = answers.iter().all(|answer| matches!(answer, Some(Answer::Taken | Answer::Carrier | Answer::Refused)));
    let verdict = |(queue, answer): (String, Option<Answer>)| match answer {
        _ if came_back.contains(&queue) => Err(Error::NotFound(format!("the queue `{queue}`, to which it should go"))),
        Some(Answer::Taken) => Ok(()),
        // The attached message belonged to another copy; its own may still be pending.
        Some(Answer::Carrier) if whole => Ok(()),
        Some(Answer::Refused) => Err(Error::Nacked),
        Some(Answer::Failed(error)) => Err(error),
        Some(Answer::Carrier) | None => Err(late()),
    };
    (queues.into_iter().zip(answers).map(verdict).collect(), whole)
}

/// The result of one confirm.
#[derive(Clone)]
enum Answer {
    Taken,
    /// Confirmed, with a returned message of any copy attached.
    Carrier,
    Refused,
    Failed(Error),
}

impl Answer {
    fn of(confirmed: lapin::Result<Confirmation>, came_back: &mut BTreeSet<String>) -> Self {
        let confirmation = match confirmed {
            Ok(confirmation) => confirmation,
            Err(error) => return Self::Failed(Error::ConnectionLost(error)),
        };
        let taken = confirmation.is_ack();
        let brought = confirmation.take_message().map(|returned| returned.delivery.routing_key.to_string());
        let carries = brought.is_some();
        came_back.extend(brought);
        match (taken, carries) {
            (true, false) => Self::Taken,
            (true, true) => Self::Carrier,
            (false, _) => Self::Refused,
        }
    }
}
