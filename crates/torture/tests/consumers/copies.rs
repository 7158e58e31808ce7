//! Copies of dead letters at a broker.

use std::time::Duration;

use relevo_core::AckOutcome;
use relevo_inbox::{DeadLetterCopy, HandlerError};
use relevo_torture::ledger::{Feed, Member, Point};
use tokio::time::timeout;

use crate::conduct::{DONE, does};
use crate::on::{By, On, Shape};
use crate::stage::{Stage, start};

/// Deadline for the copy. A copy that could not be published is only counted, and never arrives.
const SOON: Duration = Duration::from_secs(40);

/// A separate file, exchange with queue, or stream.
fn letters_spec(stage: &Stage) -> String {
    let spec = stage.backing.broker(stage.on, &stage.consumer);
    match stage.on.broker {
        By::Embedded => format!("embedded:{}", stage.backing.scratch.file("letters.db").display()),
        By::RabbitMq => format!("{}#notifications.dlq?exchange=letters", spec.rsplit_once('#').expect("a queue").0),
        By::Nats => format!("{spec}-letters"),
    }
}

pub(crate) async fn a_dead_letter_is_copied_to_a_queue_of_the_broker(on: On) {
    let stage = Stage::set(on, Shape::Unordered).await;
    let letters =
        Feed::new(&letters_spec(&stage), &format!("{}-letters", stage.consumer), None, false).expect("a spec");
    letters.declare().await.expect("a broker that takes it");
    let poisoned = does(|moment| async move {
        if moment.point == Point::During && moment.change == 2 {
            return Err(HandlerError::permanent("no such\naddress").with_class("address"));
        }
        DONE
    });
    let mut member = Member { conduct: poisoned, ..stage.member("one") };
    let broker = letters.publisher().await.expect("a publisher");
    member.config.dead_letter_copy = Some(DeadLetterCopy { broker, address: letters.address().into() });
    let running = start(member).await;
    stage.send(6, 6).await;
    stage.until_rows(5).await;
    let reader = letters.consumer("reader").await.expect("a consumer");
    let copies = timeout(SOON, reader.receive(10)).await.expect("it comes in time").expect("a copy");
    assert_eq!(copies.len(), 1);
    let copy = copies[0].raw.decode().expect("a message of ours").message;
    let original = &stage.sent()[1];
    let header = |name: &str| copy.headers.get(name).map(String::as_str);
    assert_eq!(header("dead-letter-id"), Some(original.id.to_string().as_str()));
    assert_eq!((header("dead-letter-class"), header("dead-letter-attempts")), (Some("address"), Some("1")));
    assert_eq!((header("x-own"), &*copy.key), (Some("its own"), original.key.as_str()));
    let dead = stage.dead().await;
    assert_eq!(copy.payload, dead[0].message.raw.payload);
    let outcomes = reader.acknowledge(&[copies[0].tag]).await;
    assert!(matches!(outcomes[..], [AckOutcome::Acknowledged]), "{outcomes:?}");
    reader.close().await.expect("it closes");
    stage.finish([running], &[2]).await;
}
