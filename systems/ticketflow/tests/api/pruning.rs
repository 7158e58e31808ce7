//! What grows old is deleted, and nothing else.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use ticketflow::config::{Broker, Config, Database};
use ticketflow::desk::{DeskError, Old, PRUNE_MAX};
use ticketflow::run;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::world::{ANA, World};

const DAY_MS: i64 = 86_400_000;
const DEADLINE: Duration = Duration::from_mins(1);
const OLD: i64 = 2 * PRUNE_MAX + 7;
const EMAILS: &str = "SELECT count(*) FROM ticketflow.email";
const REQUESTS: &str = "SELECT count(*) FROM ticketflow.idempotency";

/// Inserts this many e-mails and requests, the first of them `days` old and each a millisecond younger than the one before.
async fn fill(world: &World, name: &str, count: i64, days: i64) {
    let ana = world.get(ANA, "/api/me").send().await.json["id"].as_str().unwrap().to_owned();
    let first = Timestamp::now().as_millisecond() - days * DAY_MS;
    let at = if world.is_sqlite() { format!("{first} + n") } else { format!("to_timestamp(({first} + n) / 1000.0)") };
    let bytes = if world.is_sqlite() { "x'00'" } else { "'\\x00'::bytea" };
    let numbers = format!("WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})");
    world
        .run(&format!(
            "{numbers} INSERT INTO ticketflow.email (message_id, event_id, ticket_id, person_id, recipient, subject, language, \
             correlation_id, body_text, body_html, sent_at) SELECT '{name}' || n, '{ana}', '{ana}', '{ana}', 'a@b', 's', 'es', \
             'c', 'text', 'html', {at} FROM n; \
             {numbers} INSERT INTO ticketflow.idempotency (person_id, key, request_sha256, status, body, created_at) \
             SELECT '{ana}', '{name}' || n, {bytes}, 201, '', {at} FROM n"
        ))
        .await;
}

pub(crate) async fn old_rows_are_deleted_in_batches(world: &World) {
    fill(world, "old", OLD, 40).await;
    fill(world, "new", 3, 1).await;
    let before = Timestamp::now() - Duration::from_hours(30 * 24);
    for (what, left) in [(Old::Emails, EMAILS), (Old::Requests, REQUESTS)] {
        let mut deleted = Vec::new();
        for _ in 0..4 {
            deleted.push(world.desk.prune(what, before).await.unwrap());
        }
        assert_eq!(deleted, [1000, 1000, 7, 0], "{what:?}");
        assert_eq!(world.number(left).await, 3, "{what:?}");
    }
}

pub(crate) async fn a_service_deletes_rows_older_than_the_retention(world: &World) {
    fill(world, "old", OLD, 3).await;
    fill(world, "young", 5, 2).await;
    let mut config = Config::embedded(&world.folder);
    config.listen.set_port(0);
    config.database = world.database.clone();
    config.broker = Broker::Embedded(world.folder.join("broker.db"));
    let mail = world.folder.join("mail");
    std::fs::create_dir(&mail).unwrap();
    let [old, young] = [("old.eml", 72), ("young.eml", 48)].map(|(name, hours)| {
        let (file, at) = (mail.join(name), Timestamp::now() - Duration::from_hours(hours));
        std::fs::File::create(&file).unwrap().set_modified(at.into()).unwrap();
        file
    });
    (config.letters.retention, config.limits.idempotency) = (Duration::from_hours(60), Duration::from_hours(60));
    let stop = CancellationToken::new();
    let watch = async {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = (world.number(EMAILS).await, world.number(REQUESTS).await, old.exists());
            if left == (5, 5, false) {
                break;
            }
            assert!(Instant::now() < deadline, "{left:?} are left");
            sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(run::run(config, true, |_| {}, stop.clone()), watch);
    ran.unwrap();
    assert!(young.exists());
}

/// SQLite has one writer at a time; in PostgreSQL the two meet.
#[tokio::test]
async fn a_request_repeated_while_it_is_deleted_stays() {
    let world = World::postgres().await;
    fill(&world, "old", 1, 40).await;
    let end = Instant::now() + DEADLINE;
    let deleted = loop {
        match pruned_while_it_is_repeated(&world).await {
            // No session waits for a row for more than two seconds, which a busy machine may need for the rest.
            Err(DeskError::Away(_)) if Instant::now() < end => {}
            deleted => break deleted.unwrap(),
        }
    };
    assert_eq!((deleted, world.number(REQUESTS).await), (0, 1));
}

/// Repeats an old request, and commits once the deletion waits for its row. Returns the number of deleted rows.
async fn pruned_while_it_is_repeated(world: &World) -> Result<u64, DeskError> {
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut session = PgConnection::connect(url.expose()).await.unwrap();
    world.run("UPDATE ticketflow.idempotency SET created_at = now() - interval '40 days'").await;
    let mut tx = session.begin().await.unwrap();
    sqlx::raw_sql("UPDATE ticketflow.idempotency SET created_at = now()").execute(&mut *tx).await.unwrap();
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waits = async {
        while world.number(waiting).await == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let mut prune = world.desk.prune(Old::Requests, Timestamp::now() - Duration::from_hours(24));
    tokio::select! {
        biased;
        deleted = &mut prune => return Err(deleted.expect_err("the row is locked by another session")),
        () = waits => {}
    }
    tx.commit().await.unwrap();
    prune.await
}
