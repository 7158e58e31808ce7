//! The page about RabbitMQ says what is there: its tables are compared with a real server after `ticketflow topology apply`.

use std::collections::BTreeSet;

use relevo_testkit::rabbitmq::Server;
use serde_json::Value;

use crate::running::{Directory, shell, ticketflow};

const PAGE: &str = include_str!("../../docs/rabbitmq-topology.md");

/// The rows of the table under this heading, without its head.
fn table(heading: &str) -> BTreeSet<String> {
    let (_, rest) = PAGE.split_once(&format!("\n## {heading}\n")).expect("the page has this heading");
    let part = rest.split("\n## ").next().expect("a first part");
    part.lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().expect("a text")
}

#[tokio::test]
async fn the_page_lists_what_apply_creates() {
    let vhost = Server::shared().vhost().await;
    let directory = Directory::new("topology");
    let config = format!("[broker]\nurl = \"{}\"\nmanagement_url = \"{}\"\n", vhost.amqp_url(), vhost.management_url());
    std::fs::write(directory.path().join("ticketflow.toml"), config).expect("the directory can be written");
    let run = |what: &str| {
        let arguments = ["topology", what, "--config", "ticketflow.toml"];
        ticketflow(directory.path()).args(arguments).output().expect("`ticketflow` runs")
    };
    assert!(!run("check").status.success(), "nothing is there yet");
    for what in ["apply", "check"] {
        let output = run(what);
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }

    let list = |what: &str| -> Vec<Value> {
        let url = format!("{}/api/{what}/{}", vhost.management_url(), vhost.name());
        serde_json::from_str(&shell(&format!("curl -sSf '{url}'"), directory.path())).expect("a list")
    };
    let exchanges = list("exchanges").into_iter().filter(|exchange| !text(exchange, "name").starts_with("amq."));
    let exchanges = exchanges.filter(|exchange| !text(exchange, "name").is_empty());
    let rows = exchanges.map(|exchange| {
        let durable = if exchange["durable"] == true { "yes" } else { "no" };
        format!("| `{}` | `{}` | {durable} |", text(&exchange, "name"), text(&exchange, "type"))
    });
    assert_eq!(table("Exchange"), rows.collect());
    let rows = list("queues").into_iter().map(|queue| {
        assert_eq!(queue["durable"], true, "{queue}");
        let arguments = queue["arguments"].as_object().expect("arguments");
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("`{name}`: `{value}`")).collect();
        format!("| `{}` | {} |", text(&queue, "name"), arguments.join(", "))
    });
    assert_eq!(table("Queues"), rows.collect());
    let bindings = list("bindings").into_iter().filter(|binding| !text(binding, "source").is_empty());
    let rows = bindings.map(|binding| {
        let [source, key, queue] = ["source", "routing_key", "destination"].map(|field| text(&binding, field));
        format!("| `{source}` | `{key}` | `{queue}` |")
    });
    assert_eq!(table("Bindings"), rows.collect());
}
