//! Held addresses: one message probes, the others wait without counted attempts.

use std::time::Duration;

use relevo_core::outbox::leases::HeldAddress;
use relevo_core::outbox::log::{ParkAction, PublishFailure, SettleResult};
use relevo_core::outbox::parked::ParkedResult;

use crate::outbox::harness::Harness;
use crate::outbox::test_relay::{
    LONG, RETRY_DELAY, TestRelay, batch_ids, batch_keys, emit_all, emit_and_park, failed, ids, park,
};

fn hold_address(address: &str) -> PublishFailure {
    PublishFailure {
        class: "blocked",
        ..failed(ParkAction::HoldAddress { address: address.into(), after: RETRY_DELAY }, 0)
    }
}

/// While the address is held, one key probes it. After a success all keys may continue.
pub async fn a_held_address_is_probed_by_one_key_and_released_for_all(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "b", "c", "a"], hold_address("x")).await;
    let hold = HeldAddress { address: "x".to_owned(), error: "it was refused".to_owned() };
    assert_eq!(relay.lease(LONG).await.held_addresses, [hold]);
    assert!(relay.read_parked().await.is_empty());
    h.advance_time(RETRY_DELAY * 2).await;

    let probes = relay.read_parked().await;
    assert_eq!(probes.len(), 1);
    assert_eq!((probes[0].probe_address.as_deref(), probes[0].attempts), (Some("x"), 0));
    assert!(waiting.iter().any(|entry| entry.message.id == batch_ids(&probes[0])[0]));
    assert_eq!(
        batch_keys(&relay.read_parked().await),
        batch_keys(&probes),
        "the same key probes until its result is recorded"
    );
    relay.settle_parked_releasing(&probes[0], 1, None, Some("x")).await;

    assert_eq!(relay.lease(LONG).await.held_addresses, []);
    let mut delivered = vec![batch_ids(&probes[0])[0]];
    for _ in 0..4 {
        for batch in relay.read_parked().await {
            assert_eq!((&batch.probe_address, batch.attempts), (&None, 0), "the wait was not counted");
            delivered.extend(batch_ids(&batch));
            assert_eq!(relay.settle_parked(&batch, batch.messages.len(), None).await, ParkedResult::KeyFreed);
        }
    }
    delivered.sort();
    let mut expected = ids(&waiting);
    expected.sort();
    assert_eq!(delivered, expected);
}

/// A failed probe extends the hold for every key.
pub async fn a_failed_probe_holds_the_address_longer(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a", "b"], hold_address("x")).await;
    h.advance_time(RETRY_DELAY * 2).await;
    let probes = relay.read_parked().await;
    assert_eq!(relay.settle_parked(&probes[0], 0, Some(hold_address("x"))).await, ParkedResult::StillParked);
    assert!(relay.read_parked().await.is_empty());
    assert_eq!(relay.lease(LONG).await.held_addresses.len(), 1);
    h.advance_time(RETRY_DELAY * 2).await;
    assert_eq!(relay.read_parked().await.len(), 1);
}

/// New messages for the address were not attempted. If they postponed the probe, traffic would postpone it for ever.
pub async fn a_message_for_a_held_address_does_not_delay_its_probe(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let first = emit_and_park(h, &mut relay, &["a"], hold_address("x")).await;
    h.advance_time(RETRY_DELAY * 3 / 4).await;
    emit_and_park(h, &mut relay, &["b"], hold_address("x")).await;
    h.advance_time(RETRY_DELAY / 2).await;
    let probes = relay.read_parked().await;
    assert_eq!(probes.len(), 1);
    assert_eq!(batch_ids(&probes[0]), ids(&first));
}

/// Keys with a due retry that meet the hold do not postpone it either: they are not the probe.
pub async fn a_key_that_meets_a_held_address_does_not_delay_its_probe(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let first = emit_and_park(h, &mut relay, &["a"], hold_address("x")).await;
    emit_and_park(h, &mut relay, &["b"], failed(ParkAction::Retry { after: Duration::ZERO }, 1)).await;
    h.advance_time(RETRY_DELAY * 3 / 4).await;
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["b"]);
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(hold_address("x"))).await, ParkedResult::StillParked);
    h.advance_time(RETRY_DELAY / 2).await;
    let probes = relay.read_parked().await;
    assert_eq!(probes.len(), 1);
    assert_eq!(batch_ids(&probes[0]), ids(&first));
}

/// Other addresses continue, and each held address has its own probe.
pub async fn other_addresses_of_the_destination_are_not_held(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    let page = relay.read(10).await;
    let addresses = ["x", "x", "y", "y"];
    let parked =
        page.entries.iter().zip(addresses).map(|(entry, address)| park(entry, hold_address(address))).collect();
    assert_eq!(relay.settle(page.end, parked).await, SettleResult::default());
    assert_eq!(ids(&page.entries)[4], emitted[4]);
    h.advance_time(RETRY_DELAY * 2).await;
    let batches = relay.read_parked().await;
    let mut probed: Vec<_> = batches.iter().map(|batch| batch.probe_address.clone()).collect();
    probed.sort();
    assert_eq!(probed, [Some("x".to_owned()), Some("y".to_owned())]);
    let x = batches.iter().find(|batch| batch.probe_address.as_deref() == Some("x")).expect("a probe of x");
    relay.settle_parked_releasing(x, 1, None, Some("x")).await;
    let holds = relay.lease(LONG).await.held_addresses;
    assert_eq!(holds.iter().map(|hold| &*hold.address).collect::<Vec<_>>(), ["y"]);
    let mut next: Vec<_> = relay.read_parked().await.iter().map(|batch| batch.probe_address.clone()).collect();
    next.sort();
    assert_eq!(next, [None, Some("y".to_owned())]);
}
