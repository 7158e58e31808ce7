//! Held addresses: one message probes, the others wait without counted attempts.

use std::time::Duration;

use relevo_core::store::{Advanced, Hold, Settled, Stop, Stopped};

use crate::harness::StoreHarness;
use crate::relay::{LONG, PAUSE, Relay, emit_all, ids, park, parked, run_ids, run_keys, stopped};

fn hold(address: &str) -> Stopped {
    Stopped { class: "blocked", ..stopped(Stop::Address { address: address.into(), after: PAUSE }, 0) }
}

/// While the address is held, one key probes it. After a success all keys may continue.
pub async fn a_held_address_is_probed_by_one_key_and_released_for_all(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "b", "c", "a"], hold("x")).await;
    let held = Hold { address: "x".to_owned(), error: "it was refused".to_owned() };
    assert_eq!(relay.lease(LONG).await.holds, [held]);
    assert!(relay.due().await.is_empty());
    h.let_pass(PAUSE * 2).await;

    let probes = relay.due().await;
    assert_eq!(probes.len(), 1);
    assert_eq!((probes[0].address.as_deref(), probes[0].attempts), (Some("x"), 0));
    assert!(waiting.iter().any(|entry| entry.message.id == run_ids(&probes[0])[0]));
    assert_eq!(run_keys(&relay.due().await), run_keys(&probes), "the same key probes until it is heard of");
    relay.advance_releasing(&probes[0], 1, None, Some("x")).await;

    assert_eq!(relay.lease(LONG).await.holds, []);
    let mut delivered = vec![run_ids(&probes[0])[0]];
    for _ in 0..4 {
        for run in relay.due().await {
            assert_eq!((&run.address, run.attempts), (&None, 0), "the wait was not counted");
            delivered.extend(run_ids(&run));
            assert_eq!(relay.advance(&run, run.messages.len(), None).await, Advanced::Unparked);
        }
    }
    delivered.sort();
    let mut expected = ids(&waiting);
    expected.sort();
    assert_eq!(delivered, expected);
}

/// A failed probe extends the hold for every key.
pub async fn a_failed_probe_holds_the_address_longer(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a", "b"], hold("x")).await;
    h.let_pass(PAUSE * 2).await;
    let probes = relay.due().await;
    assert_eq!(relay.advance(&probes[0], 0, Some(hold("x"))).await, Advanced::Waits);
    assert!(relay.due().await.is_empty());
    assert_eq!(relay.lease(LONG).await.holds.len(), 1);
    h.let_pass(PAUSE * 2).await;
    assert_eq!(relay.due().await.len(), 1);
}

/// New messages for the address were not attempted. If they postponed the probe, traffic would postpone it for ever.
pub async fn a_message_for_a_held_address_does_not_put_its_probe_off(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let first = parked(h, &mut relay, &["a"], hold("x")).await;
    h.let_pass(PAUSE * 3 / 4).await;
    parked(h, &mut relay, &["b"], hold("x")).await;
    h.let_pass(PAUSE / 2).await;
    let probes = relay.due().await;
    assert_eq!(probes.len(), 1);
    assert_eq!(run_ids(&probes[0]), ids(&first));
}

/// Keys with a due retry that meet the hold do not postpone it either: they are not the probe.
pub async fn a_key_that_meets_a_held_address_does_not_put_its_probe_off(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let first = parked(h, &mut relay, &["a"], hold("x")).await;
    parked(h, &mut relay, &["b"], stopped(Stop::Retry { after: Duration::ZERO }, 1)).await;
    h.let_pass(PAUSE * 3 / 4).await;
    let again = relay.due().await;
    assert_eq!(run_keys(&again), ["b"]);
    assert_eq!(relay.advance(&again[0], 0, Some(hold("x"))).await, Advanced::Waits);
    h.let_pass(PAUSE / 2).await;
    let probes = relay.due().await;
    assert_eq!(probes.len(), 1);
    assert_eq!(run_ids(&probes[0]), ids(&first));
}

/// Other addresses continue, and each held address has its own probe.
pub async fn other_addresses_of_the_destination_flow(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    let page = relay.read(10).await;
    let addresses = ["x", "x", "y", "y"];
    let parks = page.entries.iter().zip(addresses).map(|(entry, address)| park(entry, hold(address))).collect();
    assert_eq!(relay.settle(page.end, parks).await, Settled::default());
    assert_eq!(ids(&page.entries)[4], emitted[4]);
    h.let_pass(PAUSE * 2).await;
    let runs = relay.due().await;
    let mut probed: Vec<_> = runs.iter().map(|run| run.address.clone()).collect();
    probed.sort();
    assert_eq!(probed, [Some("x".to_owned()), Some("y".to_owned())]);
    let x = runs.iter().find(|run| run.address.as_deref() == Some("x")).expect("a probe of x");
    relay.advance_releasing(x, 1, None, Some("x")).await;
    let holds = relay.lease(LONG).await.holds;
    assert_eq!(holds.iter().map(|hold| &*hold.address).collect::<Vec<_>>(), ["y"]);
    let mut next: Vec<_> = relay.due().await.iter().map(|run| run.address.clone()).collect();
    next.sort();
    assert_eq!(next, [None, Some("y".to_owned())]);
}
