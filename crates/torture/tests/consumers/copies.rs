//! Copies of dead letters at a broker.

use std::time::Duration;

use relevo_core::AckOutcome;
use relevo_inbox::{DeadLetterCopy, HandlerError};
use relevo_torture::ledger::{Feed, Member, Point};
use tokio::time::timeout;

use crate::backends::{Backends, BrokerKind, OrderMode};
use crate::behaviour::{DONE, behaviour_fn};
use crate::harness::{Harness, start};

/// Time limit for the copy. A copy that could not be published is only counted, and never arrives.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A separate file, exchange with queue, or stream.
fn copies_spec(harness: &Harness) -> String {
    let spec = harness.resources.broker(harness.backends, &harness.consumer);
    match harness.backends.broker {
        BrokerKind::Embedded => format!("embedded:{}", harness.resources.scratch.file("copies.db").display()),
        BrokerKind::RabbitMq => {
            format!("{}#notifications.dlq?exchange=copies", spec.rsplit_once('#').expect("a queue").0)
        }
        BrokerKind::Nats => format!("{spec}-copies"),
    }
}

pub(crate) async fn a_dead_letter_is_copied_to_a_queue_of_the_broker(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Unordered).await;
    let copies_feed =
        Feed::new(&copies_spec(&harness), &format!("{}-copies", harness.consumer), None, false).expect("a spec");
    copies_feed.declare().await.expect("the broker accepts it");
    let poisoned = behaviour_fn(|event| async move {
        if event.point == Point::During && event.change == 2 {
            return Err(HandlerError::permanent("no such\naddress").with_class("address").into());
        }
        DONE
    });
    let mut member = Member { behaviour: poisoned, ..harness.member("one") };
    let broker = copies_feed.publisher().await.expect("a publisher");
    member.config.dead_letter_copy = Some(DeadLetterCopy { broker, address: copies_feed.address().into() });
    let running = start(member).await;
    harness.send(6, 6).await;
    harness.until_rows(5).await;
    let reader = copies_feed.consumer("reader").await.expect("a consumer");
    let copies = timeout(TIMEOUT, reader.receive(10)).await.expect("it arrives in time").expect("a copy");
    assert_eq!(copies.len(), 1);
    let copy = copies[0].raw.decode().expect("a message of Relevo").message;
    let original = &harness.sent()[1];
    let header = |name: &str| copy.headers.get(name).map(String::as_str);
    assert_eq!(header("dead-letter-id"), Some(original.id.to_string().as_str()));
    assert_eq!((header("dead-letter-class"), header("dead-letter-attempts")), (Some("address"), Some("1")));
    assert_eq!((header("x-own"), &*copy.key), (Some("its own"), original.key.as_str()));
    assert_eq!(copy.payload, harness.first_dead_message().await.raw.payload);
    let outcomes = reader.acknowledge(&[copies[0].tag]).await;
    assert!(matches!(outcomes[..], [AckOutcome::Acknowledged]), "{outcomes:?}");
    reader.close().await.expect("it closes");
    harness.finish([running], &[2]).await;
}
