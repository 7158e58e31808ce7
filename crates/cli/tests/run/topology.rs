//! `relevo topology` and `relevo doctor -c`, against real brokers.

use std::path::PathBuf;

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{self, unique};
use relevo_testkit::rabbitmq::{Server, Vhost};
use serde_json::Value;

use crate::broker_messages::{channel, declare_queue};
use crate::command::relevo;
use crate::daemon::Daemon;
use crate::test_outbox::TestOutbox;

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

fn states(json: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    objects(json).iter().map(|piece| (text(&piece["piece"]), text(&piece["state"]))).collect()
}

fn rabbit(vhost: &Vhost) -> String {
    format!(
        "kind = \"rabbitmq\"\nurls = [\"{}\"]\nmanagement_url = \"{}\"\nexchange = \"shop\"\n[BROKER.exchanges.shop]\n\
         [BROKER.queues.billing]\nretry_delays = [\"1s\"]\nmax_length = 1000\nbind = [\"shop/orders.#\"]\n",
        vhost.amqp_url(),
        vhost.management_url()
    )
}

fn file(shop: &TestOutbox, vhost: &Vhost) -> PathBuf {
    shop.with_destinations(&[("main", &rabbit(vhost)), ("side", "kind = \"embedded\"\npath = \"side.db\"")], "")
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_objects_at_rabbitmq_are_planned_then_created_then_unchanged() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let file = file(&shop, &vhost);
    let (code, missing, stderr) = relevo(&file, &["topology", "plan"]);
    assert_eq!(code, 3, "{stderr}");
    assert_eq!(stderr, "outbox `shop`, destination `side`: the broker (embedded) has no topology\n");
    assert!(missing.starts_with("outbox `shop`, destination `main`: "), "{missing}");
    insta::assert_snapshot!("topology_plan", missing);
    let (code, stdout, stderr) = relevo(&file, &["topology", "apply"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(
        stderr.contains("missing    queue `billing`\n") && stderr.contains("hint: `--yes` confirms in advance"),
        "{stderr}"
    );
    let (code, made, stderr) = relevo(&file, &["topology", "apply", "--yes", "-o", "json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(states(&made).contains(&("queue `billing`".to_owned(), "created".to_owned())), "{made}");
    let (code, same, _) =
        relevo(&file, &["topology", "plan", "-o", "json", "--outbox", "shop", "--destination", "main"]);
    assert!(code == 0 && states(&same).iter().all(|(_, state)| state == "unchanged"), "{same}");
    assert_eq!(states(&same).len(), states(&made).len());
    assert_eq!(relevo(&file, &["topology", "apply"]).0, 0, "without a change there is no question");
    assert_eq!(relevo(&file, &["topology", "plan", "--destination", "unknown"]).0, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_at_rabbitmq_is_reported_and_nothing_is_created() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let quorum = ("x-queue-type", AMQPValue::LongString("quorum".into()));
    declare_queue(&vhost.amqp_url(), "billing", &[quorum, ("x-max-length", AMQPValue::LongInt(7))]).await;
    let file = file(&shop, &vhost);
    let (code, stdout, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(
        stdout.contains("different  queue `billing`\n") && stdout.contains("`x-max-length` is 7, wanted 1000"),
        "{stdout}"
    );
    assert!(stdout.contains("missing    exchange `shop`\n"), "nothing was created: {stdout}");
    assert!(stderr.contains("nothing was created, because some objects differ"), "{stderr}");
    let (_, json, _) = relevo(&file, &["topology", "plan", "-o", "json"]);
    let billing =
        objects(&json).into_iter().find(|piece| piece["piece"] == "queue `billing`").expect("the queue is reported");
    let length = &billing["differences"].as_array().expect("a list").iter().find(|it| it["setting"] == "x-max-length");
    assert_eq!(length.map(|it| (&it["wanted"], &it["found"])), Some((&"1000".into(), &"7".into())), "{billing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_management_api_an_object_that_was_not_compared_does_not_count_as_unchanged() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let management = format!("management_url = \"{}\"\n", vhost.management_url());
    let file = shop.with_destinations(&[("main", &rabbit(&vhost).replace(&management, ""))], "");
    let binding = "binding of queue `billing` to `shop` by `orders.#`";
    let (code, plan, stderr) = relevo(&file, &["topology", "plan"]);
    assert_eq!(code, 3, "{stderr}");
    assert!(plan.contains("\nmissing    queue `billing`\n"), "{plan}");
    assert!(plan.contains(&format!("\nunknown    {binding} (not visible without the management API)\n")), "{plan}");
    let (code, made, stderr) = relevo(&file, &["topology", "apply", "--yes", "-o", "json"]);
    assert_eq!(code, 0, "{stderr}");
    let made = states(&made);
    for (piece, state) in [("queue `billing`", "created"), (binding, "unchanged")] {
        assert!(made.contains(&(piece.to_owned(), state.to_owned())), "{made:?}");
    }
    // No visible object is missing, and each line says what is not visible.
    let (code, plan, stderr) = relevo(&file, &["topology", "plan"]);
    assert_eq!(code, 0, "{stderr}");
    let lines = plan.lines().skip(1);
    assert!(lines.clone().count() == made.len() && lines.clone().all(|line| line.starts_with("unknown    ")), "{plan}");
    assert!(lines.clone().all(|line| line.ends_with("without the management API)")), "{plan}");
    // A single deleted binding is not detected, but it is created again.
    let (_connection, channel) = channel(&vhost.amqp_url()).await;
    channel
        .queue_unbind("billing".into(), "shop".into(), "orders.#".into(), FieldTable::default())
        .await
        .expect("it is bound");
    let (code, _, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert!(code == 0 && stderr.contains(&format!("unknown    {binding} ")), "{stderr}");
    // All objects exist.
    let (code, same, _) =
        relevo(&shop.with_destinations(&[("main", &rabbit(&vhost))], ""), &["topology", "plan", "-o", "json"]);
    assert!(code == 0 && states(&same).iter().all(|(_, state)| state == "unchanged"), "{same}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_of_another_type_is_refused_without_the_management_api() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let (_connection, channel) = channel(&vhost.amqp_url()).await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare("shop".into(), ExchangeKind::Fanout, durable, FieldTable::default());
    declared.await.expect("a new exchange");
    declare_queue(&vhost.amqp_url(), "billing", &[("x-max-length", AMQPValue::LongInt(7))]).await;
    let management = format!("management_url = \"{}\"\n", vhost.management_url());
    let file = shop.with_destinations(&[("main", &rabbit(&vhost).replace(&management, ""))], "");
    let (code, stdout, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert_eq!(code, 3, "{stdout}{stderr}");
    for line in ["different  exchange `shop`\n", "`type` is fanout, wanted topic", "different  queue `billing`\n"] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    assert!(stdout.contains("missing    queue `billing.dead`\n"), "nothing was created: {stdout}");
    let mut daemon = Daemon::start(&file, &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("exchange `shop` differs: `type` is fanout, wanted topic"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_management_api_is_an_error_and_no_object_counts_as_unchanged() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let unused = format!("http://{}", taken.local_addr().expect("an address"));
    drop(taken);
    let wrong = vhost.management_url().replace("guest:guest", "guest:wrong");
    for (url, expected) in [(unused.as_str(), 5), (wrong.as_str(), 1)] {
        let file = shop.with_destinations(&[("main", &rabbit(&vhost).replace(vhost.management_url(), url))], "");
        let (code, stdout, stderr) = relevo(&file, &["topology", "plan"]);
        assert_eq!((code, stdout.as_str()), (expected, ""), "{stderr}");
        assert!(stderr.contains("the management API of RabbitMQ") && stderr.contains("\nhint: "), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_groups_are_made_at_both_versions_of_nats() {
    for version in NatsVersion::ALL {
        let (shop, server, stream) = (TestOutbox::new().await, nats::Server::shared(version), unique("shop"));
        let broker = |more: &str| {
            format!(
                "kind = \"nats\"\nurls = [\"{}\"]\n[BROKER.streams.one]\nname = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n{more}\n\
                 [BROKER.groups.billing]\nname = \"{stream}-billing\"\nstream = \"{stream}\"\n",
                server.url()
            )
        };
        let file = shop.with_destinations(&[("main", &broker(""))], "");
        let (code, missing, stderr) = relevo(&file, &["topology", "plan"]);
        assert!(code == 3 && missing.contains(&format!("missing    stream `{stream}`\n")), "{missing}{stderr}");
        let (code, made, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
        assert!(code == 0 && made.contains(&format!("created    stream `{stream}`\n")), "{made}{stderr}");
        let (code, same, _) = relevo(&file, &["topology", "plan"]);
        assert_eq!(code, 0, "{same}");
        let file = shop.with_destinations(&[("main", &broker("max_messages = 5"))], "");
        let (code, differs, _) = relevo(&file, &["topology", "apply", "--yes"]);
        assert!(code == 3 && differs.contains(&format!("different  stream `{stream}`\n")), "{differs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_examines_databases_and_brokers_of_a_configuration() {
    let (shop, vhost, server) =
        (TestOutbox::new().await, Server::shared().vhost().await, nats::Server::shared(NatsVersion::V2_15));
    let limit = [("x-max-length", AMQPValue::LongInt(5))];
    declare_queue(&vhost.amqp_url(), "orders", &limit).await;
    let stream = unique("shop");
    let rabbit = format!(
        "kind = \"rabbitmq\"\nurls = [\"{}\"]\nmanagement_url = \"{}\"\n",
        vhost.amqp_url(),
        vhost.management_url()
    );
    let nats = format!("kind = \"nats\"\nurls = [\"{}\"]\n", server.url());
    let routes = format!(
        "[[outboxes.shop.destinations.rabbit.routes]]\naddress = \"orders\"\n\
         [[outboxes.shop.destinations.stream.routes]]\naddress = \"{stream}.orders\"\n"
    );
    let file = shop.with_destinations(&[("rabbit", &rabbit), ("stream", &nats)], &routes);
    let (code, stdout, stderr) = relevo(&file, &["doctor"]);
    assert_eq!((code, stderr.as_str()), (3, ""), "{stdout}");
    for title in ["outbox `shop`:", "outbox `shop`, destination `rabbit`:", "outbox `shop`, destination `stream`:"] {
        assert!(stdout.contains(&format!("{title}\n")), "{title}: {stdout}");
    }
    let (code, json, _) = relevo(&file, &["doctor", "-o", "json"]);
    assert_eq!(code, 3);
    let findings = objects(&json);
    let dangers = |destination: &str| -> Vec<&Value> {
        let of = findings.iter().filter(|it| it["destination"] == destination && it["severity"] == "error");
        of.inspect(|it| assert!(it["fix"].is_string(), "{it}")).map(|it| &it["subject"]).collect()
    };
    assert!(dangers("rabbit").contains(&&Value::from("overflow-drops")), "{json}");
    assert!(dangers("stream").contains(&&Value::from("route-unbound")), "{json}");
    let accepting = rabbit.clone() + "accept = [\"overflow-drops\"]\n";
    let file = shop.with_destinations(&[("rabbit", &accepting), ("stream", &nats)], &routes);
    let (_, json, _) = relevo(&file, &["doctor", "-o", "json"]);
    let findings = objects(&json);
    let accepted = findings.iter().find(|it| it["subject"] == "overflow-drops").expect("it is still reported");
    assert_eq!(accepted["accepted"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_reaches_no_queue_is_a_danger() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let unbound = |topic: &str| {
        let routes = format!("[[outboxes.shop.destinations.main.routes]]\ntopic = \"{topic}\"\n");
        let file = shop.with_destinations(&[("main", &rabbit(&vhost))], &routes);
        let (code, _, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
        assert_eq!(code, 0, "{stderr}");
        let findings = objects(&relevo(&file, &["doctor", "-o", "json"]).1);
        let found = findings.into_iter().find(|finding| finding["subject"] == "route-unbound");
        found.expect("it is checked")["severity"].as_str().expect("a word").to_owned()
    };
    assert_eq!(unbound("invoices.**"), "error", "only `orders.#` is bound");
    assert_eq!(unbound("orders.**"), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_does_not_hide_what_was_created_at_another() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let down = format!("kind = \"nats\"\nurls = [\"nats://{}\"]\n", taken.local_addr().expect("an address"));
    drop(taken);
    let file = shop.with_destinations(&[("down", &down), ("main", &rabbit(&vhost))], "");
    let (code, stdout, stderr) = relevo(&file, &["topology", "plan"]);
    assert!(code == 5 && stdout.contains("\nmissing    queue `billing`\n"), "{stdout}{stderr}");
    let (code, stdout, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert!(code == 5 && stdout.contains("\ncreated    queue `billing`\n"), "{stdout}{stderr}");
    assert!(stderr.contains("error: outbox `shop`, destination `down`: "), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_takes_the_configuration_that_the_environment_names_unless_a_database_is_named() {
    let shop = TestOutbox::new().await;
    let file = shop.with_destinations(&[("side", "kind = \"embedded\"\npath = \"side.db\"")], "");
    let doctor = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_relevo"));
        let output = command.arg("doctor").args(args).env("RELEVO_CONFIG", &file).output().expect("it runs");
        String::from_utf8(output.stdout).expect("it writes UTF-8")
    };
    assert!(doctor(&[]).starts_with("outbox `shop`:\n"));
    let one = doctor(&["--database", &shop.database.url()]);
    assert!(one.contains(" checks: ") && !one.contains("outbox `shop`:"), "{one}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_is_exit_code_5_after_all_other_output() {
    let shop = TestOutbox::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    drop(taken);
    let nats = format!("kind = \"nats\"\nurls = [\"nats://{address}\"]\n");
    let file = shop.with_destinations(&[("main", &nats)], "");
    let (code, stdout, stderr) = relevo(&file, &["doctor"]);
    assert_eq!(code, 5, "{stdout}{stderr}");
    assert!(stdout.contains("outbox `shop`:\n"), "{stdout}");
    assert!(
        stderr.starts_with("error: outbox `shop`, destination `main`: ") && stderr.contains("\nhint: "),
        "{stderr}"
    );
    assert_eq!(relevo(&file, &["topology", "plan"]).0, 5);
    let (code, _, stderr) = relevo(&file, &["doctor", "--schema", "other"]);
    assert!(code == 2 && stderr.contains("leave `--database` and `--schema` out"), "{stderr}");
}
