//! Counts the waiting messages of each lane: in its queue, and in the local buffer.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use relevo_core::Lane;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::shared::Shared;
use crate::classify::Error;

/// The capacity for calls that wait for the connection.
pub(super) const ASKED_MAX: usize = 4;

/// A request for the number of ready messages in each queue.
pub(crate) struct Ask(oneshot::Sender<Result<Vec<u64>, Error>>);

/// Serves requests while the connection is open, on its own channel: a missing queue closes the channel.
pub(super) async fn answer(shared: &Shared, connection: &Connection, asked: &mut mpsc::Receiver<Ask>) {
    let mut channel = None;
    while let Some(Ask(told)) = asked.recv().await {
        if told.is_closed() {
            continue; // the caller was cancelled
        }
        let deadline = shared.config.connect_deadline;
        let counted = timeout(deadline, count(shared, connection, &mut channel)).await;
        let counted = counted.unwrap_or(Err(Error::Silent(deadline)));
        if counted.is_err() {
            channel = None;
        }
        // The caller may have been cancelled in the meantime.
        told.send(counted).ok();
    }
}

async fn count(shared: &Shared, connection: &Connection, channel: &mut Option<Channel>) -> Result<Vec<u64>, Error> {
    if channel.is_none() {
        *channel = Some(connection.create_channel().await.map_err(Error::of_channel)?);
    }
    let Some(channel) = channel else { unreachable!("it was opened") };
    let mut ready = Vec::with_capacity(shared.queues.len());
    for queue in &shared.queues {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await;
        ready.push(found.map_err(Error::of_channel)?.message_count().into());
    }
    Ok(ready)
}

impl Shared {
    /// The number of ready messages in each queue, plus the prefetched ones that are not delivered to a caller. Without
    /// a connection it waits for the next one.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        let (told, counted) = oneshot::channel();
        self.counting.send(Ask(told)).await.map_err(|_| Error::Closed)?;
        let ready = counted.await.map_err(|_| Error::Closed)??;
        let state = self.state();
        let waiting = ready.iter().zip(&state.lanes).map(|(ready, lane)| ready + lane.waiting() as u64);
        Ok(self.lanes.iter().cloned().zip(waiting).collect())
    }
}
