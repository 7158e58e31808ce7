//! Replays in PostgreSQL.

use std::process::{Child, Command, Stdio};

use relevo_broker_embedded::{self as embedded, BrokerFile, Group};
use relevo_core::inbox::InboxRetention;
use relevo_core::message::Headers;
use relevo_store_postgres::inbox::{Config, Inbox};
use relevo_store_postgres::{Operator, OperatorConfig};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Server, unique};
use relevo_testkit::proxy::CutProxy;

use super::fixture::heartbeat;
use super::replays::{self as cases, Spawn};
use super::support::{Cli, stable};

impl Spawn for Cli {
    fn spawn(&self, args: &[&str]) -> Child {
        spawn(&self.database.url(), args)
    }
}

fn spawn(url: &str, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.args(args).env("RELEVO_DATABASE_URL", url);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs")
}

async fn fixture() -> (Cli, Inbox, Operator) {
    let cli = Cli::migrated().await;
    let inbox = Inbox::open(&Config::new(cli.database.options()), "billing", InboxRetention::default()).await;
    let store = Operator::open(OperatorConfig::new(cli.database.options())).await;
    (cli, inbox.expect("a migrated database"), store.expect("a migrated database"))
}

#[tokio::test]
async fn every_message_is_replayed_and_handled_once() {
    let (cli, inbox, store) = fixture().await;
    cases::every_message_is_replayed_and_handled_once(&cli, &inbox, &store).await;
    let (list, _) = cli.succeeds(&["replay", "list"]);
    let list: Vec<&str> = list.lines().map(|line| line.rsplit_once("  ").map_or(line, |(start, _)| start)).collect();
    assert_eq!(list.len(), 3, "a head, and two replays: {list:?}");
}

#[tokio::test]
async fn a_plan_is_printed() {
    let (cli, inbox, _) = fixture().await;
    heartbeat(&inbox).await;
    cases::emit(&cli, 3);
    let (plan, stderr) =
        cli.succeeds(&["replay", "plan", "billing", "--topic", "orders", "--rate", "2", "--sample", "2"]);
    insta::assert_snapshot!("replay_plan", format!("{}\n\n{stderr}", stable(&plan, &cli)));
    let args = ["replay", "start", "billing", "--topic", "orders", "--reason", "wrong", "--by", "ana", "--yes"];
    let (_, stderr) = cli.succeeds(&args);
    let (shown, _) = cli.succeeds(&["replay", "show", "billing", "1"]);
    insta::assert_snapshot!("replay_show", format!("{stderr}\n{}", stable(&shown, &cli)));
    let (list, _) = cli.succeeds(&["replay", "list"]);
    insta::assert_snapshot!("replay_list", stable(&list, &cli));
}

#[tokio::test]
async fn only_selected_messages_are_replayed() {
    let (cli, inbox, _) = fixture().await;
    cases::only_selected_messages_are_replayed(&cli, &inbox).await;
}

#[tokio::test]
async fn a_killed_feeder_loses_and_repeats_nothing() {
    let (cli, inbox, store) = fixture().await;
    cases::a_killed_feeder_loses_and_repeats_nothing(&cli, &inbox, &store).await;
}

#[tokio::test]
async fn a_stop_from_elsewhere_ends_the_feeder() {
    let (cli, inbox, store) = fixture().await;
    cases::a_stop_from_elsewhere_ends_the_feeder(&cli, &inbox, &store).await;
}

#[tokio::test]
async fn too_many_dead_letters_stop_a_replay() {
    let (cli, inbox, _) = fixture().await;
    cases::too_many_dead_letters_stop_a_replay(&cli, &inbox).await;
}

#[tokio::test]
async fn an_interrupt_hints_how_to_continue() {
    let (cli, inbox, store) = fixture().await;
    heartbeat(&inbox).await;
    cases::emit(&cli, 10);
    let feeder = cli.spawn(&["replay", "start", "billing", "--rate", "1", "--reason", "wrong", "--yes"]);
    let mut handled = cases::Handled::default();
    let begun =
        async |_: &cases::Handled| cli.number("SELECT coalesce(max(fed), 0) FROM relevo.inbox_replay").await > 0;
    cases::work_until(&inbox, &mut handled, "the replay enqueues", begun).await;
    let signal = Command::new("kill").args(["-INT", &feeder.id().to_string()]).status().expect("`kill` runs");
    assert!(signal.success());
    let (code, stderr) = cases::ended(feeder);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(
        stderr.ends_with(
            "interrupted\n\
         hint: continue with `relevo replay resume billing 1`, or end it with `relevo replay stop billing 1`\n"
        ),
        "{stderr}"
    );
    assert_eq!(cases::replay(&store, 1).await.state.as_str(), "running");
}

