use std::sync::Arc;
use std::time::Duration;

use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker, Class, Draft, MessageId, Publication};

use crate::{Config, FailureRule, MemoryBroker, RuleTarget};

fn publication(number: u8, key: &str, address: &str) -> Publication {
    let message = Draft::json("orders", key, "OrderPlaced", "{}")
        .into_message(MessageId::v7(0, [number; 10]), jiff::Timestamp::UNIX_EPOCH);
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
    let reports = OutcomeReceiver::default();
    broker.publish(batch, &reports.sender(1)).await;
    let reports = reports.take();
    assert!(reports.iter().enumerate().all(|(position, (batch, index, _))| *batch == 1 && *index == position));
    reports.into_iter().map(|(_, _, outcome)| outcome.err().map(|failure| failure.class())).collect()
}

fn received(broker: &MemoryBroker) -> Vec<i64> {
    broker.received_messages().into_iter().map(|message| message.seq).collect()
}

#[tokio::test]
async fn everything_is_confirmed_and_recorded_in_order() {
    let broker = MemoryBroker::new(Config::default());
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
    assert_eq!(received(&broker), [1, 2, 3]);
    let last = broker.received_messages().pop().unwrap();
    assert_eq!((last.id, &*last.key, &*last.address, last.epoch), (MessageId::v7(0, [3; 10]), "a", "y", 7));
}

#[tokio::test]
async fn without_keeps_messages_only_the_count_is_stored() {
    let broker = MemoryBroker::new(Config { keeps_messages: false, ..Config::default() });
    publish(&broker, &three()).await;
    assert_eq!((broker.received(), broker.received_messages().len()), (3, 0));
}

#[tokio::test]
async fn a_failure_rule_fails_its_target_the_given_number_of_times() {
    let broker = MemoryBroker::new(Config::default());
    broker.add_failure(
        FailureRule::new(RuleTarget::Address("x".into()), Class::Throttled(Duration::from_secs(1))).times(1),
    );
    broker.add_failure(FailureRule::new(RuleTarget::Id(MessageId::v7(0, [3; 10])), Class::Poison));
    let throttled = Some(Class::Throttled(Duration::from_secs(1)));
    assert_eq!(publish(&broker, &three()).await, [throttled, None, Some(Class::Poison)]);
    assert_eq!(publish(&broker, &three()).await, [None, None, Some(Class::Poison)]);
    broker.clear_failures();
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
    assert_eq!(received(&broker), [2, 1, 2, 1, 2, 3]);
}

#[tokio::test]
async fn a_message_of_unknown_outcome_may_have_arrived() {
    let broker = MemoryBroker::new(Config::default());
    broker.add_failure(FailureRule::new(RuleTarget::Key("b".into()), Class::Unknown).after_receipt());
    assert_eq!(publish(&broker, &three()).await, [None, Some(Class::Unknown), None]);
    assert_eq!(received(&broker), [1, 2, 3]);
}

#[tokio::test]
async fn a_broker_that_is_down_receives_nothing_until_it_is_up() {
    let broker = MemoryBroker::new(Config::default());
    broker.down();
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Outage); 3]);
    assert_eq!(broker.received(), 0);
    broker.up();
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test]
async fn an_ordered_broker_fails_the_successors_of_a_failed_message() {
    let broker = MemoryBroker::new(Config { ordered_in_flight: true, ..Config::default() });
    broker.add_failure(FailureRule::new(RuleTarget::Id(MessageId::v7(0, [1; 10])), Class::Transient).times(1));
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Transient), None, Some(Class::Unknown)]);
    assert_eq!(received(&broker), [2]);
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test]
async fn an_unordered_broker_accepts_the_successors_of_a_failed_message() {
    let broker = MemoryBroker::new(Config::default());
    broker.add_failure(FailureRule::new(RuleTarget::Id(MessageId::v7(0, [1; 10])), Class::Transient).times(1));
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Transient), None, None]);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_poison() {
    let broker = MemoryBroker::new(Config { message_size_max: 1, ..Config::default() });
    assert_eq!(publish(&broker, &three()).await, [Some(Class::Poison); 3]);
    assert_eq!(broker.received(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_before_its_confirmation_has_arrived() {
    let broker = MemoryBroker::new(Config { latency: Duration::from_secs(10), ..Config::default() });
    assert!(tokio::time::timeout(Duration::from_secs(9), publish(&broker, &three())).await.is_err());
    assert_eq!(broker.received(), 3);
    assert_eq!(publish(&broker, &three()).await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_broker_answers_once_it_is_thawed() {
    let broker = MemoryBroker::new(Config::default());
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
    let broker = MemoryBroker::new(Config::default());
    let same = broker.clone();
    broker.on_receipt(move |publication| {
        if publication.seq == 2 {
            same.down();
        }
    });
    assert_eq!(publish(&broker, &three()).await, [None, None, Some(Class::Outage)]);
}
