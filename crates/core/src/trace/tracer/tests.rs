use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::*;
use crate::draft::Draft;
use crate::trace::SpanId;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A recorder that samples all traces or none. Its ids and its clock are counters.
#[derive(Default)]
struct MemoryRecorder {
    samples: bool,
    last_id: AtomicU64,
    spans: Mutex<Vec<SpanData>>,
}

impl MemoryRecorder {
    fn new(samples: bool) -> Arc<Self> {
        Arc::new(Self { samples, ..Self::default() })
    }

    fn tracer(self: &Arc<Self>) -> Tracer {
        Tracer::new(Arc::clone(self) as Arc<dyn SpanRecorder>, CommonAttributes::default())
    }

    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut self.spans.lock())
    }
}

impl SpanRecorder for MemoryRecorder {
    fn is_sampled(&self, _trace: TraceId) -> bool {
        self.samples
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from_bytes((self.last_id.fetch_add(1, Ordering::Relaxed) + 1).to_be_bytes()).unwrap()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::try_from(self.last_id.load(Ordering::Relaxed)).unwrap()).unwrap()
    }

    fn record(&self, span: SpanData) {
        self.spans.lock().push(span);
    }
}

fn message(parent: Option<&str>) -> Arc<Message> {
    let headers = parent.map(|parent| (TraceContext::PARENT.to_owned(), parent.to_owned()));
    let draft = Draft { headers: headers.into_iter().collect(), ..Draft::json("orders", "o-1", "OrderPlaced", "{}") };
    Arc::new(draft.into_message(MessageId::v7(1, [7; 10]), Timestamp::UNIX_EPOCH))
}

fn address() -> Arc<str> {
    "shop/orders".into()
}

#[test]
fn a_span_is_the_child_of_the_origin_and_links_to_it() {
    let memory = MemoryRecorder::new(false);
    let message = message(Some(PARENT));
    let open = memory.tracer().start(Operation::Send, &message, &address()).expect("its origin is sampled");
    assert!(Arc::ptr_eq(&open.inject(&message), &message), "the origin is unchanged");
    open.end();
    let [span] = memory.take().try_into().expect("one span");
    let origin = SpanContext::parse(PARENT).unwrap();
    assert_eq!((span.context.trace, span.parent, span.origin), (origin.trace, Some(origin.span), Some(origin)));
    assert_ne!(span.context.span, origin.span);
    assert_eq!((span.message, span.error), (Some(message.id), None));
}

#[test]
fn the_ratio_applies_only_without_an_origin() {
    for (parent, samples, recorded) in [
        (Some(PARENT), false, true),
        (Some(UNSAMPLED), true, false),
        (Some("malformed"), true, true),
        (Some("malformed"), false, false),
        (None, true, true),
        (None, false, false),
    ] {
        let span = MemoryRecorder::new(samples).tracer().start(Operation::Send, &message(parent), &address());
        assert_eq!(span.is_some(), recorded, "{parent:?} with {samples}");
    }
    assert!(Tracer::off().start(Operation::Send, &message(Some(PARENT)), &address()).is_none());
}

#[test]
fn a_message_without_an_origin_carries_the_span_that_sent_it() {
    let memory = MemoryRecorder::new(true);
    let message = message(None);
    let open = memory.tracer().start(Operation::Send, &message, &address()).expect("it is sampled");
    let sent = open.inject(&message);
    assert_eq!(sent.headers[TraceContext::PARENT], open.0.span.context.to_string());
    assert_eq!(open.0.span.context.trace, TraceId::of_message(message.id).unwrap());
    let next = open.follow_up(Operation::Settle);
    assert_eq!((next.0.span.parent, next.0.span.origin), (Some(open.0.span.context.span), Some(open.0.span.context)));
    open.fail("transient", "no".to_owned());
    let [span] = memory.take().try_into().expect("one span");
    assert_eq!((span.parent, span.origin), (None, None));
    assert_eq!(span.error, Some(SpanError { class: "transient", error: "no".to_owned() }));
    // The next process that samples the message continues that trace.
    let open = MemoryRecorder::new(false)
        .tracer()
        .start(Operation::Process, &sent, &address())
        .expect("its origin is sampled");
    assert_eq!(open.0.span.parent, Some(span.context.span));
}

#[test]
fn an_emitted_message_carries_the_span_that_emitted_it() {
    let memory = MemoryRecorder::new(true);
    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    let open = memory.tracer().start_emit(&mut draft).expect("it is sampled");
    assert_eq!(draft.headers[TraceContext::PARENT], open.0.span.context.to_string());
    assert_eq!((open.0.span.parent, &*open.0.span.destination), (None, "orders"));

    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    draft.headers.insert(TraceContext::PARENT.to_owned(), PARENT.to_owned());
    let open = MemoryRecorder::new(false).tracer().start_emit(&mut draft).expect("its parent is sampled");
    let parent = SpanContext::parse(PARENT).unwrap();
    assert_eq!((open.0.span.context.trace, open.0.span.parent), (parent.trace, Some(parent.span)));
    assert_eq!(draft.headers[TraceContext::PARENT], open.0.span.context.to_string());
}

#[test]
fn an_unsampled_draft_is_unchanged() {
    for parent in [None, Some(UNSAMPLED)] {
        let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
        draft.headers.extend(parent.map(|parent| (TraceContext::PARENT.to_owned(), parent.to_owned())));
        let before = draft.headers.clone();
        assert!(MemoryRecorder::new(parent.is_some()).tracer().start_emit(&mut draft).is_none());
        assert_eq!(draft.headers, before);
    }
}

#[test]
fn an_unsampled_trace_still_has_an_id_for_logs() {
    let trace_id = |tracer: &Tracer, parent| tracer.trace_id(&message(parent));
    let origin = SpanContext::parse(PARENT).unwrap();
    assert_eq!(trace_id(&Tracer::off(), Some(UNSAMPLED)), Some(origin.trace));
    assert_eq!(trace_id(&Tracer::off(), None), None);
    assert_eq!(trace_id(&MemoryRecorder::new(true).tracer(), None), TraceId::of_message(message(None).id));
}

#[test]
fn the_key_is_hidden_in_a_recorded_address() {
    let (memory, sent) = (MemoryRecorder::new(true), message(None));
    let recorded = |address: &str| {
        let open = memory.tracer().start(Operation::Receive, &sent, &address.into()).expect("it is sampled");
        open.end();
        memory.take().remove(0).destination.to_string()
    };
    assert_eq!(recorded("orders.o-1"), "orders.{key}");
    assert_eq!(recorded("shop/o-1.placed.o-1"), "shop/{key}.placed.{key}");
    assert_eq!(recorded("o-1"), "{key}");
    assert_eq!(recorded("orders.o-12"), "orders.o-12", "a longer key stays");
    assert_eq!(recorded("orders.placed"), "orders.placed");
}

#[test]
fn a_malformed_parent_drops_its_tracestate() {
    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    draft.headers.insert(TraceContext::PARENT.to_owned(), "nonsense".to_owned());
    draft.headers.insert(TraceContext::STATE.to_owned(), "vendor=1".to_owned());
    MemoryRecorder::new(true).tracer().start_emit(&mut draft).expect("it is sampled").end();
    assert!(SpanContext::parse(&draft.headers[TraceContext::PARENT]).is_some());
    assert_eq!(draft.headers.get(TraceContext::STATE), None, "it belonged to another trace");
}
