//! Full disks, and locked, damaged or missing files: one clear error each, and no lost message.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use relevo_core::outbox::leases::ShardLeases as _;
use relevo_core::outbox::maintenance::Maintenance as _;
use relevo_core::store::StoreError;
use relevo_store_sqlite::{Draft, begin, emit, migrate};
use uuid::Uuid;

use crate::scratch::{
    MAIN, Reader, TempDirectory, child_command_with_mounts, child_role, connect, draft, emit_one, error_chain, ids,
    open, open_with_short_wait, operator, outbox, run, wait_until_closed,
};

fn mount(arguments: &[&str], at: &Path) {
    let status = Command::new("mount").args(arguments).arg(at).status().expect("`mount` runs");
    assert!(status.success(), "mount {arguments:?}");
}

#[tokio::test]
async fn a_full_disk_is_reported_and_recovers_with_space() {
    let Some(directory) = child_role() else {
        let scratch = TempDirectory::new();
        let directory = scratch.path().to_str().unwrap();
        let test = "faults::a_full_disk_is_reported_and_recovers_with_space";
        assert!(child_command_with_mounts(test, directory).status().unwrap().success());
        return;
    };
    let directory = Path::new(&directory);
    mount(&["-t", "tmpfs", "-o", "size=2m", "none"], directory);
    let file = directory.join("outbox.db");
    let mut reader = Reader::start(outbox(&file, 4).await).await;
    let mut connection = connect(&file).await;
    let mut emitted = vec![emit_one(&mut connection, draft("k")).await];
    std::fs::write(directory.join("ballast"), vec![0; 1 << 20]).unwrap();

    // Writers fill the disk. They get an error, and earlier commits stay.
    let error = loop {
        let mut tx = match begin(&mut connection).await {
            Ok(tx) => tx,
            Err(error) => break error.to_string(),
        };
        let large = Draft::bytes("t", "k", "Large", vec![1; 40_000], "a/b");
        match emit(&mut tx, large).await {
            Ok(id) => match tx.commit().await {
                Ok(()) => emitted.push(id),
                Err(error) => break error.to_string(),
            },
            Err(error) => break format!("{error}: {:?}", std::error::Error::source(&error)),
        }
    };
    assert!(error.contains("full"), "{error}");
    drop(connection);

    // The relay continues to read. When it cannot settle, it returns the reason, and no message is lost.
    let page = reader.read().await.unwrap();
    assert_eq!(ids(&page.entries), emitted);
    let refused = loop {
        match reader.settle(page.end.clone(), Vec::new()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Unavailable(_)) && refused.is_retryable());
    assert!(
        error_chain(&refused).contains("the disk is full; hint: free space, nothing was lost"),
        "{}",
        error_chain(&refused)
    );

    std::fs::remove_file(directory.join("ballast")).unwrap();
    reader.settle(page.end, Vec::new()).await.expect("the same store goes on");
    let after = emit_one(&mut connect(&file).await, draft("k")).await;
    assert_eq!(ids(&reader.drain().await.unwrap()), [after]);
}

#[tokio::test]
async fn a_read_only_file_is_reported() {
    let Some(directory) = child_role() else {
        let scratch = TempDirectory::new();
        let test = "faults::a_read_only_file_is_reported";
        assert!(child_command_with_mounts(test, scratch.path().to_str().unwrap()).status().unwrap().success());
        return;
    };
    let directory = Path::new(&directory);
    mount(&["-t", "tmpfs", "none"], directory);
    let file = directory.join("outbox.db");
    drop(outbox(&file, 1).await);
    wait_until_closed(&file).await;
    mount(&["-o", "remount,ro"], directory);
    let errors = [
        open(&file).await.err().expect("a refusal"),
        migrate::migrate(&file).await.expect_err("a refusal"),
        migrate::migrate(directory.join("new.db")).await.expect_err("a refusal"),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Refused { .. }) && !error.is_retryable(), "{error:?}");
        assert!(error_chain(&error).contains("hint: "), "{}", error_chain(&error));
    }
    mount(&["-o", "remount,rw"], directory);
    assert!(open(&file).await.is_ok());
    wait_until_closed(&file).await;

    // Only the file itself is read-only, in a writable directory.
    let name = file.to_str().unwrap();
    mount(&["--bind", name], &file);
    mount(&["-o", "remount,ro,bind"], &file);
    let error = open(&file).await.err().expect("a refusal");
    assert!(matches!(error, StoreError::Refused { .. }) && !error.is_retryable(), "{error:?}");
    assert!(error_chain(&error).contains("cannot be written; hint: "), "{}", error_chain(&error));
}

