//! The retry ladder and the dead letters, on a real server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::{QueueDeleteOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use relevo_broker_rabbitmq::{Death, Membership, Queue, consumer, dead_queue, retry_queue};
use relevo_conformance::broker::harness::{
    ADDRESS, BrokerHarness as _, nothing, number, publication, publish_all, receive, soon,
};
use relevo_core::{Answer, Class, Consumer as _, Delivery};

use crate::consumer_harness::{EXCHANGE, Groups};

const QUEUE: &str = "billing";

async fn settle(consumer: &impl relevo_core::Consumer, delivery: &Delivery, answer: Answer) {
    assert_eq!(soon(consumer.settle(&[(delivery.tag, answer)])).await.expect("settled"), []);
}

fn later(after: Duration) -> Answer {
    Answer::RetryLater { after }
}

/// A queue without lanes whose rungs are 200 ms and 1 s.
async fn plain() -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let rungs = vec![Duration::from_millis(200), Duration::from_secs(1)];
    let queue = Queue { lanes: None, ordered: true, retry: rungs, ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    (groups, queue)
}

#[tokio::test]
async fn what_is_on_the_ladder_from_before_the_two_were_told_apart_goes_on() {
    let (groups, queue) = plain().await;
    let headers = table([("relevo-retries", AMQPValue::LongLongInt(2))]);
    publish_plain(&groups, BasicProperties::default().with_headers(headers), b"x").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    assert_eq!((held.count, held.retries), (3, 2));
    settle(&consumer, &held, later(Duration::ZERO)).await;
    let again = receive(&consumer, 1).await.remove(0);
    assert_eq!((again.count, again.retries), (4, 3));
}

/// Without a lane's word.
async fn publish_plain(groups: &Groups, properties: BasicProperties, payload: &[u8]) {
    groups.side().await.publish(EXCHANGE, ADDRESS, properties, payload).await;
}

fn table(headers: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.into(), value);
    }
    table
}

#[tokio::test]
async fn a_pause_longer_than_every_rung_takes_several() {
    let (groups, queue) = plain().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    let began = Instant::now();
    settle(&consumer, &first, later(Duration::from_millis(2_300))).await;
    let second = receive(&consumer, 1).await.remove(0);
    // Two of a second and two of 200 ms; climbing on is no delivery.
    assert!(began.elapsed() >= Duration::from_millis(2_300), "{:?}", began.elapsed());
    assert_eq!((second.count, second.retries, &*second.raw.payload), (2, 1, &b"x"[..]));
    settle(&consumer, &second, Answer::Acknowledge).await;
    nothing(&consumer).await;
}

#[tokio::test]
async fn what_returns_is_the_same_message_at_the_same_address() {
    let (groups, queue) = plain().await;
    let headers = table([
        ("x-number", AMQPValue::LongInt(-7)),
        ("x-bytes", AMQPValue::ByteArray(vec![0, 0xff].into())),
        ("x-text", AMQPValue::LongString("clave-ñ".into())),
    ]);
    let properties = BasicProperties::default()
        .with_message_id("m-1".into())
        .with_correlation_id("c-1".into())
        .with_headers(headers);
    publish_plain(&groups, properties, &[0, 0xff]).await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &first, later(Duration::ZERO)).await;
    let second = receive(&consumer, 1).await.remove(0);
    assert_eq!((&second.address, &second.raw.payload), (&first.address, &first.raw.payload));
    assert_eq!(&*second.address, ADDRESS);
    let after: BTreeMap<_, _> = second.raw.headers.iter().cloned().collect();
    for (name, value) in &first.raw.headers {
        assert_eq!(after.get(name), Some(value), "{name}");
    }
    let deaths = Death::read(&second.raw);
    assert_eq!(deaths.len(), 1, "{deaths:?}");
    assert_eq!((deaths[0].reason.as_str(), deaths[0].count), ("expired", 1));
    assert_eq!(deaths[0].queue, retry_queue(QUEUE, queue.retry[0]));
    assert_eq!(deaths[0].routing_keys, [retry_queue(QUEUE, queue.retry[0])]);
    assert!(deaths[0].time.is_some());
}

#[tokio::test]
async fn deliveries_before_and_after_a_retry_are_counted_together() {
    let (groups, queue) = plain().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    for expected in 1..=6 {
        let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
        let held = receive(&consumer, 1).await.remove(0);
        assert_eq!(held.count, expected);
        if expected % 3 == 0 {
            settle(&consumer, &held, later(Duration::ZERO)).await;
        }
        soon(consumer.close()).await.expect("closed");
    }
}

