//! What becomes of deliveries.

use std::time::Duration;

use relevo_core::{Answer, Consumer, Delivery, Publication, Tag};

use super::harness::{ADDRESS, ConsumerHarness, nothing, number, numbers, publication, publish_all, receive, soon};

fn of_key(key: &str, numbers: impl Iterator<Item = u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, key)).collect()
}

fn in_order(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(number).collect()
}

async fn settle(consumer: &impl Consumer, answers: &[(&Delivery, Answer)]) -> Vec<Tag> {
    let answers: Vec<(Tag, Answer)> = answers.iter().map(|(delivery, answer)| (delivery.tag, answer.clone())).collect();
    soon(consumer.settle(&answers)).await.expect("settled")
}

async fn acknowledge(consumer: &impl Consumer, deliveries: &[Delivery]) {
    let answers: Vec<_> = deliveries.iter().map(|delivery| (delivery, Answer::Acknowledge)).collect();
    assert_eq!(settle(consumer, &answers).await, []);
}

fn later(harness: &impl ConsumerHarness) -> Answer {
    Answer::RetryLater { after: harness.later() }
}

/// Neither to the next consumer nor, where that is promised, after a crash of the broker.
pub async fn what_was_acknowledged_never_comes_again(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=10)).await;
    let consumer = harness.consumer("billing", 100).await;
    acknowledge(&consumer, &receive(&consumer, 10).await).await;
    let keeps = consumer.capabilities().keeps_answers;
    harness.kill(consumer).await;
    let consumer = harness.consumer("billing", 100).await;
    nothing(&consumer).await;
    if keeps {
        harness.kill(consumer).await;
        harness.crash().await;
        let consumer = harness.consumer("billing", 100).await;
        nothing(&consumer).await;
        publish_all(&harness.broker().await, &of_key("a", 11..=11)).await;
        assert_eq!(in_order(&receive(&consumer, 1).await), [11]);
    } else {
        publish_all(&harness.broker().await, &of_key("a", 11..=11)).await;
        assert_eq!(in_order(&receive(&consumer, 1).await), [11]);
    }
}

/// With a count that did not forget.
pub async fn what_was_not_acknowledged_comes_again_after_a_crash(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=3)).await;
    for round in 1..=3 {
        let consumer = harness.consumer("billing", 100).await;
        let held = receive(&consumer, 3).await;
        assert_eq!(in_order(&held), [1, 2, 3]);
        let expected = if consumer.capabilities().counts { round } else { round.min(2) };
        assert!(held.iter().all(|delivery| delivery.count == expected), "{held:?}");
        harness.kill(consumer).await;
        harness.crash().await;
    }
}

/// Each stands for itself.
pub async fn acknowledgements_need_no_order(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=6)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 6).await;
    for index in [4, 1, 2] {
        assert_eq!(settle(&consumer, &[(&held[index], Answer::Acknowledge)]).await, []);
    }
    harness.kill(consumer).await;
    let consumer = harness.consumer("billing", 100).await;
    assert_eq!(in_order(&receive(&consumer, 3).await), [1, 4, 6]);
}

/// Repeating oneself does no harm, and is noticed.
pub async fn an_answer_given_twice_is_lost_the_second_time(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=2)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 2).await;
    acknowledge(&consumer, &held[..1]).await;
    let again = settle(&consumer, &[(&held[0], later(harness)), (&held[1], Answer::Acknowledge)]).await;
    assert_eq!(again, [held[0].tag]);
    nothing(&consumer).await;
}

/// The pause is kept, and the count rises.
pub async fn a_retried_message_comes_after_its_pause_and_not_before(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=1)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 1).await;
    assert_eq!(settle(&consumer, &[(&held[0], later(harness))]).await, []);
    nothing(&consumer).await;
    harness.let_pass(harness.later()).await;
    let again = receive(&consumer, 1).await;
    assert_eq!((number(&again[0]), again[0].count), (1, 2));
    // A pause that is short passes by itself, while somebody waits.
    let short = Answer::RetryLater { after: Duration::from_millis(50) };
    assert_eq!(settle(&consumer, &[(&again[0], short)]).await, []);
    let third = receive(&consumer, 1).await;
    assert_eq!(third[0].count, 3);
    acknowledge(&consumer, &third).await;
    nothing(&consumer).await;
}

/// Neither the death nor the orderly end of a consumer that had it is one, however often it is handed over because of that.
pub async fn only_an_answer_is_a_retry(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=1)).await;
    let short = Answer::RetryLater { after: Duration::from_millis(50) };
    for retries in 0..=2 {
        let consumer = harness.consumer("billing", 100).await;
        assert_eq!(receive(&consumer, 1).await[0].retries, retries);
        harness.kill(consumer).await;
        let consumer = harness.consumer("billing", 100).await;
        assert_eq!(receive(&consumer, 1).await[0].retries, retries, "its consumer died");
        soon(consumer.close()).await.expect("closed");
        let consumer = harness.consumer("billing", 100).await;
        let held = receive(&consumer, 1).await;
        assert_eq!(held[0].retries, retries, "its consumer ended");
        assert!(held[0].count > retries, "{held:?}");
        assert_eq!(settle(&consumer, &[(&held[0], short.clone())]).await, []);
        soon(consumer.close()).await.expect("closed");
    }
}

