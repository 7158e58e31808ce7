//! Dead letters that cannot be written, and records that grow: neither may stop what is alive. And rights that are missing.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use relevo_broker_nats::{Auth, Config, Group, Membership, NatsBroker, consumer, declare};
use relevo_conformance::broker::harness::{
    BrokerHarness as _, ConsumerHarness as _, publication, publish_all, receive, soon, with,
};
use relevo_core::{Answer, Class, Consumer as _, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

use crate::consumer_harness::{group, start};
use crate::harness::{make_stream, stored};

fn batch(numbers: std::ops::Range<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{number}"))).collect()
}

fn reject(reason: &str) -> Answer {
    Answer::Reject { reason: reason.to_owned() }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn a_dead_letter_without_a_stream_troubles_nothing_else_and_is_written_later() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        lanes.group("billing", "orders").await;
        publish_all(&lanes.broker().await, &batch(0..20)).await;
        let membership = Membership { lease: Duration::from_secs(2), ..Membership::default() };
        let one = consumer(&lanes.config(), &group("billing", "orders"), membership).await.expect("a consumer");
        let held = receive(&one, 20).await;
        lanes.jetstream().await.delete_stream("billing-dead").await.expect("deleted");
        for delivery in &held[..10] {
            assert_eq!(soon(one.settle(&[(delivery.tag, reject("no"))])).await.expect("settled"), []);
        }
        let failure = soon(one.receive(1)).await.expect_err("a person is told");
        assert_eq!(failure.class(), Class::Blocked);
        assert!(failure.describe().contains("dead letter"), "{}", failure.describe());
        for delivery in &held[10..] {
            let settled = soon(one.settle(&[(delivery.tag, Answer::Acknowledge)])).await;
            assert_eq!(settled.expect("the living go on"), []);
        }
        declare(&lanes.config(), &group("billing", "orders")).await.expect("the group is whole again");
        until("the letters were never written", async || lanes.dead("billing").await.len() == 10).await;
    }
}

/// A server with messages of at most 8 KiB, a stream and a group without lanes.
async fn small() -> (Private, Config, Group) {
    let server = Private::start(NatsVersion::V2_15, Settings::new().config("max_payload: 8192")).await;
    let subjects = vec!["orders".to_owned()];
    make_stream(&server, stream::Config { name: "all".to_owned(), subjects, ..stream::Config::default() }).await;
    let config = Config::new(server.url());
    let group = Group { max_ack_pending: 60, ..Group::new("billing", "all", ["orders"]) };
    declare(&config, &group).await.expect("a group");
    (server, config, group)
}

fn member() -> Membership {
    Membership { prefetch: 50, ..Membership::default() }
}

#[tokio::test]
async fn a_dead_letter_that_its_reason_makes_too_large_is_kept_without_it() {
    let (server, config, group) = small().await;
    let large = with(&publication(1, "a"), |message| message.payload = vec![b'x'; 7_600].into());
    publish_all(&NatsBroker::open(config.clone()).await.expect("a broker"), std::slice::from_ref(&large)).await;
    let one = consumer(&config, &group, member()).await.expect("a consumer");
    let held = receive(&one, 1).await;
    assert_eq!(soon(one.settle(&[(held[0].tag, reject(&"why ".repeat(200)))])).await.expect("settled"), []);
    let dead = stored(&server, "billing-dead").await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].1.payload, large.message.payload);
}

#[tokio::test]
async fn many_long_reasons_fit_into_the_record() {
    let (server, config, group) = small().await;
    publish_all(&NatsBroker::open(config.clone()).await.expect("a broker"), &batch(0..50)).await;
    let jetstream = jetstream::new(crate::harness::client(&server).await);
    let one = consumer(&config, &group, member()).await.expect("a consumer");
    let held = receive(&one, 50).await;
    // So that the reasons stay where they are.
    jetstream.delete_stream("billing-dead").await.expect("deleted");
    let answers: Vec<_> = held.iter().map(|delivery| (delivery.tag, reject(&"\u{1}".repeat(5_000)))).collect();
    assert_eq!(soon(one.settle(&answers)).await.expect("settled"), []);
    let too_many = Group { name: "greedy".to_owned(), max_ack_pending: 1_000, ..group };
    declare(&config, &too_many).await.expect("a group");
    let refused = consumer(&config, &too_many, member()).await.expect_err("its record may not fit");
    assert_eq!(refused.class(), Class::Blocked);
    assert!(refused.to_string().contains("max_payload"), "{refused}");
}

#[tokio::test]
async fn a_consumer_without_the_right_to_ask_for_messages_is_told_so() {
    for version in NatsVersion::ALL {
        let users = "accounts { A { jetstream: enabled, users: [ { user: \"a\", password: \"p\" }, \
             { user: \"b\", password: \"p\", permissions: { publish: { deny: [ \"$JS.API.CONSUMER.MSG.NEXT.>\" ] } } } ] } }";
        let server = Private::start(version, Settings::new().config(users)).await;
        crate::harness::make_stream_as(&server, "a", "p").await;
        let auth = |user: &str| Auth::UserPassword { user: user.to_owned(), password: "p".to_owned() };
        let config = Config { auth: auth("a"), ..Config::new(server.url()) };
        let group = Group::new("billing", crate::harness::STREAM, ["orders"]);
        declare(&config, &group).await.expect("a group");
        let denied = Config { auth: auth("b"), ..config };
        let one = consumer(&denied, &group, Membership::default()).await.expect("a consumer");
        let failure = soon(one.receive(1)).await.expect_err("nothing can ever come");
        assert_eq!(failure.class(), Class::Blocked);
        assert!(failure.describe().contains("$JS.API.CONSUMER.MSG.NEXT"), "{}", failure.describe());
    }
}

#[tokio::test]
async fn a_dead_member_that_may_not_be_forgotten_costs_nobody_a_lease() {
    let users = "accounts { A { jetstream: enabled, users: [ { user: \"a\", password: \"p\", \
         permissions: { publish: { deny: [ \"$JS.API.STREAM.PURGE.>\" ] } } } ] } }";
    let server = Private::start(NatsVersion::V2_15, Settings::new().config(users)).await;
    crate::harness::make_stream_as(&server, "a", "p").await;
    let auth = Auth::UserPassword { user: "a".to_owned(), password: "p".to_owned() };
    let config = Config { auth, ack_deadline: Duration::from_millis(300), ..Config::new(server.url()) };
    let group = Group::new("billing", crate::harness::STREAM, ["orders"]);
    declare(&config, &group).await.expect("a group");
    let login = async_nats::ConnectOptions::with_user_and_password("a".to_owned(), "p".to_owned());
    let jetstream = jetstream::new(login.connect(server.url()).await.expect("a connection"));
    let prefix = format!("$KV.relevo-lanes.{}.billing", crate::harness::STREAM);
    let dead = r#"{"name":"dead","lease_ms":1,"call":false}"#;
    let written = jetstream.publish(format!("{prefix}.member.dead"), dead.into()).await.expect("sent");
    written.await.expect("written");
    let member = Membership { lease: Duration::from_secs(2), ..Membership::default() };
    let _one = consumer(&config, &group, member).await.expect("a consumer");
    let bucket = jetstream.get_stream("KV_relevo-lanes").await.expect("the bucket");
    let revision = async || {
        let record = bucket.raw_message_builder().last_by_subject(format!("{prefix}.lane.0")).send().await;
        record.expect("a record").sequence
    };
    let taken = revision().await;
    until("the lane was never renewed", async || revision().await > taken).await;
}
