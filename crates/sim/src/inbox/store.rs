//! A member's link to the inbox: a network that loses and delays calls, and a server that can be down.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Lane;
use relevo_core::inbox::{Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entry, Held, Inbox, Kept, Orders, Setback};
use relevo_core::store::StoreError;
use tokio::time::sleep;
use uuid::Uuid;

use crate::inbox::event::Event;
use crate::inbox::gate::Gate;
use crate::inbox::server::Server;
use crate::line::Line;
use crate::wire::Wire;

/// How long the server takes to detect a broken connection.
const NOTICED_AFTER: Duration = Duration::from_millis(20);

/// One member's access to its inbox.
#[derive(Clone)]
pub struct FaultyInbox(Arc<Inner>);

struct Inner {
    server: Arc<Server>,
    line: Line<Event>,
    gate: Gate,
    wire: Wire,
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
    pub fn new(server: Arc<Server>, line: Line<Event>, gate: Gate, wire: Wire) -> Self {
        Self(Arc::new(Inner { server, line, gate, wire }))
    }

    async fn call<T: Send + 'static, F>(&self, effect: impl FnOnce(Arc<Server>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.0.gate.pass().await;
        let answer = self.0.line.call(effect(Arc::clone(&self.0.server))).await;
        self.0.gate.pass().await;
        answer
    }

    /// Opens a transaction at the server. If the reply is lost, the dropped session makes the server roll back.
    async fn open<F>(
        &self,
        effect: impl FnOnce(Arc<Server>) -> F + Send + 'static,
    ) -> Result<Begun<Session>, StoreError>
    where
        F: Future<Output = Result<Begun<u64>, StoreError>> + Send + 'static,
    {
        let inbox = self.clone();
        self.call(move |server| {
            let begun = effect(server);
            async move {
                Ok(match begun.await? {
                    Begun::Open(number, entered) => Begun::Open(Session { inbox, number, ended: false }, entered),
                    Begun::Lost => Begun::Lost,
                    Begun::Busy => Begun::Busy,
                })
            }
        })
        .await
    }
}

impl Session {
    /// Writes an effect.
    pub async fn effect(&mut self, entry: Entry) -> Result<(), StoreError> {
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
            forget(&self.inbox, self.number);
        }
    }
}

/// Makes the server detect that a transaction has no client any more. Every fifth one ends only by its idle timeout.
fn forget(inbox: &FaultyInbox, number: u64) {
    if number.is_multiple_of(5) {
        return;
    }
    let server = Arc::clone(&inbox.0.server);
    inbox.0.wire.carry(async move {
        sleep(NOTICED_AFTER).await;
        server.roll_back(number);
    });
}

#[async_trait]
impl Inbox for FaultyInbox {
    type Transaction = Session;

    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Session>, StoreError> {
        let (held, arrivals) = (enter.held.cloned(), enter.arrivals.to_vec());
        self.open(move |server| async move { server.begin(held, arrivals).await }).await
    }

    async fn skip(&self, transaction: &mut Session, entry: Entry) -> Result<(), StoreError> {
        let number = transaction.number;
        self.call(move |server| async move { server.skip(number, entry).await }).await
    }

    async fn commit(&self, transaction: Session) -> Result<(), StoreError> {
        let (inbox, number) = transaction.end();
        let committed = self.call(move |server| async move { server.commit(number).await }).await;
        if committed.is_err() && number.is_multiple_of(2) {
            // The connection is closed at once, and calls on it may be lost. Otherwise it stays open for a while.
            forget(&inbox, number);
        }
        committed
    }

    async fn roll_back(&self, transaction: Session) -> Result<(), StoreError> {
        let number = transaction.number;
        self.call(move |server| async move {
            server.roll_back(number);
            Ok(())
        })
        .await
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        let arrival = arrival.clone();
        self.call(move |server| async move { server.start(arrival).await }).await
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        let (arrival, held) = (arrival.clone(), held.cloned());
        self.call(move |server| async move { server.claim(arrival, held, lasts).await }).await
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Session>, StoreError> {
        let (arrival, held) = (arrival.clone(), held.cloned());
        self.open(move |server| async move { server.begin_claimed(arrival, held, claim).await }).await
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        self.call(move |server| async move { server.ended(entry, claim).await }).await
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        let (arrival, held, setback) = (arrival.clone(), held.cloned(), setback.clone());
        self.call(move |server| async move { server.set_back(arrival, held, claim, setback).await }).await
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        self.call(move |server| async move { server.due(queues, messages, lasts).await }).await
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Session>, StoreError> {
        let due = due.clone();
        self.open(move |server| async move { server.begin_due(due, number).await }).await
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        let (due, setback) = (due.clone(), setback.clone());
        self.call(move |server| async move { server.set_back_due(due, number, setback).await }).await
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        let due = due.clone();
        self.call(move |server| async move { server.release(due).await }).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        let beat = beat.clone();
        self.call(move |server| async move { server.beat(beat).await }).await
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        let lanes = lanes.to_vec();
        self.call(move |server| async move { server.take_lanes(owner, lanes).await }).await
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        let lanes = lanes.to_vec();
        self.call(move |server| async move { server.give_back(owner, lanes).await }).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.call(move |server| async move { server.leave(owner).await }).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.call(move |server| async move { server.prune(limit).await }).await
    }
}
