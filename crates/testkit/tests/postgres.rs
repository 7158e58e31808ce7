//! Tests of the testkit's PostgreSQL servers.

use relevo_testkit::PgVersion;
use relevo_testkit::pgbouncer::PgBouncer;
use relevo_testkit::postgres::{Private, Server};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};

async fn run(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.expect("the statement runs");
}

async fn count(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM numbers").fetch_one(connection).await.expect("there is a table")
}

#[tokio::test]
async fn every_server_has_the_requested_version() {
    for version in PgVersion::ALL {
        let database = Server::shared(version).database().await;
        let mut connection = database.connect().await;
        let number: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(number.unsigned_abs() / 10_000, version.major());
    }
}

#[tokio::test]
async fn two_databases_are_different_and_deleted_when_dropped() {
    let server = Server::shared(PgVersion::V15);
    let (first, second) = (server.database().await, server.database().await);
    run(&mut first.connect().await, "CREATE TABLE numbers (n int)").await;
    run(&mut second.connect().await, "CREATE TABLE numbers (n int)").await;
    assert_ne!(first.name(), second.name());

    let options = first.options();
    drop(first);
    assert!(options.connect().await.is_err());
}

#[tokio::test]
async fn a_killed_server_keeps_committed_rows() {
    for version in PgVersion::ALL {
        let server = Private::start(version).await;
        let database = server.database().await;
        let mut connection = database.connect().await;
        run(&mut connection, "CREATE TABLE numbers (n int); INSERT INTO numbers VALUES (1)").await;

        server.kill9().await;
        assert!(connection.ping().await.is_err());
        server.start_again().await;

        assert_eq!(count(&mut database.connect().await).await, 1);
        assert!(server.log().contains("was not properly shut down"));
    }
}

#[tokio::test]
async fn a_private_server_takes_settings_and_leaves_nothing() {
    let server = Private::start_with(PgVersion::V15, &[("wal_level", "logical")]).await;
    let mut connection = server.options().connect().await.unwrap();
    let level: String = sqlx::query_scalar("SHOW wal_level").fetch_one(&mut connection).await.unwrap();
    assert_eq!(level, "logical");

    let (directory, options) = (server.data_dir(), server.options());
    drop(server);
    assert!(!directory.exists());
    assert!(options.connect().await.is_err());
}

#[tokio::test]
async fn copies_of_a_server_are_independent() {
    let server = Private::start(PgVersion::V15).await;
    let mut connection = server.options().connect().await.unwrap();
    run(&mut connection, "CREATE TABLE numbers (n int)").await;

    let backup = server.base_backup().await;
    run(&mut connection, "INSERT INTO numbers VALUES (1)").await;
    backup.start_again().await;
    assert_eq!(count(&mut backup.options().connect().await.unwrap()).await, 0);

    server.stop().await;
    let copy = server.clone_stopped().await;
    run(&mut copy.options().connect().await.unwrap(), "INSERT INTO numbers VALUES (2)").await;
    server.start_again().await;
    assert_eq!(count(&mut server.options().connect().await.unwrap()).await, 1);
}

#[tokio::test]
async fn a_standby_takes_writes_once_promoted() {
    let primary = Private::start(PgVersion::V15).await;
    run(&mut primary.options().connect().await.unwrap(), "CREATE TABLE numbers (n int)").await;
    let standby = primary.standby().await;
    let mut connection = standby.options().connect().await.unwrap();
    assert!(sqlx::raw_sql("INSERT INTO numbers VALUES (1)").execute(&mut connection).await.is_err());

    primary.kill9().await;
    standby.promote().await;
    run(&mut connection, "INSERT INTO numbers VALUES (1)").await;
    assert_eq!(count(&mut connection).await, 1);
}

#[tokio::test]
async fn a_dump_restores_the_rows() {
    let server = Server::shared(PgVersion::V15);
    let (full, empty) = (server.database().await, server.database().await);
    run(&mut full.connect().await, "CREATE TABLE numbers (n int); INSERT INTO numbers VALUES (1)").await;
    full.restore_into(&empty).await;
    assert_eq!(count(&mut empty.connect().await).await, 1);
}

#[tokio::test]
async fn many_clients_share_few_connections_behind_pgbouncer() {
    let server = Server::shared(PgVersion::V15);
    let database = server.database().await;
    let bouncer = PgBouncer::in_front_of(server.url()).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = bouncer.options_for(database.name()).connect().await.unwrap();
        run(&mut client, "SELECT 1").await;
        clients.push(client);
    }
    let mut direct = database.connect().await;
    let servers: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()")
            .bind(database.name())
            .fetch_one(&mut direct)
            .await
            .unwrap();
    assert!((1..=4).contains(&servers), "{servers} connections");
}
