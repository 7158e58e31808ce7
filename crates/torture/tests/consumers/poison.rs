//! Messages that can never be handled, or not yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use relevo_core::AfterDead;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction, MarkRequest};
use relevo_inbox::HandlerError;
use relevo_torture::ledger::{Behaviour, Member, NoFault, Point};

use crate::backends::{Backends, OrderMode};
use crate::behaviour::{DONE, behaviour_fn};
use crate::harness::{Harness, start, until};

/// Neither text nor JSON.
const BYTES: &[u8] = &[0, 0xff, b'{', 0xc3, 0x28, 10, 13, 0];

pub(crate) async fn poison_in_the_middle_of_a_batch_is_a_dead_letter_and_the_others_are_applied_once(
    backends: Backends,
) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let mut batch: Vec<_> = (0..30).map(|number| harness.message(&format!("k{}", number % 3))).collect();
    batch[13].0.payload = BYTES.into();
    harness.publish(batch).await;
    let mut member = Member { behaviour: Arc::new(NoFault), ..harness.member("one") };
    member.config.batch_max = 16;
    member.config.after_dead = AfterDead::Continue;
    let member = start(member).await;
    harness.until_rows(29).await;
    until("it is dead-lettered", async || member.status().dead_lettered() == 1).await;
    assert!(member.status().batches_rolled_back() > 0, "it was in a batch");
    member.stop().await.expect("it stops cleanly");
    let dead = harness.dead().await;
    let raw = harness.first_dead_message().await.raw;
    assert_eq!((&*raw.payload, dead[0].class.as_str()), (BYTES, "undecodable"));
    assert!(raw.headers.contains(&("x-own".to_owned(), "its own".into())), "{:?}", raw.headers);
    harness.check(&[14]).await;
}

/// Makes one change poison until it is cured.
fn poisoned(change: i64, cured: &Arc<AtomicBool>) -> Arc<dyn Behaviour> {
    let cured = Arc::clone(cured);
    behaviour_fn(move |event| {
        let fails = event.point == Point::During && event.change == change && !cured.load(Ordering::SeqCst);
        async move { if fails { Err(HandlerError::permanent("it is poison").into()) } else { DONE } }
    })
}

pub(crate) async fn two_redrives_at_once_have_one_effect_and_the_key_keeps_its_order(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let cured = Arc::new(AtomicBool::new(false));
    // Changes 4, 7 and 10 have the same key as the first, and wait behind it.
    harness.send(12, 3).await;
    let (one, two) = tokio::join!(harness.start("one", poisoned(1, &cured)), harness.start("two", poisoned(1, &cured)));
    harness.until_rows(8).await;
    let behind = async || one.status().queued_behind() + two.status().queued_behind() == 3;
    until("its successors wait behind it", behind).await;
    let waiting = harness
        .operator()
        .await
        .get_consumer(&harness.consumer, 10)
        .await
        .expect("a store")
        .expect("it is known")
        .summary;
    assert_eq!((waiting.waiting, waiting.dead), (3, 1));
    cured.store(true, Ordering::SeqCst);
    let request = |by: &str| MarkRequest {
        filter: DeadLetterFilter::of_consumer(&*harness.consumer),
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: by.to_owned(),
        reason: "cured".to_owned(),
    };
    let (first, second) = (harness.operator().await, harness.operator().await);
    let requests = [request("one"), request("other")];
    let (first, second) = tokio::join!(first.mark_dead_letters(&requests[0]), second.mark_dead_letters(&requests[1]));
    assert_eq!(first.expect("a store").count + second.expect("a store").count, 1, "only one of them redrives it");
    harness.until_all().await;
    harness.finish([one, two], &[]).await;
}
