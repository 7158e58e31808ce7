//! Replays in a SQLite file.

use std::process::{Child, Stdio};

use relevo_core::inbox::InboxRetention;
use relevo_store_sqlite::inbox::{Config, Inbox};
use relevo_store_sqlite::{Operator, OperatorConfig};

use super::replays::{self as cases, Stage};
use super::{File, RELEVO};

impl Stage for File {
    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(RELEVO);
        command.args(args).stdout(Stdio::null()).spawn().expect("`relevo` runs")
    }
}

async fn stage(name: &str) -> (File, Inbox, Operator) {
    let file = File::with_destination(name);
    let inbox = Inbox::open(&Config::new(file.path()), "billing", InboxRetention::default()).await;
    let store = Operator::open(OperatorConfig::new(file.path())).await;
    (file, inbox.expect("a migrated file"), store.expect("a migrated file"))
}

#[tokio::test]
async fn everything_is_fed_and_handled_once() {
    let (file, inbox, store) = stage("replay-once").await;
    cases::everything_is_fed_and_handled_once(&file, &inbox, &store).await;
}

#[tokio::test]
async fn only_what_is_meant_is_replayed() {
    let (file, inbox, _) = stage("replay-filters").await;
    cases::only_what_is_meant_is_replayed(&file, &inbox).await;
}

#[tokio::test]
async fn a_killed_feeder_loses_and_repeats_nothing() {
    let (file, inbox, store) = stage("replay-killed").await;
    cases::a_killed_feeder_loses_and_repeats_nothing(&file, &inbox, &store).await;
}

#[tokio::test]
async fn a_stop_from_elsewhere_ends_the_feeder() {
    let (file, inbox, store) = stage("replay-stopped").await;
    cases::a_stop_from_elsewhere_ends_the_feeder(&file, &inbox, &store).await;
}

#[tokio::test]
async fn dead_letters_stop_it() {
    let (file, inbox, _) = stage("replay-dead").await;
    cases::dead_letters_stop_it(&file, &inbox).await;
}
