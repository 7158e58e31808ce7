//! Dead letters: the bytes are retained, an operator decides, the owner of the shard executes the decision.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::message::Headers;
use relevo_core::store::{Advanced, DeadFilter, DeadLetters, Mark, Settled, Stop, Stopped};

use crate::harness::{Draft, StoreHarness};
use crate::relay::{
    Relay, behind, emit, emit_all, emit_draft, ids, ok, park, parked, retry, run_ids, run_keys, stopped,
};

fn dead_hold() -> Stopped {
    Stopped { class: "poison", ..stopped(Stop::DeadHold, 3) }
}

fn dead_continue() -> Stopped {
    Stopped { class: "poison", ..stopped(Stop::DeadContinue, 3) }
}

fn all() -> DeadFilter {
    DeadFilter::default()
}

fn mark(filter: DeadFilter) -> Mark {
    Mark { filter, dry_run: false, by: "ana".to_owned(), reason: "the far side was mended".to_owned() }
}

async fn state(store: &impl DeadLetters, id: MessageId) -> String {
    let filter = DeadFilter { ids: vec![id], ..all() };
    let mut letters = ok(store.dead(&filter, 10).await);
    assert_eq!(letters.len(), 1, "one letter a message");
    letters.remove(0).state
}

/// P7: every byte, header and name is retained as emitted.
pub async fn a_dead_letter_keeps_the_original_bytes(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let payload: Vec<u8> = (0..=255).chain([0, 0, b'\\', b'\n', 0xff]).collect();
    let draft = Draft {
        topic: "pedidos.españa".to_owned(),
        kind: "PedidoCreado".to_owned(),
        payload: Bytes::from(payload.clone()),
        content_type: "application/octet-stream".to_owned(),
        headers: Headers::from([
            ("x-tab".to_owned(), "a\tb \"ñ\" {}".to_owned()),
            ("x-empty".to_owned(), String::new()),
        ]),
        ..Draft::of("clave-ñ")
    };
    let id = emit_draft(h, draft.clone()).await;
    let page = relay.read(10).await;
    let message = page.entries[0].message.clone();
    assert_eq!((&message.payload[..], &message.headers), (&payload[..], &draft.headers));
    assert_eq!((&*message.topic, &*message.kind, &*message.key), ("pedidos.españa", "PedidoCreado", "clave-ñ"));
    assert_eq!((message.id, &*message.content_type), (id, "application/octet-stream"));
    relay.settle(page.end, vec![park(&page.entries[0], dead_hold())]).await;

    let letters = ok(relay.store.dead(&all(), 10).await);
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].message, *message);
    let letter = &letters[0];
    assert_eq!(
        (&*letter.error, &*letter.class, letter.attempts, &*letter.state),
        ("it was refused", "poison", 3, "dead")
    );
    assert_eq!((&*letter.route, &letter.marked), ("everything", &None));
    assert_eq!(ok(relay.store.dead(&DeadFilter { unmarked: true, ..all() }, 10).await).len(), 1);
    assert!(letter.dead_at >= message.created_at, "{} is before {}", letter.dead_at, message.created_at);
    ok(relay.store.redrive(&mark(all())).await);
    let unmarked = DeadFilter { unmarked: true, ..all() };
    assert!(ok(relay.store.dead(&unmarked, 10).await).is_empty());
    let marked = ok(relay.store.dead(&all(), 10).await).remove(0).marked.expect("it was marked");
    assert_eq!((&*marked.by, &*marked.reason), ("ana", "the far side was mended"));
    assert!(marked.at >= letter.dead_at, "{} is before {}", marked.at, letter.dead_at);
    let runs = relay.due().await;
    assert_eq!(*runs[0].messages[0].1.message, *message, "what is sent again is the same message");
}

/// `after_dead = "hold"`: successors wait, and no run is due.
pub async fn a_held_key_waits_for_a_person(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a", "a"], dead_hold()).await;
    emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![behind(&page.entries[0])]).await, Settled::default());
    h.let_pass(Duration::from_secs(4)).await;
    assert!(relay.due().await.is_empty());
    assert_eq!(ok(relay.store.dead(&all(), 10).await).len(), 1);
}

/// `after_dead = "continue"`: the key is not parked at all.
pub async fn a_key_that_continues_waits_for_nobody(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![park(&page.entries[0], dead_continue())]).await, Settled::default());
    let next = emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(ids(&page.entries), [next]);
    let settled = relay.settle(page.end, vec![behind(&page.entries[0])]).await;
    assert_eq!(settled.passed, [page.entries[0].seq], "there is no head to wait behind");
    assert_eq!(ok(relay.store.dead(&all(), 10).await).len(), 1);
}

/// P7: redrive keeps the order of the key that waited for it.
pub async fn a_redriven_message_goes_before_its_successors(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "a", "a"], dead_hold()).await;
    assert_eq!(ok(relay.store.redrive(&mark(all())).await), 1);
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "redriving");
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting));
    assert_eq!(runs[0].attempts, 0);
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "redriven");
    assert_eq!(relay.advance(&runs[0], 3, None).await, Advanced::Unparked);
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "redriven");
    assert!(relay.due().await.is_empty());
}

/// Several dead letters of one key are published in the order in which they were emitted.
pub async fn several_redriven_messages_keep_their_order(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    emit_all(h, &["a", "a", "a"]).await;
    let page = relay.read(10).await;
    let parks = page.entries.iter().map(|entry| park(entry, dead_continue())).collect();
    relay.settle(page.end, parks).await;
    assert_eq!(ok(relay.store.redrive(&mark(all())).await), 3);
    let runs = relay.due().await;
    assert_eq!(run_keys(&runs), ["a"]);
    assert_eq!(run_ids(&runs[0]), ids(&page.entries));
    assert_eq!(relay.advance(&runs[0], 3, None).await, Advanced::Unparked);
}