/// What an operator's shovel may bring back: a history that names this very queue.
fn expired_here() -> BasicProperties {
    let mut deaths = FieldArray::default();
    deaths.push(AMQPValue::FieldTable(table([
        ("count", AMQPValue::LongLongInt(1)),
        ("queue", AMQPValue::LongString(QUEUE.into())),
        ("reason", AMQPValue::LongString("expired".into())),
        ("exchange", AMQPValue::LongString("".into())),
    ])));
    BasicProperties::default().with_headers(table([("x-death", AMQPValue::FieldArray(deaths))]))
}

#[tokio::test]
async fn a_message_that_once_expired_out_of_its_own_queue_is_not_dropped_as_a_cycle() {
    let (groups, queue) = plain().await;
    publish_plain(&groups, expired_here(), b"x").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    assert_eq!(Death::read(&first.raw).len(), 1);
    settle(&consumer, &first, later(Duration::ZERO)).await;
    assert_eq!(receive(&consumer, 1).await[0].count, 2);
}

/// Why the history is taken off: this is the broker alone.
#[tokio::test]
async fn with_its_history_the_broker_would_drop_it_without_a_word() {
    let (groups, queue) = plain().await;
    let (side, rung) = (groups.side().await, retry_queue(QUEUE, queue.retry[0]));
    side.publish("", &rung, expired_here(), b"dropped").await;
    side.publish("", &rung, BasicProperties::default(), b"returned").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    // A rung is first in, first out.
    assert_eq!(&*receive(&consumer, 1).await[0].raw.payload, b"returned");
    nothing(&consumer).await;
    assert_eq!(side.ready(&rung).await, 0);
}

#[tokio::test]
async fn a_missing_rung_keeps_the_message_out_until_it_is_mended() {
    let (groups, queue) = plain().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let rung = retry_queue(QUEUE, queue.retry[0]);
    let side = groups.side().await;
    side.channel.queue_delete(rung.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    let failure = soon(consumer.settle(&[(held.tag, later(Duration::ZERO))])).await.expect_err("no rung");
    assert_eq!(failure.class(), Class::Blocked);
    assert!(failure.describe().contains(&rung), "{}", failure.describe());
    groups.declare(&queue, ADDRESS).await;
    // The same call again.
    settle(&consumer, &held, later(Duration::ZERO)).await;
    assert_eq!(receive(&consumer, 1).await[0].count, 2);
}

#[tokio::test]
async fn an_answer_that_cannot_be_given_holds_no_other_back() {
    let (groups, queue) = plain().await;
    for payload in [b"1", b"2", b"3"] {
        publish_plain(&groups, BasicProperties::default(), payload).await;
    }
    let rung = retry_queue(QUEUE, queue.retry[0]);
    let side = groups.side().await;
    side.channel.queue_delete(rung.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 3).await;
    let answers = [
        (held[0].tag, later(Duration::ZERO)),
        (held[1].tag, Answer::Reject { reason: "no".to_owned() }),
        (held[2].tag, Answer::Acknowledge),
    ];
    for _ in 0..3 {
        let failure = soon(consumer.settle(&answers)).await.expect_err("no rung");
        assert_eq!(failure.class(), Class::Blocked);
        assert!(failure.describe().contains(&rung), "{}", failure.describe());
    }
    assert_eq!(side.ready(&dead_queue(QUEUE)).await, 1, "what could be done was done once");
    groups.declare(&queue, ADDRESS).await;
    let gone = soon(consumer.settle(&answers)).await.expect("settled");
    assert_eq!(gone, [held[1].tag, held[2].tag], "they were settled before");
    assert_eq!(receive(&consumer, 1).await[0].count, 2);
    nothing(&consumer).await;
}

#[tokio::test]
async fn what_was_on_its_way_up_is_handed_out_when_the_ladder_is_gone() {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: None, retry: vec![], ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    let left = table([("relevo-pause-left-ms", AMQPValue::LongLongInt(60_000))]);
    publish_plain(&groups, BasicProperties::default().with_headers(left), b"x").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    assert_eq!(&*receive(&consumer, 1).await[0].raw.payload, b"x");
}

#[tokio::test]
async fn without_a_ladder_nothing_is_retried_and_nothing_is_lost() {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: None, retry: vec![], dead_letters: None, ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    for answer in [later(Duration::ZERO), Answer::Reject { reason: "no".to_owned() }] {
        let failure = soon(consumer.settle(&[(held.tag, answer)])).await.expect_err("nowhere to go");
        assert_eq!(failure.class(), Class::Blocked);
    }
    settle(&consumer, &held, Answer::Acknowledge).await;
}

#[tokio::test]
async fn dead_letters_go_to_the_queue_that_was_chosen() {
    let groups = Groups::shared().await;
    let queue = Queue { dead_letters: Some("graves".to_owned()), ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    publish_all(&groups.broker().await, &[publication(1, "a")]).await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &held, Answer::Reject { reason: "no".to_owned() }).await;
    assert_eq!(groups.side().await.ready("graves").await, 1);
}

#[tokio::test]
async fn a_dead_letter_says_why_and_from_where() {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    publish_all(&groups.broker().await, &[publication(1, "a")]).await;
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &held, Answer::Reject { reason: "the amount is negative".to_owned() }).await;
    let side = groups.side().await;
    let dead = side.kept(&dead_queue(QUEUE)).await.remove(0);
    let header = |name: &str| dead.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.clone());
    assert_eq!(header("relevo-reason").as_deref(), Some(&b"the amount is negative"[..]));
    assert_eq!(header("relevo-address").as_deref(), Some(ADDRESS.as_bytes()));
    assert_eq!(dead.decode().expect("a message of ours").seq, Some(1));
    side.channel.queue_purge(dead_queue(QUEUE).into(), QueuePurgeOptions::default()).await.expect("purged");
}

