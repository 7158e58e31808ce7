//! An inbox in its own file, messages for it, and a ledger of their effects.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::{Arrival, Begun, Enter, Entered, Entry, Inbox as _, Keeping};
use relevo_core::store::StoreError;
use relevo_store_sqlite::inbox::{Config, Inbox};
use relevo_store_sqlite::migrate;
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use crate::scratch::{closed, connect, run};

pub(crate) type Handling = Transaction<'static, Sqlite>;

/// Creates a migrated file with a ledger that accepts duplicate messages. All connections are closed, so that the next
/// one can open it with a short timeout.
pub(crate) async fn prepare(file: &Path) {
    migrate::migrate(file).await.expect("a new file");
    run(file, "CREATE TABLE ledger (id BLOB NOT NULL, weight BLOB NOT NULL)").await;
    closed(file).await;
}

/// An inbox that uses this timeout for all waits.
pub(crate) async fn inbox(file: &Path, wait: Duration) -> Inbox {
    let config = Config { lock_timeout: wait, busy_timeout: wait, ..Config::new(file) };
    Inbox::open(&config, "billing", Keeping::default()).await.expect("a migrated file")
}

pub(crate) fn arrival(number: u64) -> Arrival {
    let id = MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)));
    Arrival {
        entry: Entry { id, replay: 0 },
        queue: number.to_string().into(),
        raw: Raw { headers: Vec::new(), payload: Bytes::from_static(b"{}") },
        address: "orders".into(),
        lane: Lane::new("0"),
        place: Some(number),
        correlation: None,
    }
}

pub(crate) async fn effect(tx: &mut Handling, arrival: &Arrival, weight: usize) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("INSERT INTO ledger VALUES (?1, ?2)").bind(*arrival.entry.id.as_uuid());
    insert.bind(vec![7; weight]).execute(&mut **tx).await.map(|_| ())
}

/// Handles a message unless it is known. Tries again while another writer blocks it.
pub(crate) async fn handle(inbox: &Inbox, arrival: &Arrival, weight: usize) -> Result<Entered, StoreError> {
    loop {
        match inbox.begin(Enter { held: None, arrivals: std::slice::from_ref(arrival) }).await? {
            Begun::Open(mut tx, entered) => {
                if entered == [Entered::New]
                    && let Err(error) = effect(&mut tx, arrival, weight).await
                {
                    inbox.roll_back(tx).await?;
                    return Err(StoreError::Away(Box::new(error)));
                }
                inbox.commit(tx).await?;
                return Ok(entered[0]);
            }
            Begun::Busy => {}
            Begun::Lost => panic!("there is no lane to lose"),
        }
    }
}

/// Returns the number of effects, and of the messages that have one.
pub(crate) async fn effects(file: &Path) -> (i64, i64) {
    let sql = "SELECT count(*), count(DISTINCT id) FROM ledger";
    sqlx::query_as(sql).fetch_one(&mut connect(file).await).await.expect("a ledger")
}
