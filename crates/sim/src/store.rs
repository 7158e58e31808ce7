//! The store as a relay reaches it: over a network that loses, repeats and delays, to a server that goes away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::store::{
    Advance, Advanced, Ask, Lease, Leased, Leases, Maintained, OutboxReader, Page, ParkedKeys, Read, Run, Settled,
    Settlement, Standing, StoreError, Upkeep,
};
use tokio::sync::oneshot;
use tokio::time::sleep;
use uuid::Uuid;

use crate::history::{Event, History, lock};
use crate::random::Random;
use crate::scenario::{LATE_MAX, Scenario};
use crate::server::Server;
use crate::wire::Wire;

/// One relay's way to the store.
pub struct FaultyStore {
    server: Arc<Server>,
    line: Arc<Line>,
}

/// The network between the two.
struct Line {
    history: Arc<History>,
    wire: Wire,
    scenario: Arc<Scenario>,
    random: Mutex<Random>,
}

/// What happens to one call.
struct Plan {
    there: Duration,
    back: Duration,
    fault: Option<Fault>,
}

#[derive(Clone, Copy)]
enum Fault {
    /// It never arrives.
    Refused,
    /// It happens, and the answer is lost.
    Lost,
    /// The connection breaks at once, and it happens all the same, so much later.
    Late(Duration),
}

impl FaultyStore {
    /// A way of its own, with chances of its own.
    pub fn new(
        server: Arc<Server>,
        history: Arc<History>,
        wire: Wire,
        scenario: Arc<Scenario>,
        random: Random,
    ) -> Self {
        let line = Line { history, wire, scenario, random: Mutex::new(random) };
        Self { server, line: Arc::new(line) }
    }

    /// Carries a call to the server and its answer back. Giving the call up does not keep it from happening.
    async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let plan = self.line.plan();
        let (answer, answered) = oneshot::channel();
        let line = Arc::clone(&self.line);
        self.line.wire.carry(async move {
            let result = line.carry(plan, effect).await;
            // Nobody may be waiting any more.
            drop(answer.send(result));
        });
        answered.await.unwrap_or_else(|_| Err(away("the simulation ended")))
    }
}

impl Line {
    fn plan(&self) -> Plan {
        let mut random = lock(&self.random);
        let mut plan = Plan { there: random.millis(0, 4), back: random.millis(0, 4), fault: None };
        if self.history.now() >= self.scenario.faults_for {
            return plan;
        }
        let faults = &self.scenario.store;
        if random.permille(faults.slow) {
            plan.there = random.millis(5, 1000);
        }
        if random.permille(faults.stalled) {
            self.history.record(Event::Fault("a call of the store is stalled beyond the lease"));
            let stall = random.time(self.scenario.config.lease, self.scenario.config.lease * 2);
            if random.permille(500) {
                plan.there = stall;
            } else {
                plan.back = stall;
            }
        }
        plan.fault = if random.permille(faults.refused) {
            self.history.record(Event::Fault("a call of the store is lost"));
            Some(Fault::Refused)
        } else if random.permille(faults.lost) {
            self.history.record(Event::Fault("an answer of the store is lost"));
            Some(Fault::Lost)
        } else if random.permille(faults.late) {
            self.history.record(Event::Fault("a call of the store happens after its connection broke"));
            Some(Fault::Late(random.time(Duration::ZERO, LATE_MAX)))
        } else {
            None
        };
        plan
    }

    async fn carry<T: Send + 'static>(
        self: &Arc<Self>,
        plan: Plan,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        sleep(plan.there).await;
        if self.is_away() {
            return Err(away("the database is away"));
        }
        match plan.fault {
            Some(Fault::Refused) => return Err(away("the connection broke before the call")),
            Some(Fault::Late(after)) => {
                let line = Arc::clone(self);
                self.wire.carry(async move {
                    sleep(after).await;
                    if !line.is_away() {
                        drop(effect.await);
                    }
                });
                return Err(away("the connection broke in the call"));
            }
            Some(Fault::Lost) | None => {}
        }
        let result = effect.await;
        if let Err(StoreError::Broken(error)) = &result {
            self.history.record(Event::Broken(error.to_string()));
        }
        sleep(plan.back).await;
        if matches!(plan.fault, Some(Fault::Lost)) || self.is_away() {
            return Err(away("the connection broke after the call"));
        }
        result
    }

    fn is_away(&self) -> bool {
        let now = self.history.now();
        self.scenario.database_away.iter().any(|(span, _)| span.contains(now))
    }
}

fn away(what: &'static str) -> StoreError {
    StoreError::Away(what.into())
}

#[async_trait]
impl Leases for FaultyStore {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.lease(ask).await }).await
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.standing(&leases).await }).await
    }

    async fn leave(&self, owner: Uuid, leases: &[Lease]) -> Result<(), StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.leave(owner, &leases).await }).await
    }
}

#[async_trait]
impl OutboxReader for FaultyStore {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), read.leases.to_vec());
        let Read { after, limit, bytes, ceiling, .. } = read;
        self.call(
            async move { OutboxReader::read(&*server, Read { leases: &leases, after, limit, bytes, ceiling }).await },
        )
        .await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.settle(settlement).await }).await
    }
}

#[async_trait]
impl ParkedKeys for FaultyStore {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.due(&leases, keys, messages).await }).await
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.advance(advances).await }).await
    }
}

#[async_trait]
impl Upkeep for FaultyStore {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.maintain().await }).await
    }
}
