//! Tests of the model itself, and of cases that the conformance suite leaves to each store.

use std::time::Duration;

use relevo_core::store::{
    Advance, Advanced, Ask, DeadFilter, DeadLetters, Entry, Lease, Leases, Mark, OutboxReader, Park, ParkedKeys,
    Position, Read, Run, Settled, Settlement, Stop, Stopped, StoreError,
};
use uuid::Uuid;

use crate::{Destination, Draft, KeyState, MAIN, Outbox, Settings, TransactionError};

fn emit(outbox: &Outbox, key: &str) {
    let mut transaction = outbox.begin();
    transaction.emit(Draft::new("orders", key, "OrderPlaced", "{}")).unwrap();
    transaction.commit().unwrap();
}

fn stopped(stop: Stop, attempts: u32) -> Stopped {
    Stopped { stop, attempts, class: "transient", error: "refused".into(), route: "r".into() }
}

struct Relay {
    store: Destination,
    lease: Lease,
    position: Position,
}

impl Relay {
    async fn start(outbox: &Outbox) -> Self {
        let store = outbox.destination(MAIN);
        let owner = Uuid::from_u128(1);
        let ask = Ask { owner, name: "relay".into(), lease: Duration::from_mins(1), give_back: vec![] };
        let lease = store.lease(ask).await.unwrap().leases[0];
        Self { store, lease, position: Position::at(0) }
    }

    /// Reads all messages and settles them, each with this failure.
    async fn settle(&mut self, stop: Option<Stopped>) -> Vec<Entry> {
        let read = Read {
            leases: &[self.lease],
            after: self.position,
            limit: 100,
            bytes: usize::MAX,
            ceiling: relevo_core::store::Ceiling::Open,
        };
        let page = self.store.read(read).await.unwrap();
        let parks = page.entries.iter().map(|entry| Park {
            seq: entry.seq,
            slot: entry.slot,
            key: entry.message.key.clone(),
            stopped: stop.clone(),
        });
        let settlement = Settlement { progress: vec![(self.lease, page.end)], parks: parks.collect() };
        assert_eq!(self.store.settle(settlement).await.unwrap(), Settled::default());
        self.position = page.end;
        page.entries
    }

    async fn due(&self) -> Vec<Run> {
        self.store.due(&[self.lease], 10, 10).await.unwrap()
    }

    async fn advance(&self, run: &Run, delivered: &[i64], stopped: Option<(i64, Stopped)>) -> Advanced {
        let advance =
            Advance { lease: self.lease, key: run.key.clone(), delivered: delivered.to_vec(), stopped, released: None };
        self.store.advance(vec![advance]).await.unwrap().remove(0)
    }

    async fn redrive(&self) {
        let mark = Mark { filter: DeadFilter::default(), dry_run: false, by: "ana".into(), reason: "mended".into() };
        self.store.redrive(&mark).await.unwrap();
    }
}

fn outbox() -> Outbox {
    Outbox::new(Settings { shards: 1, ..Settings::default() })
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_and_calls_give_equal_messages() {
    let histories = [1, 1, 2].map(|seed| {
        let outbox = Outbox::new(Settings { seed, ..Settings::default() });
        emit(&outbox, "a");
        emit(&outbox, "b");
        outbox.committed().into_iter().map(|entry| entry.message.as_ref().clone()).collect::<Vec<_>>()
    });
    assert_eq!(histories[0], histories[1]);
    assert_ne!(histories[0], histories[2]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_open_transactions_away() {
    let outbox = outbox();
    let mut open = outbox.begin();
    let draft = Draft::new("orders", "a", "OrderPlaced", "{}");
    open.emit(draft.clone()).unwrap();
    outbox.restart();
    assert_eq!(open.emit(draft), Err(TransactionError::Lost));
    assert_eq!(open.commit(), Err(TransactionError::Lost));
    assert!(outbox.committed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn history_is_in_commit_order() {
    let outbox = outbox();
    let mut open = outbox.begin();
    open.emit(Draft::new("orders", "late", "OrderPlaced", "{}")).unwrap();
    emit(&outbox, "early");
    open.commit().unwrap();
    let keys: Vec<_> = outbox.committed().iter().map(|entry| entry.message.key.to_string()).collect();
    assert_eq!(keys, ["early", "late"]);
    assert_eq!(outbox.kept()[0].seq, 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_without_news_waits_as_it_did() {
    let outbox = outbox();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    relay.settle(Some(stopped(Stop::Retry { after: Duration::ZERO }, 4))).await;
    let run = relay.due().await.remove(0);
    assert_eq!(relay.advance(&run, &[], None).await, Advanced::Waits);
    assert_eq!(relay.due().await[0].attempts, 4);
}

#[tokio::test(start_paused = true)]
async fn a_message_redriven_while_a_run_was_out_has_attempts_of_its_own() {
    let outbox = outbox();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    let dead = relay.settle(Some(stopped(Stop::DeadContinue, 9))).await;
    emit(&outbox, "a");
    relay.settle(Some(stopped(Stop::Retry { after: Duration::ZERO }, 1))).await;
    let run = relay.due().await.remove(0);
    relay.redrive().await;
    relay.due().await;
    let failed = (run.messages[0].0, stopped(Stop::Retry { after: Duration::from_secs(9) }, 2));
    assert_eq!(relay.advance(&run, &[], Some(failed)).await, Advanced::Waits);
    let run = relay.due().await.remove(0);
    assert_eq!((run.messages[0].1.seq, run.attempts), (dead[0].seq, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_while_its_key_waits_takes_its_turn() {
    let outbox = outbox();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    relay.settle(Some(stopped(Stop::Retry { after: Duration::ZERO }, 1))).await;
    emit(&outbox, "a");
    relay.settle(Some(stopped(Stop::DeadHold, 1))).await;
    assert!(outbox.dead(MAIN).is_empty());
    let parked = outbox.parked(MAIN);
    assert_eq!((&parked[0].state, parked[0].queue.len()), (&KeyState::Retrying, 2));
}

#[tokio::test(start_paused = true)]
async fn a_park_outside_the_settled_shards_is_refused() {
    let outbox = outbox();
    let relay = Relay::start(&outbox).await;
    let park = Park { seq: 1, slot: 0, key: "a".into(), stopped: None };
    let broken = relay.store.settle(Settlement { progress: vec![], parks: vec![park] }).await;
    assert!(matches!(broken, Err(StoreError::Broken(_))), "{broken:?}");
}
