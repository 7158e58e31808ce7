//! The network between a process and a server. It loses, delays and cuts calls, and the server can be down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relevo_core::store::StoreError;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::history::{Happening, History, lock};
use crate::span::Span;
use crate::wire::Wire;
use relevo_core::random::SplitMix64;

/// The maximum travel time of a call or message.
pub const LATE_MAX: Duration = Duration::from_secs(10);

/// Faults per thousand calls to a server.
#[derive(Clone, Debug, Default)]
pub struct CallFaults {
    /// The call takes up to a second.
    pub slow: u64,
    /// The call takes longer than a lease.
    pub stalled: u64,
    /// The call never arrives.
    pub refused: u64,
    /// The call takes effect, and the reply is lost.
    pub lost: u64,
    /// The connection breaks, and the call takes effect later.
    pub late: u64,
}

/// The faults of one link.
#[derive(Clone, Debug)]
pub struct Weather {
    /// The fault rates of calls.
    pub faults: CallFaults,
    /// When the faults end.
    pub until: Duration,
    /// The lease duration. A stalled call takes longer than this.
    pub lease: Duration,
    /// When the server is down.
    pub away: Vec<Span>,
}

/// A process's link to a server.
pub struct Line<E>(Arc<Inner<E>>);

struct Inner<E> {
    history: Arc<History<E>>,
    wire: Wire,
    weather: Weather,
    random: Mutex<SplitMix64>,
}

/// What happens to one call.
struct Plan {
    there: Duration,
    back: Duration,
    fault: Option<Fault>,
}

#[derive(Clone, Copy)]
enum Fault {
    /// The call never arrives.
    Refused,
    /// The call takes effect, and the reply is lost.
    Lost,
    /// The connection breaks at once, and the call takes effect after this delay.
    Late(Duration),
}

impl<E: Happening> Line<E> {
    /// Creates a link with its own random numbers.
    pub fn new(history: Arc<History<E>>, wire: Wire, weather: Weather, random: SplitMix64) -> Self {
        Self(Arc::new(Inner { history, wire, weather, random: Mutex::new(random) }))
    }

    /// Sends a call to the server and returns its reply. Cancelling does not prevent the call from taking effect.
    pub async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let plan = self.0.plan();
        let (answer, answered) = oneshot::channel();
        let line = Arc::clone(&self.0);
        self.0.wire.carry(async move {
            let result = line.carry(plan, effect).await;
            // The caller may have stopped waiting.
            drop(answer.send(result));
        });
        answered.await.unwrap_or_else(|_| Err(away("the simulation ended")))
    }
}

impl<E: Happening> Inner<E> {
    fn plan(&self) -> Plan {
        let mut random = lock(&self.random);
        let mut plan = Plan { there: random.millis(0, 4), back: random.millis(0, 4), fault: None };
        let Weather { faults, until, lease, .. } = &self.weather;
        if self.history.now() >= *until {
            return plan;
        }
        if random.permille(faults.slow) {
            plan.there = random.millis(5, 1000);
        }
        if random.permille(faults.stalled) {
            self.history.record(E::fault("a call of the store is stalled beyond the lease"));
            let stall = random.time(*lease, *lease * 2);
            if random.permille(500) {
                plan.there = stall;
            } else {
                plan.back = stall;
            }
        }
        plan.fault = if random.permille(faults.refused) {
            self.history.record(E::fault("a call of the store is lost"));
            Some(Fault::Refused)
        } else if random.permille(faults.lost) {
            self.history.record(E::fault("an answer of the store is lost"));
            Some(Fault::Lost)
        } else if random.permille(faults.late) {
            self.history.record(E::fault("a call of the store happens after its connection broke"));
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
            self.history.record(E::broken(error.to_string()));
        }
        sleep(plan.back).await;
        if matches!(plan.fault, Some(Fault::Lost)) || self.is_away() {
            return Err(away("the connection broke after the call"));
        }
        result
    }

    fn is_away(&self) -> bool {
        let now = self.history.now();
        self.weather.away.iter().any(|span| span.contains(now))
    }
}

fn away(what: &'static str) -> StoreError {
    StoreError::Away(what.into())
}
