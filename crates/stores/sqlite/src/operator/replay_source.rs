//! The outbox log as a replay source, read forwards. A read waits for no writer.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::replay_source::{
    LogBounds, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};

use crate::operator::Operator;
use crate::queries::read;

/// The number of messages per page while counting.
const COUNT_PAGE: usize = 1_000;

/// The log of an outbox, with the routing of its relay.
pub struct OutboxReplaySource {
    operator: Arc<Operator>,
    routing: OutboxRouting,
}

impl OutboxReplaySource {
    /// Creates a replay source for this outbox. `routing` defines how its messages are sent.
    pub const fn new(operator: Arc<Operator>, routing: OutboxRouting) -> Self {
        Self { operator, routing }
    }

    async fn page(
        &self,
        filter: &ReplayFilter,
        request: ReplayReadRequest,
        payload: bool,
    ) -> Result<ReplayPage, ReplaySourceError> {
        let page = self.operator.inspect(async |c| read::replay_page(c, &self.routing, filter, request, payload).await);
        Ok(page.await?)
    }
}

#[async_trait]
impl ReplaySource for OutboxReplaySource {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        Ok(self.operator.inspect(async |c| read::log_bounds(c).await).await?)
    }

    /// Reads no payloads, unlike the default.
    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        let (mut count, mut after) = (0, 0);
        loop {
            let request = ReplayReadRequest { after, limit: COUNT_PAGE, bytes: usize::MAX };
            let page = self.page(filter, request, false).await?;
            count += page.messages.len() as u64;
            after = page.next;
            if page.ended {
                return Ok(count);
            }
        }
    }

    async fn read(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        self.page(filter, request, true).await
    }
}
