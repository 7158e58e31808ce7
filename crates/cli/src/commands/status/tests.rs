//! What is made of two looks, with ports that tell of more than one wants to know.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::inbox::admin::{ConsumerDetails, ConsumerSummary, LaneInfo};
use relevo_core::outbox::inspect::{Backlog, DestinationInfo};
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use tokio::time::Instant;

use super::exposition::Exposition;
use super::moment::{At, Moment, Pace};
use super::object::object;
use super::ports::Answer;
use super::told::told;

/// One destination, one consumer with three lanes, and what ports told.
fn moment(at: Instant, outbox: Option<&str>, ports: &[String]) -> Moment {
    let lane = |name: &str, owner: Option<&str>, breaker: Option<&str>| LaneInfo {
        name: name.to_owned(),
        owner: owner.map(str::to_owned),
        epoch: 1,
        settled_offset: None,
        paused: false,
        breaker: breaker.map(str::to_owned),
        breaker_override: None,
    };
    let summary = ConsumerSummary {
        name: "billing".to_owned(),
        paused: false,
        members: 1,
        heartbeat_at: None,
        last_message_at: None,
        waiting: 0,
        dead: 0,
        done_retention: None,
    };
    let lanes =
        vec![lane("0", Some("one"), None), lane("1", Some("one"), None), lane("2", Some("one"), Some("no bank"))];
    let answer =
        |(number, text): (usize, &String)| Answer { port: format!("port-{number}"), told: Ok(Exposition::parse(text)) };
    Moment {
        at,
        clock: Timestamp::UNIX_EPOCH,
        destinations: vec![At {
            destination: DestinationInfo { name: "main".to_owned(), shards: 1, resharding_to: None, enabled: true },
            vitals: DestinationSample {
                backlog: Backlog { pending: 0, exact: true, parked: 0, dead: 0 },
                parked_keys: 0,
                held_addresses: 0,
                oldest_pending: Duration::ZERO,
                holdback: Duration::ZERO,
            },
            shards: Vec::new(),
            heads: Vec::new(),
            dead: Vec::new(),
        }],
        around: OutboxSample::default(),
        consumers: vec![ConsumerDetails { summary, members: Vec::new(), lanes, queues: Vec::new() }],
        ports: ports.iter().enumerate().map(answer).collect(),
        outbox: outbox.map(str::to_owned),
        rows: 5,
    }
}

/// What a relay tells of an outbox: how many were published, all of them slower than one second or none, whether the broker is up.
fn relay(outbox: &str, published: u32, slow: bool, up: u32) -> String {
    let labels = format!("service=\"relevo\",outbox=\"{outbox}\",destination=\"main\"");
    let quick = if slow { 0 } else { published };
    format!(
        "outbox_ready{{{labels}}} 1\noutbox_broker_up{{{labels},broker=\"nats\"}} {up}\noutbox_published_total{{{labels}}} {published}\n\
         outbox_publish_latency_seconds_bucket{{{labels},le=\"1.0\"}} {quick}\n\
         outbox_publish_latency_seconds_bucket{{{labels},le=\"3.0\"}} {published}\n\
         outbox_publish_latency_seconds_bucket{{{labels},le=\"+Inf\"}} {published}\n"
    )
}

/// Two looks, two seconds apart.
fn looks(outbox: Option<&str>, before: &[String], after: &[String]) -> (Moment, Moment) {
    let began = Instant::now();
    (moment(began, outbox, before), moment(began + Duration::from_secs(2), outbox, after))
}

#[test]
fn each_of_two_outboxes_of_one_process_has_its_own_rate_and_latency() {
    let told = |shop, crm| vec![relay("shop", shop, false, 1) + &relay("crm", crm, true, 0)];
    let (before, after) = (told(1000, 500), told(1020, 900));
    let of = |outbox| {
        let (before, now) = looks(Some(outbox), &before, &after);
        (now.published(&before, "main"), now.broker_up("main"))
    };
    assert_eq!(of("shop"), (Pace { rate: Some(10.0), p50: Some(0.5), p99: Some(0.99) }, Some(true)));
    assert_eq!(of("crm"), (Pace { rate: Some(200.0), p50: Some(2.0), p99: Some(2.98) }, Some(false)));
    let (before, now) = looks(None, &before, &after);
    assert_eq!((now.published(&before, "main"), now.broker_up("main")), (Pace::default(), None), "which is not known");
    let mut text = Vec::new();
    super::told::told(&mut text, "db", &now, Some(&before)).expect("a buffer");
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("tell of `crm` and `shop`") && text.contains("--outbox NAME"), "{text}");
}

