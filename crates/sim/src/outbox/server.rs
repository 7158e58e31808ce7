//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytestring::ByteString;
use relevo_core::slot::shard_of;
use relevo_core::store::{
    Advance, Advanced, Ask, Entry, Lease, Leased, Leases, Maintained, OutboxReader, Page, ParkedKeys, Read, Run,
    Settled, Settlement, Standing, Stop, Stopped, Store, StoreError, Upkeep,
};
use uuid::Uuid;

use crate::history::{Name, lock};
use crate::outbox::event::{Dead, Event, Grant, History};

/// A store that records every change in the history.
pub struct Server {
    inner: Arc<dyn Store>,
    history: Arc<History>,
    known: Mutex<Known>,
}

/// Names seen earlier, to name messages in later calls.
#[derive(Default)]
struct Known {
    leases: BTreeSet<Lease>,
    by_seq: BTreeMap<i64, Name>,
    by_queue: BTreeMap<(ByteString, i64), Name>,
}

impl Server {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn Store>, history: Arc<History>) -> Self {
        Self { inner, history, known: Mutex::default() }
    }

    fn granted(&self, leased: &Leased) {
        let mut known = lock(&self.known);
        for lease in &leased.leases {
            if known.leases.insert(*lease) {
                self.history.record(Event::Granted(Grant::from(lease)));
            }
        }
    }

    fn freed(&self, leases: &[Lease]) {
        for lease in leases {
            self.history.record(Event::Freed(Grant::from(lease)));
        }
    }

    fn read(&self, entries: &[Entry]) {
        let mut known = lock(&self.known);
        for entry in entries {
            known.by_seq.entry(entry.seq).or_insert_with(|| Name::of(&entry.message));
        }
    }

    fn parked(&self, name: Option<Name>, stopped: &Stopped) {
        let Some(name) = name else { return };
        let dead = match stopped.stop {
            Stop::DeadHold => Some(Dead::Hold),
            Stop::DeadContinue => Some(Dead::Continue),
            Stop::Retry { .. } | Stop::Address { .. } | Stop::Quarantine { .. } => None,
        };
        self.history.record(Event::Parked { name, class: stopped.class, attempts: stopped.attempts, dead });
    }

    fn settled(&self, settlement: &Settlement, settled: &Settled) {
        for (lease, _) in &settlement.progress {
            let parks = || settlement.parks.iter().filter(|park| shard_of(park.slot, lease.shards) == lease.shard);
            let is_passed = parks().any(|park| settled.passed.contains(&park.seq));
            if settled.lost.contains(&lease.shard) || is_passed {
                continue;
            }
            self.history.record(Event::Wrote { grant: Grant::from(lease), what: "settled" });
            for park in parks() {
                let name = lock(&self.known).by_seq.get(&park.seq).cloned();
                if let Some(stopped) = &park.stopped {
                    self.parked(name, stopped);
                }
            }
        }
    }

    fn advanced(&self, advances: &[Advance], answers: &[Advanced]) {
        for (advance, answer) in advances.iter().zip(answers) {
            if *answer == Advanced::Lost {
                continue;
            }
            self.history.record(Event::Wrote { grant: Grant::from(&advance.lease), what: "advanced a parked key" });
            if let Some((number, stopped)) = &advance.stopped {
                let name = lock(&self.known).by_queue.get(&(advance.key.clone(), *number)).cloned();
                self.parked(name, stopped);
            }
        }
    }
}

#[async_trait]
impl Leases for Server {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        let give_back = ask.give_back.clone();
        let leased = self.inner.lease(ask).await?;
        self.freed(&give_back);
        self.granted(&leased);
        Ok(leased)
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        self.inner.standing(leases).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await?;
        let leases: Vec<Lease> =
            lock(&self.known).leases.iter().filter(|lease| lease.owner == owner).copied().collect();
        self.freed(&leases);
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Server {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        let page = self.inner.read(read).await?;
        self.read(&page.entries);
        Ok(page)
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let settled = self.inner.settle(settlement.clone()).await?;
        self.settled(&settlement, &settled);
        Ok(settled)
    }
}

#[async_trait]
impl ParkedKeys for Server {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        let runs = self.inner.due(leases, keys, messages).await?;
        let mut known = lock(&self.known);
        for run in &runs {
            for (number, entry) in &run.messages {
                known.by_queue.insert((run.key.clone(), *number), Name::of(&entry.message));
            }
        }
        drop(known);
        Ok(runs)
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        let answers = self.inner.advance(advances.clone()).await?;
        self.advanced(&advances, &answers);
        Ok(answers)
    }
}

#[async_trait]
impl Upkeep for Server {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        self.inner.maintain().await
    }
}
