//! Members that stop cleanly.

use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{Member, NoFault, Point};
use tokio::time::{Instant, sleep};

use crate::backends::{Backends, OrderMode};
use crate::behaviour::{DONE, behaviour_fn};
use crate::harness::{Harness, start};

/// How long others would wait for a member that ended without a stop.
const HEARTBEAT_TTL: Duration = Duration::from_secs(30);

pub(crate) async fn messages_of_a_stopped_member_continue_at_once(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let member =
        |name: &str| Member::new(harness.store.clone(), harness.feed.clone(), &harness.consumer, name, HEARTBEAT_TTL);
    let slow = behaviour_fn(|event| async move {
        if event.point == Point::During {
            sleep(Duration::from_millis(150)).await;
        }
        DONE
    });
    let one = start(Member { behaviour: slow, ..member("one") }).await;
    harness.send(80, 16).await;
    harness.until_rows(8).await;
    one.stop().await.expect("it stops cleanly");
    let left = harness.count() - harness.rows().await.len();
    assert!(left > 0, "messages are left");
    let start_time = Instant::now();
    let two = start(Member { behaviour: Arc::new(NoFault), ..member("two") }).await;
    harness.until_all().await;
    assert!(start_time.elapsed() < HEARTBEAT_TTL / 2, "the takeover did not wait for a lease");
    harness.finish([two], &[]).await;
}
