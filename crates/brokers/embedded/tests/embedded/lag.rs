//! The lag of lanes with a large backlog.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group, LAG_COUNT_MAX};
use relevo_conformance::broker::harness::{
    ADDRESS, acknowledge, key, publication, publish_all, receive, within_timeout,
};
use relevo_core::{BrokerConsumer as _, Lane, Publication};

use crate::directory::Directory;

#[tokio::test]
async fn the_lag_of_a_lane_is_counted_up_to_the_limit() {
    let directory = Directory::new();
    let broker = BrokerFile::open(Config::new(directory.path().join("broker.db"))).await.expect("a file");
    broker.declare_group(&Group { lanes: 4, ..Group::new("billing", [ADDRESS]) }).await.expect("a group");
    let consumer = broker.consumer("billing", ConsumerOptions::default()).await.expect("a group");
    let first: Vec<Publication> = (1..=40).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&broker, &first).await;
    let held = receive(&consumer, 40).await;
    acknowledge(&consumer, &held).await;
    let keys: BTreeMap<Lane, String> = held.iter().map(|delivery| (delivery.lane.clone(), key(delivery))).collect();
    let lanes: Vec<&Lane> = keys.keys().collect();
    assert_eq!(lanes.len(), 4, "forty keys are in all lanes");

    consumer.pause(lanes[1]).await.expect("paused");
    for batch in 0..21 {
        let many: Vec<Publication> =
            (0..500).map(|number| publication(1_000 + batch * 500 + number, &keys[lanes[1]])).collect();
        publish_all(&broker, &many).await;
    }
    // The other lanes advance their cursors and find nothing.
    tokio::time::timeout(Duration::from_millis(300), consumer.receive(1)).await.expect_err("nothing to receive");
    let few: Vec<Publication> = (50..57).map(|number| publication(number, &keys[lanes[2]])).collect();
    publish_all(&broker, &few).await;
    let expected = [(lanes[0], 0), (lanes[1], LAG_COUNT_MAX), (lanes[2], 7), (lanes[3], 0)];
    let lag = within_timeout(consumer.lag()).await.expect("a lag");
    assert_eq!(lag, expected.map(|(lane, waiting)| (lane.clone(), waiting)));
}
