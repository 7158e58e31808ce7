//! A member's link to the inbox: a network that loses and delays calls, and a server that can be down.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter};
use relevo_core::inbox::{DedupId, Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{Draft, EmitError, Lane, MessageId, StoreTransaction};
use tokio::time::sleep;
use uuid::Uuid;

use crate::inbox::event::Event;
use crate::inbox::pause::PauseGate;
use crate::inbox::server::Server;
use crate::link::FaultyLink;
use crate::network::Network;

/// How long the server takes to detect a broken connection.
const DISCONNECT_DELAY: Duration = Duration::from_millis(20);

/// One member's access to its inbox.
#[derive(Clone)]
pub struct FaultyInbox(Arc<Inner>);

struct Inner {
    server: Arc<Server>,
    link: FaultyLink<Event>,
    pause_gate: PauseGate,
    network: Network,
}

/// A handler's transaction.
pub struct Session {
    inbox: FaultyInbox,
    number: u64,
    /// Whether another call ends it.
    ended: bool,
}

impl FaultyInbox {
    /// Creates an inbox behind a link.
    pub fn new(server: Arc<Server>, link: FaultyLink<Event>, pause_gate: PauseGate, network: Network) -> Self {
        Self(Arc::new(Inner { server, link, pause_gate, network }))
    }

    async fn call<T: Send + 'static, F>(&self, effect: impl FnOnce(Arc<Server>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.0.pause_gate.wait_while_paused().await;
        let reply = self.0.link.call(effect(Arc::clone(&self.0.server))).await;
        self.0.pause_gate.wait_while_paused().await;
        reply
    }

    /// Opens a transaction at the server. If the reply is lost, the dropped session makes the server roll back.
    async fn open<F>(
        &self,
        effect: impl FnOnce(Arc<Server>) -> F + Send + 'static,
    ) -> Result<BeginOutcome<Session>, StoreError>
    where
        F: Future<Output = Result<BeginOutcome<u64>, StoreError>> + Send + 'static,
    {
        let inbox = self.clone();
        self.call(move |server| {
            let outcome = effect(server);
            async move {
                Ok(match outcome.await? {
                    BeginOutcome::Open(number, entered) => {
                        BeginOutcome::Open(Session { inbox, number, ended: false }, entered)
                    }
                    BeginOutcome::Fenced => BeginOutcome::Fenced,
                    BeginOutcome::Busy => BeginOutcome::Busy,
                })
            }
        })
        .await
    }
}

impl Session {
    /// Writes an effect.
    pub async fn effect(&mut self, dedup_id: DedupId) -> Result<(), StoreError> {
        let number = self.number;
        self.inbox.call(move |server| async move { server.effect(number, dedup_id) }).await
    }

    fn end(mut self) -> (FaultyInbox, u64) {
        self.ended = true;
        (self.inbox.clone(), self.number)
    }
}

/// The simulated handlers emit nothing. The calls go to the server like all others.
#[async_trait]
impl StoreTransaction for Session {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        let number = self.number;
        let emitted = self.inbox.call(move |server| async move { server.emit(number, draft) }).await;
        emitted.map_err(|error| EmitError::Store(error.into()))
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError> {
        let number = self.number;
        let cancelled = self.inbox.call(move |server| async move { server.cancel(number, id) }).await;
        cancelled.map_err(|error| EmitError::Store(error.into()))
    }

    fn native(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            rollback_later(&self.inbox, self.number);
        }
    }
}

/// Makes the server detect that a transaction has no client any more. Every fifth one ends only by its idle timeout.
fn rollback_later(inbox: &FaultyInbox, number: u64) {
    if number.is_multiple_of(5) {
        return;
    }
    let server = Arc::clone(&inbox.0.server);
    inbox.0.network.spawn(async move {
        sleep(DISCONNECT_DELAY).await;
        server.rollback(number);
    });
}

#[async_trait]
impl Inbox for FaultyInbox {
    type Transaction = Session;

    async fn begin(&self, enter: Enter<'_>) -> Result<BeginOutcome<Session>, StoreError> {
        let (lease, messages) = (enter.held.cloned(), enter.arrivals.to_vec());
        self.open(move |server| async move { server.begin(lease, messages).await }).await
    }

    async fn skip(&self, transaction: &mut Session, dedup_id: DedupId) -> Result<(), StoreError> {
        let number = transaction.number;
        self.call(move |server| async move { server.skip(number, dedup_id).await }).await
    }

    async fn commit(&self, transaction: Session) -> Result<(), StoreError> {
        let (inbox, number) = transaction.end();
        let committed = self.call(move |server| async move { server.commit(number).await }).await;
        if committed.is_err() && number.is_multiple_of(2) {
            // The connection is closed at once, and calls on it may be lost. Otherwise it stays open for a while.
            rollback_later(&inbox, number);
        }
        committed
    }

    async fn rollback(&self, transaction: Session) -> Result<(), StoreError> {
        let number = transaction.number;
        self.call(move |server| async move {
            server.rollback(number);
            Ok(())
        })
        .await
    }

    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        let message = message.clone();
        self.call(move |server| async move { server.record_start(message).await }).await
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        duration: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let (message, lease) = (message.clone(), lease.cloned());
        self.call(move |server| async move { server.claim_call(message, lease, duration).await }).await
    }

    async fn begin_claimed(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Session>, StoreError> {
        let (message, lease) = (message.clone(), lease.cloned());
        self.open(move |server| async move { server.begin_claimed(message, lease, claim).await }).await
    }

    async fn end_attempt(&self, dedup_id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.call(move |server| async move { server.end_attempt(dedup_id, claim).await }).await
    }

    async fn set_back(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: Option<CallClaim>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let (message, lease, failure) = (message.clone(), lease.cloned(), failure.clone());
        self.call(move |server| async move { server.set_back(message, lease, claim, failure).await }).await
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        self.call(move |server| async move { server.claim_due(queues, messages, duration).await }).await
    }

    async fn begin_due(&self, claimed: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Session>, StoreError> {
        let claimed = claimed.clone();
        self.open(move |server| async move { server.begin_due(claimed, number).await }).await
    }

    async fn set_back_due(
        &self,
        claimed: &ClaimedQueue,
        number: i64,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let (claimed, failure) = (claimed.clone(), failure.clone());
        self.call(move |server| async move { server.set_back_due(claimed, number, failure).await }).await
    }

    async fn release_queue(&self, claimed: &ClaimedQueue) -> Result<(), StoreError> {
        let claimed = claimed.clone();
        self.call(move |server| async move { server.release_queue(claimed).await }).await
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let heartbeat = heartbeat.clone();
        self.call(move |server| async move { server.heartbeat(heartbeat).await }).await
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        let lanes = lanes.to_vec();
        self.call(move |server| async move { server.acquire_lanes(owner, lanes).await }).await
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        let lanes = lanes.to_vec();
        self.call(move |server| async move { server.release_lanes(owner, lanes).await }).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.call(move |server| async move { server.leave(owner).await }).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.call(move |server| async move { server.prune(limit).await }).await
    }
}
