//! Rows of the table in docs/reference/failures.md that are about a restored database or a standby.

use std::time::Instant;

use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Private, Server};
use sqlx::ConnectOptions as _;

use crate::daemon::{DEADLINE, Daemon, until};
use crate::failure::run_command;
use crate::test_outbox::{BEGIN, Directory, TestOutbox};

/// A relay from this database.
fn relay(shop: &TestOutbox, url: &str) -> Daemon {
    let outbox = shop.outbox("shop", url, "start = \"oldest\"");
    Daemon::start(&shop.directory.write("relevo.toml", &format!("{BEGIN}{outbox}")), &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_a_restored_dump_ends_with_the_command_to_run() {
    let fresh = Private::start(PgVersion::V15).await;
    refused_until("rebase", fresh.database().await).await;
}

/// On the same server, transaction ids continue, so no row needs a change.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_of_a_dump_restored_beside_the_original_ends_with_the_command_to_adopt_it() {
    refused_until("adopt", Server::shared(PgVersion::V15).database().await).await;
}

/// A dump is restored into this database: relays refuse it, publish nothing, and log the command that makes it usable.
async fn refused_until(command: &str, restored: Database) {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    daemon.stop();
    shop.emit("orders", 5).await;
    shop.database.restore_into(&restored).await;

    let mut refused = relay(&shop, &restored.url());
    assert_eq!(refused.end(), Some(1), "{}", refused.log());
    until("the log has the command", || refused.log().contains(&format!("relevo outbox {command}")));
    assert_eq!(shop.arrived("shop").await.len(), 10, "nothing was published");
    let shop = TestOutbox { database: restored, directory: shop.directory };
    run_command(&shop, &["outbox", command, "--yes"]);
    let mut daemon = shop.start("");
    TestOutbox::delivered(&daemon, "shop", 5);
    daemon.stop();
    assert_eq!(shop.arrived("shop").await.len(), 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_reaches_a_standby_logs_it_and_waits_for_the_promotion() {
    let primary = Private::start(PgVersion::V15).await;
    let database = primary.database().await;
    migrate::migrate(&mut database.connect().await, &Schema::default()).await.expect("an empty database");
    let shop = TestOutbox { database, directory: Directory::new() };
    shop.run("SELECT relevo.add_destination('main', 8, 'oldest')").await;
    shop.emit("orders", 5).await;
    let standby = primary.standby().await;
    let options = standby.options().database(shop.database.name());
    let mut session = options.connect().await.expect("a standby that can be read");
    let end = Instant::now() + DEADLINE;
    while sqlx::raw_sql("SELECT 1 FROM relevo.message").fetch_all(&mut session).await.map_or(0, |rows| rows.len()) < 5 {
        assert!(Instant::now() < end, "the standby has not received all rows");
    }
    let port = |private: &Private| format!(":{}/", private.port());
    let mut daemon = relay(&shop, &shop.database.url().replace(&port(&primary), &port(&standby)));
    daemon.nth_line("database unreachable, unsettled messages will be read again", 3);
    assert!(daemon.log().contains("the database is a standby"), "{}", daemon.log());
    assert_eq!((daemon.get("/readyz").0, daemon.get("/livez").0), (503, 200), "{:?}", daemon.get("/readyz"));
    assert!(daemon.metric("outbox_database_outages_total{") >= Some(3));
    assert_eq!(shop.arrived("shop").await.len(), 0, "nothing was published");
    standby.promote().await;
    TestOutbox::delivered(&daemon, "shop", 5);
    daemon.ready();
    daemon.stop();
}