#[tokio::test]
async fn a_replay_that_loses_its_database_fails_and_can_be_resumed() {
    const COUNT: usize = 30;
    let (cli, inbox, store) = fixture().await;
    heartbeat(&inbox).await;
    cases::emit(&cli, COUNT);
    let port = cli.database.options().get_port();
    let proxy = CutProxy::start(([127, 0, 0, 1], port).into()).await;
    let url = cli.database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
    let args = ["replay", "start", "billing", "--rate", "20", "--reason", "wrong", "--yes"];
    let mut feeder = tokio::task::spawn_blocking(move || spawn(&url, &args)).await.expect("it runs");
    let mut handled = cases::Handled::default();
    let begun =
        async |_: &cases::Handled| cli.number("SELECT coalesce(max(fed), 0) FROM relevo.inbox_replay").await > 5;
    cases::work_until(&inbox, &mut handled, "the replay enqueues", begun).await;
    proxy.block().await;
    let failed = async |_: &cases::Handled| feeder.try_wait().expect("it runs").is_some();
    cases::work_until(&inbox, &mut handled, "the replay fails", failed).await;
    let (code, stderr) = cases::ended(feeder);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("error: replay 1 failed"), "{stderr}");
    assert!(stderr.contains("hint: continue with `relevo replay resume billing 1`"), "{stderr}");
    cli.succeeds(&["replay", "resume", "billing", "1", "--rate", "1000"]);
    cases::work_until(&inbox, &mut handled, "all are handled", async |handled| handled.len() >= COUNT).await;
    handled.is_everything_once(COUNT);
    assert_eq!(cases::replay(&store, 1).await.done, 30);
}

#[tokio::test]
async fn a_question_comes_before_it() {
    let (cli, inbox, _) = fixture().await;
    heartbeat(&inbox).await;
    cases::emit(&cli, 2);
    let (code, _, stderr) = cli.run(&["replay", "start", "billing", "--reason", "wrong"], "n\n");
    assert_eq!(code, 1);
    assert!(stderr.starts_with("replay 2 messages to consumer `billing`, 100 per second"), "{stderr}");
    assert_eq!(cli.number("SELECT count(*) FROM relevo.inbox_replay").await, 0);
}

#[tokio::test]
async fn impossible_replays_are_errors() {
    let (cli, inbox, _) = fixture().await;
    let stderr = cli.fails(4, &["replay", "plan", "billing"]);
    assert!(stderr.contains("consumer `billing` is not known"), "{stderr}");
    heartbeat(&inbox).await;
    let stderr = cli.fails(4, &["replay", "show", "billing", "7"]);
    assert_eq!(stderr, "error: consumer `billing` has no replay 7\nhint: it has none\n");
    for args in [["--from", "4", "--to", "3"], ["--since", "1h", "--until", "2h"]] {
        cli.fails(2, &[&["replay", "plan", "billing"][..], &args].concat());
    }
    let stderr = cli.fails(2, &["replay", "plan", "billing", "--source", "broker", "-c", "/nowhere.toml"]);
    assert!(stderr.contains("`/nowhere.toml` cannot be read"), "{stderr}");
}