/// What the publisher asked of its own message is not asked again of the copies.
#[tokio::test]
async fn a_message_that_would_expire_or_spread_does_neither_when_it_moves() {
    /// Longer than a busy machine needs to receive it, once it receives at all.
    const EXPIRES: Duration = Duration::from_secs(6);
    let (groups, queue) = plain().await;
    let side = groups.side().await;
    side.quorum_queue("elsewhere", &[]).await;
    let mut copied = FieldArray::default();
    copied.push(AMQPValue::LongString("elsewhere".into()));
    let properties = BasicProperties::default()
        .with_expiration(EXPIRES.as_millis().to_string().into())
        .with_user_id("guest".into())
        .with_headers(table([("CC", AMQPValue::FieldArray(copied))]));
    let consumer = consumer(&groups.config(), &queue.group(), Membership::default()).await.expect("a consumer");
    publish_plain(&groups, BasicProperties::default(), b"first").await;
    let subscribed = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &subscribed, Answer::Acknowledge).await;
    publish_plain(&groups, properties.clone(), b"rejected").await;
    let rejected = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &rejected, Answer::Reject { reason: "no".to_owned() }).await;
    publish_plain(&groups, properties, b"retried").await;
    let first = receive(&consumer, 1).await.remove(0);
    settle(&consumer, &first, later(Duration::ZERO)).await;
    let second = receive(&consumer, 1).await.remove(0);
    let header = |name: &str| second.raw.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value);
    assert_eq!(header("expiration").map(|value| &**value), Some(EXPIRES.as_millis().to_string().as_bytes()));
    assert_eq!(header("user-id").map(|value| &**value), Some(&b"guest"[..]));
    // The copies went through the default exchange, where `elsewhere` names that queue.
    assert_eq!(side.ready("elsewhere").await, 0);
    // Longer than the time after which it would have gone.
    tokio::time::sleep(EXPIRES + Duration::from_secs(1)).await;
    assert_eq!(side.kept(&dead_queue(QUEUE)).await.len(), 1);
}

#[tokio::test]
async fn a_consumer_that_dies_between_copy_and_acknowledgement_leaves_two_and_never_none() {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    let batch: Vec<_> = (1..=40).map(|number| publication(number, &format!("k-{}", number % 7))).collect();
    publish_all(&groups.broker().await, &batch).await;
    let (mut seen, mut acknowledged) = (Vec::new(), std::collections::BTreeSet::new());
    let retried = |one: &Delivery| one.raw.headers.iter().any(|(name, _)| name == "relevo-retries");
    let (mut climbed, mut enough) = (false, Duration::from_millis(1));
    for round in 0..14 {
        let member = groups.member(&queue.group(), Membership::default()).await;
        let some = soon(member.receive(100)).await.expect("deliveries");
        seen.extend(some.iter().map(number));
        climbed |= some.iter().any(retried);
        let answers: Vec<_> = some.iter().map(|one| (one.tag, later(Duration::ZERO))).collect();
        // Given up at another moment each time, the connections cut with it: twice as late until copies were made, and then
        // at any moment up to that.
        let given = if climbed { enough * (round % 5) / 4 } else { enough };
        tokio::time::timeout(given, member.settle(&answers)).await.ok();
        groups.cut_off(&member).await;
        enough = if climbed { enough } else { enough * 2 };
    }
    let last = groups.member(&queue.group(), Membership::default()).await;
    while acknowledged.len() < 40 {
        let some = soon(last.receive(100)).await.expect("deliveries");
        climbed |= some.iter().any(retried);
        for delivery in &some {
            settle(&last, delivery, Answer::Acknowledge).await;
        }
        acknowledged.extend(some.iter().map(number));
    }
    assert!(seen.len() > 40, "nothing came twice");
    assert!(climbed, "no copy was ever made");
}
