//! A member's link to the inbox: a network that loses and delays calls, and a server that can be down.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter};
use relevo_core::inbox::{DedupId, Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
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
    pub fn new(server: Arc<Server>, line: FaultyLink<Event>, gate: PauseGate, wire: Network) -> Self {
        Self(Arc::new(Inner { server, link: line, pause_gate: gate, network: wire }))
    }

    async fn call<T: Send + 'static, F>(&self, effect: impl FnOnce(Arc<Server>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.0.pause_gate.wait_while_paused().await;
        let answer = self.0.link.call(effect(Arc::clone(&self.0.server))).await;
        self.0.pause_gate.wait_while_paused().await;
        answer
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
            let begun = effect(server);
            async move {
                Ok(match begun.await? {
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
    pub async fn effect(&mut self, entry: DedupId) -> Result<(), StoreError> {
        let number = self.number;
        self.inbox.call(move |server| async move { server.effect(number, entry) }).await
    }

    fn end(mut self) -> (FaultyInbox, u64) {
        self.ended = true;
        (self.inbox.clone(), self.number)
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
        let (held, arrivals) = (enter.held.cloned(), enter.arrivals.to_vec());
        self.open(move |server| async move { server.begin(held, arrivals).await }).await
    }

    async fn skip(&self, transaction: &mut Session, entry: DedupId) -> Result<(), StoreError> {
        let number = transaction.number;
        self.call(move |server| async move { server.skip(number, entry).await }).await
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

    async fn record_start(&self, arrival: &InboxMessage) -> Result<u32, StoreError> {
        let arrival = arrival.clone();
        self.call(move |server| async move { server.record_start(arrival).await }).await
    }

    async fn claim_call(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let (arrival, held) = (arrival.clone(), held.cloned());
        self.call(move |server| async move { server.claim_call(arrival, held, lasts).await }).await
    }

    async fn begin_claimed(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Session>, StoreError> {
        let (arrival, held) = (arrival.clone(), held.cloned());
        self.open(move |server| async move { server.begin_claimed(arrival, held, claim).await }).await
    }

    async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.call(move |server| async move { server.end_attempt(entry, claim).await }).await
    }

    async fn set_back(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let (arrival, held, setback) = (arrival.clone(), held.cloned(), setback.clone());
        self.call(move |server| async move { server.set_back(arrival, held, claim, setback).await }).await
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        self.call(move |server| async move { server.claim_due(queues, messages, lasts).await }).await
    }

    async fn begin_due(&self, due: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Session>, StoreError> {
        let due = due.clone();
        self.open(move |server| async move { server.begin_due(due, number).await }).await
    }

    async fn set_back_due(
        &self,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let (due, setback) = (due.clone(), setback.clone());
        self.call(move |server| async move { server.set_back_due(due, number, setback).await }).await
    }

    async fn release_queue(&self, due: &ClaimedQueue) -> Result<(), StoreError> {
        let due = due.clone();
        self.call(move |server| async move { server.release_queue(due).await }).await
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let beat = beat.clone();
        self.call(move |server| async move { server.heartbeat(beat).await }).await
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
