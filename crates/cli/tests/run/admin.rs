//! The admin port.

use std::net::TcpListener;

use serde_json::Value;

use crate::daemon::{Daemon, until};
use crate::world::World;

const LABELS: &str = "{service=\"relevo\",outbox=\"shop\",destination=\"main\"}";

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_tell_how_it_is() {
    let world = World::new().await;
    let mut daemon = world.start("");
    world.emit("orders", 40).await;
    World::delivered(&daemon, "shop", 40);
    let (status, body) = daemon.get("/livez");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["ok"], &body["checks"][0]["seen"]), (200, &true.into(), &"turns".into()));
    let (status, body) = daemon.get("/readyz");
    let body: Value = serde_json::from_str(&body).unwrap();
    let check = &body["checks"][0];
    assert_eq!((status, &check["outbox"], &check["destination"]), (200, &"shop".into(), &"main".into()));
    assert_eq!(check["seen"], "holds 8 shards");
    until("the backlog is sampled", || daemon.metric(&format!("outbox_backlog_gauge{LABELS}")) == Some(0));
    let (_, metrics) = daemon.get("/metrics");
    for name in [
        "outbox_publish_attempts_total",
        "outbox_published_total",
        "outbox_retry_total",
        "outbox_parked_total",
        "outbox_failed_permanent_total",
        "outbox_outages_total",
        "outbox_database_away_total",
        "outbox_leases_lost_total",
        "outbox_backlog_gauge",
        "outbox_parked_gauge",
        "outbox_dead_gauge",
        "outbox_leases",
        "outbox_in_flight",
        "outbox_ready",
    ] {
        assert!(metrics.contains(&format!("\n{name}{LABELS} ")), "`{name}` is missing:\n{metrics}");
    }
    let broker = LABELS.replace('}', ",broker=\"embedded\"}");
    assert!(metrics.contains(&format!("\nbroker_up{broker} 1\n")), "{metrics}");
    assert!(
        metrics.contains("relevo_build_info{service=\"relevo\",version=\"") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_one_clear_error() {
    let world = World::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut daemon = Daemon::start(&world.config(""), &[("RELEVO__ADMIN__LISTEN", &address)]);
    assert_eq!(daemon.end(), Some(1));
    until("it says so", || daemon.log().contains("hint: "));
    let told = daemon.log();
    assert!(told.starts_with(&format!("error: the admin port {address} is taken\nhint: ")), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_others_can_reach_needs_a_token() {
    let world = World::new().await;
    let open = ("RELEVO__ADMIN__LISTEN", "0.0.0.0:0");
    let mut refused = Daemon::start(&world.config(""), &[open]);
    assert_eq!(refused.end(), Some(2));
    until("it says so", || refused.log().contains("there is no token"));
    let token = [open, ("RELEVO__ADMIN__TOKEN_ENV", "TOKEN"), ("TOKEN", "a token that is long enough")];
    let mut daemon = Daemon::start(&world.config(""), &token);
    daemon.ready();
    assert_eq!(daemon.get("/readyz").1, r#"{"ok":true}"#);
    assert_eq!(daemon.get("/metrics").0, 401);
    assert_eq!(daemon.ask("/metrics", "authorization: Bearer a token that is long enough\r\n").0, 200);
    assert!(!daemon.log().contains("long enough"));
    daemon.stop();
}
