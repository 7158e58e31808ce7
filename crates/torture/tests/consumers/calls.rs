//! Members that call an external service, and die between its response and the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use relevo_torture::ledger::{Member, ServiceCall};
use rustix::process::Signal;

use crate::backends::{Backends, OrderMode};
use crate::harness::{Harness, start};

pub(crate) async fn a_call_whose_process_died_is_made_again_under_the_same_id(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let short_timeouts = ["--call", "--handler-timeout-ms", "300", "--abort-at"];
    for point in ["called@1", "during@1"] {
        let mut process = harness.process(point, &[&short_timeouts[..], &[point]].concat()).await;
        if harness.count() == 0 {
            harness.send(12, 6).await;
        }
        assert_eq!(process.ended().await.signal(), Some(Signal::ABORT.as_raw()));
    }
    let mut survivor = Member { calls: true, ..harness.member("survivor") };
    survivor.config.handler_timeout = Duration::from_millis(300);
    let survivor = start(survivor).await;
    harness.until_all().await;
    harness.finish([survivor], &[]).await;

    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let calls = harness.store.calls(&harness.consumer).await.expect("the calls can be read");
    for ServiceCall { message_id, idempotency_id, .. } in &calls {
        ids.entry(message_id.clone()).or_default().insert(idempotency_id.clone());
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "one id per message: {ids:?}");
    assert_eq!(ids.values().flatten().collect::<BTreeSet<_>>().len(), 12, "ids differ between messages");
    let first = harness.sent()[0].id.to_string();
    let mut members: Vec<&str> =
        calls.iter().filter(|call| call.message_id == first).map(|call| call.member.as_str()).collect();
    // On a busy machine a call may exceed its timeout. The same process then makes it again.
    members.dedup();
    assert_eq!(members, ["called@1", "during@1", "survivor"], "each process called the service");
}
