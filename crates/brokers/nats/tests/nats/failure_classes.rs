//! The failure class of each refusal by a real server, on both versions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use relevo_broker_nats::{Auth, Config};
use relevo_conformance::broker::harness::{numbers, publication, publication_to, with_message};
use relevo_core::{Class, HeaderRules, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Private, Settings};

use crate::harness::{
    STREAM, catch_all_stream, client, create_stream, create_stream_as, open, outcome_of, outcomes_of, publish_until,
    server, stored,
};

/// Publishes a refused message between two others, which must succeed. Returns the failure of the refused one.
async fn outcome_between_others(
    version: NatsVersion,
    config: stream::Config,
    refused: &Publication,
) -> (Class, String) {
    let server = Private::start(version, Settings::new()).await;
    create_stream(&server, config).await;
    let broker = open(Config::new(server.url())).await;
    let outcomes = outcomes_of(&broker, &[publication(1, "a"), refused.clone(), publication(3, "a")]).await;
    let stored: Vec<_> = stored(&server, STREAM).await.into_iter().map(|(_, raw)| raw).collect();
    assert_eq!(numbers(&stored), [1, 3], "the others are unharmed");
    let [None, Some(outcomes), None] = &outcomes[..] else { panic!("{outcomes:?}") };
    outcomes.clone()
}

fn with_header(name: &str, value: &str) -> Publication {
    with_message(&publication(2, "a"), |message| {
        message.headers.insert(name.to_owned(), value.to_owned());
    })
}

#[tokio::test]
async fn a_subject_without_a_stream_is_blocked() {
    for version in NatsVersion::ALL {
        let (class, text) =
            outcome_between_others(version, catch_all_stream(), &publication_to("elsewhere", 2, "a")).await;
        assert_eq!(class, Class::Blocked, "{text}");
    }
}

#[tokio::test]
async fn in_a_cluster_a_missing_responder_is_throttled_at_first() {
    let cluster = Cluster::of_three().await;
    let broker = open(Config::new(cluster.nodes()[0].url())).await;
    let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("there is no stream");
    assert_eq!(class, Class::Throttled(Duration::from_secs(1)), "{text}");
}

#[tokio::test]
async fn an_invalid_address_is_blocked_and_the_connection_survives() {
    for address in ["orders.*", "orders..eu", "orders. eu", &"o".repeat(5_000)] {
        let (class, text) =
            outcome_between_others(NatsVersion::V2_9, catch_all_stream(), &publication_to(address, 2, "a")).await;
        assert_eq!(class, Class::Blocked, "{text}");
    }
}

#[tokio::test]
async fn the_longest_subject_is_accepted() {
    for version in NatsVersion::ALL {
        let (_server, broker) = server(version).await;
        let address = format!("orders.{}", "o".repeat(3_893));
        assert_eq!(outcome_of(&broker, &publication_to(&address, 1, "a")).await, None);
    }
}

#[tokio::test]
async fn another_stream_than_the_expected_one_is_blocked() {
    for version in NatsVersion::ALL {
        let (server, _) = server(version).await;
        let broker = open(Config { stream: Some("other".to_owned()), ..Config::new(server.url()) }).await;
        let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("refused");
        assert_eq!(class, Class::Blocked, "{text}");
        let broker = open(Config { stream: Some(STREAM.to_owned()), ..Config::new(server.url()) }).await;
        assert_eq!(outcome_of(&broker, &publication(1, "a")).await, None);
    }
}

#[tokio::test]
async fn a_full_stream_is_throttled_until_it_has_space() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let discard = stream::DiscardPolicy::New;
        create_stream(&server, stream::Config { max_messages: 2, discard, ..catch_all_stream() }).await;
        let broker = open(Config::new(server.url())).await;
        let batch: Vec<_> = (1..=4).map(|number| publication(number, "a")).collect();
        let classes: Vec<_> =
            outcomes_of(&broker, &batch).await.into_iter().map(|outcome| outcome.map(|(class, _)| class)).collect();
        let throttled = Some(Class::Throttled(Duration::from_secs(1)));
        assert_eq!(classes, [None, None, throttled, throttled]);
        // Duplicates of stored messages are still detected.
        assert_eq!(outcome_of(&broker, &batch[0]).await, None);
        let context = jetstream::new(client(&server).await);
        context.get_stream(STREAM).await.expect("a stream").purge().await.expect("purged");
        assert_eq!(outcomes_of(&broker, &batch[2..]).await, [None, None]);
    }
}

#[tokio::test]
async fn a_server_with_a_full_disk_is_throttled() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new().jetstream("max_file_store: 65536")).await;
        create_stream(&server, catch_all_stream()).await;
        let broker = open(Config::new(server.url())).await;
        let large =
            |number| with_message(&publication(number, "a"), |message| message.payload = vec![b'x'; 30_000].into());
        let outcomes = outcomes_of(&broker, &[large(1), large(2), large(3), large(4)]).await;
        assert_eq!(outcomes[0], None);
        let (class, text) = outcomes[3].clone().expect("refused");
        assert_eq!(class, Class::Throttled(Duration::from_secs(1)), "{text}");
    }
}

#[tokio::test]
async fn a_message_larger_than_its_stream_allows_is_poison() {
    for version in NatsVersion::ALL {
        let config = stream::Config { max_message_size: 2_000, ..catch_all_stream() };
        let large = with_message(&publication(2, "a"), |message| message.payload = vec![b'x'; 3_000].into());
        let (class, text) = outcome_between_others(version, config, &large).await;
        assert_eq!(class, Class::Poison, "{text}");
    }
}

