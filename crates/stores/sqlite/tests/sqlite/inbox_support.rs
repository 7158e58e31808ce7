//! An inbox in its own file, messages for it, and a ledger of their effects.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::transactions::InboxTransactions as _;
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};
use relevo_core::inbox::{DedupId, Fence, InboxMessage, InboxRetention};
use relevo_core::store::StoreError;
use relevo_store_sqlite::inbox::{Config, Inbox, Transaction};
use relevo_store_sqlite::migrate;
use uuid::Uuid;

use crate::scratch::{connect, run, wait_until_closed};

/// Creates a migrated file with a ledger that accepts duplicate messages. All connections are closed, so that the next
/// one can open it with a short timeout.
pub(crate) async fn prepare(file: &Path) {
    migrate::migrate(file).await.expect("a new file");
    run(file, "CREATE TABLE ledger (id BLOB NOT NULL, weight BLOB NOT NULL)").await;
    wait_until_closed(file).await;
}

/// An inbox that uses this timeout for all waits.
pub(crate) async fn inbox(file: &Path, wait: Duration) -> Inbox {
    let config = Config { lock_timeout: wait, busy_timeout: wait, ..Config::new(file) };
    Inbox::open(&config, "billing", InboxRetention::default()).await.expect("a migrated file")
}

pub(crate) fn arrival(number: u64) -> InboxMessage {
    let id = MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)));
    InboxMessage {
        dedup_id: DedupId { id, replay: 0 },
        queue: number.to_string().into(),
        raw: RawMessage { headers: Vec::new(), payload: Bytes::from_static(b"{}") },
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: Some(number),
        attempts: 0,
    }
}

pub(crate) async fn effect(tx: &mut Transaction, arrival: &InboxMessage, weight: usize) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("INSERT INTO ledger VALUES (?1, ?2)").bind(*arrival.dedup_id.id.as_uuid());
    insert.bind(vec![7; weight]).execute(&mut **tx).await.map(|_| ())
}

/// Handles a message unless it is known. Tries again while another writer blocks it.
pub(crate) async fn handle(inbox: &Inbox, arrival: &InboxMessage, weight: usize) -> Result<EnterOutcome, StoreError> {
    loop {
        match inbox.begin(std::slice::from_ref(arrival), Fence::Live { lane: None }).await? {
            BeginOutcome::Open(mut tx, entered) => {
                if entered == [EnterOutcome::New]
                    && let Err(error) = effect(&mut tx, arrival, weight).await
                {
                    inbox.rollback(tx).await?;
                    return Err(StoreError::Unavailable(Box::new(error)));
                }
                inbox.commit(tx, &[]).await?;
                return Ok(entered[0]);
            }
            BeginOutcome::Busy => {}
            BeginOutcome::Fenced => panic!("there is no lane to lose"),
        }
    }
}

/// Returns the number of effects, and of the messages that have one.
pub(crate) async fn effects(file: &Path) -> (i64, i64) {
    let sql = "SELECT count(*), count(DISTINCT id) FROM ledger";
    sqlx::query_as(sql).fetch_one(&mut connect(file).await).await.expect("a ledger")
}
