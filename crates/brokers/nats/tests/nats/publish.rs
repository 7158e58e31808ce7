//! Publishing tests beyond the suite.

use std::time::Duration;

use relevo_broker_nats::{Auth, Config, Identity, Publisher, Tls};
use relevo_conformance::broker::harness::{decode, numbers, publication, publish_all, with_message};
use relevo_core::Class;
use relevo_testkit::NatsVersion;
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::harness::{STREAM, open, outcomes_of, server, stored};

#[tokio::test]
async fn lanes_are_the_last_word_of_the_subject() {
    let (server, _) = server(NatsVersion::V2_15).await;
    let broker = open(Config { lanes: Some(4), ..Config::new(server.url()) }).await;
    publish_all(&broker, &[publication(1, "o-1"), publication(2, "o-2")]).await;
    let subjects: Vec<_> = stored(&server, STREAM).await.into_iter().map(|(subject, _)| subject).collect();
    assert_eq!(subjects, ["orders.0", "orders.3"]);
}

#[tokio::test]
async fn a_changed_lane_count_creates_no_duplicate() {
    let (server, broker) = server(NatsVersion::V2_15).await;
    publish_all(&broker, &[publication(1, "o-2")]).await;
    let broker = open(Config { lanes: Some(4), ..Config::new(server.url()) }).await;
    publish_all(&broker, &[publication(1, "o-2")]).await;
    assert_eq!(stored(&server, STREAM).await.len(), 1);
}

#[tokio::test]
async fn values_that_nats_would_trim_or_cut_arrive_exactly() {
    for version in NatsVersion::ALL {
        let (server, broker) = server(version).await;
        let sent = with_message(&publication(1, " a\r\nb%20 "), |message| {
            for (number, value) in
                ["", " ", " a ", "a\r\nb: c", "\u{a0}x\u{2003}", "\0", "100%", "%41"].iter().enumerate()
            {
                message.headers.insert(format!("x-{number}"), (*value).to_owned());
            }
            message.headers.insert("ce-extra".to_owned(), "50% ñ".to_owned());
            message.kind = "\"quoted\" ".into();
        });
        publish_all(&broker, std::slice::from_ref(&sent)).await;
        assert_eq!(decode(&stored(&server, STREAM).await[0].1).message, *sent.message);
    }
}

#[tokio::test]
async fn no_more_than_allowed_is_in_flight() {
    let (server, _) = server(NatsVersion::V2_15).await;
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let broker = open(Config { in_flight_max: 3, ..Config::new(format!("nats://{}", proxy.addr())) }).await;
    publish_all(&broker, &[publication(1, "a")]).await;
    // Nothing is acknowledged, so the stored messages are those in flight.
    proxy.stall(Direction::ToClient);
    let batch: Vec<_> = (2..=100).map(|number| publication(number, "a")).collect();
    let checks = async {
        proxy.until_held(Direction::ToClient).await;
        while stored(&server, STREAM).await.len() < 4 {}
        tokio::time::sleep(Duration::from_millis(300)).await;
        let in_flight = stored(&server, STREAM).await.len() - 1;
        proxy.flow(Direction::ToClient);
        in_flight
    };
    let ((), in_flight) = tokio::join!(publish_all(&broker, &batch), checks);
    assert_eq!(in_flight, 3);
    let received: Vec<_> = stored(&server, STREAM).await.into_iter().map(|(_, raw)| raw).collect();
    assert_eq!(numbers(&received), (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_closed_broker_reports_an_outage() {
    let (_server, broker) = server(NatsVersion::V2_15).await;
    broker.close().await;
    let (class, _) = outcomes_of(&broker, &[publication(1, "a")]).await.remove(0).expect("refused");
    assert_eq!(class, relevo_core::Class::Outage);
}

#[tokio::test]
async fn a_configuration_that_can_never_work_is_refused_without_echo() {
    let good = Config::new("nats://localhost:4222");
    let pair = Identity { cert_chain: "hush".to_owned(), key: "hush".to_owned() };
    for bad in [
        Config { urls: Vec::new(), ..good.clone() },
        Config { urls: vec!["nats://u:hush@localhost".to_owned()], ..good.clone() },
        Config { in_flight_max: 0, ..good.clone() },
        Config { in_flight_max: 1 << 20, ..good.clone() },
        Config { lanes: Some(0), ..good.clone() },
        Config { lanes: Some(300), ..good.clone() },
        Config { confirm_timeout: Duration::ZERO, ..good.clone() },
        Config { stream: Some("a.b".to_owned()), ..good.clone() },
        Config { auth: Auth::Credentials("hush".to_owned()), ..good.clone() },
        Config { auth: Auth::NKey("hush".to_owned()), ..good.clone() },
        Config { tls: Tls { ca: Some("hush".to_owned()), ..Tls::default() }, ..good.clone() },
        Config { tls: Tls { identity: Some(pair), ..Tls::default() }, ..good.clone() },
    ] {
        let shown = format!("{bad:?}");
        let error = Publisher::open(bad).await.expect_err(&shown);
        assert_eq!(error.class(), relevo_core::Class::Blocked, "{error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}

#[tokio::test]
async fn the_smaller_of_both_limits_applies() {
    let (server, _) = server(NatsVersion::V2_15).await;
    // The limit of the server is one mebibyte.
    for (configured, limit) in [(1 << 20, 1 << 20), (5_000, 5_000), (1 << 30, 1 << 20)] {
        let broker = open(Config { message_size_max: configured, ..Config::new(server.url()) }).await;
        let sized =
            |bytes: usize| with_message(&publication(1, "k"), |message| message.payload = vec![0; bytes].into());
        let outcomes = outcomes_of(&broker, &[sized(limit + 1), sized(limit - 4_096)]).await;
        let [Some((class, error)), None] = outcomes.as_slice() else { panic!("{configured}: {outcomes:?}") };
        assert_eq!(*class, Class::Poison);
        assert!(error.contains(&format!("{limit}")), "{error}");
    }
}
