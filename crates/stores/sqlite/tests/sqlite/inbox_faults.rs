//! The inbox on a full disk, in a locked file and in a replaced file, and which failures its commits survive.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use relevo_core::inbox::members::Heartbeat;
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{Inbox as _, InboxState};
use relevo_core::store::StoreError;
use relevo_store_sqlite::inbox::{Config, Inbox, Transaction};
use sqlx::Row as _;
use uuid::Uuid;

use crate::inbox_support::{arrival, effects, handle, inbox, prepare};
use crate::scratch::{LONG_WAIT, TempDirectory, child_command_with_mounts, child_role, error_chain};

const WAIT: Duration = Duration::from_millis(200);

/// There is no other writer. Busy means only that the machine paused for longer than a call waits.
async fn must_begin(inbox: &Inbox, number: u64) -> Transaction {
    let begin = async || inbox.begin(Enter { held: None, arrivals: &[arrival(number)] }).await.expect("a file");
    let opening = async {
        loop {
            match begin().await {
                BeginOutcome::Open(tx, _) => return tx,
                BeginOutcome::Busy => {}
                BeginOutcome::Fenced => panic!("there is no lane to lose"),
            }
        }
    };
    tokio::time::timeout(LONG_WAIT, opening).await.expect("the lock is free")
}

#[tokio::test]
async fn a_message_is_handled_after_a_full_disk_has_space_again() {
    let Some(directory) = child_role() else {
        let scratch = TempDirectory::new();
        let test = "inbox_faults::a_message_is_handled_after_a_full_disk_has_space_again";
        assert!(child_command_with_mounts(test, scratch.path().to_str().unwrap()).status().unwrap().success());
        return;
    };
    let directory = Path::new(&directory);
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(directory).status();
    assert!(mount.expect("`mount` runs").success());
    let file = directory.join("inbox.db");
    prepare(&file).await;
    let inbox = inbox(&file, WAIT).await;
    std::fs::write(directory.join("ballast"), vec![0; 1 << 20]).unwrap();
    let mut number = 0;
    let refused = loop {
        match handle(&inbox, &arrival(number), 40_000).await {
            Ok(entered) => assert_eq!(entered, EnterOutcome::New),
            Err(error) => break error,
        }
        number += 1;
    };
    assert!(refused.is_retryable() && error_chain(&refused).contains("full"), "{}", error_chain(&refused));
    let handled = i64::try_from(number).unwrap();
    assert_eq!(effects(&file).await, (handled, handled), "exactly the messages that were reported as handled");

    std::fs::remove_file(directory.join("ballast")).unwrap();
    assert_eq!(handle(&inbox, &arrival(number), 40_000).await.expect("the same inbox goes on"), EnterOutcome::New);
    assert_eq!(handle(&inbox, &arrival(number), 40_000).await.unwrap(), EnterOutcome::Duplicate(InboxState::Done));
    assert_eq!(effects(&file).await, (handled + 1, handled + 1));
}

/// The broker gets the acknowledgement right after the handler's commit, so the commit must survive a power failure by
/// then.
#[tokio::test]
async fn commits_of_handlers_are_always_flushed() {
    let scratch = TempDirectory::new();
    prepare(&scratch.file()).await;
    let inbox = inbox(&scratch.file(), WAIT).await;
    for number in 0..2 {
        let mut tx = must_begin(&inbox, number).await;
        let refused =
            sqlx::query("PRAGMA synchronous = OFF").execute(&mut *tx).await.expect_err("a transaction is open");
        assert!(refused.to_string().contains("inside a transaction"), "{refused}");
        let row = sqlx::query("PRAGMA main.synchronous").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(row.get::<i64, _>(0), 2, "FULL");
        inbox.commit(tx).await.unwrap();
    }
}

#[tokio::test]
async fn a_hanging_handler_makes_others_busy() {
    let scratch = TempDirectory::new();
    prepare(&scratch.file()).await;
    let (first, second) = (inbox(&scratch.file(), WAIT).await, inbox(&scratch.file(), WAIT).await);
    let tx = must_begin(&first, 1).await;
    for inbox in [&first, &second] {
        let begun = inbox.begin(Enter { held: None, arrivals: &[arrival(2)] }).await.unwrap();
        assert!(matches!(begun, BeginOutcome::Busy), "{begun:?}");
    }
    let beat = Heartbeat {
        owner: Uuid::from_u128(1),
        name: "member".to_owned(),
        ttl: Duration::from_mins(1),
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    let error = second.heartbeat(&beat).await.expect_err("the lock is taken");
    assert!(matches!(error, StoreError::Busy { .. }) && error.is_retryable());
    assert!(error_chain(&error).contains("is locked by another connection; hint: "), "{}", error_chain(&error));
    first.rollback(tx).await.unwrap();
    second.heartbeat(&beat).await.expect("the lock is free");
    assert_eq!(handle(&second, &arrival(1), 1).await.unwrap(), EnterOutcome::New);
}

#[tokio::test]
async fn a_replaced_file_is_reported() {
    let scratch = TempDirectory::new();
    let file = scratch.file();
    prepare(&file).await;
    let inbox = inbox(&file, WAIT).await;
    assert_eq!(handle(&inbox, &arrival(1), 1).await.unwrap(), EnterOutcome::New);
    let other = scratch.path().join("other.db");
    prepare(&other).await;
    std::fs::rename(&other, &file).unwrap();
    let error = handle(&inbox, &arrival(1), 1).await.expect_err("another file");
    assert!(
        error.is_retryable() && error_chain(&error).contains("was replaced by another file"),
        "{}",
        error_chain(&error)
    );
}

#[tokio::test]
async fn a_file_without_an_inbox_names_the_migrate_command() {
    let scratch = TempDirectory::new();
    let config = Config::new(scratch.file());
    let error =
        Inbox::open(&config, "billing", relevo_core::inbox::InboxRetention::default()).await.err().expect("no file");
    assert!(matches!(error, StoreError::SchemaMismatch { .. }), "{error:?}");
    assert!(error_chain(&error).contains("run `relevo migrate`"), "{}", error_chain(&error));
}
