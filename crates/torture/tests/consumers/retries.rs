//! Durable retries. Their count survives the process.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::{Backoff, RetryPolicy};
use relevo_inbox::{HandlerError, RetryStorage};
use relevo_torture::ledger::{Behaviour, Member, Point};

use crate::backends::{Backends, OrderMode};
use crate::behaviour::{DONE, Log, behaviour_fn};
use crate::harness::{Harness, start, until};

const FAILING: i64 = 3;
const ATTEMPTS: u32 = 4;

/// Makes one change fail at every attempt, and records the attempts. From attempt `hangs_at` on it hangs instead, until
/// its process ends.
fn failing(attempts: &Log<u32>, hangs_at: u32) -> Arc<dyn Behaviour> {
    let attempts = attempts.clone();
    behaviour_fn(move |event| {
        let fails = event.point == Point::During && event.change == FAILING;
        if fails {
            attempts.push(event.attempt);
        }
        async move {
            if fails && event.attempt >= hangs_at {
                std::future::pending::<()>().await;
            }
            if fails { Err(HandlerError::transient("it fails").into()) } else { DONE }
        }
    })
}

fn retried(mut member: Member, durable: RetryStorage) -> Member {
    let policy = RetryPolicy {
        base: Duration::from_millis(100),
        backoff: Backoff::Exponential { factor: 2 },
        max: Duration::from_millis(200),
        jitter_percent: 0,
        attempts_max: ATTEMPTS,
    };
    member.config.retry = HandlerRetryPolicy { in_memory: Vec::new(), durable: policy };
    member.config.retry_storage = durable;
    // Claims of a dead process last for several deadlines, so the deadline is short. It must not be shorter: an attempt
    // that ends before its row is written is not recorded.
    member.config.handler_timeout = Duration::from_secs(3);
    member.config.after_dead = AfterDead::Continue;
    member
}

async fn assert_dead_after_all_attempts(harness: &Harness, attempts: &Log<u32>) {
    until("it is a dead letter", async || harness.dead().await.len() == 1).await;
    let mut recorded = attempts.all();
    recorded.dedup();
    assert_eq!(recorded, [1, 2, 3, 4], "{:?}", attempts.all());
    assert_eq!(harness.dead().await[0].attempts, ATTEMPTS);
    harness.until_rows(harness.count() - 1).await;
}

pub(crate) async fn attempts_of_the_retry_table_survive_their_process(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let attempts = Log::new();
    harness.send(12, 4).await;
    let one = Member { behaviour: failing(&attempts, 3), ..harness.member("one") };
    let one = start(retried(one, RetryStorage::Inbox)).await;
    // The third attempt hangs until its deadline, and then fails too.
    until("two attempts failed", async || attempts.len() >= 2 && one.status().handler_failures() >= 2).await;
    // Dropped without a stop, like a killed process.
    drop(one);
    let two = Member { behaviour: failing(&attempts, u32::MAX), ..harness.member("two") };
    let two = start(retried(two, RetryStorage::Inbox)).await;
    assert_dead_after_all_attempts(&harness, &attempts).await;
    harness.finish([two], &[FAILING]).await;
}

pub(crate) async fn attempts_of_the_broker_survive_their_process(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Unordered).await;
    let attempts = Log::new();
    harness.send(12, 4).await;
    let one = Member { behaviour: failing(&attempts, u32::MAX), ..harness.member("one") };
    let one = start(retried(one, RetryStorage::Broker)).await;
    until("two attempts failed", async || one.status().handler_failures() >= 2).await;
    one.stop().await.expect("it stops cleanly");
    let two = Member { behaviour: failing(&attempts, u32::MAX), ..harness.member("two") };
    let two = start(retried(two, RetryStorage::Broker)).await;
    assert_dead_after_all_attempts(&harness, &attempts).await;
    harness.finish([two], &[FAILING]).await;
}

/// The message still has all its attempts after an outage of an external service, however many members received it.
pub(crate) async fn attempts_of_the_broker_are_no_deliveries(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Unordered).await;
    let attempts = Log::new();
    harness.send(12, 4).await;
    for name in ["one", "two", "three", "four"] {
        let behaviour = behaviour_fn(|event| async move {
            if event.change == FAILING {
                Err(HandlerError::unavailable("the mail server is down").into())
            } else {
                DONE
            }
        });
        let member = start(retried(Member { behaviour, ..harness.member(name) }, RetryStorage::Broker)).await;
        until("it was delivered", async || member.status().handler_outages() > 0).await;
        member.stop().await.expect("it stops cleanly");
    }
    let last = Member { behaviour: failing(&attempts, u32::MAX), ..harness.member("last") };
    let last = start(retried(last, RetryStorage::Broker)).await;
    assert_dead_after_all_attempts(&harness, &attempts).await;
    harness.finish([last], &[FAILING]).await;
}
