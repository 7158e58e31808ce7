//! Operator commands for consumers.

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::operate::{
    Consumer, DeadFilter, DeadLetter, Fate, Fed, Forgotten, Known, Mark, Operate, Order, Plan, Portion, Replay, Shown,
    Trace,
};
use relevo_core::store::StoreError;

use super::{dead, members, replays, show};
use crate::link::Durability;
use crate::store::Store;

/// Reads the file. A read waits for no writer.
macro_rules! look {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .call(async {
                let mut $session = $store.reading.take().await?;
                let seen = $work.await?;
                $session.give_back();
                Ok(seen)
            })
            .await
    };
}

/// Changes the file in one transaction that survives a power failure.
macro_rules! change {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .call(async {
                let mut $session = $store.settling.begin(Durability::Power).await?;
                let done = $work.await?;
                $session.commit().await?;
                Ok(done)
            })
            .await
    };
}

impl Store {
    async fn mark_inbox(&self, fate: Fate, mark: &Mark) -> Result<u64, StoreError> {
        if mark.dry_run {
            return look!(self, session, dead::count(&mut session, &mark.filter));
        }
        change!(self, session, dead::mark(&mut session, fate, mark))
    }
}

#[async_trait]
impl Operate for Store {
    async fn consumers(&self) -> Result<Vec<Consumer>, StoreError> {
        look!(self, session, show::consumers(&mut session, None))
    }

    async fn consumer(&self, name: &str, limit: usize) -> Result<Option<Shown>, StoreError> {
        look!(self, session, show::shown(&mut session, name, limit))
    }

    async fn order(&self, consumer: &str, lane: Option<&str>, order: Order) -> Result<bool, StoreError> {
        change!(self, session, show::order(&mut session, consumer, lane, order))
    }

    async fn forget(&self, consumer: &str) -> Result<Forgotten, StoreError> {
        change!(self, session, members::forget(&mut session, consumer))
    }

    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        look!(self, session, dead::letters(&mut session, filter, limit))
    }

    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError> {
        self.mark_inbox(Fate::Replayed, mark).await
    }

    async fn archive(&self, mark: &Mark) -> Result<u64, StoreError> {
        self.mark_inbox(Fate::Archived, mark).await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        look!(self, session, show::traces(&mut session, id))
    }

    async fn known(&self, id: MessageId) -> Result<Vec<Known>, StoreError> {
        look!(self, session, show::known(&mut session, id))
    }

    async fn begin_replay(&self, plan: &Plan) -> Result<u32, StoreError> {
        change!(self, session, replays::begin(&mut session, plan))
    }

    async fn feed(&self, consumer: &str, number: u32, portion: Portion<'_>) -> Result<Fed, StoreError> {
        change!(self, session, replays::feed(&mut session, consumer, number, portion))
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        change!(self, session, replays::stop(&mut session, consumer, number))
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        change!(self, session, replays::resume(&mut session, consumer, number, dead_more))
    }

    async fn replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        look!(self, session, replays::list(&mut session, consumer))
    }
}