/// A directory that is deleted when its value is dropped.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("relevo-replay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    /// A configuration of one destination with this broker.
    fn config(&self, cli: &Cli, broker: &str) -> String {
        let path = self.0.join("relevo.toml");
        let text = format!(
            "[outboxes.shop]\ndatabase = \"{}\"\n[outboxes.shop.destinations.main]\ncreate = true\n\
             [[outboxes.shop.destinations.main.routes]]\ntopic = \"orders\"\naddress = \"sales.{{topic}}\"\n\
             [outboxes.shop.destinations.main.broker]\n{broker}\n",
            cli.database.url()
        );
        std::fs::write(&path, text).expect("the directory can be written");
        path.display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[tokio::test]
async fn a_queue_is_no_log_and_a_route_says_the_address() {
    let (cli, inbox, _) = fixture().await;
    heartbeat(&inbox).await;
    cases::emit(&cli, 2);
    cli.succeeds(&["emit", "bills", "b-1", "BillMade", "{}"]);
    let directory = Directory::new("rabbitmq");
    let config = directory.config(&cli, "kind = \"rabbitmq\"\nurls = [\"amqp://localhost\"]");
    let stderr = cli.fails(2, &["replay", "plan", "billing", "--source", "broker", "-c", &config]);
    assert!(
        stderr.starts_with("error: RabbitMQ keeps no log") && stderr.contains("hint: replay from the outbox"),
        "{stderr}"
    );
    let planned = cases::object(&cli, &["replay", "plan", "billing", "-c", &config, "-o", "json"]);
    assert_eq!(planned["count"].as_u64(), Some(2), "no route takes bills");
    assert_eq!(planned["sample"][0]["address"].as_str(), Some("sales.orders"));
}

#[tokio::test]
async fn the_file_of_an_embedded_broker_is_a_log() {
    let (cli, inbox, _) = fixture().await;
    heartbeat(&inbox).await;
    let directory = Directory::new("embedded");
    let file = directory.0.join("broker.db");
    let config = directory.config(&cli, &format!("kind = \"embedded\"\npath = \"{}\"", file.display()));
    let stderr = cli.fails(4, &["replay", "plan", "billing", "--source", "broker", "-c", &config]);
    assert!(stderr.contains("there is no embedded broker at"), "{stderr}");
    let broker = BrokerFile::open(embedded::Config::new(&file)).await.expect("a new file");
    let stderr = cli.fails(4, &["replay", "plan", "billing", "--source", "broker", "-c", &config]);
    assert!(stderr.contains("the broker has no group `billing`"), "{stderr}");
    broker.declare_group(&Group::new("bills", ["sales.*"])).await.expect("a group");
    for number in 0..5 {
        let headers = Headers::from([("x-key".to_owned(), "k".to_owned())]);
        broker.publish_raw("sales.old", "k", &headers, number.to_string().into()).await.expect("published");
    }
    let log = ["--source", "broker", "--group", "bills", "--key-header", "x-key", "-c", &config];
    let planned =
        cases::object(&cli, &[&["replay", "plan", "billing", "-o", "json", "--from", "2"][..], &log].concat());
    assert_eq!(planned["count"].as_u64(), Some(4));
    let start = ["replay", "start", "billing", "--rate", "1000", "--reason", "why", "--yes", "--from", "2"];
    cli.succeeds(&[&start[..], &log].concat());
    assert_eq!(
        cli.number("SELECT count(*) FROM relevo.inbox_retry_message WHERE queue = 'k' AND broker_offset > 1").await,
        4
    );
    let stderr = cli.fails(4, &["replay", "resume", "billing", "2"]);
    assert!(stderr.contains("has no replay 2"), "{stderr}");
}

#[tokio::test]
async fn a_stream_of_nats_is_a_log() {
    let (cli, inbox, _) = fixture().await;
    heartbeat(&inbox).await;
    let (server, stream) = (Server::shared(NatsVersion::V2_15), unique("replay"));
    let group = format!("{stream}-billing");
    let directory = Directory::new("nats");
    let section = "outboxes.shop.destinations.main.broker";
    let broker = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\n[{section}.streams.one]\nname = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n\
         [{section}.groups.one]\nname = \"{group}\"\nstream = \"{stream}\"\nsubjects = [\"{stream}.>\"]",
        server.url()
    );
    let config = directory.config(&cli, &broker);
    let log = ["--source", "broker", "-c", &config, "--group", &group, "--key-header", "x-key"];
    let plan = |more: &[&str]| {
        let args = [&["replay", "plan", "billing", "-o", "json"], more, &log].concat();
        cases::object(&cli, &args)["count"].as_u64().expect("a count")
    };
    let stderr = cli.fails(2, &[&["replay", "plan", "billing"][..], &log].concat());
    assert!(stderr.contains(&format!("the server has no stream `{stream}`")), "{stderr}");
    cli.succeeds(&["topology", "apply", "--yes", "-c", &config]);
    let client = async_nats::connect(server.url()).await.expect("the server is there");
    let jetstream = async_nats::jetstream::new(client);
    for number in 0..4 {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("x-key", "k");
        let sent = jetstream.publish_with_headers(format!("{stream}.old"), headers, number.to_string().into()).await;
        sent.expect("sent").await.expect("stored");
    }
    assert_eq!((plan(&[]), plan(&["--from", "3"]), plan(&["--since", "1h"]), plan(&["--until", "1h"])), (4, 2, 4, 0));
    let start = ["replay", "start", "billing", "--rate", "1000", "--reason", "why", "--yes", "--from", "3"];
    cli.succeeds(&[&start[..], &log].concat());
    assert_eq!(
        cli.number("SELECT count(*) FROM relevo.inbox_retry_message WHERE queue = 'k' AND broker_offset > 2").await,
        2
    );
}
