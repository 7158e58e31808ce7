//! Messages that can never be handled, or not yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use relevo_core::AfterDead;
use relevo_core::inbox::dead_letters::{DeadLetterFilter, MarkRequest};
use relevo_inbox::HandlerError;
use relevo_torture::ledger::{Conduct, Member, Point, Steady};

use crate::conduct::{DONE, does};
use crate::on::{On, Shape};
use crate::stage::{Stage, start, until};

/// Neither text nor JSON.
const BYTES: &[u8] = &[0, 0xff, b'{', 0xc3, 0x28, 10, 13, 0];

pub(crate) async fn poison_in_the_middle_of_a_batch_is_a_dead_letter_and_the_others_are_applied_once(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let mut batch: Vec<_> = (0..30).map(|number| stage.message(&format!("k{}", number % 3))).collect();
    batch[13].0.payload = BYTES.into();
    stage.publish(batch).await;
    let mut member = Member { conduct: Arc::new(Steady), ..stage.member("one") };
    member.config.batch_max = 16;
    member.config.after_dead = AfterDead::Continue;
    let member = start(member).await;
    stage.until_rows(29).await;
    until("it is buried", async || member.stats().dead_lettered() == 1).await;
    assert!(member.stats().batches_rolled_back() > 0, "it was in a batch");
    member.stop().await.expect("it stops in good order");
    let dead = stage.dead().await;
    let raw = &dead[0].message.raw;
    assert_eq!((&*raw.payload, dead[0].class.as_str()), (BYTES, "undecodable"));
    assert!(raw.headers.contains(&("x-own".to_owned(), "its own".into())), "{:?}", raw.headers);
    stage.judge(&[14]).await;
}

/// Makes one change poison until it is healed.
fn poisoned(change: i64, healed: &Arc<AtomicBool>) -> Arc<dyn Conduct> {
    let healed = Arc::clone(healed);
    does(move |moment| {
        let ill = moment.point == Point::During && moment.change == change && !healed.load(Ordering::SeqCst);
        async move { if ill { Err(HandlerError::permanent("it is poison")) } else { DONE } }
    })
}

pub(crate) async fn two_redrives_at_once_have_one_effect_and_the_key_keeps_its_order(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let healed = Arc::new(AtomicBool::new(false));
    // Changes 4, 7 and 10 have the same key as the first, and wait behind it.
    stage.send(12, 3).await;
    let (one, two) = tokio::join!(stage.start("one", poisoned(1, &healed)), stage.start("two", poisoned(1, &healed)));
    stage.until_rows(8).await;
    let behind = async || one.stats().queued_behind() + two.stats().queued_behind() == 3;
    until("its successors wait behind it", behind).await;
    let waiting =
        stage.operator().await.get_consumer(&stage.consumer, 10).await.expect("a store").expect("it is known").summary;
    assert_eq!((waiting.waiting, waiting.dead), (3, 1));
    healed.store(true, Ordering::SeqCst);
    let filter = DeadLetterFilter { consumer: Some(stage.consumer.clone()), ..DeadLetterFilter::default() };
    let mark = |by: &str| MarkRequest {
        filter: filter.clone(),
        dry_run: false,
        rate_per_second: None,
        by: by.to_owned(),
        reason: "healed".to_owned(),
    };
    let (first, second) = (stage.operator().await, stage.operator().await);
    let marks = [mark("one"), mark("other")];
    let (first, second) = tokio::join!(first.redrive(&marks[0]), second.redrive(&marks[1]));
    assert_eq!(first.expect("a store") + second.expect("a store"), 1, "whoever was quicker");
    stage.until_all().await;
    stage.finish([one, two], &[]).await;
}
