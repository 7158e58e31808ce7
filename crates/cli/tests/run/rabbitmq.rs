//! From PostgreSQL to a real RabbitMQ.

use lapin::types::AMQPValue;
use relevo_testkit::rabbitmq::{Cluster, Private, Server, Settings, Vhost};

use crate::broker_messages::{assert_in_order, declare_queue, take_from_queue};
use crate::command::relevo;
use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

/// The section of a broker at a virtual host of the shared server, with its management API.
fn at(vhost: &Vhost, more: &str) -> String {
    format!(
        "kind = \"rabbitmq\"\nurls = [\"{}\"]\nmanagement_url = \"{}\"\n{more}",
        vhost.amqp_url(),
        vhost.management_url()
    )
}

/// An exchange with one queue, for everything under `orders`.
const TOPOLOGY: &str =
    "exchange = \"shop\"\n[BROKER.exchanges.shop]\n[BROKER.queues.billing]\nbind = [\"shop/orders.#\"]\n";

const HEADERS: &str = "[[outboxes.shop.destinations.main.routes]]\n\
    headers = { x-event-id = \"{id}\" }\n";

#[tokio::test(flavor = "multi_thread")]
async fn committed_messages_arrive_in_queues_that_are_created_at_startup() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let file = shop.with_destinations(&[("main", &at(&vhost, TOPOLOGY))], HEADERS);
    shop.emit_numbers("orders", 1..=100).await;
    let mut daemon = Daemon::start(&file, &[]);
    TestOutbox::taken(&daemon, "main", 100);
    shop.emit_numbers("orders.eu", 101..=200).await;
    TestOutbox::taken(&daemon, "main", 200);
    daemon.ready();
    assert_eq!(daemon.line("topology object created")["level"], "INFO");
    assert_eq!(daemon.metric("outbox_broker_up{"), Some(1));
    assert_eq!(daemon.metric("outbox_broker_down_seconds{"), Some(0));
    daemon.stop();
    let taken = take_from_queue(&vhost.amqp_url(), "billing", 200).await;
    assert_in_order(&taken, 1..=200);
    for message in &taken {
        assert_eq!(message.headers["x-event-id"], message.headers["ce-id"], "{message:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_queue_prevents_the_start_until_it_is_created() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let check = format!("topology_on_start = \"check\"\n{TOPOLOGY}");
    let file = shop.with_destinations(&[("main", &at(&vhost, &check))], "");
    let mut daemon = Daemon::start(&file, &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    until("the log has the hint", || daemon.log().contains("hint: `relevo topology apply` creates missing objects"));
    for missing in ["exchange `shop` is missing", "queue `billing` is missing"] {
        assert!(daemon.log().contains(missing), "{missing}: {}", daemon.log());
    }
    let (code, plan, stderr) = relevo(&file, &["topology", "plan"]);
    assert!(code == 3 && plan.contains("\nmissing    queue `billing`\n"), "{plan}{stderr}");
    let (code, _, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    let mut daemon = Daemon::start(&file, &[]);
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dangerous_setting_prevents_the_start_unless_the_configuration_accepts_it() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let limit = [("x-max-length", AMQPValue::LongInt(1_000_000))];
    declare_queue(&vhost.amqp_url(), "orders", &limit).await;
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &at(&vhost, ""))], ROUTE), &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    let line = daemon.line("broker setting breaks a delivery guarantee");
    assert_eq!((&line["subject"], &line["level"]), (&"overflow-drops".into(), &"ERROR".into()));
    assert!(line["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{line}");
    until("the log has the setting", || {
        let setting = "accept them with `accept = [\"overflow-drops\"]` in `[outboxes.shop.destinations.main.broker]`";
        daemon.log().contains(setting)
    });
    let accepting = at(&vhost, "accept = [\"overflow-drops\", \"queue-mirrored\"]");
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &accepting)], ROUTE), &[]);
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.line("broker setting breaks a delivery guarantee, accepted");
    let needless = daemon.line("`accept` names a danger that was not found: it can be removed");
    assert_eq!(needless["subject"], "queue-mirrored");
    daemon.stop();
    assert_in_order(&take_from_queue(&vhost.amqp_url(), "orders", 10).await, 1..=10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_management_api_does_not_hold_messages_back() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let unused = taken.local_addr().expect("an address");
    drop(taken);
    let section = |more: &str| {
        let there = format!("urls = [\"{}\"]\nmanagement_url = \"http://{unused}\"", vhost.amqp_url());
        format!("kind = \"rabbitmq\"\n{there}\naccept = [\"plain-text\"]\n{more}{TOPOLOGY}{POLICY}")
    };
    let mut daemon =
        Daemon::start(&shop.with_destinations(&[("main", &section("topology_on_start = \"check\"\n"))], ""), &[]);
    assert_eq!(daemon.end(), Some(2), "missing queues are still found: {}", daemon.log());
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &section(""))], ""), &[]);
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    let line = daemon.line(
        "a part of the broker that publishing does not need is unreachable: only the existence of its topology was checked",
    );
    assert_eq!(line["level"], "WARN");
    daemon.stop();
    assert!(!daemon.log().contains("`accept` names what was not found"), "{}", daemon.log());
}

