//! Dead letters: the bytes are retained, an operator decides, and the owner of the shard applies the decision.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::AfterDead;
use relevo_core::Draft;
use relevo_core::MessageId;
use relevo_core::dead_letters::{
    DeadLetterAdmin as _, DeadLetterContent, DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest,
};
use relevo_core::message::Headers;
use relevo_core::outbox::log::{ParkAction, PublishFailure, SettleResult};
use relevo_core::outbox::parked::ParkedResult;

use crate::dead_letters::DeadLetterCalls as _;
use crate::outbox::harness::{Harness, MAIN, draft};
use crate::outbox::test_relay::{
    TestRelay, batch_ids, batch_keys, emit, emit_all, emit_and_park, emit_draft, failed, ids, must, park, park_behind,
    retry,
};

fn dead_hold() -> PublishFailure {
    PublishFailure { class: "poison", ..failed(ParkAction::DeadLetter(AfterDead::Hold), 3) }
}

fn dead_continue() -> PublishFailure {
    PublishFailure { class: "poison", ..failed(ParkAction::DeadLetter(AfterDead::Continue), 3) }
}

fn match_all() -> DeadLetterFilter {
    DeadLetterFilter::of_destination(MAIN)
}

fn mark(filter: DeadLetterFilter) -> MarkRequest {
    MarkRequest {
        filter,
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "ana".to_owned(),
        reason: "the broker was fixed".to_owned(),
    }
}

async fn state(h: &impl Harness, id: MessageId) -> DeadLetterState {
    let filter = DeadLetterFilter { ids: vec![id], ..match_all() };
    must(h.operator().await.one(&filter).await).summary.state
}

/// P7: every byte, header and name is retained as emitted.
pub async fn a_dead_letter_keeps_the_original_bytes(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let payload: Vec<u8> = (0..=255).chain([0, 0, b'\\', b'\n', 0xff]).collect();
    let draft = Draft {
        topic: "pedidos.españa".into(),
        kind: "PedidoCreado".into(),
        payload: Bytes::from(payload.clone()),
        content_type: "application/octet-stream".into(),
        headers: Headers::from([
            ("x-tab".to_owned(), "a\tb \"ñ\" {}".to_owned()),
            ("x-empty".to_owned(), String::new()),
        ]),
        ..draft("clave-ñ")
    };
    let id = emit_draft(h, draft.clone()).await;
    let page = relay.read(10).await;
    let message = page.entries[0].message.clone();
    assert_eq!((&message.payload[..], &message.headers), (&payload[..], &draft.headers));
    assert_eq!((&*message.topic, &*message.kind, &*message.key), ("pedidos.españa", "PedidoCreado", "clave-ñ"));
    assert_eq!((message.id, &*message.content_type), (id, "application/octet-stream"));
    relay.settle(page.end, vec![park(&page.entries[0], dead_hold())]).await;

    let operator = h.operator().await;
    let letter = must(operator.one(&match_all()).await);
    assert_eq!(letter.content, DeadLetterContent::Outbox(message.as_ref().clone()));
    let row = letter.summary;
    assert_eq!((&*row.owner, row.id, row.replay, &*row.key), (MAIN, id, 0, "clave-ñ"));
    assert_eq!((row.topic.as_deref(), row.kind.as_deref()), (Some("pedidos.españa"), Some("PedidoCreado")));
    assert_eq!((&*row.error, &*row.class, row.attempts), ("it was refused", "poison", 3));
    assert_eq!((row.route.as_deref(), row.entered_at), (Some("everything"), message.created_at));
    assert_eq!((row.state, row.redrives, &row.mark), (DeadLetterState::Dead, 0, &None));
    assert!(row.dead_at >= message.created_at, "{} is before {}", row.dead_at, message.created_at);
    must(operator.redrive(&mark(match_all())).await);
    let marked = must(operator.one(&match_all()).await).summary;
    assert_eq!(marked.state, DeadLetterState::Redriving);
    let operator_mark = marked.mark.expect("it was marked");
    assert_eq!((&*operator_mark.by, &*operator_mark.reason), ("ana", "the broker was fixed"));
    assert!(operator_mark.at >= row.dead_at, "{} is before {}", operator_mark.at, row.dead_at);
    let batches = relay.read_parked().await;
    assert_eq!(*batches[0].messages[0].entry.message, *message, "the same message is sent again");
}

/// `after_dead = "hold"`: successors wait, and no run is due.
pub async fn a_held_key_waits_for_an_operator(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a", "a"], dead_hold()).await;
    emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![park_behind(&page.entries[0])]).await, SettleResult::default());
    h.advance_time(Duration::from_secs(4)).await;
    assert!(relay.read_parked().await.is_empty());
    assert_eq!(must(h.operator().await.summaries(&match_all(), 10).await).len(), 1);
}

