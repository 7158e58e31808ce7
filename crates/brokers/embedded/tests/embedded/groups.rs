//! Groups as people see them, and what the suites do not ask.

use std::time::Duration;

use relevo_broker_embedded::{Config, EmbeddedBroker, Group, GroupStatus, LAG_EXACT_MAX, Membership, Start, Which};
use relevo_conformance::broker::harness::{number, publication, publish_all, receive, soon, to};
use relevo_core::{Answer, Class, Consumer as _, Publication};

use crate::directory::Directory;

async fn open(directory: &Directory) -> EmbeddedBroker {
    EmbeddedBroker::open(Config::new(directory.path().join("broker.db"))).await.expect("the file can be opened")
}

async fn status(broker: &EmbeddedBroker, name: &str) -> GroupStatus {
    let groups = broker.groups().await.expect("groups");
    groups.into_iter().find(|group| group.name == name).expect("the group")
}

#[tokio::test]
async fn a_group_is_declared_once_and_never_changed_silently() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    let group = Group::new("billing", ["orders.*"]);
    broker.declare(&group).await.expect("new");
    broker.declare(&group).await.expect("the same");
    let other = Group { lanes: 4, ..Group::new("billing", ["orders.**"]) };
    let error = broker.declare(&other).await.expect_err("another one");
    assert_eq!(error.class(), Class::Blocked);
    assert_eq!(
        error.to_string(),
        "the group `billing` exists and differs: patterns are [\"orders.*\"], asked for [\"orders.**\"]; lanes are 16, \
         asked for 4"
    );
    let error = broker.declare(&Group { lanes: 257, ..group }).await.expect_err("too many lanes");
    assert_eq!(error.to_string(), "the group `billing` cannot be made: it needs 1 to 256 lanes");
    let error = broker.consumer("shipping", Membership::default()).await.expect_err("no group");
    assert_eq!((error.class(), error.to_string().as_str()), (Class::Blocked, "there is no group `shipping`"));
}

#[tokio::test]
async fn a_group_begins_now_or_with_the_oldest() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    publish_all(&broker, &[publication(1, "a")]).await;
    broker.declare(&Group::new("oldest", ["**"])).await.expect("a group");
    broker.declare(&Group { start: Start::Now, ..Group::new("now", ["**"]) }).await.expect("a group");
    publish_all(&broker, &[publication(2, "a")]).await;
    for (group, expected) in [("oldest", vec![1, 2]), ("now", vec![2])] {
        let consumer = broker.consumer(group, Membership::default()).await.expect("a consumer");
        let held = receive(&consumer, expected.len()).await;
        assert_eq!(held.iter().map(number).collect::<Vec<_>>(), expected, "{group}");
    }
}

#[tokio::test]
async fn patterns_choose_addresses_segment_by_segment() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["*.eu.**", "invoices"])).await.expect("a group");
    let addresses = ["orders.eu", "a.b.eu.es", "orders.eu.es.mad", "invoices", "invoices.eu", "orders", "invoices.x"];
    let batch: Vec<Publication> = (0..).zip(addresses).map(|(number, address)| to(address, number, "k")).collect();
    publish_all(&broker, &batch).await;
    let consumer = broker.consumer("g", Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 4).await;
    assert_eq!(held.iter().map(number).collect::<Vec<_>>(), [0, 2, 3, 4]);
}

#[tokio::test]
async fn a_status_counts_what_lags_is_out_waits_and_is_dead() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["orders"])).await.expect("a group");
    let batch: Vec<Publication> = (0..10).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &batch).await;
    publish_all(&broker, &[to("other", 10, "k")]).await;
    assert_eq!(status(&broker, "g").await.lag, 10);
    let consumer = broker.consumer("g", Membership { prefetch: 6, ..Membership::default() }).await.expect("one");
    let held = receive(&consumer, 6).await;
    let later = Answer::RetryLater { after: Duration::from_mins(1) };
    let reject = Answer::Reject { reason: "no".to_owned() };
    // The last one that is out waits; nothing is out behind it.
    let answers = [(held[0].tag, Answer::Acknowledge), (held[1].tag, reject), (held[5].tag, later)];
    assert_eq!(consumer.settle(&answers).await.expect("settled"), []);
    let found = status(&broker, "g").await;
    assert_eq!((found.lag, found.out, found.waiting, found.dead, found.consumers), (4, 3, 1, 1, 1));
    assert_eq!((found.lanes, found.ordered, found.patterns), (16, true, vec!["orders".to_owned()]));
}

#[tokio::test]
async fn a_lag_is_exact_up_to_a_bound() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    let bound = u32::try_from(LAG_EXACT_MAX).expect("small");
    let batch: Vec<Publication> = (0..bound).map(|number| publication(number, &format!("k-{}", number % 50))).collect();
    publish_all(&broker, &batch).await;
    assert_eq!(status(&broker, "g").await.lag, LAG_EXACT_MAX);
    let more: Vec<Publication> = (bound..bound + 10).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &more).await;
    assert_eq!(status(&broker, "g").await.lag, LAG_EXACT_MAX + 1, "which says: at least");
}

