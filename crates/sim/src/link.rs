//! The network between a process and a server. It loses, delays and cuts calls, and the server can be down.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::store::StoreError;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::history::{History, SimEvent};
use crate::network::Network;
use crate::time_range::TimeRange;
use relevo_core::random::SplitMix64;

/// The maximum travel time of a call or message.
pub const DELAY_MAX: Duration = Duration::from_secs(10);

/// Faults per thousand calls to a server.
#[derive(Clone, Debug, Default)]
pub struct FaultRates {
    /// The call takes up to a second.
    pub slow: u64,
    /// The call takes longer than a lease.
    pub stalled: u64,
    /// The call never arrives.
    pub refused: u64,
    /// The call takes effect, and the reply is lost.
    pub reply_lost: u64,
    /// The connection breaks, and the call takes effect later.
    pub late: u64,
    /// Another transaction blocks the call, which changes nothing.
    pub busy: u64,
}

/// The faults of one link.
#[derive(Clone, Debug)]
pub struct LinkFaults {
    /// The fault rates of calls.
    pub rates: FaultRates,
    /// When the faults end.
    pub until: Duration,
    /// The lease duration. A stalled call takes longer than this.
    pub lease: Duration,
    /// When the server is down.
    pub outages: Vec<TimeRange>,
}

/// A process's link to a server.
pub struct FaultyLink<E>(Arc<Inner<E>>);

struct Inner<E> {
    history: Arc<History<E>>,
    network: Network,
    faults: LinkFaults,
    random: Mutex<SplitMix64>,
}

/// The path of one call.
struct CallPlan {
    request_delay: Duration,
    reply_delay: Duration,
    fault: Option<CallFault>,
}

#[derive(Clone, Copy)]
enum CallFault {
    /// The call never arrives.
    Refused,
    /// The call takes effect, and the reply is lost.
    ReplyLost,
    /// The connection breaks at once, and the call takes effect after this delay.
    Late(Duration),
    /// The store is busy. It may request a pause.
    Busy(Option<Duration>),
}

impl<E: SimEvent> FaultyLink<E> {
    /// Creates a link with its own random numbers.
    pub fn new(history: Arc<History<E>>, network: Network, faults: LinkFaults, random: SplitMix64) -> Self {
        Self(Arc::new(Inner { history, network, faults, random: Mutex::new(random) }))
    }

    /// Sends a call to the server and returns its reply. Cancelling does not prevent the call from taking effect.
    pub async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let plan = self.0.plan();
        let (reply, received) = oneshot::channel();
        let line = Arc::clone(&self.0);
        self.0.network.spawn(async move {
            let result = line.deliver(plan, effect).await;
            // The caller may have stopped waiting.
            drop(reply.send(result));
        });
        received.await.unwrap_or_else(|_| Err(unavailable("the simulation ended")))
    }
}

impl<E: SimEvent> Inner<E> {
    fn plan(&self) -> CallPlan {
        let mut random = self.random.lock();
        let mut plan = CallPlan { request_delay: random.millis(0, 4), reply_delay: random.millis(0, 4), fault: None };
        let LinkFaults { rates: faults, until, lease, .. } = &self.faults;
        if self.history.now() >= *until {
            return plan;
        }
        if random.permille(faults.slow) {
            plan.request_delay = random.millis(5, 1000);
        }
        if random.permille(faults.stalled) {
            self.history.record(E::fault("a call of the store is stalled beyond the lease"));
            let stall = random.time(*lease, *lease * 2);
            if random.permille(500) {
                plan.request_delay = stall;
            } else {
                plan.reply_delay = stall;
            }
        }
        plan.fault = if random.permille(faults.refused) {
            self.history.record(E::fault("a call of the store is lost"));
            Some(CallFault::Refused)
        } else if random.permille(faults.reply_lost) {
            self.history.record(E::fault("an answer of the store is lost"));
            Some(CallFault::ReplyLost)
        } else if random.permille(faults.late) {
            self.history.record(E::fault("a call of the store happens after its connection broke"));
            Some(CallFault::Late(random.time(Duration::ZERO, DELAY_MAX)))
        } else if faults.busy > 0 && random.permille(faults.busy) {
            self.history.record(E::fault("the store is busy"));
            Some(CallFault::Busy(random.permille(300).then(|| random.millis(1, 2000))))
        } else {
            None
        };
        plan
    }

    async fn deliver<T: Send + 'static>(
        self: &Arc<Self>,
        plan: CallPlan,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        sleep(plan.request_delay).await;
        if self.is_server_down() {
            return Err(unavailable("the database is down"));
        }
        match plan.fault {
            Some(CallFault::Refused) => return Err(unavailable("the connection broke before the call")),
            Some(CallFault::Busy(retry_after)) => {
                sleep(plan.reply_delay).await;
                return Err(StoreError::Busy { retry_after, source: "another transaction blocked the call".into() });
            }
            Some(CallFault::Late(after)) => {
                let line = Arc::clone(self);
                self.network.spawn(async move {
                    sleep(after).await;
                    if !line.is_server_down() {
                        drop(effect.await);
                    }
                });
                return Err(unavailable("the connection broke in the call"));
            }
            Some(CallFault::ReplyLost) | None => {}
        }
        let result = effect.await;
        if let Err(StoreError::Unexpected(error)) = &result {
            self.history.record(E::store_error(error.to_string()));
        }
        sleep(plan.reply_delay).await;
        if matches!(plan.fault, Some(CallFault::ReplyLost)) || self.is_server_down() {
            return Err(unavailable("the connection broke after the call"));
        }
        result
    }

    fn is_server_down(&self) -> bool {
        let now = self.history.now();
        self.faults.outages.iter().any(|span| span.contains(now))
    }
}

fn unavailable(text: &'static str) -> StoreError {
    StoreError::Unavailable(text.into())
}
