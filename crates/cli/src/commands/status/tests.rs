//! Snapshots with admin ports that report more than one outbox, and consumers with several lanes.

use std::time::Duration;

use jiff::Timestamp;
use relevo_admin::{ConsumerRates, ProcessStatus, RelayRates};
use relevo_core::MessageId;
use relevo_core::inbox::admin::{ConsumerDetails, ConsumerSummary, LaneInfo};
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, MessageStatus, MessageSummary, ShardInfo};
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};

use super::admin_client::AdminReply;
use super::snapshot::{DestinationSnapshot, Rates, Snapshot};
use super::{json, text};

fn lane(name: &str, owner: Option<&str>, breaker: Option<&str>) -> LaneInfo {
    LaneInfo {
        name: name.to_owned(),
        owner: owner.map(str::to_owned),
        epoch: 1,
        settled_offset: None,
        paused: false,
        breaker: breaker.map(str::to_owned),
        breaker_override: None,
    }
}

/// A destination with a parked key and two leased shards.
fn destination() -> DestinationSnapshot {
    let shard = |shard| ShardInfo {
        shard,
        owner: Some("relay-1".to_owned()),
        epoch: 1,
        lease_remaining: Duration::from_secs(8),
        settled_at: None,
        parked_keys: 0,
    };
    let head = MessageSummary {
        seq: Some(900),
        id: MessageId::v7(7, [7; 10]),
        topic: "orders".to_owned(),
        key: "late\u{1b}[2J".to_owned(),
        kind: "OrderPlaced".to_owned(),
        created_at: Timestamp::UNIX_EPOCH,
        status: MessageStatus::Retrying,
        attempts: 2,
        next_attempt_at: Some(Timestamp::UNIX_EPOCH + Duration::from_hours(1)),
        last_error: Some("no room".to_owned()),
        published_at: None,
    };
    DestinationSnapshot {
        destination: DestinationInfo { name: "main".to_owned(), shards: 2, resharding_to: None, enabled: true },
        sample: DestinationSample {
            backlog: Backlog { pending: 12, exact: true, parked: 1, dead: 0 },
            parked_keys: 1,
            held_addresses: 0,
            oldest_pending: Duration::from_mins(3),
            holdback: Duration::ZERO,
        },
        shards: vec![shard(0), shard(1)],
        heads: vec![head],
        dead_letters: Vec::new(),
    }
}

/// One destination, and one consumer with three lanes.
fn snapshot(outbox: Option<&str>, statuses: Vec<ProcessStatus>) -> Snapshot {
    let summary = ConsumerSummary {
        name: "billing".to_owned(),
        paused: true,
        members: 1,
        heartbeat_at: None,
        last_message_at: None,
        waiting: 0,
        dead: 0,
        done_retention: None,
    };
    let lanes =
        vec![lane("0", Some("one"), None), lane("1", Some("one"), None), lane("2", Some("one"), Some("no bank"))];
    let reply = |(number, status)| AdminReply { port: format!("port-{number}"), status: Ok(status) };
    Snapshot {
        taken_at: Timestamp::UNIX_EPOCH,
        destinations: vec![destination()],
        outbox_sample: OutboxSample::default(),
        consumers: vec![ConsumerDetails { summary, members: Vec::new(), lanes, queues: Vec::new() }],
        replies: statuses.into_iter().enumerate().map(reply).collect(),
        outbox: outbox.map(str::to_owned),
        limit: 5,
    }
}

/// A relay of an outbox.
fn relay(outbox: &str, published_per_second: f64, p99: f64, broker_up: bool) -> RelayRates {
    RelayRates {
        outbox: outbox.to_owned(),
        database: String::new(),
        destination: "main".to_owned(),
        broker_up: Some(broker_up),
        published_per_second,
        latency_p50_seconds: Some(p99 / 4.0),
        latency_p99_seconds: Some(p99),
    }
}

fn relays(relays: Vec<RelayRates>) -> ProcessStatus {
    ProcessStatus { service: "relevo".to_owned(), relays, consumers: Vec::new() }
}

/// A process with a member of the consumer.
fn member(handled_per_second: f64, lag: u64) -> ProcessStatus {
    let lag = [("0".to_owned(), 0), ("1".to_owned(), lag)].into();
    let (consumer, handler_p50_seconds, handler_p99_seconds) = ("billing".to_owned(), Some(0.05), Some(0.099));
    let consumer = ConsumerRates { consumer, handled_per_second, handler_p50_seconds, handler_p99_seconds, lag };
    ProcessStatus { service: "shop".to_owned(), relays: Vec::new(), consumers: vec![consumer] }
}

