//! Missing permissions, and a server whose message limit is too small for a lane record.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use relevo_broker_nats::{Auth, Config, ConsumerOptions, Group, consumer, declare_group};
use relevo_conformance::broker::harness::within_timeout;
use relevo_core::{BrokerConsumer as _, Class};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

use crate::harness::create_stream;

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn a_group_whose_record_may_not_fit_is_refused() {
    let server = Private::start(NatsVersion::V2_15, Settings::new().config("max_payload: 8192")).await;
    let subjects = vec!["orders".to_owned()];
    create_stream(&server, stream::Config { name: "all".to_owned(), subjects, ..stream::Config::default() }).await;
    let config = Config::new(server.url());
    let member = ConsumerOptions { prefetch: 50, ..ConsumerOptions::default() };
    let fits = Group { max_ack_pending: 300, ..Group::new("billing", "all", ["orders"]) };
    declare_group(&config, &fits).await.expect("a group");
    consumer(&config, &fits, member.clone()).await.expect("a consumer");
    let too_many = Group { name: "greedy".to_owned(), max_ack_pending: 1_000, ..fits };
    declare_group(&config, &too_many).await.expect("a group");
    let refused = consumer(&config, &too_many, member).await.expect_err("its record may not fit");
    assert_eq!(refused.class(), Class::Blocked);
    assert!(refused.to_string().contains("max_payload"), "{refused}");
}

#[tokio::test]
async fn a_consumer_without_the_right_to_request_messages_reports_it() {
    for version in NatsVersion::ALL {
        let users = "accounts { A { jetstream: enabled, users: [ { user: \"a\", password: \"p\" }, \
             { user: \"b\", password: \"p\", permissions: { publish: { deny: [ \"$JS.API.CONSUMER.MSG.NEXT.>\" ] } } } ] } }";
        let server = Private::start(version, Settings::new().config(users)).await;
        crate::harness::create_stream_as(&server, "a", "p").await;
        let auth = |user: &str| Auth::UserPassword { user: user.to_owned(), password: "p".to_owned() };
        let config = Config { auth: auth("a"), ..Config::new(server.url()) };
        let group = Group::new("billing", crate::harness::STREAM, ["orders"]);
        declare_group(&config, &group).await.expect("a group");
        let denied = Config { auth: auth("b"), ..config };
        let one = consumer(&denied, &group, ConsumerOptions::default()).await.expect("a consumer");
        let failure = within_timeout(one.receive(1)).await.expect_err("it cannot receive anything");
        assert_eq!(failure.class(), Class::Blocked);
        assert!(failure.error_chain().contains("$JS.API.CONSUMER.MSG.NEXT"), "{}", failure.error_chain());
    }
}

#[tokio::test]
async fn a_dead_member_that_cannot_be_deleted_ends_no_other_lease() {
    let users = "accounts { A { jetstream: enabled, users: [ { user: \"a\", password: \"p\", \
         permissions: { publish: { deny: [ \"$JS.API.STREAM.PURGE.>\" ] } } } ] } }";
    let server = Private::start(NatsVersion::V2_15, Settings::new().config(users)).await;
    crate::harness::create_stream_as(&server, "a", "p").await;
    let auth = Auth::UserPassword { user: "a".to_owned(), password: "p".to_owned() };
    let config = Config { auth, confirm_timeout: Duration::from_millis(300), ..Config::new(server.url()) };
    let group = Group::new("billing", crate::harness::STREAM, ["orders"]);
    declare_group(&config, &group).await.expect("a group");
    let login = async_nats::ConnectOptions::with_user_and_password("a".to_owned(), "p".to_owned());
    let jetstream = jetstream::new(login.connect(server.url()).await.expect("a connection"));
    let prefix = format!("$KV.relevo-lanes.{}.billing", crate::harness::STREAM);
    let dead = r#"{"name":"dead","lease_ms":1,"call":false}"#;
    let written = jetstream.publish(format!("{prefix}.member.dead"), dead.into()).await.expect("sent");
    written.await.expect("written");
    let member = ConsumerOptions { lease: Duration::from_secs(2), ..ConsumerOptions::default() };
    let _one = consumer(&config, &group, member).await.expect("a consumer");
    let bucket = jetstream.get_stream("KV_relevo-lanes").await.expect("the bucket");
    let revision = async || {
        let record = bucket.raw_message_builder().last_by_subject(format!("{prefix}.lane.0")).send().await;
        record.expect("a record").sequence
    };
    let taken = revision().await;
    until("the lane was never renewed", async || revision().await > taken).await;
}
