//! The last number of a tick: while numbers are drawn, the row of a sequence may show a number that no transaction has.

use std::time::Duration;

use crate::sql_support::{Reader, SqlTest};
use sqlx::Row as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const WRITERS: usize = 4;
/// Reading the row without its lock shows a decrease several times a second. The limit is for the slowest machine.
const ATTEMPTS_MAX: Duration = Duration::from_mins(2);

/// Builds a function that reads repeatedly for two seconds. It returns the number of reads and of decreases.
fn reads(number: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION backs(OUT reads bigint, OUT backs bigint) LANGUAGE plpgsql AS $$
         DECLARE
             before bigint := 0;
             number bigint;
             until timestamptz := clock_timestamp() + '2 s';
         BEGIN
             reads := 0;
             backs := 0;
             WHILE clock_timestamp() < until LOOP
                 SELECT {number} INTO number;
                 reads := reads + 1;
                 backs := backs + (number < before)::int;
                 before := number;
             END LOOP;
         END $$"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_number_never_goes_back_while_numbers_are_drawn() {
    let bed = SqlTest::on_shared_server(8).await;
    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (mut session, stop) = (bed.session().await, stop.clone());
        writers.spawn(async move {
            while !stop.is_cancelled() {
                session.run("SELECT count(nextval('relevo.message_seq')) FROM generate_series(1, 500)").await;
            }
        });
    }
    let mut session = bed.session().await;
    session.run(&reads("last_value FROM relevo.message_seq")).await;
    let begun = std::time::Instant::now();
    while session.rows("SELECT * FROM backs()").await[0].get::<i64, _>("backs") == 0 {
        assert!(begun.elapsed() < ATTEMPTS_MAX, "the row itself never went back: is the lock needed at all?");
    }
    session.run(&reads("relevo.last_seq()")).await;
    for _ in 0..3 {
        let row = session.rows("SELECT * FROM backs()").await.remove(0);
        let (reads, backs): (i64, i64) = (row.get("reads"), row.get("backs"));
        assert!(reads > 100 && backs == 0, "{backs} of {reads} went back");
    }
    stop.cancel();
    while let Some(ended) = writers.join_next().await {
        ended.expect("writers end well");
    }
}

#[tokio::test]
async fn a_tick_above_the_last_drawn_number_skips_messages() {
    const HIGH: &str = "SELECT last_seq() INTO h;";
    for (high, expected) in [(HIGH, vec!["after"]), ("SELECT last_seq() + 32 INTO h;", vec![])] {
        let bed = SqlTest::on_shared_server(8).await;
        bed.mutate("make_tick", HIGH, high).await;
        let mut reader = Reader::start(&bed).await;
        bed.emit("k", "before").await;
        assert_eq!(reader.drain().await, ["before"]);
        bed.emit("k", "after").await;
        assert_eq!(reader.drain().await, expected, "{high}");
    }
}
