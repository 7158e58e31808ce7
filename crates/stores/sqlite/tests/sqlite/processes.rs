//! Several processes on one file, some of them killed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use relevo_store_sqlite::{Draft, begin, connect_options, emit};
use sqlx::ConnectOptions as _;

use crate::scratch::{Reader, TempDirectory, child_command, child_role, open, outbox};

const KEYS: u32 = 5;

/// Writes until it is killed: a counter per key and a message with its value in one transaction. Every third one is
/// rolled back.
async fn write(file: &Path, name: &str) {
    let mut connection = connect_options(file).busy_timeout(Duration::from_secs(30)).connect().await.expect("a file");
    for number in 0u32.. {
        let key = format!("k-{}", number % KEYS);
        let mut tx = begin(&mut connection).await.expect("a turn");
        let sql = "INSERT INTO counter (key, value) VALUES (?1, 1) \
                   ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value";
        let value: i64 = sqlx::query_scalar(sql).bind(&key).fetch_one(&mut *tx).await.expect("a value");
        emit(&mut tx, Draft::json("counters", &key, name, value.to_string())).await.expect("a message");
        if number % 3 == 2 {
            tx.rollback().await.expect("an open transaction");
        } else {
            tx.commit().await.expect("an open transaction");
        }
        writeln!(std::io::stdout(), "wrote").expect("the parent reads");
    }
}

fn start(test: &str, part: &str) -> Child {
    child_command(test, part).stdout(Stdio::piped()).spawn().expect("this program runs")
}

/// Waits until the child has written `times` times, then kills it at an arbitrary point.
fn kill_after(child: &mut Child, times: usize) {
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(lines.map_while(Result::ok).filter(|line| line.ends_with("wrote")).take(times).count(), times);
    child.kill().expect("a child");
    child.wait().expect("a child");
}

#[tokio::test]
async fn killed_writers_leave_exactly_their_commits() {
    const TEST: &str = "processes::killed_writers_leave_exactly_their_commits";
    if let Some(part) = child_role() {
        let (name, file) = part.split_once(' ').unwrap();
        return write(&PathBuf::from(file), name).await;
    }
    let scratch = TempDirectory::new();
    let file = scratch.file();
    drop(outbox(&file, 4).await);
    crate::scratch::run(&file, "CREATE TABLE counter (key TEXT PRIMARY KEY, value INTEGER NOT NULL)").await;
    let mut reader = Reader::start(open(&file).await.unwrap()).await;
    let mut read = Vec::new();
    for round in 0..4 {
        let parts = ["a", "b"].map(|name| format!("{name}{round} {}", file.display()));
        let mut writers = parts.map(|part| start(TEST, &part));
        for (child, times) in writers.iter_mut().zip([20, 35]) {
            kill_after(child, times);
        }
        read.extend(reader.drain().await.unwrap());
    }
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for entry in &read {
        let value: i64 = std::str::from_utf8(&entry.message.payload).unwrap().parse().unwrap();
        let last = last.entry(entry.message.key.to_string()).or_default();
        assert_eq!(value, *last + 1, "each key in its order, nothing lost, nothing that rolled back");
        *last = value;
    }
    let mut connection = crate::scratch::connect(&file).await;
    let committed: Vec<(String, i64)> =
        sqlx::query_as("SELECT key, value FROM counter ORDER BY key").fetch_all(&mut connection).await.unwrap();
    assert_eq!(last.into_iter().collect::<Vec<_>>(), committed);
    assert!(committed.iter().map(|(_, value)| value).sum::<i64>() > 100);
}

/// Relays of several processes share the shards. A killed one is replaced, and no message is skipped.
#[tokio::test]
async fn a_killed_relay_is_replaced_at_its_settled_position() {
    const TEST: &str = "processes::a_killed_relay_is_replaced_at_its_settled_position";
    if let Some(file) = child_role() {
        let mut reader = Reader::start(open(Path::new(&file)).await.unwrap()).await;
        loop {
            for entry in reader.drain().await.unwrap() {
                println!("took {}", entry.message.id);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let scratch = TempDirectory::new();
    let file = scratch.file();
    drop(outbox(&file, 4).await);
    let mut relay = start(TEST, file.to_str().unwrap());
    let mut lines = BufReader::new(relay.stdout.take().unwrap()).lines();
    let mut connection = crate::scratch::connect(&file).await;
    let mut emitted = Vec::new();
    let mut taken = Vec::new();
    for number in 0..50 {
        emitted.push(crate::scratch::emit_one(&mut connection, crate::scratch::draft(&format!("k-{number}"))).await);
    }
    while taken.len() < 20 {
        let line = lines.next().unwrap().unwrap();
        taken.extend(line.split_once("took ").map(|(_, id)| id.parse::<relevo_core::MessageId>().unwrap()));
    }
    relay.kill().unwrap();
    relay.wait().unwrap();
    taken.extend(
        lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("took ")?.1.parse::<relevo_core::MessageId>().ok()),
    );
    // Its lease is long, so let it expire now.
    crate::scratch::run(&file, "UPDATE relevo_lease SET expires_at_ms = 0; UPDATE relevo_relay SET expires_at_ms = 0")
        .await;
    for number in 0..50 {
        emitted.push(crate::scratch::emit_one(&mut connection, crate::scratch::draft(&format!("k-{number}"))).await);
    }
    let mut next = Reader::start(open(&file).await.unwrap()).await;
    let rest = crate::scratch::ids(&next.drain().await.unwrap());
    let first = emitted.iter().position(|id| *id == rest[0]).unwrap();
    assert_eq!(rest, emitted[first..], "from where it had settled to the end");
    assert!(first >= taken.len().min(20) && first <= 50, "what it had settled is not read again");
}
