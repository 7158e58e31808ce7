//! Counts the waiting messages of each lane: in its queue, and in the local buffer.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use relevo_core::Lane;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::ConsumerInner;
use crate::classify::Error;

/// The capacity for calls that wait for the connection.
pub(super) const REQUESTS_MAX: usize = 4;

/// A request for the number of ready messages in each queue.
pub(crate) struct LagRequest(oneshot::Sender<Result<Vec<u64>, Error>>);

/// Serves requests while the connection is open, on its own channel: a missing queue closes the channel.
pub(super) async fn serve_requests(
    shared: &ConsumerInner,
    connection: &Connection,
    asked: &mut mpsc::Receiver<LagRequest>,
) {
    let mut channel = None;
    while let Some(LagRequest(told)) = asked.recv().await {
        if told.is_closed() {
            continue; // the caller was cancelled
        }
        let deadline = shared.config.connect_timeout;
        let counted = timeout(deadline, count_ready(shared, connection, &mut channel)).await;
        let counted = counted.unwrap_or(Err(Error::NoResponse(deadline)));
        if counted.is_err() {
            channel = None;
        }
        // The caller may have been cancelled in the meantime.
        told.send(counted).ok();
    }
}

async fn count_ready(
    shared: &ConsumerInner,
    connection: &Connection,
    channel: &mut Option<Channel>,
) -> Result<Vec<u64>, Error> {
    if channel.is_none() {
        *channel = Some(connection.create_channel().await.map_err(Error::from_channel_error)?);
    }
    let Some(channel) = channel else { unreachable!("it was opened") };
    let mut ready = Vec::with_capacity(shared.queues.len());
    for queue in &shared.queues {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await;
        ready.push(found.map_err(Error::from_channel_error)?.message_count().into());
    }
    Ok(ready)
}

impl ConsumerInner {
    /// The number of ready messages in each queue, plus the prefetched ones that are not delivered to a caller. Without
    /// a connection it waits for the next one.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        let (told, counted) = oneshot::channel();
        self.lag_requests.send(LagRequest(told)).await.map_err(|_| Error::Closed)?;
        let ready = counted.await.map_err(|_| Error::Closed)??;
        let state = self.lane_table();
        let waiting = ready.iter().zip(&state.lanes).map(|(ready, lane)| ready + lane.buffered() as u64);
        Ok(self.lanes.iter().cloned().zip(waiting).collect())
    }
}
