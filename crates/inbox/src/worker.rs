//! Handles live messages: enter, handle and commit, or record the failure.

use std::slice;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::retries::{Step, is_expired};
use relevo_core::inbox::{Arrival, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Inbox, Kept, State, Stop};
use relevo_core::store::StoreError;
use relevo_core::trace::Open;
use tokio::time::{Instant, sleep};
use tracing::field::display;
use tracing::{debug, warn};

use crate::attempt::Answered;
use crate::config::Durable;
use crate::handler::{AnyCall, Form, Registered};
use crate::incoming::Incoming;
use crate::item::{Decided, Ended, Item, Noted};
use crate::stats::add;
use crate::verdict::{Handled, Kind, Trouble, Verdict};
use crate::work::Work;

/// How often the commit of a call result may fail before the message counts as failed.
const COMMITS_AGAIN_MAX: u32 = 5;

/// Everything needed to commit the result of a call.
pub(crate) struct WriteDown<'a, T> {
    pub(crate) registered: &'a Registered<T>,
    pub(crate) handler: &'a dyn AnyCall<T>,
    pub(crate) incoming: &'a Incoming,
    pub(crate) entry: Entry,
    pub(crate) fence: Fence<'a>,
    /// When the claim expires.
    pub(crate) until: Instant,
}

/// The claim that prevents other workers from making the same call.
#[derive(Clone, Copy)]
pub(crate) enum Fence<'a> {
    /// Claim of a live message.
    Call { arrival: &'a Arrival, held: Option<&'a Held>, claim: Claim },
    /// Claim of a retry queue, with the number of its first message.
    Queue { due: &'a Due, number: i64 },
}

/// Outcome of committing the result of a call.
pub(crate) enum Written {
    Done,
    Trouble(Trouble),
    /// The claim expired or belongs to another worker.
    Lost,
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// Handles live messages of one lane: one alone, several in turn, or several in one transaction. Returns one end
    /// per message, in order. Messages without a permit at shutdown return unchanged.
    pub(crate) async fn live(&self, items: &mut [Item], held: Option<&Held>) -> Vec<Ended> {
        let Some(_seat) = self.seat().await else {
            return items.iter().map(|_| Ended::Alone).collect();
        };
        items.iter_mut().filter_map(|item| item.span.take()).for_each(Open::end);
        let ended = self.seated(items, held).await;
        for item in items.iter() {
            self.unended.handled(item.arrival.entry);
        }
        ended
    }

