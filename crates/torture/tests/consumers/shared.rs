//! Messages and lanes that two members have at the same time.

use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{Member, Point};
use tokio::time::sleep;

use crate::conduct::{DONE, Event, Guard, Log, does};
use crate::on::{On, Shape};
use crate::stage::{Stage, start, until};

pub(crate) async fn the_same_message_on_two_workers_at_once_has_one_effect(on: On) {
    let stage = Stage::set(on, Shape::Unordered).await;
    // Both groups receive every message, and both belong to the same consumer.
    let second_feed = stage.second_feed().await;
    let (in_hand, met) = (Event::new(), Event::new());
    let slow = {
        let (in_hand, met) = (in_hand.clone(), met.clone());
        does(move |moment| {
            let (in_hand, met) = (in_hand.clone(), met.clone());
            async move {
                if moment.point == Point::During {
                    in_hand.happen();
                    met.wait().await;
                }
                DONE
            }
        })
    };
    let mut one = Member { conduct: slow, ..stage.member("one") };
    one.config.handler_timeout = Duration::from_secs(20);
    one.stall_deadline = Duration::from_secs(20);
    let one = start(one).await;
    let waiting = does(move |moment| {
        let in_hand = in_hand.clone();
        async move {
            if moment.point == Point::Before {
                in_hand.wait().await;
            }
            DONE
        }
    });
    let two = Member { feed: second_feed.clone(), conduct: waiting, ..stage.member("two") };
    let two = start(two).await;
    stage.send(12, 6).await;
    until("the other met a message that is in hand", async || two.stats().busy() > 0).await;
    met.happen();
    stage.until_all().await;
    let done = || one.stats().done() + two.stats().done();
    let ended = || done() + one.stats().duplicates() + two.stats().duplicates();
    // A message whose lease expired is delivered again, and counts as a duplicate once more.
    until("both have dealt with every message", async || done() >= 12 && ended() >= 24).await;
    assert_eq!(done(), 12);
    until("the second queue is empty", async || second_feed.left().await.is_ok_and(|left| left == 0)).await;
    stage.finish([one, two], &[]).await;
}

pub(crate) async fn a_lane_that_moves_during_handling_keeps_its_order(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let (guard, joined, in_hand) = (Guard::default(), Event::new(), Log::new());
    let guarded = |member: &'static str| {
        let (guard, joined, in_hand) = (guard.clone(), joined.clone(), in_hand.clone());
        does(move |moment| {
            let (guard, joined, in_hand) = (guard.clone(), joined.clone(), in_hand.clone());
            async move {
                if moment.point == Point::During {
                    let _inside = guard.enter(member, &moment.lane);
                    in_hand.note(moment.change);
                    joined.wait().await;
                    // Long enough for another member to start handling in parallel.
                    sleep(Duration::from_millis(3)).await;
                }
                DONE
            }
        })
    };
    let one = stage.start("one", guarded("one")).await;
    stage.send(48, 16).await;
    until("some are in hand", async || in_hand.len() > 0).await;
    let two = stage.start("two", guarded("two")).await;
    joined.happen();
    until("the second member has its share", async || {
        stage.send(16, 16).await;
        stage.until_all().await;
        stage.rows().await.iter().any(|row| row.member == "two")
    })
    .await;
    stage.finish([one, two], &[]).await;
    assert_eq!(guard.broken(), Vec::<String>::new());
}

pub(crate) async fn members_that_come_and_go_keep_the_order(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let steady = || Arc::new(relevo_torture::ledger::Steady);
    let mut last = stage.start("m0", steady()).await;
    for name in ["m1", "m2"] {
        stage.send(60, 12).await;
        let next = stage.start(name, steady()).await;
        stage.send(60, 12).await;
        last.stop().await.expect("it stops in good order");
        last = next;
    }
    stage.until_all().await;
    stage.finish([last], &[]).await;
}
