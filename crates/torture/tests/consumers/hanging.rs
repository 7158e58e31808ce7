//! Handlers that never return.

use std::time::Duration;

use relevo_torture::ledger::{Member, Point};

use crate::backends::{Backends, OrderMode};
use crate::behaviour::{DONE, behaviour_fn};
use crate::harness::{Harness, start, until};

pub(crate) async fn a_lane_with_a_hanging_handler_continues_at_another_member(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let hangs = behaviour_fn(|event| async move {
        if event.point == Point::During && event.change == 1 {
            std::future::pending::<()>().await;
        }
        DONE
    });
    let short_timeouts = |mut member: Member| {
        member.config.handler_timeout = Duration::from_millis(250);
        member.config.retry.in_memory.clear();
        member.config.retry.durable.max = Duration::from_millis(100);
        // High enough for any number of attempts of the hanging message.
        member.config.retry.durable.attempts_max = 1_000;
        member
    };
    harness.send(16, 8).await;
    let one = start(short_timeouts(Member { behaviour: hangs, ..harness.member("hangs") })).await;
    until("an attempt timed out", async || one.status().handler_timeouts() > 0).await;
    // The first and the ninth message have the same key.
    harness.until_rows(14).await;
    let two = start(short_timeouts(harness.member("returns"))).await;
    harness.until_all().await;
    let rows = harness.rows().await;
    let first = rows.iter().find(|row| row.change == 1).expect("it has a row");
    assert_eq!(first.member, "returns");
    harness.finish([one, two], &[]).await;
}