/// A writer may use any `synchronous` setting. The relay flushes messages before it publishes them, once per window.
#[tokio::test]
async fn unflushed_messages_are_not_read() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 1).await).await;
    let mut connection = connect(&scratch.file()).await;
    sqlx::query("PRAGMA synchronous = OFF").execute(&mut connection).await.unwrap();
    let emitted = [emit_one(&mut connection, draft("k")).await, emit_one(&mut connection, draft("k")).await];
    let log = scratch.path().join("outbox.db-wal");
    let hidden = scratch.path().join("hidden");
    let hide = || {
        std::fs::rename(&log, &hidden).unwrap();
        // No user can open a link to itself, not even root.
        std::os::unix::fs::symlink(&log, &log).unwrap();
    };
    hide();
    let error = reader.read().await.expect_err("no flush");
    assert!(
        error.is_retryable() && error_chain(&error).contains("cannot be flushed; hint: "),
        "{}",
        error_chain(&error)
    );
    std::fs::rename(&hidden, &log).unwrap();
    let page = reader.read().await.unwrap();
    assert_eq!(ids(&page.entries), emitted);
    hide();
    assert_eq!(ids(&reader.read().await.unwrap().entries), emitted, "the window is flushed already");
    std::fs::rename(&hidden, &log).unwrap();
    reader.settle(page.end, Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_locked_file_is_reported_after_a_wait_and_reading_continues() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 2).await);
    let mut reader = Reader::start(open_with_short_wait(&scratch.file()).await).await;
    let mut connection = connect(&scratch.file()).await;
    let id = emit_one(&mut connection, draft("k")).await;
    let tx = begin(&mut connection).await.unwrap();
    let page = reader.read().await.expect("readers do not wait for writers");
    assert_eq!(ids(&page.entries), [id]);
    let error = reader.settle(page.end.clone(), Vec::new()).await.expect_err("the lock is taken");
    assert!(matches!(error, StoreError::Busy { .. }) && error.is_retryable());
    assert!(error_chain(&error).contains("is locked by another connection; hint: "), "{}", error_chain(&error));
    assert!(reader.store.maintain(std::time::Duration::from_secs(10)).await.unwrap().skipped);
    tx.rollback().await.unwrap();
    reader.settle(page.end, Vec::new()).await.expect("the lock is free");
    assert_eq!(ids(&reader.drain().await.unwrap()), []);
}

/// An application writes for longer than a lease. A relay without changes checks its leases without the lock.
#[tokio::test]
async fn a_long_write_transaction_does_not_block_lease_requests() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 2).await);
    let store = open_with_short_wait(&scratch.file()).await;
    let request = relevo_core::outbox::leases::LeaseRequest {
        owner: Uuid::new_v4(),
        name: "relay".to_owned(),
        duration: std::time::Duration::from_mins(1),
        held: Vec::new(),
        release: Vec::new(),
    };
    let first = store.acquire_leases(request.clone()).await.unwrap();
    let mut connection = connect(&scratch.file()).await;
    let _writer = begin(&mut connection).await.unwrap();
    assert_eq!(store.acquire_leases(request).await.unwrap().leases, first.leases);
}

#[tokio::test]
async fn a_corrupt_header_is_reported_as_permanent() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 1).await);
    wait_until_closed(&scratch.file()).await;
    overwrite(&scratch.file(), 0, 64);
    assert_permanent_error(&scratch.file(), "is no SQLite database, or its header is damaged; hint: ").await;
}

