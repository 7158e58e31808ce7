//! Messages and lanes that two members have at the same time.

use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{Member, Point};
use tokio::time::sleep;

use crate::backends::{Backends, OrderMode};
use crate::behaviour::{DONE, Event, LaneGuard, Log, behaviour_fn};
use crate::harness::{Harness, start, until};

pub(crate) async fn the_same_message_on_two_workers_at_once_has_one_effect(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Unordered).await;
    // Both groups receive every message, and both belong to the same consumer.
    let second_feed = harness.second_feed().await;
    let (handling, released) = (Event::new(), Event::new());
    let slow = {
        let (handling, released) = (handling.clone(), released.clone());
        behaviour_fn(move |event| {
            let (handling, released) = (handling.clone(), released.clone());
            async move {
                if event.point == Point::During {
                    handling.set();
                    released.wait().await;
                }
                DONE
            }
        })
    };
    let mut one = Member { behaviour: slow, ..harness.member("one") };
    one.config.handler_timeout = Duration::from_secs(20);
    one.stall_timeout = Duration::from_secs(20);
    let one = start(one).await;
    let waiting = behaviour_fn(move |event| {
        let handling = handling.clone();
        async move {
            if event.point == Point::Before {
                handling.wait().await;
            }
            DONE
        }
    });
    let two = Member { feed: second_feed.clone(), behaviour: waiting, ..harness.member("two") };
    let two = start(two).await;
    harness.send(12, 6).await;
    until("the other received a message that is being handled", async || two.status().busy() > 0).await;
    released.set();
    harness.until_all().await;
    let done = || one.status().done() + two.status().done();
    let finished = || done() + one.status().duplicates() + two.status().duplicates();
    // A message whose lease expired is delivered again, and counts as a duplicate once more.
    until("both have finished every message", async || done() >= 12 && finished() >= 24).await;
    assert_eq!(done(), 12);
    until("the second queue is empty", async || second_feed.unsettled().await.is_ok_and(|count| count == 0)).await;
    harness.finish([one, two], &[]).await;
}

pub(crate) async fn a_lane_that_moves_during_handling_keeps_its_order(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let (guard, joined, handling) = (LaneGuard::default(), Event::new(), Log::new());
    let guarded = |member: &'static str| {
        let (guard, joined, handling) = (guard.clone(), joined.clone(), handling.clone());
        behaviour_fn(move |event| {
            let (guard, joined, handling) = (guard.clone(), joined.clone(), handling.clone());
            async move {
                if event.point == Point::During {
                    let _inside = guard.enter(member, &event.lane);
                    handling.push(event.change);
                    joined.wait().await;
                    // Long enough for another member to start handling in parallel.
                    sleep(Duration::from_millis(3)).await;
                }
                DONE
            }
        })
    };
    let one = harness.start("one", guarded("one")).await;
    harness.send(48, 16).await;
    until("some are being handled", async || handling.len() > 0).await;
    let two = harness.start("two", guarded("two")).await;
    joined.set();
    until("the second member has its share", async || {
        harness.send(16, 16).await;
        harness.until_all().await;
        harness.rows().await.iter().any(|row| row.member == "two")
    })
    .await;
    harness.finish([one, two], &[]).await;
    assert_eq!(guard.violations(), Vec::<String>::new());
}

pub(crate) async fn members_that_come_and_go_keep_the_order(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let no_fault = || Arc::new(relevo_torture::ledger::NoFault);
    let mut last = harness.start("m0", no_fault()).await;
    for name in ["m1", "m2"] {
        harness.send(60, 12).await;
        let next = harness.start(name, no_fault()).await;
        harness.send(60, 12).await;
        last.stop().await.expect("it stops cleanly");
        last = next;
    }
    harness.until_all().await;
    harness.finish([last], &[]).await;
}