fn written(now: &Snapshot) -> String {
    let mut out = Vec::new();
    text::write(&mut out, "postgres://localhost/shop", now).expect("a buffer");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn the_tables_of_a_busy_outbox() {
    let statuses = vec![relays(vec![relay("shop", 250.0, 1.5, true)]), member(7.25, 9)];
    insta::assert_snapshot!(written(&snapshot(None, statuses)));
}

#[test]
fn the_tables_without_an_admin_port() {
    insta::assert_snapshot!(written(&snapshot(None, Vec::new())));
}

#[test]
fn each_of_two_outboxes_of_one_process_has_its_own_rate_and_latency() {
    let statuses = || vec![relays(vec![relay("shop", 10.0, 1.0, true), relay("crm", 200.0, 2.0, false)])];
    let of = |outbox| {
        let now = snapshot(Some(outbox), statuses());
        (now.published("main"), now.broker_up("main"))
    };
    assert_eq!(of("shop"), (Rates { per_second: Some(10.0), p50: Some(0.25), p99: Some(1.0) }, Some(true)));
    assert_eq!(of("crm"), (Rates { per_second: Some(200.0), p50: Some(0.5), p99: Some(2.0) }, Some(false)));
    let now = snapshot(None, statuses());
    assert_eq!((now.published("main"), now.broker_up("main")), (Rates::default(), None), "it is unknown which");
    let text = written(&now);
    let sentence = "rates are hidden: the admin ports report several outboxes (`crm`, `shop`); hint: select one with `--outbox NAME`";
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn the_only_outbox_that_ports_report_need_not_be_named() {
    let now = snapshot(None, vec![relays(vec![relay("shop", 10.0, 1.0, true)])]);
    assert_eq!((now.published("main").per_second, now.broker_up("main")), (Some(10.0), Some(true)));
    assert!(now.ambiguous_outboxes().is_empty());
}

#[test]
fn the_relays_of_a_destination_are_summed_and_the_slowest_counts() {
    let now = snapshot(
        None,
        vec![relays(vec![relay("shop", 10.0, 1.0, true)]), relays(vec![relay("shop", 5.0, 4.0, false)])],
    );
    assert_eq!(now.published("main"), Rates { per_second: Some(15.0), p50: Some(1.0), p99: Some(4.0) });
    assert_eq!(now.broker_up("main"), Some(false), "the alert fires if one relay does not reach the broker");
}

#[test]
fn members_of_a_consumer_are_summed_and_the_highest_lag_counts() {
    let now = snapshot(None, vec![member(20.0, 3), member(10.0, 9)]);
    let value = json::object(&now);
    let billing = &value["consumers"][0];
    assert_eq!(billing["handled_per_second"], 30.0, "{value}");
    assert_eq!((&billing["lanes"][0]["lag"], &billing["lanes"][1]["lag"]), (&0.into(), &9.into()), "{value}");
}

/// The rows of lanes: lane, owner, lag and state.
fn lanes(now: &Snapshot) -> Vec<String> {
    let text = written(now);
    let rows = text.lines().skip_while(|line| !line.starts_with("lanes with a backlog or a problem")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("billing"));
    rows.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_released_lane_is_listed_once_it_has_a_backlog_or_no_member_lives() {
    let at = |lag, members| {
        let mut now = snapshot(None, vec![member(1.0, lag)]);
        now.consumers[0].summary.members = members;
        for lane in &mut now.consumers[0].lanes {
            (lane.owner, lane.breaker) = (None, None);
        }
        lanes(&now)
    };
    assert_eq!(at(0, 1), Vec::<String>::new(), "two are empty, and the lag of the third is unknown");
    assert_eq!(at(9, 1), ["1 - 9 unassigned"], "a member should have acquired it");
    assert_eq!(at(0, 0), ["0 - 0 unassigned", "1 - 0 unassigned", "2 - - unassigned"]);
}

#[test]
fn the_worst_of_many_lanes_are_listed() {
    let mut now = snapshot(None, vec![member(1.0, 9)]);
    now.limit = 1;
    assert_eq!(lanes(&now), ["2 one - breaker open: no bank"]);
    now.limit = 2;
    assert_eq!(lanes(&now), ["2 one - breaker open: no bank", "1 one 9 running"]);
    now.limit = 0;
    assert_eq!(lanes(&now), Vec::<String>::new());
}