/// A dry run only counts the letters it would mark.
pub async fn a_dry_run_changes_nothing(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "b"], dead_hold()).await;
    let dry = Mark { dry_run: true, ..mark(all()) };
    assert_eq!(ok(relay.store.redrive(&dry).await), 2);
    assert_eq!(ok(relay.store.discard(&dry).await), 2);
    assert!(relay.due().await.is_empty());
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "dead");
}

/// A double click redrives once, and a marked letter cannot be discarded.
pub async fn a_second_redrive_marks_nothing(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a"], dead_hold()).await;
    assert_eq!(ok(relay.store.redrive(&mark(all())).await), 1);
    assert_eq!(ok(h.store().await.redrive(&mark(all())).await), 0);
    assert_eq!(ok(relay.store.discard(&mark(all())).await), 0);
    assert_eq!(run_ids(&relay.due().await[0]), ids(&waiting));
    assert_eq!(ok(relay.store.redrive(&mark(all())).await), 0, "redriven, not dead");
    assert_eq!(run_ids(&relay.due().await[0]), ids(&waiting), "still once");
}

/// The successors continue without it.
pub async fn a_discarded_letter_frees_its_key(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "a", "a"], dead_hold()).await;
    assert_eq!(ok(relay.store.discard(&mark(all())).await), 1);
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "discarding");
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting[1..]));
    assert_eq!(runs[0].attempts, 0);
    assert_eq!(state(&relay.store, waiting[0].message.id).await, "discarded");
    assert_eq!(ok(relay.store.redrive(&mark(all())).await), 0, "discarding is final");
}

/// Without successors the key takes the live path immediately.
pub async fn a_discarded_letter_without_successors_frees_its_key(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    parked(h, &mut relay, &["a"], dead_hold()).await;
    ok(relay.store.discard(&mark(all())).await);
    assert!(relay.due().await.is_empty());
    emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![behind(&page.entries[0])]).await.passed, [page.entries[0].seq]);
}

/// The same row is dead again and can be redriven again.
pub async fn a_redriven_message_that_fails_again_reopens_its_letter(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "a"], dead_hold()).await;
    for _ in 0..2 {
        assert_eq!(ok(relay.store.redrive(&mark(all())).await), 1);
        let runs = relay.due().await;
        assert_eq!(run_ids(&runs[0]), ids(&waiting));
        assert_eq!(relay.advance(&runs[0], 0, Some(dead_hold())).await, Advanced::Waits);
        assert_eq!(state(&relay.store, waiting[0].message.id).await, "dead");
        assert!(relay.due().await.is_empty());
    }
    assert_eq!(ok(relay.store.dead(&all(), 10).await).len(), 1);
}

/// An operator selects letters with a filter; the oldest come first.
pub async fn letters_are_found_by_id_key_and_route(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "b"]).await;
    let page = relay.read(10).await;
    let routes = ["slow", "slow", "fast"];
    let parks = page.entries.iter().zip(routes);
    let parks = parks.map(|(entry, route)| park(entry, Stopped { route: route.into(), ..dead_continue() })).collect();
    relay.settle(page.end, parks).await;

    let by_id = DeadFilter { ids: vec![emitted[2], emitted[0]], ..all() };
    let by_key = DeadFilter { key: Some("b".to_owned()), ..all() };
    let by_route = DeadFilter { route: Some("slow".to_owned()), ..all() };
    let by_both = DeadFilter { key: Some("b".to_owned()), ..by_route.clone() };
    let cases: [(DeadFilter, &[usize]); 5] =
        [(all(), &[0, 1, 2]), (by_id, &[0, 2]), (by_key, &[1, 2]), (by_route, &[0, 1]), (by_both.clone(), &[1])];
    for (filter, expected) in cases {
        let found: Vec<_> = ok(relay.store.dead(&filter, 10).await).iter().map(|letter| letter.message.id).collect();
        assert_eq!(found, expected.iter().map(|index| emitted[*index]).collect::<Vec<_>>(), "{filter:?}");
    }
    assert_eq!(ok(relay.store.dead(&all(), 2).await).len(), 2);
    assert_eq!(ok(relay.store.redrive(&mark(by_both)).await), 1);
    assert_eq!(state(&relay.store, emitted[1]).await, "redriving");
    assert_eq!(state(&relay.store, emitted[2]).await, "dead");
}

/// Dead-letters a message in a run, with either choice of `after_dead`.
pub async fn a_run_can_bury_its_message_and_go_on(h: &mut impl StoreHarness) {
    let mut relay = Relay::start(h.store().await, 1).await;
    let waiting = parked(h, &mut relay, &["a", "a", "a", "a"], retry(Duration::ZERO, 1)).await;
    let runs = relay.due().await;
    assert_eq!(relay.advance(&runs[0], 1, Some(dead_continue())).await, Advanced::Waits);
    assert_eq!(state(&relay.store, waiting[1].message.id).await, "dead");
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting[2..]));
    assert_eq!(runs[0].attempts, 0);
    assert_eq!(relay.advance(&runs[0], 0, Some(dead_hold())).await, Advanced::Waits);
    assert_eq!(state(&relay.store, waiting[2].message.id).await, "dead");
    assert!(relay.due().await.is_empty());
    let held = DeadFilter { ids: vec![waiting[2].message.id], ..all() };
    ok(relay.store.discard(&mark(held)).await);
    let runs = relay.due().await;
    assert_eq!(run_ids(&runs[0]), ids(&waiting[3..]));
    assert_eq!(relay.advance(&runs[0], 0, Some(dead_continue())).await, Advanced::Unparked);
    assert_eq!(ok(relay.store.dead(&all(), 10).await).len(), 3);
}
