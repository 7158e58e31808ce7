//! The admin port.

use std::net::TcpListener;

use serde_json::Value;

use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

const LABELS: &str = "{service=\"relevo\",outbox=\"shop\",destination=\"main\"}";

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_report_the_relay() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 40).await;
    TestOutbox::delivered(&daemon, "shop", 40);
    let (status, body) = daemon.get("/livez");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["ok"], &body["checks"][0]["detail"]), (200, &true.into(), &"running".into()));
    let (status, body) = daemon.get("/readyz");
    let body: Value = serde_json::from_str(&body).unwrap();
    let check = &body["checks"][0];
    assert_eq!((status, &check["outbox"], &check["destination"]), (200, &"shop".into(), &"main".into()));
    assert_eq!(check["detail"], "leases 8 shards");
    until("the backlog is sampled", || daemon.metric(&format!("outbox_backlog_gauge{LABELS}")) == Some(0));
    let (_, metrics) = daemon.get("/metrics");
    for name in [
        "outbox_publish_attempts_total",
        "outbox_published_total",
        "outbox_retry_total",
        "outbox_parked_total",
        "outbox_failed_permanent_total",
        "outbox_broker_outages_total",
        "outbox_database_outages_total",
        "outbox_leases_lost_total",
        "outbox_backlog_gauge",
        "outbox_parked_messages",
        "outbox_leases",
        "outbox_in_flight_messages",
        "outbox_ready",
    ] {
        assert!(metrics.contains(&format!("\n{name}{LABELS} ")), "`{name}` is missing:\n{metrics}");
    }
    let broker = LABELS.replace('}', ",broker=\"embedded\"}");
    assert!(metrics.contains(&format!("\noutbox_broker_up{broker} 1\n")), "{metrics}");
    assert!(
        metrics.contains("relevo_build_info{service=\"relevo\",version=\"") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_one_clear_error() {
    let shop = TestOutbox::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut daemon = Daemon::start(&shop.config(""), &[("RELEVO__ADMIN__LISTEN", &address)]);
    assert_eq!(daemon.end(), Some(1));
    until("the log has the hint", || daemon.log().contains("hint: "));
    let log = daemon.log();
    assert!(log.starts_with(&format!("error: the admin port {address} is in use\nhint: ")), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_others_can_reach_needs_a_token() {
    let shop = TestOutbox::new().await;
    let open = ("RELEVO__ADMIN__LISTEN", "0.0.0.0:0");
    let mut refused = Daemon::start(&shop.config(""), &[open]);
    assert_eq!(refused.end(), Some(2));
    until("the log has the reason", || refused.log().contains("without a token"));
    let token = [open, ("RELEVO__ADMIN__TOKEN_ENV", "TOKEN"), ("TOKEN", "a token that is long enough")];
    let mut daemon = Daemon::start(&shop.config(""), &token);
    daemon.ready();
    assert_eq!(daemon.get("/readyz").1, r#"{"ok":true}"#);
    assert_eq!(daemon.get("/metrics").0, 401);
    assert_eq!(daemon.ask("/metrics", "authorization: Bearer a token that is long enough\r\n").0, 200);
    assert!(!daemon.log().contains("long enough"));
    daemon.stop();
}

/// A dependency of readiness: whether it is healthy, whether it is required, and its detail.
fn part(daemon: &Daemon, name: &str) -> (bool, bool, String) {
    let body: Value = serde_json::from_str(&daemon.get("/readyz").1).expect("JSON");
    let parts = body["dependencies"].as_array().expect("dependencies");
    let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("{body}"));
    let is = |key: &str| part[key].as_bool().expect("a boolean");
    (is("ok"), is("required"), part["detail"].as_str().expect("a sentence").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_reports_database_schema_and_broker() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    daemon.ready();
    assert_eq!(part(&daemon, "database"), (true, true, "reachable, 8 shards are leased".to_owned()));
    let known = "this version knows it, and it has the destination".to_owned();
    assert_eq!(part(&daemon, "schema"), (true, true, known));
    assert_eq!(part(&daemon, "broker"), (true, false, "reachable at the last attempt".to_owned()));
    let (status, body) = daemon.get("/startupz");
    assert!(status == 200 && body.contains("started"), "{status} {body}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_makes_the_daemon_unready_only_with_ready_requires_broker() {
    for (required, expected) in [(false, 200), (true, 503)] {
        let shop = TestOutbox::new().await;
        let variable = [("RELEVO__ADMIN__READY_REQUIRES_BROKER", if required { "true" } else { "false" })];
        let mut daemon = Daemon::start(&shop.config("[relay]\npublish_timeout = \"2s\"\n"), &variable);
        shop.emit("orders", 1).await;
        TestOutbox::delivered(&daemon, "shop", 1);
        assert_eq!(daemon.get("/readyz").0, 200);
        let lock = shop.lock_broker().await;
        shop.emit("orders", 5).await;
        until("the broker is reported as unreachable", || !part(&daemon, "broker").0);
        let (_, is_required, detail) = part(&daemon, "broker");
        assert!(is_required == required && detail.starts_with("unreachable for "), "{is_required} {detail}");
        until("the probe has the expected status", || daemon.get("/readyz").0 == expected);
        assert_eq!((daemon.get("/livez").0, daemon.get("/startupz").0), (200, 200));
        drop(lock);
        TestOutbox::delivered(&daemon, "shop", 6);
        until("it is ready again", || daemon.get("/readyz").0 == 200);
        daemon.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_key_and_a_dead_letter_are_reported_and_keep_the_daemon_ready() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    daemon.ready();
    shop
        .run(
            "WITH d AS (INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, \
             payload, route, class, error, attempts) VALUES ('main', gen_random_uuid(), 1, 0, now(), 'orders', 'stuck', 'T', \
             'c', '', 'all', 'poison', 'bad', 1) RETURNING id) \
             INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, dead_id, route, class, error) \
             SELECT 'main', 'stuck', 0, 'dead', 1, d.id, 'all', 'poison', 'bad' FROM d",
        )
        .await;
    for name in ["outbox_parked_keys", "mq_dlq_total"] {
        until(name, || daemon.metric(&format!("{name}{LABELS}")) == Some(1));
    }
    assert_eq!(daemon.get("/readyz").0, 200);
    daemon.stop();
}
