//! Changes that meet in PostgreSQL, where one waits for the other's row.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use ticketflow::config::Database;
use tokio::time::{sleep, timeout};

use crate::world::{ANA, CARLA, DAN, PATIENCE, Reply, World};

/// Waits until this many sessions wait for a lock. Returns `false` if they do not within the lock timeout.
async fn waiting(world: &World, sessions: i64) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let all_wait = async {
        while world.number(sql).await < sessions {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(3), all_wait).await.is_ok()
}

/// Lets an assignment wait for a ticket, and a comment behind it. Returns their responses, unless one of them timed out.
async fn meet(world: &World, seen: &Reply, dan: &Value) -> Option<(Reply, Reply)> {
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut session = PgConnection::connect(url.expose()).await.unwrap();
    let mut tx = session.begin().await.unwrap();
    let lock = format!("SELECT 1 FROM ticketflow.ticket WHERE id = '{}' FOR UPDATE", seen.json["id"].as_str().unwrap());
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
    let assign = world.change(CARLA, seen, "assignee", &json!({ "assignee": dan })).send();
    // Those who wait are let in as they came.
    let comment = async {
        if !waiting(world, 1).await {
            return None;
        }
        Some(world.post(ANA, &format!("{}/comments", seen.path()), &json!({ "body": "Still dark" })).send().await)
    };
    let let_go = async {
        let both_wait = waiting(world, 2).await;
        tx.rollback().await.unwrap();
        both_wait
    };
    let (assigned, commented, both_waited) = tokio::join!(assign, comment, let_go);
    let replies = (assigned, commented?);
    (both_waited && !replies.0.is_too_early() && !replies.1.is_too_early()).then_some(replies)
}

#[tokio::test]
async fn a_comment_that_waits_for_an_assignment_leaves_it_as_it_is() {
    let world = World::postgres().await;
    let dan = world.get(DAN, "/api/me").send().await.json["id"].clone();
    let end = Instant::now() + PATIENCE;
    // No session waits for a ticket for more than two seconds. If a busy machine needs longer, the case is repeated.
    let (seen, (assigned, commented)) = loop {
        let seen = world.opened(ANA, "No light").await;
        if let Some(replies) = meet(&world, &seen, &dan).await {
            break (seen, replies);
        }
        assert!(Instant::now() < end, "they never wait for a ticket both");
    };
    assert_eq!((assigned.status.as_u16(), commented.status.as_u16()), (200, 201), "{}", commented.text);

    let stored = world.get(ANA, &seen.path()).send().await;
    assert_eq!((&stored.json["assignee"]["id"], &stored.json["version"]), (&dan, &json!(3)), "{}", stored.text);
    let history = world.get(ANA, &format!("{}/history", seen.path())).send().await;
    let kinds: Vec<_> = history.items().iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["created", "assigned", "comment"]);
    let events = world.events().await;
    let of_ticket = events.iter().filter(|event| event["ticket"]["id"] == seen.json["id"]);
    let assignees: Vec<_> = of_ticket.map(|event| event["ticket"]["assignee"]["id"].clone()).collect();
    assert_eq!(assignees, [json!(null), dan.clone(), dan]);
}
