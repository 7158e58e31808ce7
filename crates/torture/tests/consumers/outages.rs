//! Stores and brokers that are unreachable for a while, or repeatedly.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_store_sqlite::connect_options;
use relevo_testkit::proxy::CutProxy;
use relevo_torture::ledger::{Member, Point, RunningMember};
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::time::sleep;

use crate::backends::{self, Backends, BrokerKind, OrderMode, Resources, file_of};
use crate::behaviour::{DONE, Log, behaviour_fn};
use crate::harness::{Harness, start, until};

/// The path to a store or broker that the test can interrupt: a server behind a proxy, or a file to lock.
enum Target {
    Proxy(CutProxy),
    File(std::path::PathBuf),
}

/// The interruption.
enum Interruption<'a> {
    Blocked(&'a CutProxy),
    Locked(SqliteConnection),
}

impl Target {
    async fn to(url: &str) -> (Self, String) {
        if let Some(file) = file_of(url) {
            return (Self::File(file.to_owned()), url.to_owned());
        }
        let (proxy, through) = backends::behind_proxy(url).await;
        (Self::Proxy(proxy), through)
    }

    async fn interrupt(&self) -> Interruption<'_> {
        match self {
            Self::Proxy(proxy) => {
                proxy.block().await;
                Interruption::Blocked(proxy)
            }
            Self::File(file) => {
                let mut connection = connect_options(file).connect().await.expect("a file");
                sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut connection).await.expect("its lock");
                Interruption::Locked(connection)
            }
        }
    }

    /// Interrupts it for a moment.
    async fn cut(&self) {
        match self {
            Self::Proxy(proxy) => proxy.cut().await,
            Self::File(_) => {
                let interruption = self.interrupt().await;
                sleep(Duration::from_millis(30)).await;
                interruption.end().await;
            }
        }
    }
}

impl Interruption<'_> {
    async fn end(self) {
        match self {
            Self::Blocked(proxy) => proxy.unblock(),
            Self::Locked(mut connection) => {
                sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.expect("the transaction is open");
            }
        }
    }
}

/// Whether the member has noticed that its database is unreachable.
fn has_noticed(running: &RunningMember) -> bool {
    let status = running.status();
    status.heartbeats_failed() >= 2 || status.database_outages() > status.heartbeats_failed() || status.busy() > 0
}

pub(crate) async fn nothing_is_acknowledged_while_the_store_is_unreachable(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let acknowledged = Log::new();
    let recording = {
        let acknowledged = acknowledged.clone();
        behaviour_fn(move |event| {
            if event.point == Point::Committed {
                acknowledged.push(event.change);
            }
            async { DONE }
        })
    };
    let (target, url) = Target::to(&harness.resources.store_url()).await;
    let member = Member { store: url.parse().expect("a URL"), behaviour: recording, ..harness.member("one") };
    let running = start(member).await;
    harness.send(12, 6).await;
    // A message that is delivered again is acknowledged again.
    let changes = || BTreeSet::from_iter(acknowledged.all());
    let first: BTreeSet<i64> = (1..=12).collect();
    until("the first are acknowledged", async || changes() == first).await;
    let interruption = target.interrupt().await;
    harness.send(24, 6).await;
    until("the member has noticed", async || has_noticed(&running)).await;
    assert_eq!(changes(), first, "nothing is acknowledged meanwhile");
    interruption.end().await;
    harness.until_all().await;
    harness.finish([running], &[]).await;
}

pub(crate) async fn repeated_store_outages_lose_nothing(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let (target, url) = Target::to(&harness.resources.store_url()).await;
    let mut member = Member { store: url.parse().expect("a URL"), ..harness.member("one") };
    member.config.batch_max = 3;
    let running = start(member).await;
    for round in 0..10_u64 {
        harness.send(16, 8).await;
        sleep(Duration::from_millis(5 * round)).await;
        target.cut().await;
    }
    harness.until_all().await;
    harness.finish([running], &[]).await;
}

pub(crate) async fn repeated_broker_outages_lose_nothing(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let (target, spec) = Target::to(&harness.resources.broker(backends, &harness.consumer)).await;
    let mut member = harness.member("one");
    member.feed.kind = spec.parse().expect("a spec");
    let running = start(member).await;
    for round in 0..5_u64 {
        harness.send(16, 8).await;
        sleep(Duration::from_millis(5 * round)).await;
        target.cut().await;
    }
    harness.until_all().await;
    harness.finish([running], &[]).await;
}

pub(crate) async fn a_killed_and_restarted_broker_loses_nothing(backends: Backends) {
    let harness = Harness::with(Resources::private(backends).await, backends, OrderMode::Ordered).await;
    if backends.broker == BrokerKind::Embedded {
        // This broker lives in the processes that use it: killing a process kills the broker in it.
        let mut process = harness.process("killed", &[]).await;
        harness.send(60, 12).await;
        harness.until_rows(5).await;
        process.kill9().await;
    }
    let slow = behaviour_fn(|event| async move {
        if event.point == Point::During {
            sleep(Duration::from_millis(5)).await;
        }
        DONE
    });
    let running = harness.start("one", slow).await;
    if let Some(server) = &harness.resources.rabbitmq {
        // A quorum queue that is killed shortly after its creation may come back empty, which is a loss of the server
        // itself. A clean restart avoids it.
        server.stop().await;
        server.start_again().await;
    }
    harness.send(60, 12).await;
    harness.until_rows(10).await;
    if let Some(server) = &harness.resources.rabbitmq {
        server.kill9().await;
        server.start_again().await;
    }
    if let Some(server) = &harness.resources.nats {
        server.kill9().await;
        server.start_again().await;
    }
    harness.send(24, 12).await;
    harness.until_all().await;
    harness.finish([running], &[]).await;
}
