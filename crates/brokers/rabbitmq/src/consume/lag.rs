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
    inner: &ConsumerInner,
    connection: &Connection,
    requests: &mut mpsc::Receiver<LagRequest>,
) {
    let mut channel = None;
    while let Some(LagRequest(response)) = requests.recv().await {
        if response.is_closed() {
            continue; // the caller was cancelled
        }
        let limit = inner.config.connect_timeout;
        let counted = timeout(limit, count_ready(inner, connection, &mut channel)).await;
        let counted = counted.unwrap_or(Err(Error::NoResponse(limit)));
        if counted.is_err() {
            channel = None;
        }
        // The caller may have been cancelled in the meantime.
        response.send(counted).ok();
    }
}

async fn count_ready(
    inner: &ConsumerInner,
    connection: &Connection,
    channel: &mut Option<Channel>,
) -> Result<Vec<u64>, Error> {
    if channel.is_none() {
        *channel = Some(connection.create_channel().await.map_err(Error::from_channel_error)?);
    }
    let Some(channel) = channel else { unreachable!("it was opened") };
    let mut ready = Vec::with_capacity(inner.queues.len());
    for queue in &inner.queues {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await;
        ready.push(declared.map_err(Error::from_channel_error)?.message_count().into());
    }
    Ok(ready)
}

impl ConsumerInner {
    /// The number of ready messages in each queue, plus the prefetched ones that are not delivered to a caller. Without
    /// a connection it waits for the next one.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        let (response, counted) = oneshot::channel();
        self.lag_requests.send(LagRequest(response)).await.map_err(|_| Error::Closed)?;
        let ready = counted.await.map_err(|_| Error::Closed)??;
        let table = self.lane_table();
        let waiting = ready.iter().zip(&table.lanes).map(|(ready, lane)| ready + lane.buffered() as u64);
        Ok(self.lanes.iter().cloned().zip(waiting).collect())
    }
}
