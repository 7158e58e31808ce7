//! Replays in a SQLite file.

use std::process::{Child, Stdio};

use relevo_core::inbox::InboxRetention;
use relevo_store_sqlite::inbox::{Config, Inbox};
use relevo_store_sqlite::{Operator, OperatorConfig};

use super::replays::{self as cases, Spawn};
use super::{File, RELEVO};

impl Spawn for File {
    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(RELEVO);
        command.args(args).stdout(Stdio::null()).spawn().expect("`relevo` runs")
    }
}

async fn fixture(name: &str) -> (File, Inbox, Operator) {
    let file = File::with_destination(name);
    let inbox = Inbox::open(&Config::new(file.path()), "billing", InboxRetention::default()).await;
    let store = Operator::open(OperatorConfig::new(file.path())).await;
    (file, inbox.expect("a migrated file"), store.expect("a migrated file"))
}

#[tokio::test]
async fn every_message_is_replayed_and_handled_once() {
    let (file, inbox, store) = fixture("replay-once").await;
    cases::every_message_is_replayed_and_handled_once(&file, &inbox, &store).await;
}

#[tokio::test]
async fn only_selected_messages_are_replayed() {
    let (file, inbox, _) = fixture("replay-filters").await;
    cases::only_selected_messages_are_replayed(&file, &inbox).await;
}

#[tokio::test]
async fn a_killed_feeder_loses_and_repeats_nothing() {
    let (file, inbox, store) = fixture("replay-killed").await;
    cases::a_killed_feeder_loses_and_repeats_nothing(&file, &inbox, &store).await;
}

#[tokio::test]
async fn a_stop_from_elsewhere_ends_the_feeder() {
    let (file, inbox, store) = fixture("replay-stopped").await;
    cases::a_stop_from_elsewhere_ends_the_feeder(&file, &inbox, &store).await;
}

#[tokio::test]
async fn too_many_dead_letters_stop_a_replay() {
    let (file, inbox, _) = fixture("replay-dead").await;
    cases::too_many_dead_letters_stop_a_replay(&file, &inbox).await;
}
