//! Messages that arrive after the inbox has pruned them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction, MarkRequest};
use relevo_core::inbox::InboxRetention;
use relevo_inbox::Clock;
use relevo_store_sqlite::connect_options;
use relevo_torture::ledger::{Member, NoFault, Store};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::backends::{Backends, OrderMode};
use crate::harness::{Harness, start, until};

const RETENTION: Duration = Duration::from_hours(1);

/// Makes all entries of the inbox older by `time`.
async fn age(store: &Store, time: Duration) {
    match store {
        Store::Postgres(options) => {
            let earlier = format!("entered_at - interval '{} seconds'", time.as_secs());
            let sql = AssertSqlSafe(format!("UPDATE relevo.inbox SET entered_at = {earlier}"));
            sqlx::raw_sql(sql)
                .execute(&mut options.connect().await.expect("the database is reachable"))
                .await
                .expect("a table");
        }
        Store::Sqlite(path) => {
            let earlier = format!("entered_at_ms - {}", time.as_millis());
            let sql = AssertSqlSafe(format!("UPDATE relevo_inbox SET entered_at_ms = {earlier}"));
            sqlx::raw_sql(sql)
                .execute(&mut connect_options(path).connect().await.expect("the database is reachable"))
                .await
                .expect("a table");
        }
    }
}

/// The number of messages that the inbox knows.
async fn entries(store: &Store) -> i64 {
    match store {
        Store::Postgres(options) => {
            let count = sqlx::query_scalar("SELECT count(*) FROM relevo.inbox");
            count.fetch_one(&mut options.connect().await.expect("the database is reachable")).await.expect("a table")
        }
        Store::Sqlite(path) => {
            let count = sqlx::query_scalar("SELECT count(*) FROM relevo_inbox");
            count
                .fetch_one(&mut connect_options(path).connect().await.expect("the database is reachable"))
                .await
                .expect("a table")
        }
    }
}

pub(crate) async fn a_message_delivered_after_it_was_pruned_is_a_dead_letter(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    // The late deliveries: the same messages, for the same consumer.
    let late = harness.second_feed().await;
    let first = harness.start("first", Arc::new(NoFault)).await;
    harness.send(8, 4).await;
    harness.until_all().await;
    first.stop().await.expect("it stops cleanly");

    age(&harness.store, RETENTION * 2).await;
    let mut later = Member { feed: late.clone(), ..harness.member("later") };
    later.retention = InboxRetention { done: RETENTION, ..InboxRetention::default() };
    later.config.clock = Clock::new(|| Timestamp::now() + SignedDuration::from_hours(2));
    later.config.prune_interval = Duration::from_millis(50);
    let pruning = start(Member { feed: harness.feed.clone(), ..later.clone() }).await;
    until("everything is pruned", async || entries(&harness.store).await == 0).await;
    pruning.stop().await.expect("it stops cleanly");
    let later = start(later).await;
    until("all are dead letters", async || harness.dead().await.len() == 8).await;
    assert!(harness.dead().await.iter().all(|dead_letter| dead_letter.class == "expired"));
    later.stop().await.expect("it stops cleanly");
    until("the late queue is empty", async || late.unsettled().await.is_ok_and(|count| count == 0)).await;

    let request = MarkRequest {
        filter: DeadLetterFilter::of_consumer(&*harness.consumer),
        action: MarkAction::Discard,
        dry_run: false,
        rate_per_second: None,
        by: "one".to_owned(),
        reason: "too late".to_owned(),
    };
    assert_eq!(harness.operator().await.mark_dead_letters(&request).await.expect("a store").count, 8);
    harness.check(&[]).await;
}
