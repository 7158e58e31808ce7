use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use relevo_core::broker::Reports;
use relevo_core::{Broker, Class, Message, MessageId, Publication};

use crate::{Match, MemoryBroker, Rule, Settings};

fn publication(number: u8, key: &str, address: &str) -> Publication {
    let message = Message {
        id: MessageId::v7(0, [number; 10]),
        kind: "OrderPlaced".into(),
        key: key.into(),
        topic: "orders".into(),
        payload: Bytes::from_static(b"{}"),
        content_type: "application/json".into(),
        headers: relevo_core::message::Headers::new(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
    };
    Publication {
        message: Arc::new(message),
        address: address.into(),
        headers: Arc::default(),
        seq: number.into(),
        epoch: 7,
    }
}

fn three() -> [Publication; 3] {
    [publication(1, "a", "x"), publication(2, "b", "x"), publication(3, "a", "y")]
}

/// Publishes a batch. Returns the failure class of each message, or `None` if it was confirmed.
async fn publish(broker: &MemoryBroker, batch: &[Publication]) -> Vec<Option<Class>> {
    let reports = Reports::default();
    broker.publish(batch, &reports.confirms(1)).await;
    let reports = reports.take();
    assert!(reports.iter().enumerate().all(|(place, (batch, index, _))| *batch == 1 && *index == place));
    reports.into_iter().map(|(_, _, outcome)| outcome.err().map(|failure| failure.class())).collect()
}

fn received(broker: &MemoryBroker) -> Vec<i64> {
    broker.receipts().into_iter().map(|receipt| receipt.seq).collect()
}

#[tokio::test]
async fn everything_is_confirmed_and_recorded_in_order() {
    let broker = MemoryBroker::new(Settings::default());
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
    assert_eq!(received(&broker), [1, 2, 3]);
    let last = broker.receipts().pop().unwrap();
    assert_eq!((last.id, &*last.key, &*last.address, last.epoch), (MessageId::v7(0, [3; 10]), "a", "y", 7));
}

#[tokio::test]
async fn without_a_record_only_the_count_is_kept() {
    let broker = MemoryBroker::new(Settings { records: false, ..Settings::default() });
    publish(&broker, &three()).await;
    assert_eq!((broker.received(), broker.receipts().len()), (3, 0));
}

#[tokio::test]
async fn a_rule_fails_what_it_names_as_often_as_it_says() {
    let broker = MemoryBroker::new(Settings::default());
    broker.fail(Rule::new(Match::Address("x".into()), Class::Throttled(Duration::from_secs(1))).times(1));
    broker.fail(Rule::new(Match::Id(MessageId::v7(0, [3; 10])), Class::Poison));
    let throttled = Some(Class::Throttled(Duration::from_secs(1)));
    assert_eq!(publish(&broker, &three()).await, [throttled, None, Some(Class::Poison)]);
    assert_eq!(publish(&broker, &three()).await, [None, None, Some(Class::Poison)]);
    broker.mend();
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
    assert_eq!(received(&broker), [2, 1, 2, 1, 2, 3]);
}

#[tokio::test]
async fn an_unknown_may_have_arrived() {
    let broker = MemoryBroker::new(Settings::default());
    broker.fail(Rule::new(Match::Key("b".into()), Class::Unknown).received());
    assert_eq!(publish(&broker, &three()).await, [None, Some(Class::Unknown), None]);
    assert_eq!(received(&broker), [1, 2, 3]);
}

#[tokio::test]
async fn a_broker_that_is_down_receives_nothing_until_it_is_up() {
    let broker = MemoryBroker::new(Settings::default());
    broker.down();
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Outage); 3]);
    assert_eq!(broker.received(), 0);
    broker.up();
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test]
async fn a_fence_fails_the_successors_of_a_failed_message() {
    let broker = MemoryBroker::new(Settings { fences_order: true, ..Settings::default() });
    broker.fail(Rule::new(Match::Id(MessageId::v7(0, [1; 10])), Class::Transient).times(1));
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Transient), None, Some(Class::Unknown)]);
    assert_eq!(received(&broker), [2]);
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test]
async fn without_a_fence_the_successors_of_a_failed_message_pass() {
    let broker = MemoryBroker::new(Settings::default());
    broker.fail(Rule::new(Match::Id(MessageId::v7(0, [1; 10])), Class::Transient).times(1));
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Transient), None, None]);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_poison() {
    let broker = MemoryBroker::new(Settings { message_bytes_max: 1, ..Settings::default() });
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Poison); 3]);
    assert_eq!(broker.received(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_given_up_before_it_was_confirmed_has_arrived() {
    let broker = MemoryBroker::new(Settings { latency: Duration::from_secs(10), ..Settings::default() });
    assert!(tokio::time::timeout(Duration::from_secs(9), publish(&broker, &three())).await.is_err());
    assert_eq!(broker.received(), 3);
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_broker_answers_once_it_is_thawed() {
    let broker = MemoryBroker::new(Settings::default());
    broker.freeze();
    assert!(tokio::time::timeout(Duration::from_mins(1), publish(&broker, &three())).await.is_err());
    assert_eq!(broker.received(), 0);
    let thaw = async {
        tokio::time::sleep(Duration::from_mins(1)).await;
        broker.thaw();
    };
    let batch = three();
    let (outcomes, ()) = tokio::join!(publish(&broker, &batch), thaw);
    assert_eq!(outcomes, [None, None, None]);
}

#[tokio::test]
async fn a_hook_may_bring_the_broker_down_in_mid_batch() {
    let broker = MemoryBroker::new(Settings::default());
    let same = broker.clone();
    broker.on_receipt(move |publication| {
        if publication.seq == 2 {
            same.down();
        }
    });
    assert_eq!(publish(&broker, &three()).await, [None, None, Some(Class::Outage)]);
}
