//! Several processes handle the same messages from one file, and some of them are killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{Inbox as _, InboxState};

use crate::inbox_support::{arrival, effect, effects, handle, inbox, prepare};
use crate::scratch::{TempDirectory, child_command, child_role};

const WAIT: Duration = Duration::from_secs(10);
const MESSAGES: u64 = 200;

fn print_line(word: &str) {
    writeln!(std::io::stdout(), "{word}").expect("the parent reads");
}

fn start(test: &str, part: &str) -> Child {
    child_command(test, part).stdout(Stdio::piped()).spawn().expect("this program runs")
}

/// Waits until the child has printed this word `times` times, then kills it at an arbitrary point.
fn kill_after(child: &mut Child, word: &str, times: usize) {
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(lines.map_while(Result::ok).filter(|line| line.ends_with(word)).take(times).count(), times);
    child.kill().expect("a child");
    child.wait().expect("a child");
}

#[tokio::test]
async fn messages_shared_by_killed_processes_are_handled_once() {
    const TEST: &str = "inbox_processes::messages_shared_by_killed_processes_are_handled_once";
    if let Some(file) = child_role() {
        let inbox = inbox(Path::new(&file), WAIT).await;
        for number in 0..MESSAGES {
            handle(&inbox, &arrival(number), 10).await.expect("a file");
            print_line("handled");
        }
        return;
    }
    let scratch = TempDirectory::new();
    let file = scratch.file();
    prepare(&file).await;
    for times in [20, 60] {
        let mut workers = [0, 1].map(|_| start(TEST, file.to_str().unwrap()));
        for worker in &mut workers {
            kill_after(worker, "handled", times);
        }
    }
    let inbox = inbox(&file, WAIT).await;
    for number in 0..MESSAGES {
        handle(&inbox, &arrival(number), 10).await.unwrap();
    }
    let each = i64::try_from(MESSAGES).unwrap();
    assert_eq!(effects(&file).await, (each, each), "every message has one effect");
}

#[tokio::test]
async fn a_process_that_is_killed_in_mid_transaction_leaves_nothing() {
    const TEST: &str = "inbox_processes::a_process_that_is_killed_in_mid_transaction_leaves_nothing";
    let message = [arrival(1)];
    if let Some(file) = child_role() {
        let inbox = inbox(Path::new(&file), WAIT).await;
        let BeginOutcome::Open(mut tx, _) = inbox.begin(Enter { held: None, arrivals: &message }).await.unwrap() else {
            panic!("no other process writes")
        };
        effect(&mut tx, &message[0], 10).await.unwrap();
        print_line("working");
        return std::future::pending().await;
    }
    let scratch = TempDirectory::new();
    let file = scratch.file();
    prepare(&file).await;
    let mut worker = start(TEST, file.to_str().unwrap());
    kill_after(&mut worker, "working", 1);
    assert_eq!(effects(&file).await, (0, 0));
    let inbox = inbox(&file, WAIT).await;
    assert_eq!(handle(&inbox, &message[0], 10).await.unwrap(), EnterOutcome::New);
    assert_eq!(handle(&inbox, &message[0], 10).await.unwrap(), EnterOutcome::Duplicate(InboxState::Done));
    assert_eq!(effects(&file).await, (1, 1));
}