#[test]
fn the_only_outbox_that_ports_tell_of_need_not_be_named() {
    let (before, now) = looks(None, &[relay("shop", 10, false, 1)], &[relay("shop", 30, false, 1)]);
    assert_eq!(now.published(&before, "main").rate, Some(10.0));
    assert_eq!(now.broker_up("main"), Some(true));
    assert!(now.unclear().is_empty());
}

#[test]
fn a_broker_that_one_of_two_relays_does_not_reach_is_away() {
    let ports = [relay("shop", 1, false, 1), relay("shop", 1, false, 0)];
    let (_, now) = looks(None, &ports, &ports);
    assert_eq!(now.broker_up("main"), Some(false), "the alert says so too");
}

/// What a consumer's process tells.
fn consumer(done: u32, lag: u32) -> String {
    let labels = "service=\"shop\",consumer=\"billing\"";
    format!(
        "inbox_handled_total{{{labels},outcome=\"done\"}} {done}\ninbox_handled_total{{{labels},outcome=\"retried\"}} 7000\n\
         inbox_handler_duration_seconds_bucket{{{labels},le=\"0.1\"}} {done}\n\
         inbox_handler_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {done}\n\
         inbox_lag_messages{{{labels},lane=\"0\"}} 0\ninbox_lag_messages{{{labels},lane=\"1\"}} {lag}\n"
    )
}

#[test]
fn consumers_have_their_rate_and_lanes_that_do_not_rest_are_shown_with_their_lag() {
    // Every member tells the lag of every lane, each as it last saw it.
    let (before, now) = looks(None, &[consumer(100, 3), consumer(0, 9)], &[consumer(140, 3), consumer(20, 9)]);
    let mut text = Vec::new();
    told(&mut text, "db", &now, Some(&before)).expect("a buffer");
    let text = String::from_utf8(text).expect("UTF-8");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let row =
        |begin: &[&str]| rows.iter().find(|row| row.starts_with(begin)).unwrap_or_else(|| panic!("{begin:?}: {text}"));
    assert_eq!(row(&["billing", "works"])[7..], ["30", "50", "ms", "99", "ms"], "{text}");
    assert_eq!(row(&["billing", "1"])[..], ["billing", "1", "one", "9", "works"], "{text}");
    assert_eq!(row(&["billing", "2"])[3..], ["-", "breaker", "open:", "no", "bank"], "{text}");
    assert!(!rows.iter().any(|row| row.starts_with(&["billing", "0"])), "it rests: {text}");
    let value = object(&now, Some(&before));
    let billing = &value["consumers"][0];
    assert_eq!(billing["handled_per_second"], 30.0, "{value}");
    assert_eq!((&billing["lanes"][0]["lag"], &billing["lanes"][1]["lag"]), (&0.0.into(), &9.0.into()), "{value}");
}

/// The rows of lanes, each by its lane, its owner, its lag and its state.
fn lanes(now: &Moment) -> Vec<String> {
    let mut text = Vec::new();
    told(&mut text, "db", now, None).expect("a buffer");
    let text = String::from_utf8(text).expect("UTF-8");
    let rows = text.lines().skip_while(|line| !line.starts_with("lanes that do not rest")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("billing"));
    rows.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_lane_that_was_given_back_rests_until_something_waits_in_it_or_nobody_lives_who_could_take_it() {
    let at = |lag, members| {
        let mut now = moment(Instant::now(), None, &[consumer(1, lag)]);
        now.consumers[0].summary.members = members;
        for lane in &mut now.consumers[0].lanes {
            (lane.owner, lane.breaker) = (None, None);
        }
        lanes(&now)
    };
    assert_eq!(at(0, 1), Vec::<String>::new(), "two are empty, and of the third nothing is known");
    assert_eq!(at(9, 1), ["1 - 9 nobody has it"], "somebody should have taken it");
    assert_eq!(at(0, 0), ["0 - 0 nobody has it", "1 - 0 nobody has it", "2 - - nobody has it"]);
}

#[test]
fn of_many_lanes_that_do_not_rest_the_worst_are_shown() {
    let mut now = moment(Instant::now(), None, &[consumer(1, 9)]);
    now.rows = 1;
    assert_eq!(lanes(&now), ["2 one - breaker open: no bank"]);
    now.rows = 2;
    assert_eq!(lanes(&now), ["2 one - breaker open: no bank", "1 one 9 works"]);
    now.rows = 0;
    assert_eq!(lanes(&now), Vec::<String>::new());
}