/// What is out of the key behind it is taken back and comes again behind it; without that promise it stays out.
pub async fn a_retried_message_holds_back_what_is_out_of_its_key(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=4)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 4).await;
    acknowledge(&consumer, &held[..1]).await;
    assert_eq!(settle(&consumer, &[(&held[1], later(harness))]).await, []);
    let lost = settle(&consumer, &[(&held[2], Answer::Acknowledge), (&held[3], Answer::Acknowledge)]).await;
    let holds = consumer.capabilities().holds_key;
    assert_eq!(lost, if holds { vec![held[2].tag, held[3].tag] } else { vec![] });
    nothing(&consumer).await;
    harness.let_pass(harness.later()).await;
    let first = receive(&consumer, 1).await;
    assert_eq!(in_order(&first), [2]);
    if holds {
        // It is out again, and those behind it still wait.
        nothing(&consumer).await;
        acknowledge(&consumer, &first).await;
        assert_eq!(in_order(&receive(&consumer, 2).await), [3, 4]);
    } else {
        acknowledge(&consumer, &first).await;
        nothing(&consumer).await;
    }
}

/// What is published while it waits comes behind it; without that promise at once.
pub async fn a_retried_message_holds_back_what_comes_after_it(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let broker = harness.broker().await;
    publish_all(&broker, &of_key("a", 1..=1)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 1).await;
    assert_eq!(settle(&consumer, &[(&held[0], later(harness))]).await, []);
    publish_all(&broker, &of_key("a", 2..=3)).await;
    if consumer.capabilities().holds_key {
        nothing(&consumer).await;
        harness.let_pass(harness.later()).await;
        let first = receive(&consumer, 1).await;
        assert_eq!((number(&first[0]), first[0].count), (1, 2));
        // It fails once more, and is then rejected: both times the others wait for it.
        assert_eq!(settle(&consumer, &[(&first[0], later(harness))]).await, []);
        nothing(&consumer).await;
        harness.let_pass(harness.later()).await;
        let first = receive(&consumer, 1).await;
        assert_eq!((number(&first[0]), first[0].count), (1, 3));
        let reject = Answer::Reject { reason: "no".to_owned() };
        assert_eq!(settle(&consumer, &[(&first[0], reject)]).await, []);
        let rest = receive(&consumer, 2).await;
        assert_eq!(in_order(&rest), [2, 3]);
        assert!(rest.iter().all(|delivery| delivery.count == 1), "waiting counted as a delivery");
    } else {
        assert_eq!(in_order(&receive(&consumer, 2).await), [2, 3]);
    }
}

/// Even those that share its lane.
pub async fn a_retried_message_leaves_other_keys_alone(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let broker = harness.broker().await;
    publish_all(&broker, &of_key("a", 1..=1)).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 1).await;
    assert_eq!(settle(&consumer, &[(&held[0], later(harness))]).await, []);
    let others: Vec<Publication> = (10..110).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&broker, &others).await;
    let mut seen = in_order(&receive(&consumer, 100).await);
    seen.sort_unstable();
    assert_eq!(seen, (10..110).collect::<Vec<_>>());
}

/// The next consumer waits as long as the first would have.
pub async fn a_pause_survives_the_death_of_its_consumer(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=2)).await;
    let first = harness.consumer("billing", 100).await;
    let held = receive(&first, 2).await;
    acknowledge(&first, &held[1..]).await;
    assert_eq!(settle(&first, &[(&held[0], later(harness))]).await, []);
    let keeps = first.capabilities().keeps_answers;
    harness.kill(first).await;
    if keeps {
        harness.crash().await;
    }
    let second = harness.consumer("billing", 100).await;
    nothing(&second).await;
    harness.let_pass(harness.later()).await;
    let again = receive(&second, 1).await;
    assert_eq!((number(&again[0]), again[0].count), (1, 2));
}

/// It is there with its bytes, for this group only.
pub async fn a_rejected_message_is_a_dead_letter_and_its_key_goes_on(harness: &mut impl ConsumerHarness) {
    for group in ["billing", "audit"] {
        harness.group(group, ADDRESS).await;
    }
    let batch = of_key("a", 1..=3);
    publish_all(&harness.broker().await, &batch).await;
    let consumer = harness.consumer("billing", 100).await;
    let held = receive(&consumer, 3).await;
    let reject = Answer::Reject { reason: "the amount is negative".to_owned() };
    assert_eq!(settle(&consumer, &[(&held[1], reject)]).await, []);
    acknowledge(&consumer, &[held[0].clone(), held[2].clone()]).await;
    nothing(&consumer).await;
    let dead = harness.dead("billing").await;
    assert_eq!(numbers(&dead), [2]);
    assert_eq!(dead[0].payload, batch[1].message.payload);
    assert!(harness.dead("audit").await.is_empty());
    let other = harness.consumer("audit", 100).await;
    assert_eq!(in_order(&receive(&other, 3).await), [1, 2, 3]);
}
