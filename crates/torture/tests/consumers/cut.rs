//! Stores and brokers that are unreachable for a while, or repeatedly.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_store_sqlite::connect_options;
use relevo_testkit::proxy::CutProxy;
use relevo_torture::ledger::{Member, Point, Running};
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::time::sleep;

use crate::conduct::{DONE, Log, does};
use crate::on::{self, Backing, By, On, Shape, file_of};
use crate::stage::{Stage, start, until};

/// The path to a store or broker that the test can interrupt: a server behind a proxy, or a file to lock.
enum Way {
    Proxy(CutProxy),
    File(std::path::PathBuf),
}

/// The interruption.
enum Away<'a> {
    Blocked(&'a CutProxy),
    Locked(SqliteConnection),
}

impl Way {
    async fn to(url: &str) -> (Self, String) {
        if let Some(file) = file_of(url) {
            return (Self::File(file.to_owned()), url.to_owned());
        }
        let (proxy, through) = on::behind_proxy(url).await;
        (Self::Proxy(proxy), through)
    }

    async fn take_away(&self) -> Away<'_> {
        match self {
            Self::Proxy(proxy) => {
                proxy.block().await;
                Away::Blocked(proxy)
            }
            Self::File(file) => {
                let mut connection = connect_options(file).connect().await.expect("a file");
                sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut connection).await.expect("its lock");
                Away::Locked(connection)
            }
        }
    }

    /// Interrupts it for a moment.
    async fn cut(&self) {
        match self {
            Self::Proxy(proxy) => proxy.cut().await,
            Self::File(_) => {
                let away = self.take_away().await;
                sleep(Duration::from_millis(30)).await;
                away.end().await;
            }
        }
    }
}

impl Away<'_> {
    async fn end(self) {
        match self {
            Self::Blocked(proxy) => proxy.unblock(),
            Self::Locked(mut connection) => {
                sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.expect("our own transaction");
            }
        }
    }
}

/// Whether the member has noticed that its database is unreachable.
fn has_noticed(running: &Running) -> bool {
    let stats = running.stats();
    stats.heartbeats_failed() >= 2 || stats.database_outages() > stats.heartbeats_failed() || stats.busy() > 0
}

pub(crate) async fn while_the_store_is_away_nothing_is_acknowledged(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let acknowledged = Log::new();
    let noting = {
        let acknowledged = acknowledged.clone();
        does(move |moment| {
            if moment.point == Point::Committed {
                acknowledged.note(moment.change);
            }
            async { DONE }
        })
    };
    let (way, url) = Way::to(&stage.backing.store_url()).await;
    let member = Member { store: url.parse().expect("a URL"), conduct: noting, ..stage.member("one") };
    let running = start(member).await;
    stage.send(12, 6).await;
    // A message that is delivered again is acknowledged again.
    let changes = || BTreeSet::from_iter(acknowledged.all());
    let first: BTreeSet<i64> = (1..=12).collect();
    until("the first are acknowledged", async || changes() == first).await;
    let away = way.take_away().await;
    stage.send(24, 6).await;
    until("the member has noticed", async || has_noticed(&running)).await;
    assert_eq!(changes(), first, "nothing is acknowledged meanwhile");
    away.end().await;
    stage.until_all().await;
    stage.finish([running], &[]).await;
}

pub(crate) async fn a_store_cut_off_again_and_again_costs_nothing(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let (way, url) = Way::to(&stage.backing.store_url()).await;
    let mut member = Member { store: url.parse().expect("a URL"), ..stage.member("one") };
    member.config.batch_max = 3;
    let running = start(member).await;
    for round in 0..10_u64 {
        stage.send(16, 8).await;
        sleep(Duration::from_millis(5 * round)).await;
        way.cut().await;
    }
    stage.until_all().await;
    stage.finish([running], &[]).await;
}

pub(crate) async fn a_broker_cut_off_again_and_again_costs_nothing(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let (way, spec) = Way::to(&stage.backing.broker(on, &stage.consumer)).await;
    let mut member = stage.member("one");
    member.feed.kind = spec.parse().expect("a spec");
    let running = start(member).await;
    for round in 0..5_u64 {
        stage.send(16, 8).await;
        sleep(Duration::from_millis(5 * round)).await;
        way.cut().await;
    }
    stage.until_all().await;
    stage.finish([running], &[]).await;
}

pub(crate) async fn a_broker_killed_and_restarted_costs_nothing(on: On) {
    let stage = Stage::with(Backing::private(on).await, on, Shape::Ordered).await;
    if on.broker == By::Embedded {
        // This broker lives in the processes that use it: killing a process kills the broker in it.
        let mut process = stage.process("killed", &[]).await;
        stage.send(60, 12).await;
        stage.until_rows(5).await;
        process.kill9().await;
    }
    let slow = does(|moment| async move {
        if moment.point == Point::During {
            sleep(Duration::from_millis(5)).await;
        }
        DONE
    });
    let running = stage.start("one", slow).await;
    if let Some(server) = &stage.backing.rabbitmq {
        // A quorum queue that is killed shortly after its creation may come back empty, which is a loss of the server
        // itself. A clean restart avoids it.
        server.stop().await;
        server.start_again().await;
    }
    stage.send(60, 12).await;
    stage.until_rows(10).await;
    if let Some(server) = &stage.backing.rabbitmq {
        server.kill9().await;
        server.start_again().await;
    }
    if let Some(server) = &stage.backing.nats {
        server.kill9().await;
        server.start_again().await;
    }
    stage.send(24, 12).await;
    stage.until_all().await;
    stage.finish([running], &[]).await;
}
