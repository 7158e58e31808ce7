//! The inbox on a full disk, in a locked file and in a replaced file, and which failures its commits survive.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use relevo_core::inbox::{Beat, Begun, Enter, Entered, Inbox as _, State};
use relevo_core::store::StoreError;
use relevo_store_sqlite::inbox::{Config, Inbox};
use sqlx::Row as _;
use uuid::Uuid;

use crate::inbox_support::{Handling, arrival, effects, handle, inbox, prepare};
use crate::scratch::{PATIENT, Scratch, part, told, with_mounts};

const WAIT: Duration = Duration::from_millis(200);

/// There is no other writer. Busy means only that the machine paused for longer than a call waits.
async fn opened(inbox: &Inbox, number: u64) -> Handling {
    let begin = async || inbox.begin(Enter { held: None, arrivals: &[arrival(number)] }).await.expect("a file");
    let opening = async {
        loop {
            match begin().await {
                Begun::Open(tx, _) => return tx,
                Begun::Busy => {}
                Begun::Lost => panic!("there is no lane to lose"),
            }
        }
    };
    tokio::time::timeout(PATIENT, opening).await.expect("the lock is free")
}

#[tokio::test]
async fn a_message_that_met_a_full_disk_is_handled_when_there_is_space_again() {
    let Some(directory) = part() else {
        let scratch = Scratch::new();
        let test = "inbox_faults::a_message_that_met_a_full_disk_is_handled_when_there_is_space_again";
        assert!(with_mounts(test, scratch.path().to_str().unwrap()).status().unwrap().success());
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
            Ok(entered) => assert_eq!(entered, Entered::New),
            Err(error) => break error,
        }
        number += 1;
    };
    assert!(refused.is_passing() && told(&refused).contains("full"), "{}", told(&refused));
    let handled = i64::try_from(number).unwrap();
    assert_eq!(effects(&file).await, (handled, handled), "what was told as handled is, and nothing else");

    std::fs::remove_file(directory.join("ballast")).unwrap();
    assert_eq!(handle(&inbox, &arrival(number), 40_000).await.expect("the same inbox goes on"), Entered::New);
    assert_eq!(handle(&inbox, &arrival(number), 40_000).await.unwrap(), Entered::Repeat(State::Done));
    assert_eq!(effects(&file).await, (handled + 1, handled + 1));
}

/// The broker gets the acknowledgement right after the handler's commit, so the commit must survive a power failure by
/// then.
#[tokio::test]
async fn what_handlers_commit_is_flushed_whatever_they_try() {
    let scratch = Scratch::new();
    prepare(&scratch.file()).await;
    let inbox = inbox(&scratch.file(), WAIT).await;
    for number in 0..2 {
        let mut tx = opened(&inbox, number).await;
        let refused =
            sqlx::query("PRAGMA synchronous = OFF").execute(&mut *tx).await.expect_err("a transaction is open");
        assert!(refused.to_string().contains("inside a transaction"), "{refused}");
        let row = sqlx::query("PRAGMA main.synchronous").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(row.get::<i64, _>(0), 2, "FULL");
        inbox.commit(tx).await.unwrap();
    }
}

#[tokio::test]
async fn a_handler_that_does_not_end_is_told_to_whoever_waits() {
    let scratch = Scratch::new();
    prepare(&scratch.file()).await;
    let (first, second) = (inbox(&scratch.file(), WAIT).await, inbox(&scratch.file(), WAIT).await);
    let tx = opened(&first, 1).await;
    for inbox in [&first, &second] {
        let begun = inbox.begin(Enter { held: None, arrivals: &[arrival(2)] }).await.unwrap();
        assert!(matches!(begun, Begun::Busy), "{begun:?}");
    }
    let beat = Beat {
        owner: Uuid::from_u128(1),
        name: "member".to_owned(),
        lasts: Duration::from_mins(1),
        marks: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    let error = second.beat(&beat).await.expect_err("the lock is taken");
    assert!(matches!(error, StoreError::Away(_)) && error.is_passing());
    assert!(told(&error).contains("is locked by another connection; hint: "), "{}", told(&error));
    first.roll_back(tx).await.unwrap();
    second.beat(&beat).await.expect("the lock is free");
    assert_eq!(handle(&second, &arrival(1), 1).await.unwrap(), Entered::New);
}

#[tokio::test]
async fn a_file_that_was_replaced_is_told() {
    let scratch = Scratch::new();
    let file = scratch.file();
    prepare(&file).await;
    let inbox = inbox(&file, WAIT).await;
    assert_eq!(handle(&inbox, &arrival(1), 1).await.unwrap(), Entered::New);
    let other = scratch.path().join("other.db");
    prepare(&other).await;
    std::fs::rename(&other, &file).unwrap();
    let error = handle(&inbox, &arrival(1), 1).await.expect_err("another file");
    assert!(error.is_passing() && told(&error).contains("was replaced by another file"), "{}", told(&error));
}

#[tokio::test]
async fn a_file_without_an_inbox_names_the_command() {
    let scratch = Scratch::new();
    let config = Config::new(scratch.file());
    let error = Inbox::open(&config, "billing", relevo_core::inbox::Keeping::default()).await.err().expect("no file");
    assert!(matches!(error, StoreError::Schema { .. }), "{error:?}");
    assert!(told(&error).contains("run `relevo migrate`"), "{}", told(&error));
}