/// An object that only the management API can create.
const POLICY: &str = "[BROKER.policies.limits]\npattern = \"^x\"\ndefinition = { max-length = 5 }\n";

/// One address, whose queue the default exchange knows by name.
const ROUTE: &str = "[[outboxes.shop.destinations.main.routes]]\naddress = \"orders\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_makes_the_daemon_unready_until_it_is_fixed() {
    let shop = TestOutbox::new().await;
    let server = Private::start_with(Settings::new().user("relay", "first")).await;
    declare_queue(&server.amqp_url(), "orders", &[("x-queue-type", AMQPValue::LongString("quorum".into()))]).await;
    let password = shop.directory.write("password", "second\n");
    let broker = format!(
        "kind = \"rabbitmq\"\nurls = [\"amqp://127.0.0.1:{}\"]\nuser = \"relay\"\npassword_file = {password:?}\n",
        server.port()
    );
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], ROUTE), &[]);
    let line = daemon.line("broker rejected the connection, will retry");
    assert_eq!(line["level"], "ERROR");
    let (status, body) = daemon.get("/readyz");
    assert!(
        status == 503 && body.contains("the broker rejects the connection: ") && body.contains("`relay`"),
        "{status} {body}"
    );
    assert_eq!((daemon.get("/livez").0, daemon.metric("outbox_broker_up{")), (200, Some(0)));
    // The password file is fixed. It is read only at startup.
    shop.directory.write("password", "first\n");
    daemon.signal("HUP");
    let restart = daemon.line("changes that need a restart were ignored");
    assert_eq!(restart["keys"], "outboxes.shop.destinations.main.broker");
    let mut fixed = Daemon::start(&shop.with_destinations(&[("main", &broker)], ROUTE), &[]);
    fixed.ready();
    fixed.stop();
    // The password is fixed at the broker. The running daemon needs no restart.
    server.ctl(&["change_password", "relay", "second"]).await;
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.ready();
    assert_eq!(daemon.metric("outbox_broker_up{"), Some(1));
    daemon.stop();
    assert!(!daemon.log().contains("second"), "{}", daemon.log());
}

/// A queue on three nodes confirms nothing while only one node runs, although that node accepts connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_rabbitmq_cluster_without_its_majority_is_reported_as_down_and_loses_nothing() {
    let (shop, cluster) = (TestOutbox::new().await, Cluster::of_three_with(Settings::new().management()).await);
    let urls = cluster.amqp_urls();
    let [first, second, last] = cluster.nodes();
    declare_queue(&urls[2], "orders", &[("x-queue-type", AMQPValue::LongString("quorum".into()))]).await;
    let broker = format!(
        "kind = \"rabbitmq\"\nurls = {urls:?}\nmanagement_urls = {:?}\nheartbeat = \"1s\"\nconnect_timeout = \"2s\"\n\
         confirm_timeout = \"2s\"\n",
        [second, last].map(Private::management_url)
    );
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], ROUTE), &[]);
    shop.emit_numbers("orders", 1..=100).await;
    TestOutbox::taken(&daemon, "main", 100);
    assert_eq!(daemon.metric("outbox_broker_up{"), Some(1));
    let runs = |nodes| daemon.metric("outbox_broker_nodes_running{") == Some(nodes);
    until("three nodes run", || runs(3));

    first.kill9().await;
    shop.emit_numbers("orders", 101..=200).await;
    TestOutbox::taken(&daemon, "main", 200);
    until("two of three are enough", || daemon.metric("outbox_broker_up{") == Some(1));
    until("two nodes run", || runs(2));

    second.kill9().await;
    shop.emit_numbers("orders", 201..=300).await;
    until("the alert has its metric", || daemon.metric("outbox_broker_up{") == Some(0));
    until("the outage lasts three seconds", || daemon.metric("outbox_broker_down_seconds{") >= Some(3));
    assert_eq!(daemon.metric("outbox_broker_up{"), Some(0));
    until("one node runs", || runs(1));
    assert_eq!(daemon.metric("outbox_broker_nodes{"), Some(3));
    assert!(daemon.get("/readyz").1.contains(", the broker is unreachable"), "{:?}", daemon.get("/readyz"));

    second.start_again().await;
    TestOutbox::taken(&daemon, "main", 300);
    for waiting in ["outbox_backlog_gauge{", "outbox_parked_messages{"] {
        until("no message waits", || daemon.metric(waiting) == Some(0));
    }
    until("the broker is reported as up", || daemon.metric("outbox_broker_up{") == Some(1));
    until("two nodes run again", || runs(2));
    assert_eq!(daemon.metric("outbox_broker_down_seconds{"), Some(0));
    for never in ["outbox_retry_total{", "outbox_failed_permanent_total{"] {
        assert_eq!(daemon.metric(never), Some(0), "an outage is no failure: {never}");
    }
    // When a node with a management API is down, another one is used.
    last.kill9().await;
    until("one node is left", || runs(1) && daemon.metric("outbox_broker_nodes{") == Some(3));
    last.start_again().await;
    until("two nodes run again", || runs(2));
    daemon.stop();
    assert_in_order(&take_from_queue(&urls[2], "orders", 300).await, 1..=300);
}