#[tokio::test]
async fn dead_letters_are_listed_requeued_and_deleted() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    let batch: Vec<Publication> = (1..=3).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &batch).await;
    let consumer = broker.consumer("g", Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 3).await;
    let reject = |index: usize| (held[index].tag, Answer::Reject { reason: format!("reason {index}") });
    assert_eq!(consumer.settle(&[reject(0), reject(1), reject(2)]).await.expect("settled"), []);
    let dead = broker.dead("g", 10).await.expect("dead letters");
    assert_eq!(dead.iter().map(|letter| &*letter.reason).collect::<Vec<_>>(), ["reason 0", "reason 1", "reason 2"]);
    assert!(dead.iter().all(|letter| letter.count == 1 && letter.message.key == "k"));

    assert_eq!(broker.delete_dead("g", &Which::Ids(vec![dead[0].id])).await.expect("deleted"), 1);
    assert_eq!(broker.requeue("g", &Which::Ids(vec![dead[2].id])).await.expect("requeued"), 1);
    assert_eq!(broker.requeue("g", &Which::Ids(vec![dead[2].id])).await.expect("requeued"), 0, "a double click");
    let again = receive(&consumer, 1).await;
    assert_eq!((number(&again[0]), again[0].count), (3, 2));
    assert_eq!(broker.requeue("g", &Which::All).await.expect("requeued"), 1);
    assert_eq!(number(&receive(&consumer, 1).await[0]), 2);
    assert_eq!(broker.dead("g", 10).await.expect("dead letters"), []);
}

#[tokio::test]
async fn a_removed_group_takes_everything_with_it() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(1, "k")]).await;
    let consumer = broker.consumer("g", Membership::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await;
    assert!(broker.remove("g").await.expect("removed"));
    assert!(!broker.remove("g").await.expect("nothing to remove"));
    let lost = consumer.settle(&[(held[0].tag, Answer::Acknowledge)]).await.expect("an answer");
    assert_eq!(lost, [held[0].tag]);
    assert_eq!(broker.groups().await.expect("groups"), []);
}

#[tokio::test]
async fn consumers_of_the_same_handle_are_woken_without_polling() {
    let directory = Directory::new();
    let config = Config { poll: Duration::from_hours(1), ..Config::new(directory.path().join("broker.db")) };
    let broker = EmbeddedBroker::open(config).await.expect("the file can be opened");
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", Membership::default()).await.expect("a consumer");
    for round in 0..20 {
        let batch = [publication(round, "k")];
        let (held, ()) = tokio::join!(soon(consumer.receive(1)), publish_all(&broker, &batch));
        assert_eq!(number(&held.expect("a delivery")[0]), i64::from(round));
    }
}

#[tokio::test]
async fn a_consumer_keeps_its_lanes_while_it_works() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(1, "k")]).await;
    // Three signs of life a lease: a machine that stands still for more than half of it does not end it.
    let lease = Duration::from_secs(5);
    let membership = Membership { lease, ..Membership::default() };
    let consumer = broker.consumer("g", membership.clone()).await.expect("a consumer");
    let held = receive(&consumer, 1).await;
    let other = broker.consumer("g", membership).await.expect("a consumer");
    // Several leases pass while nobody calls the first one; the other gets what is free and nothing else.
    assert!(tokio::time::timeout(2 * lease + lease / 5, other.receive(1)).await.is_err());
    assert_eq!(consumer.settle(&[(held[0].tag, Answer::Acknowledge)]).await.expect("settled"), []);
}

#[tokio::test]
async fn a_new_file_may_be_opened_by_many_at_once() {
    let directory = Directory::new();
    let brokers = futures_util::future::join_all((0..12).map(|_| open(&directory))).await;
    for (number, broker) in (0..).zip(&brokers) {
        publish_all(broker, &[publication(number, "k")]).await;
    }
    assert_eq!(brokers[0].peek("**", 0, usize::MAX).await.expect("messages").len(), 12);
}

#[tokio::test]
async fn a_retry_whose_answer_was_cut_off_holds_its_key_all_the_same() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", Membership::default()).await.expect("a consumer");
    let mut expected = 0;
    // Cut off at every moment there is; whatever the file knows by then, every message comes, in order, to its end.
    for polls in 0..16 {
        let batch: Vec<Publication> = (expected..expected + 3).map(|number| publication(number, "k")).collect();
        publish_all(&broker, &batch).await;
        let held = receive(&consumer, 3).await;
        let answers = [(held[0].tag, Answer::RetryLater { after: Duration::ZERO })];
        {
            let mut call = std::pin::pin!(consumer.settle(&answers));
            let mut polled = 0;
            soon(std::future::poll_fn(|context| {
                polled += 1;
                if polled > polls { std::task::Poll::Ready(()) } else { call.as_mut().poll(context).map(drop) }
            }))
            .await;
        }
        // Then it changes its mind; each answer is kept or lost, and what is lost comes again.
        let mut open: Vec<_> = held.into_iter().collect();
        let mut done = Vec::new();
        while done.len() < 3 {
            let answers: Vec<_> = open.iter().map(|delivery| (delivery.tag, Answer::Acknowledge)).collect();
            let lost = soon(consumer.settle(&answers)).await.expect("settled");
            done.extend(open.iter().filter(|delivery| !lost.contains(&delivery.tag)).map(number));
            let status = status(&broker, "g").await;
            if status.lag + status.out + status.waiting == 0 {
                break;
            }
            open = soon(consumer.receive(3)).await.expect("deliveries");
        }
        assert!(done.is_sorted(), "{done:?}");
        expected += 3;
    }
}
