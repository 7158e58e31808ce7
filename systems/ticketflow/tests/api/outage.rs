//! An unreachable database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use relevo_testkit::proxy::CutProxy;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _};
use ticketflow::config::{Config, Database, Secret};
use ticketflow::{desk, run};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::place::Place;
use crate::world::{ANA, Reply, World};

#[tokio::test]
async fn a_request_while_postgres_is_down_gets_a_retry_after() {
    let mut place = Place::postgres().await;
    desk::migrate(&place.database).await.unwrap();
    let Database::Postgres(url) = &place.database else { panic!("a server") };
    let options: PgConnectOptions = url.expose().parse().unwrap();
    let upstream = format!("{}:{}", options.get_host(), options.get_port());
    let proxy = CutProxy::start(upstream.parse().unwrap()).await;
    let through = url.expose().replace(&upstream, &proxy.addr().to_string());
    place.database = Database::Postgres(Secret::new(through));
    let world = World::open(place).await;
    world.opened(ANA, "Before").await;
    let before = world.stored().await;
    proxy.block().await;
    let body = json!({ "title": "Meanwhile", "description": "d" });
    let reply = world.post(ANA, "/api/tickets", &body).send().await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "2"), "{}", reply.text);
    assert_eq!(reply.json["type"], "urn:ticketflow:problem:away");
    assert!(!reply.text.contains("refused"), "{}", reply.text);
    assert_eq!(world.stored().await, before);
    proxy.unblock();
    // Connections that died unseen are found out one by one, each by a caller who comes again.
    let mut status = reply.status;
    for _ in 0..16 {
        if status == 503 {
            status = world.post(ANA, "/api/tickets", &body).send().await.status;
        }
    }
    assert_eq!(status, 201);
    let added: Vec<_> = world.stored().await.iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(added, [0, 1, 0, 1, 0, 1, 1]);
}

#[tokio::test]
async fn a_locked_ticket_does_not_block_the_others() {
    let world = World::postgres().await;
    let (locked, other) = (world.opened(ANA, "Locked").await, world.opened(ANA, "Other").await);
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut session = PgConnection::connect(url.expose()).await.unwrap();
    let mut tx = session.begin().await.unwrap();
    let lock =
        format!("SELECT 1 FROM ticketflow.ticket WHERE id = '{}' FOR UPDATE", locked.json["id"].as_str().unwrap());
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
    let comment = |path: String| world.post(ANA, &format!("{path}/comments"), &json!({ "body": "b" })).send();
    // More than there are connections.
    let mut stopped = JoinSet::new();
    for _ in 0..20 {
        stopped.spawn(comment(locked.path()));
    }
    // Those are first.
    tokio::task::yield_now().await;
    // The others may have to wait until one of those times out. On a busy machine they retry, as the response requests.
    let free = async || {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let reply = comment(other.path()).await;
            if (reply.status.as_u16(), reply.header("retry-after")) != (503, "2") || Instant::now() > end {
                return reply;
            }
        }
    };
    for reply in <[Reply; 5]>::from(tokio::join!(free(), free(), free(), free(), free())) {
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    for reply in stopped.join_all().await {
        assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "2"), "{}", reply.text);
    }
    tx.rollback().await.unwrap();
    assert_eq!(comment(locked.path()).await.status, 201);
}

#[tokio::test]
async fn the_database_cancels_a_statement_that_takes_too_long() {
    let world = World::postgres().await;
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut session = PgConnection::connect(url.expose()).await.unwrap();
    let mut tx = session.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE ticketflow.ticket IN ACCESS EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    let reply = world.get(ANA, "/api/tickets").send().await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "2"), "{}", reply.text);
    assert_eq!(reply.json["type"], "urn:ticketflow:problem:late");
    // The lock is still held, and no session of the service waits for it.
    let end = Instant::now() + Duration::from_secs(30);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name = 'ticketflow' AND wait_event_type = 'Lock'";
    while world.number(waiting).await > 0 {
        assert!(Instant::now() < end, "a statement keeps its connection");
        sleep(Duration::from_millis(50)).await;
    }
    tx.rollback().await.unwrap();
    assert_eq!(world.get(ANA, "/api/tickets").send().await.status, 200);
}

#[tokio::test]
async fn a_start_waits_for_a_database_that_is_starting() {
    let world = World::postgres().await;
    let Database::Postgres(url) = &world.database else { panic!("a server") };
    let mut session = PgConnection::connect(url.expose()).await.unwrap();
    let mut tx = session.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE relevo.settings IN EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    let mut config = Config::embedded(&world.folder);
    config.listen.set_port(0);
    let joint = if url.expose().contains('?') { '&' } else { '?' };
    config.database = Database::Postgres(Secret::new(format!("{}{joint}options[lock_timeout]=200ms", url.expose())));
    let (served, stop) = (AtomicBool::new(false), CancellationToken::new());
    let tell = |_: &run::Serving| {
        served.store(true, Ordering::Relaxed);
        stop.cancel();
    };
    let release = async {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while world.number(waiting).await == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        // Longer than a lock is waited for.
        sleep(Duration::from_millis(500)).await;
        tx.rollback().await.unwrap();
    };
    let release = timeout(Duration::from_mins(1), release);
    let (ran, released) = tokio::join!(run::run(config, true, tell, stop.clone()), release);
    ran.unwrap();
    released.expect("it waits for the lock");
    assert!(served.load(Ordering::Relaxed), "it served before the shutdown");
}
