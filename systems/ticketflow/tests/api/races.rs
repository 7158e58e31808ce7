//! Changes that meet in PostgreSQL, where one waits for the other's row.

use std::time::Duration;

use serde_json::json;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use ticketflow::config::Database;
use tokio::time::{sleep, timeout};

use crate::world::{ANA, CARLA, DAN, World};

/// Until so many sessions wait for a lock.
async fn waiting(world: &World, sessions: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let all_wait = async {
        while world.number(sql).await < sessions {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), all_wait).await.unwrap();
}

#[tokio::test]
async fn a_comment_that_waits_for_an_assignment_leaves_it_as_it_is() {
    let world = World::postgres().await;
    let seen = world.opened(ANA, "No light").await;
    let dan = world.get(DAN, "/api/me").send().await.json["id"].clone();
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut somebody = PgConnection::connect(url.expose()).await.unwrap();
    let mut tx = somebody.begin().await.unwrap();
    let lock = format!("SELECT 1 FROM ticketflow.ticket WHERE id = '{}' FOR UPDATE", seen.json["id"].as_str().unwrap());
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
    let assign = world.change(CARLA, &seen, "assignee", &json!({ "assignee": dan })).send();
    // Those who wait are let in as they came.
    let comment = async {
        waiting(&world, 1).await;
        world.post(ANA, &format!("{}/comments", seen.path()), &json!({ "body": "Still dark" })).send().await
    };
    let let_go = async {
        waiting(&world, 2).await;
        tx.rollback().await.unwrap();
    };
    let (assigned, commented, ()) = tokio::join!(assign, comment, let_go);
    assert_eq!((assigned.status.as_u16(), commented.status.as_u16()), (200, 201), "{}", commented.text);

    let stored = world.get(ANA, &seen.path()).send().await;
    assert_eq!((&stored.json["assignee"]["id"], &stored.json["version"]), (&dan, &json!(3)), "{}", stored.text);
    let history = world.get(ANA, &format!("{}/history", seen.path())).send().await;
    let kinds: Vec<_> = history.items().iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["created", "assigned", "comment"]);
    let told: Vec<_> =
        world.events().await.into_iter().map(|event| event["ticket"]["assignee"]["id"].clone()).collect();
    assert_eq!(told, [json!(null), dan.clone(), dan]);
}
