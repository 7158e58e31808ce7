//! Processes the retry table: claims due queues and runs the same handlers.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::retries::Step;
use relevo_core::inbox::{Arrival, Begun, Due, Entry, Inbox, Kept, Setback, Stop};
use relevo_core::store::StoreError;
use tokio::sync::{SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{debug, warn};

use crate::beat::Pulse;
use crate::breaker::Gate;
use crate::handler::Form;
use crate::incoming::Incoming;
use crate::runtime::RuntimeError;
use crate::stats::add;
use crate::verdict::{Kind, Trouble};
use crate::work::{Company, Work};
use crate::worker::{Fence, WriteDown, Written};

/// Number of heartbeats before a paused lane is checked again. If every key of a paused lane were claimed at each
/// heartbeat, the keys of other lanes would have to wait.
const PAUSED_BEATS: u32 = 10;

/// Processes due queues until `stop` is cancelled. Running queues then end after their current message.
pub(crate) async fn run<I: Inbox + 'static>(
    work: Arc<Work<I>>,
    pulse: watch::Receiver<Pulse>,
    stop: CancellationToken,
) -> Result<(), RuntimeError>
where
    I::Transaction: 'static,
{
    let mut running: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let pause = match claim(&work, &pulse, &stop, &mut running).await {
            Ok(()) => work.config.due_every,
            Err(error) => away(&work, error, &mut failures)?,
        };
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = running.join_next() => ended,
            () = sleep(pause) => continue,
        };
        match ended.map_err(RuntimeError::Died)? {
            Ok(()) => failures = 0,
            Err(error) => {
                let pause = away(&work, error, &mut failures)?;
                stop.run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended.map_err(RuntimeError::Died)? {
            warn!(error = &error as &dyn std::error::Error, "a queue of the retry table was left");
        }
    }
    Ok(())
}

/// Claims due queues up to the concurrency limit.
async fn claim<I: Inbox + 'static>(
    work: &Arc<Work<I>>,
    pulse: &watch::Receiver<Pulse>,
    stop: &CancellationToken,
    running: &mut JoinSet<Result<(), StoreError>>,
) -> Result<(), StoreError>
where
    I::Transaction: 'static,
{
    // Claiming more queues than handlers can run would only block other members.
    let most = work.config.due_queues.min(work.config.order.concurrency());
    let room = most - running.len();
    let allowed = {
        let pulse = pulse.borrow();
        pulse.beats > 0 && !pulse.orders.paused
    };
    if room == 0 || !allowed {
        return Ok(());
    }
    let lasts = claim_lasts(work);
    let claimed = Instant::now();
    let found = work.ask(work.inbox.due(room, work.config.due_messages, lasts)).await?;
    for due in found {
        let (work, pulse, stop) = (Arc::clone(work), pulse.clone(), stop.clone());
        let (until, token) = (claimed + lasts, due.token);
        work.unended.claimed(&due);
        running.spawn(async move {
            let run = Run { work: &work, pulse: &pulse, stop: &stop, due, until };
            let ended = run.all().await;
            // A queue that could not be released because of the stop is released at the end of the shutdown.
            if ended.is_ok() || !stop.is_cancelled() {
                work.unended.worked(token);
            }
            ended
        });
    }
    Ok(())
}

/// A claim outlasts two of the slowest handlers, including the time to run alone and to commit.
fn claim_lasts<I: Inbox + 'static>(work: &Work<I>) -> Duration
where
    I::Transaction: 'static,
{
    work.handlers.deadline_max(work.config.deadline) * 4 + work.config.claim_margin
}

fn away<I: Inbox + 'static>(work: &Work<I>, error: StoreError, failures: &mut u32) -> Result<Duration, RuntimeError>
where
    I::Transaction: 'static,
{
    if !error.is_passing() {
        return Err(RuntimeError::Store(error));
    }
    let pause = work.config.outage(*failures);
    warn!(error = &error as &dyn std::error::Error, ?pause, "the retry table cannot be worked on, will try again");
    *failures += 1;
    Ok(pause)
}

