//! Failures on purpose, and the operator who looks after them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use relevo_broker_memory::{Match, MemoryBroker, Rule};
use relevo_core::store::{DeadFilter, DeadLetter, DeadLetters as _, Mark};
use relevo_core::{Class, MessageId};
use relevo_store_memory::{Destination, KeyState, MAIN, Outbox};
use tokio::time::Instant;

use super::ledger::Ledger;
use super::orders::{ORDERS, key};
use super::random::Random;

/// How long after the start a key is refused first, and how long until the next is.
const REFUSALS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(6));
/// So many times in a row.
const REFUSED_TIMES: u32 = 2;
/// How long after the start a message is poisoned first, and how long until the next is.
const POISONS: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_secs(8));
/// How long the operator thinks about a dead letter.
const THINKS: Duration = Duration::from_secs(3);
/// How many dead letters the operator looks at; old ones are forgotten, so that there are never so many.
const LETTERS_MAX: usize = 1000;

/// Poisons a message now and then: the broker refuses it for good when it comes first.
#[derive(Debug)]
pub(crate) struct Poisoner {
    broker: MemoryBroker,
    due: AtomicBool,
}

impl Poisoner {
    /// Poisons this message, which is about to commit, if one is due.
    pub(crate) fn may_poison(&self, id: MessageId) {
        if self.due.swap(false, Ordering::Relaxed) {
            self.broker.fail(Rule::new(Match::Id(id), Class::Poison).times(1));
        }
    }
}

/// Makes trouble, notices what comes of it, and decides about dead letters.
#[derive(Debug)]
pub(crate) struct Trouble {
    outbox: Outbox,
    destination: Destination,
    broker: MemoryBroker,
    ledger: Arc<Ledger>,
    poisoner: Arc<Poisoner>,
    random: Random,
    refuse_at: Instant,
    poison_at: Instant,
    /// Keys that were parked at the last look.
    parked: BTreeMap<String, KeyState>,
    /// When dead letters were first seen.
    letters: BTreeMap<MessageId, Instant>,
    discards_next: bool,
}

/// How many keys and letters wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) keys: usize,
    pub(crate) letters: usize,
}

impl Trouble {
    pub(crate) fn new(outbox: &Outbox, broker: &MemoryBroker, ledger: &Arc<Ledger>) -> Self {
        let now = Instant::now();
        Self {
            outbox: outbox.clone(),
            destination: outbox.destination(MAIN),
            broker: broker.clone(),
            ledger: Arc::clone(ledger),
            poisoner: Arc::new(Poisoner { broker: broker.clone(), due: AtomicBool::new(false) }),
            random: Random::new(7),
            refuse_at: now + REFUSALS.0,
            poison_at: now + POISONS.0,
            parked: BTreeMap::new(),
            letters: BTreeMap::new(),
            discards_next: false,
        }
    }

    /// The writers' end of it.
    pub(crate) fn poisoner(&self) -> Arc<Poisoner> {
        Arc::clone(&self.poisoner)
    }

    pub(crate) fn waiting(&self) -> Waiting {
        Waiting { keys: self.parked.len(), letters: self.letters.len() }
    }

    /// Makes the trouble that is due, and has the operator decide what is ripe; says what happened.
    pub(crate) async fn step(&mut self) -> Result<Vec<String>> {
        let now = Instant::now();
        if now >= self.refuse_at {
            self.refuse_at = now + REFUSALS.1;
            let key = key(1 + self.random.below(ORDERS));
            self.broker.fail(Rule::new(Match::Key(key), Class::Transient).times(REFUSED_TIMES));
        }
        if now >= self.poison_at {
            self.poison_at = now + POISONS.1;
            self.poisoner.due.store(true, Ordering::Relaxed);
        }
        let mut events = self.decide(now, THINKS).await?;
        events.extend(self.notice());
        Ok(events)
    }

    /// No more trouble; every dead letter goes out again.
    pub(crate) async fn end(&mut self) -> Result<()> {
        self.broker.mend();
        self.discards_next = false;
        for letter in self.look(Instant::now()).await? {
            self.redrive(&letter).await?;
        }
        self.notice();
        Ok(())
    }

    /// The operator redrives and discards in turn.
    async fn decide(&mut self, now: Instant, thinks: Duration) -> Result<Vec<String>> {
        let mut events = Vec::new();
        for letter in self.look(now).await? {
            let id = letter.message.id;
            if self.letters.get(&id).is_none_or(|seen| now < *seen + thinks) {
                continue;
            }
            let (key, kind) = (&letter.message.key, &letter.message.kind);
            if self.discards_next {
                let marked = self.destination.discard(&mark(id)).await?;
                if marked > 0 {
                    self.ledger.discarded(id);
                }
                events.push(format!("{key}: the operator discards the {kind}, the key goes on without it"));
            } else {
                self.redrive(&letter).await?;
                events.push(format!("{key}: the operator redrives the {kind}"));
            }
            self.discards_next = !self.discards_next;
            self.letters.remove(&id);
        }
        Ok(events)
    }

    async fn redrive(&self, letter: &DeadLetter) -> Result<()> {
        let marked = self.destination.redrive(&mark(letter.message.id)).await?;
        self.ledger.redriven(marked);
        Ok(())
    }

    /// Dead letters that nobody marked.
    async fn look(&mut self, now: Instant) -> Result<Vec<DeadLetter>> {
        let mut dead = self.destination.dead(&DeadFilter::default(), LETTERS_MAX).await?;
        dead.retain(|letter| letter.state == "dead");
        let seen = std::mem::take(&mut self.letters);
        let ids = dead.iter().map(|letter| letter.message.id);
        self.letters = ids.map(|id| (id, seen.get(&id).copied().unwrap_or(now))).collect();
        Ok(dead)
    }

    /// What changed about parked keys since the last look.
    fn notice(&mut self) -> Vec<String> {
        let parked: BTreeMap<_, _> = self.outbox.parked(MAIN).into_iter().map(|it| (it.key, it.state)).collect();
        let mut events = Vec::new();
        for (key, state) in &parked {
            if self.parked.get(key) == Some(state) {
                continue;
            }
            match state {
                KeyState::Dead => {
                    events.push(format!("{key}: refused for good, a dead letter; the key waits for the operator"));
                }
                KeyState::Retrying if !self.parked.contains_key(key) => {
                    events.push(format!("{key}: refused, parked until it is tried again; every other key flows"));
                }
                KeyState::Retrying | KeyState::Held(_) | KeyState::Quarantined => {}
            }
        }
        let gone = self.parked.keys().filter(|key| !parked.contains_key(*key));
        events.extend(gone.map(|key| format!("{key}: flows again, in order")));
        self.parked = parked;
        events
    }
}

fn mark(id: MessageId) -> Mark {
    let filter = DeadFilter { ids: vec![id], ..DeadFilter::default() };
    Mark { filter, dry_run: false, by: "demo".to_owned(), reason: "the demo's operator decided".to_owned() }
}
