//! Members that stop cleanly.

use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{Member, Point, Steady};
use tokio::time::{Instant, sleep};

use crate::conduct::{DONE, does};
use crate::on::{On, Shape};
use crate::stage::{Stage, start};

/// How long others would wait for a member that ended without a stop.
const BEAT_LASTS: Duration = Duration::from_secs(30);

pub(crate) async fn what_a_stopped_member_had_goes_on_at_once(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let member = |name: &str| Member::new(stage.store.clone(), stage.feed.clone(), &stage.consumer, name, BEAT_LASTS);
    let slow = does(|moment| async move {
        if moment.point == Point::During {
            sleep(Duration::from_millis(150)).await;
        }
        DONE
    });
    let one = start(Member { conduct: slow, ..member("one") }).await;
    stage.send(80, 16).await;
    stage.until_rows(8).await;
    one.stop().await.expect("it stops in good order");
    let left = stage.count() - stage.rows().await.len();
    assert!(left > 0, "it had more than it could handle");
    let begun = Instant::now();
    let two = start(Member { conduct: Arc::new(Steady), ..member("two") }).await;
    stage.until_all().await;
    assert!(begun.elapsed() < BEAT_LASTS / 2, "nobody waited for a lease");
    stage.finish([two], &[]).await;
}
