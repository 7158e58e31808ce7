//! Durable retries. Their count survives the process.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::{Backoff, RetryPolicy};
use relevo_inbox::{HandlerError, RetryStorage};
use relevo_torture::ledger::{Conduct, Member, Point};

use crate::conduct::{DONE, Log, does};
use crate::on::{On, Shape};
use crate::stage::{Stage, start, until};

const ILL: i64 = 3;
const ATTEMPTS: u32 = 4;

/// Makes one change fail at every attempt, and records the attempts. From attempt `hangs_at` on it hangs instead, until
/// its process ends.
fn failing(attempts: &Log<u32>, hangs_at: u32) -> Arc<dyn Conduct> {
    let attempts = attempts.clone();
    does(move |moment| {
        let ill = moment.point == Point::During && moment.change == ILL;
        if ill {
            attempts.note(moment.attempt);
        }
        async move {
            if ill && moment.attempt >= hangs_at {
                std::future::pending::<()>().await;
            }
            if ill { Err(HandlerError::transient("it fails")) } else { DONE }
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

async fn buried_after_all_attempts(stage: &Stage, attempts: &Log<u32>) {
    until("it is a dead letter", async || stage.dead().await.len() == 1).await;
    let mut noted = attempts.all();
    noted.dedup();
    assert_eq!(noted, [1, 2, 3, 4], "{:?}", attempts.all());
    assert_eq!(stage.dead().await[0].attempts, ATTEMPTS);
    stage.until_rows(stage.count() - 1).await;
}

pub(crate) async fn attempts_of_the_retry_table_survive_their_process(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let attempts = Log::new();
    stage.send(12, 4).await;
    let one = Member { conduct: failing(&attempts, 3), ..stage.member("one") };
    let one = start(retried(one, RetryStorage::Inbox)).await;
    // The third attempt hangs until its deadline, and then fails too.
    until("two tries failed", async || attempts.len() >= 2 && one.stats().handler_failures() >= 2).await;
    // Dropped without a stop, like a killed process.
    drop(one);
    let two = Member { conduct: failing(&attempts, u32::MAX), ..stage.member("two") };
    let two = start(retried(two, RetryStorage::Inbox)).await;
    buried_after_all_attempts(&stage, &attempts).await;
    stage.finish([two], &[ILL]).await;
}

pub(crate) async fn attempts_of_the_broker_survive_their_process(on: On) {
    let stage = Stage::set(on, Shape::Unordered).await;
    let attempts = Log::new();
    stage.send(12, 4).await;
    let one = Member { conduct: failing(&attempts, u32::MAX), ..stage.member("one") };
    let one = start(retried(one, RetryStorage::Broker)).await;
    until("two tries failed", async || one.stats().handler_failures() >= 2).await;
    one.stop().await.expect("it stops in good order");
    let two = Member { conduct: failing(&attempts, u32::MAX), ..stage.member("two") };
    let two = start(retried(two, RetryStorage::Broker)).await;
    buried_after_all_attempts(&stage, &attempts).await;
    stage.finish([two], &[ILL]).await;
}

/// The message still has all its attempts after an outage of an external service, however many members received it.
pub(crate) async fn attempts_of_the_broker_are_no_deliveries(on: On) {
    let stage = Stage::set(on, Shape::Unordered).await;
    let attempts = Log::new();
    stage.send(12, 4).await;
    for name in ["one", "two", "three", "four"] {
        let conduct = does(|moment| async move {
            if moment.change == ILL { Err(HandlerError::unavailable("the mail server is away")) } else { DONE }
        });
        let member = start(retried(Member { conduct, ..stage.member(name) }, RetryStorage::Broker)).await;
        until("it was delivered", async || member.stats().handler_outages() > 0).await;
        member.stop().await.expect("it stops in good order");
    }
    let last = Member { conduct: failing(&attempts, u32::MAX), ..stage.member("last") };
    let last = start(retried(last, RetryStorage::Broker)).await;
    buried_after_all_attempts(&stage, &attempts).await;
    stage.finish([last], &[ILL]).await;
}