/// One claimed queue.
struct Run<'a, I: Inbox> {
    work: &'a Work<I>,
    pulse: &'a watch::Receiver<Pulse>,
    stop: &'a CancellationToken,
    due: Due,
    /// When the claim expires.
    until: Instant,
}

/// How the queue continues after a message.
enum Onward {
    Next,
    /// The claim has ended.
    End,
    /// The claim belongs to another worker, or the first message changed because an operator redrove or removed one. Or
    /// the wait for a lock took too long.
    Lost,
}

/// Outcome of one attempt.
enum Tried {
    Done,
    Trouble(Trouble),
    Lost,
    Busy,
}

impl<I: Inbox + 'static> Run<'_, I>
where
    I::Transaction: 'static,
{
    /// Processes the queue and releases it while the claim lasts. Otherwise other members would wait until it expires,
    /// and the next start would look like one after a crash.
    async fn all(&self) -> Result<(), StoreError> {
        match self.through().await {
            Ok(Onward::End) => Ok(()),
            Ok(Onward::Next | Onward::Lost) => self.give_back().await,
            Err(error) if error.is_passing() => {
                warn!(error = &error as &dyn std::error::Error, queue = %self.due.queue, "a queue of the retry table was left");
                self.give_back().await
            }
            Err(error) => Err(error),
        }
    }

    /// Handles its messages one after the other, as far as the claim allows.
    async fn through(&self) -> Result<Onward, StoreError> {
        for (index, waiting) in self.due.messages.iter().enumerate() {
            // Each external call is the first message of a claim. So no message was put before it, and its start is
            // counted durably.
            let goes_on = || !self.stop.is_cancelled() && self.has_time() && !self.calls(&waiting.arrival);
            if index > 0 && !goes_on() {
                break;
            }
            // The store counted the start of the first message when it was claimed.
            let started = waiting.started + u32::from(index > 0);
            match self.one(waiting.number, &waiting.arrival, waiting.attempts, started).await? {
                Onward::Next => {}
                ended @ (Onward::End | Onward::Lost) => return Ok(ended),
            }
        }
        Ok(Onward::Next)
    }

    /// Whether its handler calls an external service.
    fn calls(&self, arrival: &Arrival) -> bool {
        let incoming = self.work.decoder.waited(&self.work.config, arrival);
        let registered = incoming.ok().and_then(|incoming| self.work.handler(&incoming));
        registered.is_some_and(|registered| !registered.is_inside())
    }

    /// Releases the claim. Retries while rows are locked or the database is unreachable, as long as the claim lasts.
    async fn give_back(&self) -> Result<(), StoreError> {
        let mut failures = 0;
        loop {
            let pause = self.work.config.outage(failures);
            let error = match self.work.ask(self.work.inbox.release(&self.due)).await {
                Err(error) if error.is_passing() && Instant::now() + pause < self.until => error,
                given => return given,
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(error),
                () = sleep(pause) => failures += 1,
            }
        }
    }

    /// Whether the claim outlasts one more handler.
    fn has_time(&self) -> bool {
        Instant::now() < self.latest()
    }

    /// The latest time to begin a handler, so that the claim outlasts it.
    fn latest(&self) -> Instant {
        self.until - self.work.handlers.deadline_max(self.work.config.deadline) * 2
    }

    async fn one(&self, number: i64, arrival: &Arrival, attempts: u32, started: u32) -> Result<Onward, StoreError> {
        let now = Instant::now();
        let lane = &arrival.lane;
        if self.stop.is_cancelled() {
            return self.stopped(number, attempts).await;
        }
        if !self.pulse.borrow().allows(lane) {
            let pause = self.work.config.beat_every * PAUSED_BEATS;
            return self.put_off(number, attempts, pause, "paused", "its lane is paused").await;
        }
        let probe = match self.work.breakers.gate(lane, now) {
            Gate::Flow => false,
            Gate::Probe if self.work.breakers.begin_probe(lane) => true,
            Gate::Probe => {
                let pause = self.work.config.breaker.base;
                return self.put_off(number, attempts, pause, "away", "another message probes its lane").await;
            }
            Gate::Shut(until) => {
                let pause = until.duration_since(now).min(self.work.config.breaker.ceiling);
                return self.put_off(number, attempts, pause, "away", "what its handler needs is away").await;
            }
        };
        let result = self.tried(number, arrival, attempts, started).await;
        if probe {
            self.work.breakers.undecided(lane);
        }
        result
    }

    async fn tried(&self, number: i64, arrival: &Arrival, attempts: u32, started: u32) -> Result<Onward, StoreError> {
        let mut incoming = match self.work.decoder.waited(&self.work.config, arrival) {
            Ok(incoming) => incoming,
            Err(why) => return self.bury(number, arrival, None, attempts, Trouble::undecodable(why)).await,
        };
        incoming.attempt = attempts + 1;
        if started > self.work.config.starts_max {
            return self.bury(number, arrival, Some(&incoming), attempts, Work::<I>::crashed(started)).await;
        }
        let Some(_turn) = self.turn(started).await else {
            if self.stop.is_cancelled() {
                return self.stopped(number, attempts).await;
            }
            add(&self.work.stats.busy, 1);
            let (pause, why) = (self.work.config.busy_pause, "others were waited for");
            return self.put_off(number, attempts, pause, "busy", why).await;
        };
        loop {
            match self.attempt(number, &incoming).await? {
                Tried::Done => {
                    self.work.breakers.passed(&arrival.lane);
                    return Ok(Onward::Next);
                }
                Tried::Trouble(trouble) => {
                    return self.troubled(number, arrival, &incoming, attempts, trouble).await;
                }
                Tried::Lost => {
                    add(&self.work.stats.lost, 1);
                    return Ok(Onward::Lost);
                }
                Tried::Busy if self.stop.is_cancelled() => return self.stopped(number, attempts).await,
                Tried::Busy if self.has_time() => {
                    add(&self.work.stats.busy, 1);
                    self.stop.run_until_cancelled(sleep(self.work.config.busy_pause)).await;
                }
                Tried::Busy => return Ok(Onward::Lost),
            }
        }
    }

    /// Acquires a handler permit and the isolation lock. It gives up while the claim is still valid: soon after,
    /// another worker may have the queue and make the same call.
    async fn turn(&self, started: u32) -> Option<(SemaphorePermit<'_>, Company<'_>)> {
        let turn = async { Some((self.work.seat().await?, self.work.company(started).await)) };
        let turn = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            turn = timeout_at(self.latest(), turn) => turn.ok().flatten(),
        };
        turn.filter(|_| self.has_time())
    }

    /// The claim of the queue prevents other workers from making the same call.
    async fn attempt(&self, number: i64, incoming: &Incoming) -> Result<Tried, StoreError> {
        let work = self.work;
        let registered = work.handler(incoming);
        let entry = Entry { id: incoming.id(), replay: incoming.replay };
        if let Some(registered) = registered
            && let Form::Call(handler) = &registered.form
        {
            let answered = match work.process_call(registered, &**handler, incoming).await {
                Ok(answered) => answered,
                Err(trouble) => return Ok(Tried::Trouble(trouble)),
            };
            let fence = Fence::Queue { due: &self.due, number };
            let job = WriteDown { registered, handler: &**handler, incoming, entry, fence, until: self.until };
            return Ok(match work.write_down(job, answered).await? {
                Written::Done => Tried::Done,
                Written::Trouble(trouble) => Tried::Trouble(trouble),
                Written::Lost => Tried::Lost,
            });
        }
        let mut transaction = match work.ask(work.inbox.begin_due(&self.due, number)).await? {
            Begun::Open(transaction, _) => transaction,
            Begun::Lost => return Ok(Tried::Lost),
            Begun::Busy => return Ok(Tried::Busy),
        };
        let handled = work.process(registered, &mut transaction, incoming).await;
        Ok(match work.end_transaction(transaction, entry, handled).await? {
            Ok(()) => Tried::Done,
            Err(trouble) => Tried::Trouble(trouble),
        })
    }

    async fn troubled(
        &self,
        number: i64,
        arrival: &Arrival,
        incoming: &Incoming,
        attempts: u32,
        trouble: Trouble,
    ) -> Result<Onward, StoreError> {
        let work = self.work;
        if trouble.kind == Kind::Away {
            let after = work.is_away(arrival, &trouble);
            return self.keep(number, arrival, Some(incoming), trouble.setback(Stop::Retry { after }, attempts)).await;
        }
        let attempts = attempts + 1;
        let trace_id = work.trace_of(Some(incoming)).map(display);
        warn!(message_id = %incoming.id(), trace_id, attempt = attempts, error = %trouble, "a handler failed");
        work.counted_failure(arrival);
        let step = match trouble.kind {
            Kind::Retry => work.retries(work.handler(incoming)).after(attempts, work.jitter()),
            Kind::Poison | Kind::Away => Step::Bury,
        };
        match step {
            // It stays in the retry table, even for a short pause.
            Step::Again(after) | Step::Later(after) => {
                add(&work.stats.retried_later, 1);
                self.keep(number, arrival, Some(incoming), trouble.setback(Stop::Retry { after }, attempts)).await
            }
            Step::Bury => self.bury(number, arrival, Some(incoming), attempts, trouble).await,
        }
    }

    async fn bury(
        &self,
        number: i64,
        arrival: &Arrival,
        incoming: Option<&Incoming>,
        attempts: u32,
        trouble: Trouble,
    ) -> Result<Onward, StoreError> {
        let after_dead = self.work.after_dead(incoming.and_then(|incoming| self.work.handler(incoming)));
        let setback = trouble.setback(self.work.dead_stop(after_dead), attempts);
        self.keep(number, arrival, incoming, setback).await
    }

    async fn keep(
        &self,
        number: i64,
        arrival: &Arrival,
        incoming: Option<&Incoming>,
        setback: Setback,
    ) -> Result<Onward, StoreError> {
        if !self.set_back(number, &setback).await? {
            return Ok(Onward::Lost);
        }
        self.work.kept(arrival, incoming, &setback).await;
        Ok(if setback.stop == Stop::DeadContinue { Onward::Next } else { Onward::End })
    }

    async fn stopped(&self, number: i64, attempts: u32) -> Result<Onward, StoreError> {
        self.put_off(number, attempts, Duration::ZERO, "stopped", "the process was stopped").await
    }

    /// Postpones a message that was not attempted: its attempts stay unchanged.
    async fn put_off(
        &self,
        number: i64,
        attempts: u32,
        after: Duration,
        class: &'static str,
        why: &str,
    ) -> Result<Onward, StoreError> {
        debug!(queue = %self.due.queue, why, ?after, "a queue of the retry table is put off");
        let stop = Stop::Wait { after };
        let setback = Setback { stop, attempts, class, error: why.to_owned(), backtrace: None };
        Ok(if self.set_back(number, &setback).await? { Onward::End } else { Onward::Lost })
    }

    /// Returns `false` if the claim belongs to another worker, or another message is now the first.
    async fn set_back(&self, number: i64, setback: &Setback) -> Result<bool, StoreError> {
        loop {
            match self.work.ask(self.work.inbox.set_back_due(&self.due, number, setback)).await? {
                Kept::Kept => return Ok(true),
                Kept::Repeat(_) | Kept::Lost => {
                    add(&self.work.stats.lost, 1);
                    return Ok(false);
                }
                Kept::Busy if Instant::now() < self.until => sleep(self.work.config.busy_pause).await,
                Kept::Busy => return Ok(false),
            }
        }
    }
}