    async fn seated(&self, items: &mut [Item], held: Option<&Held>) -> Vec<Ended> {
        if let [item] = items {
            return vec![self.one(item, held).await.unwrap_or_else(Ended::Store)];
        }
        if self.config.batch_max == 1 {
            let _company = self.company(0).await;
            return self.in_turn(items, held).await;
        }
        match self.together(items, held).await {
            Ok(ended) => ended,
            // The error concerns the whole batch, so every message is handled alone.
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, messages = items.len(), "a batch was not committed");
                items.iter_mut().map(part).collect()
            }
        }
    }

    async fn one(&self, item: &mut Item, held: Option<&Held>) -> Result<Ended, StoreError> {
        if item.decided.is_some() {
            return self.keep(item, held).await;
        }
        // The last attempt may not have recorded its end because the database was unreachable.
        self.put_down(item).await?;
        let incoming = match &mut item.incoming {
            Ok(incoming) => incoming,
            Err(why) => {
                let trouble = Trouble::undecodable(why.as_str());
                // Its key is unknown, so it must not hold a key.
                return self.bury(item, held, trouble, AfterDead::Continue).await;
            }
        };
        incoming.attempt = item.attempts + 1;
        let incoming = incoming.clone();
        let registered = self.handler(&incoming);
        let after_dead = self.after_dead(registered);
        let is_ours = incoming.source.is_some();
        let kept = self.config.keeping.done;
        if is_ours && is_expired(incoming.message.created_at, self.config.clock.now(), kept) {
            let error =
                format!("it entered the log at {}, longer ago than the inbox remembers", incoming.message.created_at);
            return self.bury(item, held, Trouble::poison(error).with_class(Trouble::EXPIRED), after_dead).await;
        }
        if let Some(registered) = registered
            && let Form::Call(handler) = &registered.form
        {
            return self.call_then_commit(item, held, registered, &**handler).await;
        }
        let started = if item.redelivered {
            item.noted = Some(Noted::Started);
            self.unended.handling(item.arrival.entry, None);
            self.ask(self.inbox.start(&item.arrival)).await?
        } else {
            0
        };
        if started > self.config.starts_max {
            return self.bury_in_turn(item, held, Self::crashed(started), after_dead).await;
        }
        let _company = self.company(started).await;
        let mut ended = self.in_turn(slice::from_mut(item), held).await;
        Ok(ended.pop().expect("one end for one message"))
    }

    async fn call_then_commit(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        registered: &Registered<I::Transaction>,
        handler: &dyn AnyCall<I::Transaction>,
    ) -> Result<Ended, StoreError> {
        let Ok(incoming) = item.incoming.clone() else { unreachable!("it was read before") };
        let deadline = self.deadline(Some(registered));
        // Time for the call, for committing its result, and a margin for slow responses.
        let lasts = deadline * 2 + self.config.claim_margin;
        let begun = Instant::now();
        let claim = match self.ask(self.inbox.claim(&item.arrival, held, lasts)).await? {
            Claimed::Mine(claim) => claim,
            Claimed::Repeat(state) if is_under_way(Entered::Repeat(state)) => {
                return Ok(Ended::Busy(self.config.busy_pause));
            }
            Claimed::Repeat(state) => {
                self.not_new(item, Entered::Repeat(state));
                return Ok(Ended::Acknowledge);
            }
            Claimed::Behind => {
                self.not_new(item, Entered::Behind);
                return Ok(Ended::Acknowledge);
            }
            Claimed::Busy(rest) => return Ok(Ended::Busy(rest.max(self.config.busy_pause))),
            Claimed::Lost => return Ok(Ended::Lost),
        };
        item.noted = Some(Noted::Called(claim));
        self.unended.handling(item.arrival.entry, Some(claim));
        if claim.started > self.config.starts_max {
            let after_dead = self.after_dead(Some(registered));
            return self.bury(item, held, Self::crashed(claim.started), after_dead).await;
        }
        let _company = self.company(claim.started).await;
        if begun.elapsed() + deadline > lasts {
            // Waiting to run alone used up the time for the call. The retry queue keeps counting its starts. Here a
            // message that crashes its process would be tried for ever, because other handlers always run beside it.
            let trouble = Trouble::retry("others were waited for").with_class("busy");
            Self::decide(item, Stop::Wait { after: self.config.busy_pause }, trouble);
            return self.keep(item, held).await;
        }
        match self.process_call(registered, handler, &incoming).await {
            Ok(answered) => {
                let (entry, until) = (item.arrival.entry, begun + lasts);
                let fence = Fence::Call { arrival: &item.arrival, held, claim };
                let job = WriteDown { registered, handler, incoming: &incoming, entry, fence, until };
                match self.write_down(job, answered).await? {
                    Written::Done => {
                        self.breakers.passed(&item.arrival.lane);
                        Ok(Ended::Acknowledge)
                    }
                    Written::Trouble(trouble) => self.troubled(item, held, trouble).await,
                    Written::Lost if held.is_some() => Ok(Ended::Lost),
                    Written::Lost => {
                        add(&self.stats.lost, 1);
                        Ok(Ended::Busy(self.config.busy_pause))
                    }
                }
            }
            Err(trouble) => self.troubled(item, held, trouble).await,
        }
    }

    /// Commits the result of a call. A transient failure is retried with the same result while the claim lasts, because
    /// a new attempt would repeat the external call.
    pub(crate) async fn write_down(
        &self,
        WriteDown { registered, handler, incoming, entry, fence, until }: WriteDown<'_, I::Transaction>,
        mut answered: Answered,
    ) -> Result<Written, StoreError> {
        let mut failures = 0;
        loop {
            let Some(mut transaction) = self.begin_claimed(fence, until).await? else { return Ok(Written::Lost) };
            let handled = self.process_commit(registered, handler, &mut transaction, incoming, &mut answered).await;
            let failed = match self.end_transaction(transaction, entry, handled).await {
                Ok(Ok(())) => return Ok(Written::Done),
                Ok(Err(trouble)) => Ok(trouble),
                Err(error) => Err(error),
            };
            let Some(pause) = self.commit_again(&failed, failures, until) else { return failed.map(Written::Trouble) };
            failures += 1;
            sleep(pause).await;
        }
    }

    /// Begins the transaction for the result of a call; `None` if the lane or the claim belongs to another worker. The
    /// call was already made, so a busy or unreachable database is retried while the claim lasts.
    async fn begin_claimed(&self, fence: Fence<'_>, until: Instant) -> Result<Option<I::Transaction>, StoreError> {
        let mut failures = 0;
        loop {
            let begun = match fence {
                Fence::Call { arrival, held, claim } => self.ask(self.inbox.begin_claimed(arrival, held, claim)).await,
                Fence::Queue { due, number } => self.ask(self.inbox.begin_due(due, number)).await,
            };
            let pause = match begun {
                Ok(Begun::Open(transaction, _)) => return Ok(Some(transaction)),
                Ok(Begun::Lost) => return Ok(None),
                Ok(Begun::Busy) => self.config.busy_pause,
                Err(error) if error.is_passing() && Instant::now() < until => self.config.outage(failures),
                Err(error) => return Err(error),
            };
            failures += 1;
            if Instant::now() + pause > until {
                return Ok(None);
            }
            sleep(pause).await;
        }
    }

    /// Handles several first deliveries in one transaction. If anything fails, it is rolled back and each message is
    /// handled alone.
    async fn together(&self, items: &mut [Item], held: Option<&Held>) -> Result<Vec<Ended>, StoreError> {
        let _company = self.company(0).await;
        let arrivals: Vec<_> = items.iter().map(|item| item.arrival.clone()).collect();
        let (mut transaction, entered) = match self.ask(self.inbox.begin(Enter { held, arrivals: &arrivals })).await? {
            Begun::Open(transaction, entered) => (transaction, entered),
            Begun::Lost => return Ok(items.iter().map(|_| Ended::Lost).collect()),
            Begun::Busy => return Ok(items.iter_mut().map(part).collect()),
        };
        if entered.iter().copied().any(is_under_way) {
            self.ask(self.inbox.roll_back(transaction)).await?;
            return Ok(items.iter_mut().map(part).collect());
        }
        let mut verdicts = Vec::with_capacity(items.len());
        for (item, entered) in items.iter().zip(&entered) {
            let (Entered::New, Ok(incoming)) = (entered, &item.incoming) else { continue };
            let handled = self.process(self.handler(incoming), &mut transaction, incoming).await;
            match handled {
                Ok(Verdict::Skip) => {
                    self.ask(self.inbox.skip(&mut transaction, item.arrival.entry)).await?;
                    verdicts.push(Verdict::Skip);
                }
                Ok(Verdict::Done) => verdicts.push(Verdict::Done),
                Err(trouble) => {
                    let trace_id = self.trace_of(Some(incoming)).map(display);
                    debug!(message_id = %item.arrival.entry.id, trace_id, error = %trouble, "a batch is undone, each will be handled alone");
                    add(&self.stats.batches_undone, 1);
                    self.give_up(transaction, &trouble).await;
                    return Ok(items.iter_mut().map(part).collect());
                }
            }
        }
        self.ask(self.inbox.commit(transaction)).await?;
        add(&self.stats.batches, 1);
        for verdict in verdicts {
            self.counted(verdict);
        }
        for (item, entered) in items.iter_mut().zip(entered) {
            self.not_new(item, entered);
        }
        Ok(items.iter().map(|_| Ended::Acknowledge).collect())
    }

    /// Commits a successful attempt or rolls it back. The inner error comes from the handler, or from the database at
    /// commit.
    pub(crate) async fn end_transaction(
        &self,
        transaction: I::Transaction,
        entry: Entry,
        handled: Handled,
    ) -> Result<Result<(), Trouble>, StoreError> {
        match handled {
            Ok(verdict) => self.commit(transaction, entry, verdict).await,
            Err(trouble) => {
                self.give_up(transaction, &trouble).await;
                Ok(Err(trouble))
            }
        }
    }

    /// The pause before the result of a call is committed again; `None` if a retry cannot help or the claim would
    /// expire.
    fn commit_again(&self, failed: &Result<Trouble, StoreError>, failures: u32, until: Instant) -> Option<Duration> {
        let (may_pass, error) = match failed {
            Ok(trouble) => (trouble.kind != Kind::Poison && failures < COMMITS_AGAIN_MAX, trouble.error.clone()),
            Err(error) => (error.is_passing(), error.to_string()),
        };
        let pause = self.config.outage(failures);
        if !may_pass || Instant::now() + pause >= until {
            return None;
        }
        warn!(error, ?pause, "what the far side answered was not written down, will try again");
        Some(pause)
    }

    /// Decides what follows a failed attempt.
    pub(crate) async fn troubled(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        trouble: Trouble,
    ) -> Result<Ended, StoreError> {
        let Ok(incoming) = &item.incoming else { unreachable!("only what was read is handled") };
        let registered = self.handler(incoming);
        let after_dead = self.after_dead(registered);
        match trouble.kind {
            Kind::Away => {
                let pause = self.is_away(&item.arrival, &trouble);
                self.put_down(item).await?;
                Ok(Ended::Away(pause))
            }
            Kind::Poison => {
                item.attempts += 1;
                self.failed(item, &trouble);
                self.bury(item, held, trouble, after_dead).await
            }
            Kind::Retry => {
                item.attempts += 1;
                self.failed(item, &trouble);
                match self.retries(registered).after(item.attempts, self.jitter()) {
                    Step::Again(pause) => {
                        add(&self.stats.retried_in_memory, 1);
                        self.put_down(item).await?;
                        Ok(Ended::Again(pause))
                    }
                    Step::Later(after) if self.config.durable == Durable::Broker => {
                        add(&self.stats.retried_later, 1);
                        self.put_down(item).await?;
                        Ok(Ended::RetryLater(after))
                    }
                    Step::Later(after) => {
                        add(&self.stats.retried_later, 1);
                        Self::decide(item, Stop::Retry { after }, trouble);
                        self.keep(item, held).await
                    }
                    Step::Bury => self.bury(item, held, trouble, after_dead).await,
                }
            }
        }
    }

    /// Dead-letters a message that no handler may see. If others of its key wait, it is queued behind them and
    /// dead-lettered in its turn: a redriven dead letter goes before all waiting messages.
    async fn bury_in_turn(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        trouble: Trouble,
        after_dead: AfterDead,
    ) -> Result<Ended, StoreError> {
        let arrivals = slice::from_ref(&item.arrival);
        let (transaction, entered) = match self.ask(self.inbox.begin(Enter { held, arrivals })).await? {
            Begun::Open(transaction, entered) => (transaction, entered[0]),
            Begun::Lost => return Ok(Ended::Lost),
            Begun::Busy => return Ok(Ended::Busy(self.config.busy_pause)),
        };
        if entered == Entered::Behind {
            self.ask(self.inbox.commit(transaction)).await?;
            self.not_new(item, entered);
            return Ok(Ended::Acknowledge);
        }
        self.ask(self.inbox.roll_back(transaction)).await?;
        self.bury(item, held, trouble, after_dead).await
    }

    async fn bury(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        trouble: Trouble,
        after_dead: AfterDead,
    ) -> Result<Ended, StoreError> {
        let stop = self.dead_stop(after_dead);
        Self::decide(item, stop, trouble);
        self.keep(item, held).await
    }

    fn decide(item: &mut Item, stop: Stop, trouble: Trouble) {
        let setback = trouble.setback(stop, item.attempts);
        item.decided = Some(Decided { setback, claim: item.claim() });
    }

    /// Stores the decision about a message.
    pub(crate) async fn keep(&self, item: &mut Item, held: Option<&Held>) -> Result<Ended, StoreError> {
        let decided = item.decided.clone().expect("it was decided before it is kept");
        let kept = self.ask(self.inbox.set_back(&item.arrival, held, decided.claim, &decided.setback)).await?;
        match kept {
            Kept::Kept => {
                self.kept(&item.arrival, item.incoming.as_ref().ok(), &decided.setback).await;
                Ok(Ended::Acknowledge)
            }
            Kept::Repeat(state) if is_under_way(Entered::Repeat(state)) => Ok(Ended::Busy(self.config.busy_pause)),
            Kept::Repeat(state) => {
                self.not_new(item, Entered::Repeat(state));
                Ok(Ended::Acknowledge)
            }
            Kept::Busy => Ok(Ended::Busy(self.config.busy_pause)),
            Kept::Lost => {
                if decided.claim.is_some() {
                    // Another worker may have claimed the message, and its decision counts. If that worker died, the
                    // store would reject this decision for ever. The attempt behind this decision is therefore not
                    // counted.
                    item.decided = None;
                    item.attempts = item.attempts.saturating_sub(1);
                }
                if held.is_some() {
                    return Ok(Ended::Lost);
                }
                add(&self.stats.lost, 1);
                Ok(Ended::Busy(self.config.busy_pause))
            }
        }
    }

    /// Records that an attempt ended without a crash.
    async fn put_down(&self, item: &mut Item) -> Result<(), StoreError> {
        if item.noted.is_some() {
            self.ask(self.inbox.ended(item.arrival.entry, item.claim())).await?;
            item.noted = None;
        }
        Ok(())
    }
}

/// Whether another worker may be handling the message. If that worker dies, only the broker's copy remains, so the
/// message is not acknowledged.
pub(crate) const fn is_under_way(entered: Entered) -> bool {
    matches!(entered, Entered::Repeat(State::Open | State::Calling))
}

/// Excludes the message from batches from now on.
fn part(item: &mut Item) -> Ended {
    item.shares = false;
    Ended::Alone
}
