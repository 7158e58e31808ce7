//! Messages that arrive after the inbox has forgotten them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use relevo_core::inbox::InboxRetention;
use relevo_core::inbox::dead_letters::{DeadLetterFilter, MarkRequest};
use relevo_inbox::Clock;
use relevo_store_sqlite::connect_options;
use relevo_torture::ledger::{Member, Steady, Store};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::on::{On, Shape};
use crate::stage::{Stage, start, until};

const REMEMBERED: Duration = Duration::from_hours(1);

/// Makes all entries of the inbox older by `time`.
async fn age(store: &Store, time: Duration) {
    match store {
        Store::Postgres(options) => {
            let earlier = format!("entered_at - interval '{} seconds'", time.as_secs());
            let sql = AssertSqlSafe(format!("UPDATE relevo.inbox SET entered_at = {earlier}"));
            sqlx::raw_sql(sql).execute(&mut options.connect().await.expect("it is there")).await.expect("a table");
        }
        Store::Sqlite(path) => {
            let earlier = format!("entered_at_ms - {}", time.as_millis());
            let sql = AssertSqlSafe(format!("UPDATE relevo_inbox SET entered_at_ms = {earlier}"));
            sqlx::raw_sql(sql)
                .execute(&mut connect_options(path).connect().await.expect("it is there"))
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
            count.fetch_one(&mut options.connect().await.expect("it is there")).await.expect("a table")
        }
        Store::Sqlite(path) => {
            let count = sqlx::query_scalar("SELECT count(*) FROM relevo_inbox");
            count.fetch_one(&mut connect_options(path).connect().await.expect("it is there")).await.expect("a table")
        }
    }
}

pub(crate) async fn a_message_that_comes_after_it_was_forgotten_is_a_dead_letter(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    // The late deliveries: the same messages, for the same consumer.
    let late = stage.second_feed().await;
    let first = stage.start("first", Arc::new(Steady)).await;
    stage.send(8, 4).await;
    stage.until_all().await;
    first.stop().await.expect("it stops in good order");

    age(&stage.store, REMEMBERED * 2).await;
    let mut later = Member { feed: late.clone(), ..stage.member("later") };
    later.config.keeping = InboxRetention { done: REMEMBERED, ..InboxRetention::default() };
    later.config.clock = Clock::new(|| Timestamp::now() + SignedDuration::from_hours(2));
    later.config.prune_interval = Duration::from_millis(50);
    let pruning = start(Member { feed: stage.feed.clone(), ..later.clone() }).await;
    until("everything is forgotten", async || entries(&stage.store).await == 0).await;
    pruning.stop().await.expect("it stops in good order");
    let later = start(later).await;
    until("all are dead letters", async || stage.dead().await.len() == 8).await;
    assert!(stage.dead().await.iter().all(|letter| letter.class == "expired"));
    later.stop().await.expect("it stops in good order");
    until("the late queue is empty", async || late.left().await.is_ok_and(|left| left == 0)).await;

    let filter = DeadLetterFilter { consumer: Some(stage.consumer.clone()), ..DeadLetterFilter::default() };
    let mark = MarkRequest {
        filter,
        dry_run: false,
        rate_per_second: None,
        by: "one".to_owned(),
        reason: "too late".to_owned(),
    };
    assert_eq!(stage.operator().await.archive(&mark).await.expect("a store"), 8);
    stage.judge(&[]).await;
}