/// `after_dead = "continue"`: the key is not parked at all.
pub async fn a_key_that_continues_is_not_parked(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_all(h, &["a", "a"]).await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![park(&page.entries[0], dead_continue())]).await, SettleResult::default());
    let next = emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(ids(&page.entries), [next]);
    let settled = relay.settle(page.end, vec![park_behind(&page.entries[0])]).await;
    assert_eq!(settled.reread, [page.entries[0].seq], "there is no head to wait behind");
    assert_eq!(must(h.operator().await.summaries(&match_all(), 10).await).len(), 1);
}

/// P7: redrive keeps the order of the key that waited for it.
pub async fn a_redriven_message_goes_before_its_successors(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "a", "a"], dead_hold()).await;
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 1);
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Redriving);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting));
    assert_eq!(batches[0].attempts, 0);
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Redriven);
    assert_eq!(relay.settle_parked(&batches[0], 3, None).await, ParkedResult::KeyFreed);
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Redriven);
    assert!(relay.read_parked().await.is_empty());
}

/// Several dead letters of one key are published in the order in which they were emitted.
pub async fn several_redriven_messages_keep_their_order(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_all(h, &["a", "a", "a"]).await;
    let page = relay.read(10).await;
    let parked = page.entries.iter().map(|entry| park(entry, dead_continue())).collect();
    relay.settle(page.end, parked).await;
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 3);
    let batches = relay.read_parked().await;
    assert_eq!(batch_keys(&batches), ["a"]);
    assert_eq!(batch_ids(&batches[0]), ids(&page.entries));
    assert_eq!(relay.settle_parked(&batches[0], 3, None).await, ParkedResult::KeyFreed);
}

/// A dry run only counts the dead letters that it would mark.
pub async fn a_dry_run_changes_nothing(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "b"], dead_hold()).await;
    let dry = MarkRequest { dry_run: true, ..mark(match_all()) };
    assert_eq!(must(h.operator().await.redrive(&dry).await), 2);
    assert_eq!(must(h.operator().await.discard(&dry).await), 2);
    assert!(relay.read_parked().await.is_empty());
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Dead);
}

/// A double click redrives once, and a marked dead letter cannot be discarded.
pub async fn a_second_redrive_marks_nothing(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a"], dead_hold()).await;
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 1);
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 0);
    assert_eq!(must(h.operator().await.discard(&mark(match_all())).await), 0);
    assert_eq!(batch_ids(&relay.read_parked().await[0]), ids(&waiting));
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 0, "redriven, not dead");
    assert_eq!(batch_ids(&relay.read_parked().await[0]), ids(&waiting), "still once");
}

/// The successors continue without it.
pub async fn a_discarded_dead_letter_frees_its_key(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "a", "a"], dead_hold()).await;
    assert_eq!(must(h.operator().await.discard(&mark(match_all())).await), 1);
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Discarding);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting[1..]));
    assert_eq!(batches[0].attempts, 0);
    assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Discarded);
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 0, "discarding is final");
}

/// Without successors the key is no longer parked.
pub async fn a_discarded_dead_letter_without_successors_frees_its_key(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    emit_and_park(h, &mut relay, &["a"], dead_hold()).await;
    must(h.operator().await.discard(&mark(match_all())).await);
    assert!(relay.read_parked().await.is_empty());
    emit(h, "a").await;
    let page = relay.read(10).await;
    assert_eq!(relay.settle(page.end, vec![park_behind(&page.entries[0])]).await.reread, [page.entries[0].seq]);
}

/// The same row is dead again and can be redriven again.
pub async fn a_redriven_message_that_fails_again_reopens_its_dead_letter(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "a"], dead_hold()).await;
    for _ in 0..2 {
        assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 1);
        let batches = relay.read_parked().await;
        assert_eq!(batch_ids(&batches[0]), ids(&waiting));
        assert_eq!(relay.settle_parked(&batches[0], 0, Some(dead_hold())).await, ParkedResult::StillParked);
        assert_eq!(state(h, waiting[0].message.id).await, DeadLetterState::Dead);
        assert!(relay.read_parked().await.is_empty());
    }
    assert_eq!(must(h.operator().await.summaries(&match_all(), 10).await).len(), 1);
}

