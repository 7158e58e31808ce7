//! The retry table: queues whose time has come, worked on by the same handlers.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::retries::Step;
use relevo_core::inbox::{Arrival, Begun, Due, Inbox, Kept, Setback, Stop};
use relevo_core::store::StoreError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{debug, warn};

use crate::beat::Pulse;
use crate::breaker::Gate;
use crate::handler::Form;
use crate::incoming::Incoming;
use crate::runtime::RuntimeError;
use crate::stats::add;
use crate::verdict::{Handled, Kind, Trouble};
use crate::work::Work;

/// Works on due queues until it is told to stop; then those under way end with the message that they have in hand.
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
            Err(error) => sleep(away(&work, error, &mut failures)?).await,
        }
    }
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended.map_err(RuntimeError::Died)? {
            warn!(error = &error as &dyn std::error::Error, "a queue of the retry table was left");
        }
    }
    Ok(())
}

/// Claims as many queues as there is room for.
async fn claim<I: Inbox + 'static>(
    work: &Arc<Work<I>>,
    pulse: &watch::Receiver<Pulse>,
    stop: &CancellationToken,
    running: &mut JoinSet<Result<(), StoreError>>,
) -> Result<(), StoreError>
where
    I::Transaction: 'static,
{
    let room = work.config.due_queues - running.len();
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
        let until = claimed + lasts;
        running.spawn(async move { Run { work: &work, pulse: &pulse, stop: &stop, due, until }.all().await });
    }
    Ok(())
}

/// A claim outlasts two of the slowest handlers, each with what it takes to be alone and to be written down.
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
    /// When the claim ends.
    until: Instant,
}

/// Whether the next message of the queue may be handled.
enum Onward {
    Next,
    /// The claim has ended, or is another's.
    End,
}

/// What became of one try.
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
    async fn all(mut self) -> Result<(), StoreError> {
        let messages = std::mem::take(&mut self.due.messages);
        for (index, (number, arrival)) in messages.iter().enumerate() {
            let (attempts, started) = if index == 0 { (self.due.attempts, self.due.started) } else { (0, 1) };
            if index > 0 && (self.stop.is_cancelled() || !self.has_time()) {
                break;
            }
            match self.one(*number, arrival, attempts, started).await? {
                Onward::Next => {}
                Onward::End => return Ok(()),
            }
        }
        self.work.ask(self.work.inbox.release(&self.due)).await
    }

    /// Whether the claim outlasts one more handler.
    fn has_time(&self) -> bool {
        let longest = self.work.handlers.deadline_max(self.work.config.deadline);
        Instant::now() + longest * 2 < self.until
    }

    async fn one(&self, number: i64, arrival: &Arrival, attempts: u32, started: u32) -> Result<Onward, StoreError> {
        let now = Instant::now();
        let lane = &arrival.lane;
        if self.stop.is_cancelled() {
            return self.put_off(number, attempts, Duration::ZERO, "stopped", "the process was stopped").await;
        }
        if !self.pulse.borrow().allows(lane) {
            return self.put_off(number, attempts, self.work.config.beat_every, "paused", "its lane is paused").await;
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
        let _company = self.work.company(started).await;
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
                    return Ok(Onward::End);
                }
                Tried::Busy if self.has_time() => {
                    add(&self.work.stats.busy, 1);
                    sleep(self.work.config.busy_pause).await;
                }
                Tried::Busy => return Ok(Onward::End),
            }
        }
    }

    /// The claim of the queue keeps others from calling at the same time.
    async fn attempt(&self, number: i64, incoming: &Incoming) -> Result<Tried, StoreError> {
        let work = self.work;
        let registered = work.handler(incoming);
        let calls = registered.and_then(|registered| match &registered.form {
            Form::Call(handler) => Some((registered, handler)),
            Form::Inside(_) => None,
        });
        let answer = match calls {
            None => None,
            Some((registered, handler)) => match work.process_call(registered, &**handler, incoming).await {
                Ok(answer) => Some((registered, handler, answer)),
                Err(trouble) => return Ok(Tried::Trouble(trouble)),
            },
        };
        let mut transaction = match self.begin(number, answer.is_some()).await? {
            Begun::Open(transaction, _) => transaction,
            Begun::Lost => return Ok(Tried::Lost),
            Begun::Busy => return Ok(Tried::Busy),
        };
        let handled: Handled = match answer {
            None => work.process(registered, &mut transaction, incoming).await,
            Some((registered, handler, answer)) => {
                work.process_commit(registered, &**handler, &mut transaction, incoming, answer).await
            }
        };
        let entry = relevo_core::inbox::Entry { id: incoming.id(), replay: incoming.replay };
        match handled {
            Ok(verdict) => match work.commit(transaction, entry, verdict).await? {
                Ok(()) => Ok(Tried::Done),
                Err(trouble) => Ok(Tried::Trouble(trouble)),
            },
            Err(trouble) => {
                work.give_up(transaction, &trouble).await;
                Ok(Tried::Trouble(trouble))
            }
        }
    }

    /// After a call the database is asked again while it is busy, rather than the far side.
    async fn begin(&self, number: i64, called: bool) -> Result<Begun<I::Transaction>, StoreError> {
        loop {
            let begun = self.work.ask(self.work.inbox.begin_due(&self.due, number)).await?;
            if !(called && matches!(begun, Begun::Busy) && Instant::now() < self.until) {
                return Ok(begun);
            }
            sleep(self.work.config.busy_pause).await;
        }
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
            // It waits where it is, however short the pause.
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
        let kept = self.set_back(number, &setback).await?;
        if !kept {
            return Ok(Onward::End);
        }
        self.work.kept(arrival, incoming, &setback).await;
        Ok(if setback.stop == Stop::DeadContinue { Onward::Next } else { Onward::End })
    }

    /// It was not tried: nothing is counted.
    async fn put_off(
        &self,
        number: i64,
        attempts: u32,
        after: Duration,
        class: &'static str,
        why: &str,
    ) -> Result<Onward, StoreError> {
        debug!(queue = %self.due.queue, why, ?after, "a queue of the retry table is put off");
        let stop = Stop::Retry { after };
        let setback = Setback { stop, attempts, class, error: why.to_owned(), backtrace: None };
        self.set_back(number, &setback).await?;
        Ok(Onward::End)
    }

    /// `false` if the claim is another's by now.
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
