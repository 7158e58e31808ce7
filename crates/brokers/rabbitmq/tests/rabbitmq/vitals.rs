//! Sampled metrics without the management API.

use std::net::SocketAddr;

use lapin::BasicProperties;
use relevo_broker_rabbitmq::{Config, Queue, RabbitAdmin, Topology};
use relevo_core::administer::Administer as _;
use relevo_core::sample::{BrokerVitals, SampleBroker as _};
use relevo_testkit::proxy::CutProxy;

use crate::harness::Side;
use crate::stage::Stage;

fn topology() -> Topology {
    let plain = |name: &str| Queue { retry: Vec::new(), ..Queue::new(name) };
    let none = Queue { dead_letters: None, ..plain("heap") };
    let own = Queue { dead_letters: Some("given-up".to_owned()), ..plain("shipping") };
    Topology { queues: vec![plain("archive"), plain("billing"), none, own], ..Topology::default() }
}

fn dead<const N: usize>(counted: [(&str, u64); N]) -> BrokerVitals {
    let dead = counted.into_iter().map(|(queue, messages)| (queue.to_owned(), messages)).collect();
    BrokerVitals { nodes: None, dead }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_counted_over_amqp_and_a_queue_that_is_missing_hides_no_other() {
    let stage = Stage::new().await;
    let url = stage.vhost.amqp_url();
    let authority = url.rsplit_once('@').expect("a URL with a login").1;
    let upstream: SocketAddr = authority.split('/').next().expect("a host").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let through = url.replace(&upstream.to_string(), &proxy.addr().to_string());
    let admin = RabbitAdmin::new(Config { topology: topology(), ..Config::new(through) }).expect("a configuration");
    assert_eq!(admin.vitals().await.expect("an answer"), dead([]), "what is not there is not told");
    admin.apply().await.expect("made");
    let told = admin.vitals().await.expect("an answer");
    assert_eq!(told, dead([("archive.dead", 0), ("billing.dead", 0), ("given-up", 0)]));

    let side = Side::of(&url).await;
    for queue in ["billing.dead", "given-up", "given-up"] {
        side.publish("", queue, BasicProperties::default(), b"x").await;
    }
    stage.delete_queue("archive.dead").await;
    let expected = dead([("billing.dead", 1), ("given-up", 2)]);
    assert_eq!(admin.vitals().await.expect("an answer"), expected);

    proxy.block().await;
    assert_eq!(admin.vitals().await.expect("they were just counted"), expected);
    proxy.unblock();
    side.publish("", "billing.dead", BasicProperties::default(), b"x").await;
    let told = admin.vitals().await.expect("it connects again");
    assert_eq!(told, dead([("billing.dead", 2), ("given-up", 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_never_reached_is_told_as_that_and_one_without_dead_letters_is_not_asked() {
    let nobody = |topology| Config { topology, ..Config::new("amqp://127.0.0.1:1") };
    let admin = RabbitAdmin::new(nobody(topology())).expect("a configuration");
    assert!(admin.vitals().await.is_err());
    let admin = RabbitAdmin::new(nobody(Topology::default())).expect("a configuration");
    assert_eq!(admin.vitals().await.expect("nothing is asked"), BrokerVitals::default());
}
