//! Tests of the model itself, and of cases that the conformance suite leaves to each store.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, MarkAction, MarkRequest};
use relevo_core::outbox::leases::{Lease, LeaseRequest, ShardLeases};
use relevo_core::outbox::log::{
    OutboxReader, PageRequest, ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement,
};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::{Config, Database, Draft, EmitError, MAIN, ParkedStateView, Store};

fn emit(outbox: &Database, key: &str) {
    let mut transaction = outbox.begin();
    transaction.emit(Draft::json("orders", key, "OrderPlaced", "{}")).unwrap();
    transaction.commit().unwrap();
}

fn failure(action: ParkAction, attempts: u32) -> PublishFailure {
    PublishFailure { action, attempts, class: "transient", error: "refused".into(), route: "r".into() }
}

struct Relay {
    store: Store,
    lease: Lease,
    position: Position,
}

impl Relay {
    async fn start(outbox: &Database) -> Self {
        let store = outbox.store(MAIN);
        let owner = Uuid::from_u128(1);
        let request = LeaseRequest {
            owner,
            name: "relay".into(),
            duration: Duration::from_mins(1),
            held: vec![],
            release: vec![],
        };
        let lease = store.acquire_leases(request).await.unwrap().leases[0];
        Self { store, lease, position: Position::at(0) }
    }

    /// Reads all messages and settles them, each with this failure.
    async fn settle(&mut self, failure: Option<PublishFailure>) -> Vec<LogEntry> {
        let request = PageRequest {
            shards: &[(self.lease, self.position.clone())],
            messages_max: 100,
            bytes_max: usize::MAX,
            window_limit: relevo_core::outbox::log::WindowLimit::Unlimited,
        };
        let page = self.store.read(request).await.unwrap();
        let end = page.shards.first().map_or(&self.position, |read| &read.end).clone();
        let parked = page.entries.iter().map(|entry| ParkedMessage {
            seq: entry.seq,
            slot: entry.slot,
            key: entry.message.key.clone(),
            failure: failure.clone(),
        });
        let settlement = Settlement { progress: vec![(self.lease, end.clone())], parked: parked.collect() };
        assert_eq!(self.store.settle(settlement).await.unwrap(), SettleResult::default());
        self.position = end;
        page.entries
    }

    async fn read_parked(&self) -> Vec<ParkedBatch> {
        self.store.read_parked(&[self.lease], 10, 10).await.unwrap()
    }

    async fn settle_parked(
        &self,
        batch: &ParkedBatch,
        delivered: &[i64],
        failed: Option<(i64, PublishFailure)>,
    ) -> ParkedResult {
        let settlement = ParkedSettlement {
            lease: self.lease,
            key: batch.key.clone(),
            delivered: delivered.to_vec(),
            failed,
            released_address: None,
        };
        self.store.settle_parked(vec![settlement]).await.unwrap().remove(0)
    }

    async fn redrive(&self, outbox: &Database) {
        let request = MarkRequest {
            filter: DeadLetterFilter::of_destination(MAIN),
            action: MarkAction::Redrive,
            dry_run: false,
            rate_per_second: None,
            by: "ana".into(),
            reason: "fixed".into(),
        };
        outbox.operator().mark_dead_letters(&request).await.unwrap();
    }
}

fn database() -> Database {
    Database::new(Config { shards: 1, ..Config::default() })
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_and_calls_give_equal_messages() {
    let histories = [1, 1, 2].map(|seed| {
        let outbox = Database::new(Config { seed, ..Config::default() });
        emit(&outbox, "a");
        emit(&outbox, "b");
        outbox.committed().into_iter().map(|entry| entry.message.as_ref().clone()).collect::<Vec<_>>()
    });
    assert_eq!(histories[0], histories[1]);
    assert_ne!(histories[0], histories[2]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_rolls_back_open_transactions() {
    let outbox = database();
    let mut open = outbox.begin();
    let draft = Draft::json("orders", "a", "OrderPlaced", "{}");
    open.emit(draft.clone()).unwrap();
    outbox.restart();
    assert!(matches!(open.emit(draft), Err(EmitError::Store(_))));
    assert!(matches!(open.commit(), Err(StoreError::Unavailable(_))));
    assert!(outbox.committed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn history_is_in_commit_order() {
    let outbox = database();
    let mut open = outbox.begin();
    open.emit(Draft::json("orders", "late", "OrderPlaced", "{}")).unwrap();
    emit(&outbox, "early");
    open.commit().unwrap();
    let keys: Vec<_> = outbox.committed().iter().map(|entry| entry.message.key.to_string()).collect();
    assert_eq!(keys, ["early", "late"]);
    assert_eq!(outbox.retained()[0].seq, 1);
}

#[tokio::test(start_paused = true)]
async fn an_empty_parked_settlement_changes_nothing() {
    let outbox = database();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    relay.settle(Some(failure(ParkAction::Retry { after: Duration::ZERO }, 4))).await;
    let batch = relay.read_parked().await.remove(0);
    assert_eq!(relay.settle_parked(&batch, &[], None).await, ParkedResult::StillParked);
    assert_eq!(relay.read_parked().await[0].attempts, 4);
}

#[tokio::test(start_paused = true)]
async fn a_message_redriven_during_a_parked_batch_has_its_own_attempts() {
    let outbox = database();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    let dead = relay.settle(Some(failure(ParkAction::DeadLetter(AfterDead::Continue), 9))).await;
    emit(&outbox, "a");
    relay.settle(Some(failure(ParkAction::Retry { after: Duration::ZERO }, 1))).await;
    let batch = relay.read_parked().await.remove(0);
    relay.redrive(&outbox).await;
    relay.read_parked().await;
    let failed = (batch.messages[0].ordinal, failure(ParkAction::Retry { after: Duration::from_secs(9) }, 2));
    assert_eq!(relay.settle_parked(&batch, &[], Some(failed)).await, ParkedResult::StillParked);
    let batch = relay.read_parked().await.remove(0);
    assert_eq!((batch.messages[0].entry.seq, batch.attempts), (dead[0].seq, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_of_a_parked_key_waits_its_turn() {
    let outbox = database();
    let mut relay = Relay::start(&outbox).await;
    emit(&outbox, "a");
    relay.settle(Some(failure(ParkAction::Retry { after: Duration::ZERO }, 1))).await;
    emit(&outbox, "a");
    relay.settle(Some(failure(ParkAction::DeadLetter(AfterDead::Hold), 1))).await;
    assert!(outbox.dead_letters(MAIN).is_empty());
    let parked = outbox.parked(MAIN);
    assert_eq!((&parked[0].state, parked[0].queue.len()), (&ParkedStateView::Retrying, 2));
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_outside_the_settled_shards_is_rejected() {
    let outbox = database();
    let relay = Relay::start(&outbox).await;
    let message = ParkedMessage { seq: 1, slot: 0, key: "a".into(), failure: None };
    let result = relay.store.settle(Settlement { progress: vec![], parked: vec![message] }).await;
    assert!(matches!(result, Err(StoreError::Unexpected(_))), "{result:?}");
}
