//! Members that call an external service, and die between its response and the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use relevo_torture::ledger::{Called, Member};
use rustix::process::Signal;

use crate::on::{On, Shape};
use crate::stage::{Stage, start};

pub(crate) async fn a_call_whose_process_died_is_made_again_under_the_same_id(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let hasty = ["--call", "--deadline-ms", "300", "--die"];
    for point in ["called@1", "during@1"] {
        let mut process = stage.process(point, &[&hasty[..], &[point]].concat()).await;
        if stage.count() == 0 {
            stage.send(12, 6).await;
        }
        assert_eq!(process.ended().await.signal(), Some(Signal::ABORT.as_raw()));
    }
    let mut survivor = Member { calls: true, ..stage.member("survivor") };
    survivor.config.handler_timeout = Duration::from_millis(300);
    let survivor = start(survivor).await;
    stage.until_all().await;
    stage.finish([survivor], &[]).await;

    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let calls = stage.store.calls(&stage.consumer).await.expect("a far side");
    for Called { message_id, idempotency_id, .. } in &calls {
        ids.entry(message_id.clone()).or_default().insert(idempotency_id.clone());
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "one id a message: {ids:?}");
    assert_eq!(ids.values().flatten().collect::<BTreeSet<_>>().len(), 12, "and another one for each message");
    let first = stage.sent()[0].id.to_string();
    let mut members: Vec<&str> =
        calls.iter().filter(|call| call.message_id == first).map(|call| call.member.as_str()).collect();
    // On a busy machine a call may exceed its deadline. The same process then makes it again.
    members.dedup();
    assert_eq!(members, ["called@1", "during@1", "survivor"], "the far side was asked by each of them");
}
