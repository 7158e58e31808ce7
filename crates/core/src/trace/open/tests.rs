use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use super::*;
use crate::trace::SpanId;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A recorder that samples all traces or none. Its ids and its clock are counters.
#[derive(Default)]
struct Memory {
    samples: bool,
    last: AtomicU64,
    spans: Mutex<Vec<Span>>,
}

impl Memory {
    fn new(samples: bool) -> Arc<Self> {
        Arc::new(Self { samples, ..Self::default() })
    }

    fn traces(self: &Arc<Self>) -> Traces {
        Traces::new(Arc::clone(self) as Arc<dyn Recorder>, About::default())
    }

    fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.spans.lock().unwrap())
    }
}

impl Recorder for Memory {
    fn samples(&self, _trace: TraceId) -> bool {
        self.samples
    }

    fn span_id(&self) -> SpanId {
        SpanId::from_bytes((self.last.fetch_add(1, Ordering::Relaxed) + 1).to_be_bytes()).unwrap()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::try_from(self.last.load(Ordering::Relaxed)).unwrap()).unwrap()
    }

    fn record(&self, span: Span) {
        self.spans.lock().unwrap().push(span);
    }
}

fn message(parent: Option<&str>) -> Arc<Message> {
    let headers = parent.map(|parent| (TraceContext::PARENT.to_owned(), parent.to_owned()));
    Arc::new(Message {
        id: MessageId::v7(1, [7; 10]),
        kind: "OrderPlaced".into(),
        key: "o-1".into(),
        topic: "orders".into(),
        payload: "{}".into(),
        content_type: "application/json".into(),
        headers: headers.into_iter().collect(),
        created_at: Timestamp::UNIX_EPOCH,
    })
}

fn address() -> Arc<str> {
    "shop/orders".into()
}

#[test]
fn a_span_is_the_child_of_the_origin_and_links_to_it() {
    let memory = Memory::new(false);
    let message = message(Some(PARENT));
    let open = memory.traces().begin(Operation::Send, &message, &address()).expect("its origin is sampled");
    assert!(Arc::ptr_eq(&open.sent(&message), &message), "the origin stays as it is");
    open.end();
    let [span] = memory.take().try_into().expect("one span");
    let origin = SpanContext::parse(PARENT).unwrap();
    assert_eq!((span.context.trace, span.parent, span.origin), (origin.trace, Some(origin.span), Some(origin)));
    assert_ne!(span.context.span, origin.span);
    assert_eq!((span.message, span.fault), (Some(message.id), None));
}

#[test]
fn the_ratio_decides_only_where_no_origin_does() {
    for (parent, samples, told) in [
        (Some(PARENT), false, true),
        (Some(UNSAMPLED), true, false),
        (Some("malformed"), true, true),
        (Some("malformed"), false, false),
        (None, true, true),
        (None, false, false),
    ] {
        let begun = Memory::new(samples).traces().begin(Operation::Send, &message(parent), &address());
        assert_eq!(begun.is_some(), told, "{parent:?} with {samples}");
    }
    assert!(Traces::off().begin(Operation::Send, &message(Some(PARENT)), &address()).is_none());
}

#[test]
fn a_message_without_an_origin_leaves_with_the_span_that_sent_it() {
    let memory = Memory::new(true);
    let message = message(None);
    let open = memory.traces().begin(Operation::Send, &message, &address()).expect("it is sampled");
    let sent = open.sent(&message);
    assert_eq!(sent.headers[TraceContext::PARENT], open.context().to_string());
    assert_eq!(open.context().trace, TraceId::of_message(message.id).unwrap());
    let next = open.next(Operation::Settle);
    assert_eq!((next.0.span.parent, next.0.span.origin), (Some(open.context().span), Some(open.context())));
    open.fail("transient", "no".to_owned());
    let [span] = memory.take().try_into().expect("one span");
    assert_eq!((span.parent, span.origin), (None, None));
    assert_eq!(span.fault, Some(Fault { class: "transient", error: "no".to_owned() }));
    // The next process that samples the message continues that trace.
    let open = Memory::new(false).traces().begin(Operation::Process, &sent, &address()).expect("its origin is sampled");
    assert_eq!(open.0.span.parent, Some(span.context.span));
}

#[test]
fn an_emitted_message_carries_the_span_that_emitted_it() {
    let memory = Memory::new(true);
    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    let open = memory.traces().create(&mut draft).expect("it is sampled");
    assert_eq!(draft.headers[TraceContext::PARENT], open.context().to_string());
    assert_eq!((open.0.span.parent, &*open.0.span.destination), (None, "orders"));

    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    draft.headers.insert(TraceContext::PARENT.to_owned(), PARENT.to_owned());
    let open = Memory::new(false).traces().create(&mut draft).expect("its parent is sampled");
    let parent = SpanContext::parse(PARENT).unwrap();
    assert_eq!((open.context().trace, open.0.span.parent), (parent.trace, Some(parent.span)));
    assert_eq!(draft.headers[TraceContext::PARENT], open.context().to_string());
}

#[test]
fn a_draft_that_is_not_sampled_stays_as_it_is() {
    for parent in [None, Some(UNSAMPLED)] {
        let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
        draft.headers.extend(parent.map(|parent| (TraceContext::PARENT.to_owned(), parent.to_owned())));
        let before = draft.headers.clone();
        assert!(Memory::new(parent.is_some()).traces().create(&mut draft).is_none());
        assert_eq!(draft.headers, before);
    }
}

#[test]
fn log_lines_know_a_trace_that_is_not_told() {
    let traced = |traces: &Traces, parent| traces.trace_of(&message(parent));
    let origin = SpanContext::parse(PARENT).unwrap();
    assert_eq!(traced(&Traces::off(), Some(UNSAMPLED)), Some(origin.trace));
    assert_eq!(traced(&Traces::off(), None), None);
    assert_eq!(traced(&Memory::new(true).traces(), None), TraceId::of_message(message(None).id));
}

#[test]
fn the_key_of_a_message_is_not_told_where_its_address_holds_it() {
    let (memory, sent) = (Memory::new(true), message(None));
    let told = |address: &str| {
        let open = memory.traces().begin(Operation::Receive, &sent, &address.into()).expect("it is sampled");
        open.end();
        memory.take().remove(0).destination.to_string()
    };
    assert_eq!(told("orders.o-1"), "orders.{key}");
    assert_eq!(told("shop/o-1.placed.o-1"), "shop/{key}.placed.{key}");
    assert_eq!(told("o-1"), "{key}");
    assert_eq!(told("orders.o-12"), "orders.o-12", "another one");
    assert_eq!(told("orders.placed"), "orders.placed");
}

#[test]
fn a_parent_that_cannot_be_read_takes_its_state_with_it() {
    let mut draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
    draft.headers.insert(TraceContext::PARENT.to_owned(), "nonsense".to_owned());
    draft.headers.insert(TraceContext::STATE.to_owned(), "vendor=1".to_owned());
    Memory::new(true).traces().create(&mut draft).expect("it is sampled").end();
    assert!(SpanContext::parse(&draft.headers[TraceContext::PARENT]).is_some());
    assert_eq!(draft.headers.get(TraceContext::STATE), None, "it was another trace's");
}