/// An operator selects dead letters with a filter; the oldest come first.
pub async fn dead_letters_are_found_by_every_filter(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let emitted = emit_all(h, &["a", "b", "b"]).await;
    let page = relay.read(10).await;
    let routes = ["slow", "slow", "fast"];
    let parked = page.entries.iter().zip(routes);
    let parked =
        parked.map(|(entry, route)| park(entry, PublishFailure { route: route.into(), ..dead_continue() })).collect();
    relay.settle(page.end, parked).await;

    let by_id = DeadLetterFilter { ids: vec![emitted[2], emitted[0]], ..match_all() };
    let by_key = DeadLetterFilter { key: Some("b".to_owned()), ..match_all() };
    let by_route = DeadLetterFilter { route: Some("slow".to_owned()), ..match_all() };
    let by_both = DeadLetterFilter { key: Some("b".to_owned()), ..by_route.clone() };
    let text = |text: &str| Some(text.to_owned());
    let now = must(h.operator().await.summaries(&match_all(), 10).await)[0].dead_at;
    let long_after = now + Duration::from_hours(1);
    let cases: [(DeadLetterFilter, &[usize]); 18] = [
        (match_all(), &[0, 1, 2]),
        (by_id, &[0, 2]),
        (by_key, &[1, 2]),
        (by_route, &[0, 1]),
        (by_both.clone(), &[1]),
        (DeadLetterFilter { topic: text("orders"), ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { topic: text("other"), ..match_all() }, &[]),
        (DeadLetterFilter { kind: text("OrderPlaced"), ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { kind: text("other"), ..match_all() }, &[]),
        (DeadLetterFilter { class: text("poison"), ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { class: text("transient"), ..match_all() }, &[]),
        (DeadLetterFilter { error: text("WAS Refused"), ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { error: text("%"), ..match_all() }, &[]),
        (DeadLetterFilter { states: vec![DeadLetterState::Dead], ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { states: vec![DeadLetterState::Redriven], ..match_all() }, &[]),
        (DeadLetterFilter { since: Some(now), ..match_all() }, &[0, 1, 2]),
        (DeadLetterFilter { since: Some(long_after), ..match_all() }, &[]),
        (DeadLetterFilter { until: Some(now), ..match_all() }, &[]),
    ];
    for (filter, expected) in cases {
        let selected: Vec<_> =
            must(h.operator().await.summaries(&filter, 10).await).iter().map(|dead_letter| dead_letter.id).collect();
        assert_eq!(selected, expected.iter().map(|index| emitted[*index]).collect::<Vec<_>>(), "{filter:?}");
    }
    let operator = h.operator().await;
    let all = must(operator.summaries(&match_all(), 10).await);
    let pages = must(operator.pages(&match_all(), 2).await);
    assert_eq!((pages.iter().map(Vec::len).collect::<Vec<_>>(), pages.concat()), (vec![2, 1], all));
    assert!(operator.list_dead_letters(&match_all(), Some("?"), 1).await.is_err(), "no position of a list");
    let unknown = DeadLetterFilter::of_destination("unknown");
    assert!(operator.summaries(&unknown, 1).await.is_err());
    assert!(operator.redrive(&mark(unknown)).await.is_err());
    assert!(operator.redrive(&MarkRequest { reason: String::new(), ..mark(match_all()) }).await.is_err());
    assert_eq!(must(operator.redrive(&mark(by_both)).await), 1);
    assert_eq!(state(h, emitted[1]).await, DeadLetterState::Redriving);
    assert_eq!(state(h, emitted[2]).await, DeadLetterState::Dead);
}

/// Dead-letters a message in a parked batch, with either choice of `after_dead`.
pub async fn a_parked_batch_can_dead_letter_its_message_and_continue(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let waiting = emit_and_park(h, &mut relay, &["a", "a", "a", "a"], retry(Duration::ZERO, 1)).await;
    let batches = relay.read_parked().await;
    assert_eq!(relay.settle_parked(&batches[0], 1, Some(dead_continue())).await, ParkedResult::StillParked);
    assert_eq!(state(h, waiting[1].message.id).await, DeadLetterState::Dead);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting[2..]));
    assert_eq!(batches[0].attempts, 0);
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(dead_hold())).await, ParkedResult::StillParked);
    assert_eq!(state(h, waiting[2].message.id).await, DeadLetterState::Dead);
    assert!(relay.read_parked().await.is_empty());
    let second_hold = DeadLetterFilter { ids: vec![waiting[2].message.id], ..match_all() };
    must(h.operator().await.discard(&mark(second_hold)).await);
    let batches = relay.read_parked().await;
    assert_eq!(batch_ids(&batches[0]), ids(&waiting[3..]));
    assert_eq!(relay.settle_parked(&batches[0], 0, Some(dead_continue())).await, ParkedResult::KeyFreed);
    assert_eq!(must(h.operator().await.summaries(&match_all(), 10).await).len(), 3);
}