#[tokio::test]
async fn a_message_larger_than_the_server_allows_is_poison() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new().config("max_payload: 4096")).await;
        create_stream(&server, catch_all_stream()).await;
        let broker = open(Config::new(server.url())).await;
        let large = with_message(&publication(2, "a"), |message| message.payload = vec![b'x'; 4_000].into());
        let outcomes = outcomes_of(&broker, &[publication(1, "a"), large, publication(3, "a")]).await;
        let [None, Some((class, text)), None] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!(*class, Class::Poison, "{text}");
    }
}

#[tokio::test]
async fn headers_larger_than_jetstream_stores_are_poison() {
    for version in NatsVersion::ALL {
        let (class, text) =
            outcome_between_others(version, catch_all_stream(), &with_header("x-long", &"v".repeat(70_000))).await;
        assert_eq!(class, Class::Poison, "{text}");
    }
}

#[tokio::test]
async fn header_names_that_cannot_be_sent_are_poison() {
    for name in ["a b", "a:b", "ñ", "a\r\nNats-Rollup", ""] {
        let (class, text) =
            outcome_between_others(NatsVersion::V2_15, catch_all_stream(), &with_header(name, "v")).await;
        assert_eq!(class, Class::Poison, "{text}");
    }
}

#[tokio::test]
async fn neither_a_message_nor_a_route_can_set_headers_of_the_server() {
    let rollup = stream::Config { allow_rollup: true, deny_delete: false, deny_purge: false, ..catch_all_stream() };
    let (class, text) =
        outcome_between_others(NatsVersion::V2_15, rollup.clone(), &with_header("Nats-Rollup", "all")).await;
    assert_eq!(class, Class::Poison, "{text}");
    let add = BTreeMap::from([("Nats-Rollup".to_owned(), "all".to_owned())]);
    let headers = Arc::new(HeaderRules { add, ..HeaderRules::default() });
    let (class, text) =
        outcome_between_others(NatsVersion::V2_15, rollup, &Publication { headers, ..publication(2, "a") }).await;
    assert_eq!(class, Class::Poison, "{text}");
}

#[tokio::test]
async fn a_sealed_stream_is_blocked() {
    for version in NatsVersion::ALL {
        let (server, broker) = server(version).await;
        let context = jetstream::new(client(&server).await);
        context.update_stream(stream::Config { sealed: true, ..catch_all_stream() }).await.expect("sealed");
        let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("refused");
        assert_eq!(class, Class::Blocked, "{text}");
    }
}

#[tokio::test]
async fn an_unknown_refusal_is_blocked_and_names_its_code() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    // A stream of counters accepts only increments.
    let counters = stream::Config {
        allow_message_counter: true,
        allow_direct: true,
        allow_atomic_publish: false,
        duplicate_window: Duration::ZERO,
        ..catch_all_stream()
    };
    create_stream(&server, counters).await;
    let broker = open(Config::new(server.url())).await;
    let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("refused");
    // Otherwise every message would use up its attempts and be dead-lettered.
    assert_eq!(class, Class::Blocked, "{text}");
    assert!(text.contains("10169"), "{text}");
}

#[tokio::test]
async fn a_denied_subject_is_blocked_and_recovers() {
    let may = |subjects: &str| {
        format!(
            "accounts {{ A {{ jetstream: enabled, users: [ {{ user: \"a\", password: \"p\", \
             permissions: {{ publish: [ {subjects} ], subscribe: \">\" }} }} ] }} }}"
        )
    };
    for version in NatsVersion::ALL {
        let allowed = may("\"$JS.API.>\", \"orders\", \"_INBOX.>\"");
        let server = Private::start(version, Settings::new().config(&allowed)).await;
        let auth = Auth::UserPassword { user: "a".to_owned(), password: "p".to_owned() };
        create_stream_as(&server, "a", "p").await;
        let broker = open(Config { auth, ..Config::new(server.url()) }).await;
        let denied: Vec<_> = (1..=300).map(|number| publication_to("archive", number, "a")).collect();
        let batch: Vec<_> = [publication(301, "a")].into_iter().chain(denied).chain([publication(302, "a")]).collect();
        let mut outcomes = outcomes_of(&broker, &batch).await;
        assert_eq!((outcomes.remove(0), outcomes.pop()), (None, Some(None)), "the others are unharmed");
        for outcome in outcomes {
            let (class, text) = outcome.expect("refused");
            assert_eq!(class, Class::Blocked, "{text}");
            assert!(text.contains("archive"), "{text}");
        }
        let file = server.directory().join("nats.conf");
        let text = std::fs::read_to_string(&file).expect("the server's file");
        let all = may("\"$JS.API.>\", \"orders\", \"archive\", \"_INBOX.>\"");
        std::fs::write(&file, text.replace(&allowed, &all)).expect("the directory can be written");
        server.stop().await;
        server.start_again().await;
        publish_until(&broker, &batch[1], None).await;
    }
}

#[tokio::test]
async fn a_denied_reply_inbox_is_blocked_and_explained() {
    for version in NatsVersion::ALL {
        let users = "authorization { users: [ { user: \"a\", password: \"p\", \
                     permissions: { publish: \">\", subscribe: [ \"other\" ] } } ] }";
        let server = Private::start(version, Settings::new().config(users)).await;
        let auth = Auth::UserPassword { user: "a".to_owned(), password: "p".to_owned() };
        let broker = open(Config { auth, ..Config::new(server.url()) }).await;
        let text = publish_until(&broker, &publication(1, "a"), Some(Class::Blocked)).await;
        assert!(text.contains("inbox"), "{text}");
    }
}
