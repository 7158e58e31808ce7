//! Emitting: what `emit` stores, rejects and cancels.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::DraftError;
use relevo_core::MessageId;
use relevo_core::message::Headers;
use relevo_store_sqlite::{Draft, EmitError, OnDuplicate, begin, cancel, connect_options, emit};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::scratch::{Reader, TempDirectory, connect, draft, emit_one, ids, outbox, run};

#[tokio::test]
async fn a_message_is_read_exactly_as_it_was_emitted() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 4).await).await;
    let mut connection = connect(&scratch.file()).await;
    let headers = Headers::from([("x-α".to_owned(), "\"quoted\"\twith tab".to_owned())]);
    let sent = Draft { headers: headers.clone(), ..Draft::bytes("t.ñ", "clave-ñ", "Kind", vec![0, 255, 10], "a/b") };
    let before = Timestamp::now();
    let id = emit_one(&mut connection, sent).await;
    let read = reader.drain().await.unwrap();
    let message = &read[0].message;
    assert_eq!((message.id, &message.headers, &message.payload[..]), (id, &headers, &[0, 255, 10][..]));
    assert_eq!((&*message.topic, &*message.key, &*message.kind), ("t.ñ", "clave-ñ", "Kind"));
    assert_eq!(&*message.content_type, "a/b");
    assert_eq!(read[0].slot, 217);
    assert!(message.created_at.duration_since(before).abs() < jiff::SignedDuration::from_secs(60));
    assert_eq!(id.as_uuid().get_version_num(), 7);
}

#[tokio::test]
async fn a_message_beyond_a_limit_is_rejected_and_the_transaction_stays_usable() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    let mut tx = begin(&mut connection).await.unwrap();
    let refused = emit(&mut tx, draft(&"k".repeat(513))).await;
    assert!(matches!(refused, Err(EmitError::Invalid(DraftError::TooLong { part: "key", .. }))));
    let id = emit(&mut tx, draft("k")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids(&reader.drain().await.unwrap()), [id]);
}

#[tokio::test]
async fn a_large_payload_is_read_completely_in_a_page_of_its_own() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    let large: Vec<u8> = (0..5_000_000u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    emit_one(&mut connection, Draft::bytes("t", "k", "Large", large.clone(), "a/b")).await;
    emit_one(&mut connection, draft("k")).await;
    let read = reader.drain().await.unwrap();
    assert!(read[0].message.payload == large);
    assert_eq!(read.len(), 2);
}

#[tokio::test]
async fn a_duplicate_id_is_rejected_and_the_transaction_stays_usable() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    let id = MessageId::v7(1, [7; 10]);
    let own = |on_duplicate| Draft { id: Some(id), on_duplicate, ..draft("k") };
    emit_one(&mut connection, own(OnDuplicate::Error)).await;
    let mut tx = begin(&mut connection).await.unwrap();
    assert!(
        matches!(emit(&mut tx, own(OnDuplicate::Error)).await, Err(EmitError::DuplicateId(repeated)) if repeated == id)
    );
    assert_eq!(emit(&mut tx, own(OnDuplicate::Ignore)).await.unwrap(), id);
    let other = emit(&mut tx, draft("k")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids(&reader.drain().await.unwrap()), [id, other]);
}

#[tokio::test]
async fn a_message_with_a_past_time_is_not_scheduled() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    let at = |time: Timestamp| Draft { deliver_at: Some(time), ..draft("k") };
    let past = emit_one(&mut connection, at(Timestamp::UNIX_EPOCH)).await;
    let later = emit_one(&mut connection, at(Timestamp::now() + Duration::from_hours(1))).await;
    assert_eq!(ids(&reader.drain().await.unwrap()), [past]);
    let mut tx = begin(&mut connection).await.unwrap();
    assert!(cancel(&mut tx, later).await.unwrap());
    assert!(!cancel(&mut tx, past).await.unwrap());
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_pool_begins_with_the_write_lock_too() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(connect_options(scratch.file())).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let pool = pool.clone();
        writers.spawn(async move {
            let mut tx = begin(&pool).await.unwrap();
            let id = emit(&mut tx, draft(&format!("k-{number}"))).await.unwrap();
            tx.commit().await.unwrap();
            id
        });
    }
    let mut emitted = writers.join_all().await;
    let mut read = ids(&reader.drain().await.unwrap());
    emitted.sort();
    read.sort();
    assert_eq!(read, emitted);
}

/// With a write-ahead log, a commit over two files is not atomic. A crash could keep the effect without the message.
#[tokio::test]
async fn an_outbox_in_an_attached_file_is_rejected() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 1).await;
    let main = scratch.path().join("application.db");
    let mut connection = connect_options(&main).create_if_missing(true).connect().await.unwrap();
    let attach = format!("ATTACH '{}' AS attached", scratch.file().display());
    sqlx::raw_sql(AssertSqlSafe(attach)).execute(&mut connection).await.unwrap();
    let found = sqlx::query("SELECT count(*) FROM relevo_message").fetch_one(&mut connection).await;
    assert!(found.is_ok(), "its plain name finds the attached table");
    let mut tx = begin(&mut connection).await.unwrap();
    assert!(matches!(emit(&mut tx, draft("k")).await, Err(EmitError::NotInMainFile)));
    let own = Draft { id: Some(MessageId::v7(1, [1; 10])), ..draft("k") };
    assert!(matches!(emit(&mut tx, own).await, Err(EmitError::NotInMainFile)));
    let later = Draft { deliver_at: Some(Timestamp::now() + Duration::from_hours(1)), ..draft("k") };
    assert!(matches!(emit(&mut tx, later).await, Err(EmitError::NotInMainFile)));
}

/// Shows why writers use `begin`, which takes the write lock before the first read.
#[tokio::test]
async fn a_deferred_transaction_that_read_first_is_busy_after_another_commit() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 1).await;
    let mut slow = connect(&scratch.file()).await;
    let mut tx = slow.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM relevo_message").fetch_one(&mut *tx).await.unwrap();
    emit_one(&mut connect(&scratch.file()).await, draft("k")).await;
    assert!(matches!(emit(&mut tx, draft("k")).await, Err(EmitError::Busy(_))));
}

/// Each connection has its own `synchronous` setting. Committed messages are read with any setting of the writer.
#[tokio::test]
async fn messages_of_writers_without_synchronous_are_read_in_order() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut emitted = Vec::new();
    for level in ["PRAGMA synchronous = OFF", "PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"] {
        let mut connection = connect(&scratch.file()).await;
        sqlx::query(level).execute(&mut connection).await.unwrap();
        emitted.push(emit_one(&mut connection, draft("k")).await);
    }
    assert_eq!(ids(&reader.drain().await.unwrap()), emitted);
}

#[tokio::test]
async fn sequence_numbers_are_never_reused() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    emit_one(&mut connection, draft("k")).await;
    let first = reader.drain().await.unwrap()[0].seq;
    run(&scratch.file(), "DELETE FROM relevo_message").await;
    let id = emit_one(&mut connection, draft("k")).await;
    let read = reader.drain().await.unwrap();
    assert_eq!(ids(&read), [id], "a row with a reused number would never be read");
    assert!(read[0].seq > first);
}
