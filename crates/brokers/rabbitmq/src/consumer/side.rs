//! Where retries and dead letters are published: a connection of its own.
//!
//! A server that is short of memory or disk stops reading from every connection that publishes. The acknowledgements go
//! over another one, and so a full server can still be emptied.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::classify::Error;
use crate::config::Config;
use crate::link;

/// Calls that wait for the one task that publishes; more wait to get in.
const JOBS_MAX: usize = 64;

/// A message on its way to a queue of the ladder or the dead letters.
pub(crate) struct Copy {
    pub(crate) queue: String,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

struct Job {
    copies: Vec<Copy>,
    done: oneshot::Sender<Result<(), Error>>,
}

/// Asks the publishing task.
#[derive(Clone)]
pub(crate) struct Side(mpsc::Sender<Job>);

impl Side {
    /// The handle, and the task's work, which ends with the last handle.
    pub(crate) fn new(config: Arc<Config>, name: String) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, jobs) = mpsc::channel(JOBS_MAX);
        (Self(sender), work(config, name, jobs))
    }

    /// Publishes copies; `Ok` when the broker has confirmed all of them, and each was taken by its queue. After an error
    /// any of them may be there.
    pub(crate) async fn publish(&self, copies: Vec<Copy>) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        self.0.send(Job { copies, done }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

async fn work(config: Arc<Config>, name: String, mut jobs: mpsc::Receiver<Job>) {
    let mut open: Option<(Connection, Channel)> = None;
    while let Some(job) = jobs.recv().await {
        let result = carry(&config, &name, &mut open, job.copies).await;
        // Whoever asked may have given up; the copies are where they are.
        job.done.send(result).ok();
    }
}

async fn carry(
    config: &Config,
    name: &str,
    open: &mut Option<(Connection, Channel)>,
    copies: Vec<Copy>,
) -> Result<(), Error> {
    let stands =
        |(connection, channel): &(Connection, Channel)| connection.status().connected() && channel.status().connected();
    if !open.as_ref().is_some_and(stands) {
        *open = None;
        *open = Some(connect(config, name).await?);
    }
    let (connection, channel) = open.as_ref().expect("it was opened above");
    if connection.status().blocked() {
        return Err(Error::Alarm("retries and dead letters wait until it has memory and disk again".to_owned()));
    }
    timeout(config.confirm_deadline, send(channel, copies))
        .await
        .unwrap_or(Err(Error::Unconfirmed(config.confirm_deadline)))
}

async fn connect(config: &Config, name: &str) -> Result<(Connection, Channel), Error> {
    let connection = link::connect(config, name).await?;
    let open = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    let opened = timeout(config.connect_deadline, open).await;
    let channel = opened.map_err(|_| Error::Silent(config.connect_deadline))?.map_err(Error::of_channel)?;
    Ok((connection, channel))
}

/// Publishes, and decides when everything is answered: the library gives a returned message to any of the confirms. Only
/// one call at a time is on the channel, so all that returns is of this one.
async fn send(channel: &Channel, copies: Vec<Copy>) -> Result<(), Error> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut confirms = Vec::with_capacity(copies.len());
    for copy in copies {
        // Their names were checked when the group was made.
        let key = copy.queue.as_str().into();
        let confirm = channel.basic_publish("".into(), key, options, &copy.payload, copy.properties).await;
        confirms.push(confirm.map_err(Error::Broken)?);
    }
    let mut verdict = Ok(());
    for confirmed in join_all(confirms).await {
        let error = match confirmed {
            Ok(Confirmation::Ack(None)) => continue,
            Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
                let key = returned.delivery.routing_key.to_string();
                Error::Missing(format!("the queue `{key}`, to which it should go"))
            }
            Ok(Confirmation::Nack(None) | Confirmation::NotRequested) => Error::Full,
            Err(error) => Error::Broken(error),
        };
        verdict = verdict.and(Err(error));
    }
    verdict
}
