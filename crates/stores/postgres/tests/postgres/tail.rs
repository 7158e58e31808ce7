//! Following the log: every committed message once, also from transactions that commit late.

use std::time::Duration;

use crate::relay_support::{TestDatabase, execute};
use relevo_core::outbox::search::{OutboxSearch as _, TailFilter, TailPage};
use relevo_store_postgres::Operator;
use relevo_testkit::PgVersion;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;

async fn emit(connection: &mut PgConnection, key: &str) -> String {
    let sql = format!("SELECT relevo.emit('orders', '{key}', 'T', '{{}}')::text");
    execute(connection, &sql).await.expect("a good message")[0].try_get(0).expect("an id")
}

/// Follows an outbox from the messages that are visible now.
struct Tail {
    operator: Operator,
    filter: TailFilter,
    page: TailPage,
}

impl Tail {
    async fn start(world: &TestDatabase, filter: TailFilter, lines: usize) -> Self {
        let operator = world.operator().await;
        let page = operator.tail(&filter, None, lines).await.expect("a page");
        Self { operator, filter, page }
    }

    async fn next(&mut self, limit: usize) -> Vec<String> {
        self.page = self.operator.tail(&self.filter, Some(&self.page.next), limit).await.expect("a page");
        self.keys()
    }

    fn keys(&self) -> Vec<String> {
        self.page.messages.iter().map(|message| message.key.clone()).collect()
    }
}

#[tokio::test]
async fn a_transaction_that_commits_late_is_not_missed() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let (mut late, mut other) = (world.connect().await, world.connect().await);
        execute(&mut late, "BEGIN").await.expect("a transaction");
        emit(&mut late, "late").await;
        emit(&mut other, "first").await;
        let mut tail = Tail::start(&world, TailFilter::default(), 10).await;
        assert_eq!(tail.keys(), ["first"]);
        emit(&mut other, "second").await;
        assert_eq!(tail.next(10).await, ["second"]);
        assert_eq!(tail.next(10).await, [""; 0]);
        emit(&mut late, "late, too").await;
        execute(&mut late, "COMMIT").await.expect("it commits");
        emit(&mut other, "third").await;
        assert_eq!(tail.next(1).await, ["late"], "PostgreSQL {}", version.major());
        emit(&mut other, "fourth").await;
        assert_eq!((tail.next(1).await, tail.page.more), (vec!["late, too".to_owned()], true));
        assert_eq!(tail.next(2).await, ["third"], "the rest of the window");
        assert_eq!(tail.next(10).await, ["fourth"]);
        assert_eq!((tail.next(10).await, tail.page.more), (Vec::new(), false));
    }
}

#[tokio::test]
async fn a_page_has_only_what_the_filter_selects_and_the_first_one_the_newest() {
    let world = TestDatabase::new().await;
    world.emit(&["a", "b", "a", "c", "a"]).await;
    let of = |key: &str| TailFilter { key: Some(key.to_owned()), ..TailFilter::default() };
    assert_eq!(Tail::start(&world, TailFilter::default(), 2).await.keys(), ["c", "a"]);
    assert_eq!(Tail::start(&world, TailFilter::default(), 0).await.keys(), [""; 0]);
    let mut tail = Tail::start(&world, of("a"), 2).await;
    assert_eq!(tail.keys(), ["a", "a"]);
    world.emit(&["b", "a", "c"]).await;
    assert_eq!(tail.next(10).await, ["a"]);
    let other_topic = TailFilter { topic: Some("invoices".to_owned()), ..TailFilter::default() };
    assert_eq!(Tail::start(&world, other_topic, 10).await.keys(), [""; 0]);
}

#[tokio::test]
async fn every_message_is_returned_once_while_many_transactions_write() {
    let world = TestDatabase::new().await;
    let mut tail = Tail::start(&world, TailFilter::default(), 0).await;
    let mut writers = JoinSet::new();
    for writer in 0..8_u64 {
        let mut connection = world.connect().await;
        writers.spawn(async move {
            let mut committed = Vec::new();
            for turn in 0..40_u64 {
                execute(&mut connection, "BEGIN").await.expect("a transaction");
                let mut ids = vec![emit(&mut connection, "k").await];
                // Transactions overlap for different times, so that numbers become visible out of order.
                tokio::time::sleep(Duration::from_millis((writer * 7 + turn * 3) % 11)).await;
                ids.push(emit(&mut connection, "k").await);
                let commits = (writer + turn) % 5 != 0;
                execute(&mut connection, if commits { "COMMIT" } else { "ROLLBACK" }).await.expect("it ends");
                if commits {
                    committed.extend(ids);
                }
            }
            committed
        });
    }
    let (mut committed, mut returned) = (Vec::new(), Vec::new());
    loop {
        let is_last = writers.is_empty();
        tail.next(7).await;
        returned.extend(tail.page.messages.iter().map(|message| message.id.to_string()));
        if is_last && tail.page.messages.is_empty() {
            break;
        }
        while let Some(ids) = writers.try_join_next() {
            committed.extend(ids.expect("it does not panic"));
        }
    }
    committed.sort_unstable();
    returned.sort_unstable();
    assert_eq!(returned, committed);
}

#[tokio::test]
async fn a_cursor_of_another_origin_is_rejected() {
    let operator = TestDatabase::new().await.operator().await;
    for cursor in ["", "7", "1:2: 3", "1:2: 1:2: x 1"] {
        let error = operator.tail(&TailFilter::default(), Some(cursor), 1).await.expect_err("no cursor");
        assert!(error.to_string().contains("is not a position"), "{cursor}: {error}");
    }
}
