//! Handlers that never return.

use std::time::Duration;

use relevo_torture::ledger::{Member, Point};

use crate::conduct::{DONE, does};
use crate::on::{On, Shape};
use crate::stage::{Stage, start, until};

pub(crate) async fn a_handler_that_never_returns_lets_its_lane_go_on_elsewhere(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let hangs = does(|moment| async move {
        if moment.point == Point::During && moment.change == 1 {
            std::future::pending::<()>().await;
        }
        DONE
    });
    let hasty = |mut member: Member| {
        member.config.handler_timeout = Duration::from_millis(250);
        member.config.retry.in_memory.clear();
        member.config.retry.durable.max = Duration::from_millis(100);
        // High enough, however often the hanging message is tried.
        member.config.retry.durable.attempts_max = 1_000;
        member
    };
    stage.send(16, 8).await;
    let one = start(hasty(Member { conduct: hangs, ..stage.member("hangs") })).await;
    until("a try passed its deadline", async || one.stats().handler_timeouts() > 0).await;
    // The first and the ninth message have the same key.
    stage.until_rows(14).await;
    let two = start(hasty(stage.member("returns"))).await;
    stage.until_all().await;
    let rows = stage.rows().await;
    let first = rows.iter().find(|row| row.change == 1).expect("it is there");
    assert_eq!(first.member, "returns");
    stage.finish([one, two], &[]).await;
}