#[tokio::test]
async fn a_corrupt_page_is_reported_when_it_is_read() {
    let scratch = TempDirectory::new();
    let file = scratch.file();
    let mut reader = Reader::start(outbox(&file, 1).await).await;
    let mut connection = connect(&file).await;
    for _ in 0..200 {
        emit_one(&mut connection, Draft::bytes("t", "k", "T", vec![7; 2000], "a/b")).await;
    }
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    overwrite(&file, length / 2 / 4096 * 4096, usize::try_from(length / 4).unwrap());
    let error = loop {
        match reader.drain().await {
            Ok(_) => reader = Reader::start(open(&file).await.unwrap()).await,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Refused { .. }) && !error.is_retryable());
    assert!(
        error_chain(&error).contains("is damaged (") && error_chain(&error).contains("restore a backup"),
        "{}",
        error_chain(&error)
    );
}

#[tokio::test]
async fn a_missing_or_invalid_file_is_reported() {
    let scratch = TempDirectory::new();
    let text = scratch.path().join("notes.txt");
    std::fs::write(&text, "this is not a database, it is a text that is long enough to be read".repeat(40)).unwrap();
    assert_permanent_error(&text, "is no SQLite database").await;
    assert_permanent_error(scratch.path(), "is no SQLite database").await;
    let error = open(&scratch.path().join("missing.db")).await.err().expect("a refusal");
    assert!(matches!(error, StoreError::SchemaMismatch { .. }));
    assert!(error_chain(&error).contains("does not exist; hint: check the path, or run `relevo migrate`"));
    assert!(!scratch.path().join("missing.db").exists(), "opening makes no file");
    let error = migrate::migrate(scratch.path().join("no/such/directory.db")).await.expect_err("no directory");
    assert!(error_chain(&error).contains("cannot be opened; hint: "), "{}", error_chain(&error));
    assert!(migrate::migrate(&text).await.is_err());
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("this is not"), "it is left as it was");
    let empty = scratch.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    let error = open(&empty).await.err().expect("a refusal");
    assert!(error_chain(&error).contains("holds no outbox; hint: run `relevo migrate`"), "{}", error_chain(&error));
}

#[tokio::test]
async fn a_replaced_file_is_noticed_and_the_new_one_is_used() {
    let scratch = TempDirectory::new();
    let file = scratch.file();
    let reader = Reader::start(outbox(&file, 1).await).await;
    emit_one(&mut connect(&file).await, draft("k")).await;
    let backup = scratch.path().join("backup.db");
    let mut fresh = Reader::start(outbox(&backup, 1).await).await;
    let id = emit_one(&mut connect(&backup).await, draft("k")).await;
    run(&backup, "PRAGMA wal_checkpoint(TRUNCATE)").await;
    assert_eq!(fresh.drain().await.unwrap().len(), 1);
    std::fs::copy(&backup, scratch.path().join("copy.db")).unwrap();
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", file.display())).unwrap();
    }
    std::fs::rename(scratch.path().join("copy.db"), &file).unwrap();
    let error = reader.read().await.expect_err("another file");
    assert!(
        error.is_retryable() && error_chain(&error).contains("was replaced by another file"),
        "{}",
        error_chain(&error)
    );
    assert_eq!(ids(&reader.read().await.expect("the new file").entries), [id]);
    std::fs::remove_file(&file).unwrap();
    let error = reader.read().await.expect_err("no file");
    assert!(matches!(error, StoreError::SchemaMismatch { .. }), "{}", error_chain(&error));
}

#[tokio::test]
async fn an_unknown_destination_is_reported() {
    let scratch = TempDirectory::new();
    migrate::migrate(scratch.file()).await.unwrap();
    let operator = operator(&scratch.file()).await;
    let backlog = relevo_core::outbox::sample::OutboxMonitor::sample_destination(&operator, MAIN)
        .await
        .expect_err("no destination");
    assert_eq!(error_chain(&backlog), "destination `main` does not exist; hint: add it with `relevo destination add`");
}

async fn assert_permanent_error(file: &Path, text: &str) {
    let error = open(file).await.err().expect("a refusal");
    assert!(matches!(error, StoreError::Refused { .. }) && !error.is_retryable(), "{error:?}");
    assert!(error_chain(&error).contains(text), "{}", error_chain(&error));
}

fn overwrite(file: &Path, at: u64, length: usize) {
    let file = OpenOptions::new().write(true).open(file).expect("a file");
    file.write_all_at(&vec![0xa5; length], at).expect("room in it");
}
