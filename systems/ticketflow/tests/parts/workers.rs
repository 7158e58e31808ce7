//! Several workers side by side, and one that is killed.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use relevo_testkit::proxy::CutProxy;
use serde_json::{Value, json};
use ticketflow::config::{Broker, Role};

use crate::stage::{ANA, DAN, Stage, number, so, until, until_within};

/// How long a line of a worker is waited for.
const DEADLINE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_send_nothing_twice_and_count_each_ticket_in_order() {
    const TICKETS: usize = 40;
    let stage = Stage::new().await;
    let api = stage.start(Role::Api).await;
    let (one, other) = (stage.start(Role::Worker).await, stage.start(Role::Worker).await);
    stage.has_queues().await;
    let (_connection, channel) = stage.channel().await;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    // One that came late could find nothing left to send.
    until(async || {
        let declared = channel.queue_declare("notifications".into(), passive, FieldTable::default()).await;
        let consumers = declared.expect("the queue is there").consumer_count();
        so(consumers >= 2, consumers)
    })
    .await;
    for number in 0..TICKETS {
        let ticket = api.open(ANA, &format!("ticket {number}")).await;
        let ticket = api.set(DAN, &ticket, "in_progress").await;
        let ticket = api.set(DAN, &ticket, "resolved").await;
        api.set(ANA, &ticket, "closed").await; // by the requester, without an assignee: no e-mail
    }
    let figures = until(async || {
        let figures = api.figures().await;
        if figures["by_status"]["closed"] == TICKETS { Ok(figures) } else { Err(figures.to_string()) }
    })
    .await;
    until(async || so(stage.smtp.mails().len() >= 3 * TICKETS, stage.smtp.mails().len())).await;
    until(async || {
        let handled = one.metric("inbox_handled_total", "notifications").await
            + other.metric("inbox_handled_total", "notifications").await;
        so(handled >= 160.0 - 0.5, handled)
    })
    .await;
    let ids = stage.message_ids();
    assert_eq!((ids.len(), ids.values().sum::<usize>()), (3 * TICKETS, 3 * TICKETS));

    let dan = figures["days"].as_array().and_then(|days| days.iter().find(|day| day["agent"]["name"] == "Dan"));
    let dan = dan.unwrap_or_else(|| panic!("{figures}"));
    assert_eq!((&dan["resolved"], &dan["first_responses"]), (&json!(TICKETS), &json!(TICKETS)), "{figures}");
    let opened: i64 =
        figures["days"].as_array().expect("days").iter().map(|day| day["opened"].as_i64().unwrap_or(0)).sum();
    assert_eq!(opened, 40);
    for worker in [&one, &other] {
        assert!(worker.metric("inbox_out_of_order_total", "").await < 0.5);
        // Otherwise nothing was seen of two workers that share something.
        assert!(worker.metric("inbox_handled_total", "notifications").await > 0.5, "both had e-mails to send");
    }
    let behind = "SELECT count(*) FROM ticketflow.ticket t JOIN ticketflow.figure_ticket f ON f.ticket_id = t.id
        WHERE f.version = t.version AND f.status = t.status AND f.first_response_at = t.first_response_at
        AND f.resolved_at = t.resolved_at";
    assert_eq!(number(&mut stage.session().await, behind).await, 40);
    for running in [one, other, api] {
        running.stop().await;
    }
}

/// A worker as a process of its own, on these parts; killed when it is dropped.
struct Worker {
    process: Child,
    log: Receiver<String>,
}

impl Worker {
    fn start(stage: &Stage, database: &str) -> Self {
        let Broker::RabbitMq { url, .. } = &stage.config.broker else { panic!("no RabbitMQ") };
        let config = format!(
            "role = \"worker\"\nlisten = \"127.0.0.1:0\"\n[database]\nurl = \"{database}\"\n[broker]\nurl = \"{}\"\n\
             [mail]\nsmtp_url = \"{}\"\n[worker]\ndeadline_s = 5\nanswer_s = 15\n",
            url.expose(),
            stage.smtp.url(),
        );
        let file = std::env::temp_dir().join(format!("ticketflow-worker-{}.toml", uuid::Uuid::new_v4()));
        std::fs::write(&file, config).expect("it can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ticketflow"));
        command.arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let stdout = lines(process.stdout.take().expect("piped"));
        let log = lines(process.stderr.take().expect("piped"));
        let worker = Self { process, log };
        let first = stdout.recv_timeout(DEADLINE).expect("it says that it serves");
        assert!(first.starts_with("TicketFlow listens"), "{first}");
        std::fs::remove_file(file).ok();
        worker
    }

    /// Reads log lines until one has this in it.
    fn logs(&self, text: &str) -> Value {
        let end = Instant::now() + DEADLINE;
        loop {
            let line = self.log.recv_timeout(end.saturating_duration_since(Instant::now())).expect("it logs that");
            if line.contains(text) {
                return serde_json::from_str(&line).expect("a line is JSON");
            }
        }
    }

    fn kill9(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is ours");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended is no problem.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The output, read by a thread, so that waiting for a line can time out.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let from = BufReader::new(from);
    std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

/// The mail server has taken the e-mail and said so; the worker is killed before it could write that down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_between_response_and_commit_causes_a_repeat_with_the_same_message_id() {
    let stage = Stage::new().await;
    let api = stage.start(Role::Api).await;
    let options = stage.database.options();
    let upstream = format!("{}:{}", options.get_host(), options.get_port()).parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let through = stage.database.url().replace(&upstream.to_string(), &proxy.addr().to_string());
    let worker = tokio::task::block_in_place(|| Worker::start(&stage, &through));
    stage.smtp.hold();
    api.open(ANA, "once").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    proxy.freeze();
    stage.smtp.release();
    let sent = tokio::task::block_in_place(|| worker.logs("an e-mail was sent"));
    worker.kill9();
    assert_eq!(number(&mut stage.session().await, "SELECT count(*) FROM ticketflow.email").await, 0);

    let other = tokio::task::block_in_place(|| Worker::start(&stage, &stage.database.url()));
    // What the killed one had claimed is its own for 75 s: twice what an e-mail may take with this deadline, and some.
    until_within(Duration::from_mins(3), async || so(stage.smtp.mails().len() == 2, stage.smtp.events())).await;
    let mails = stage.smtp.mails();
    assert_eq!(mails[0], mails[1], "the repeat is the same to the last byte");
    let id = format!("<{}>", sent["message_id"].as_str().expect("an id"));
    assert_eq!(stage.message_ids().into_iter().collect::<Vec<_>>(), [(id, 2)]);
    until(async || so(number(&mut stage.session().await, "SELECT count(*) FROM ticketflow.email").await == 1, "none"))
        .await;
    other.kill9();
    api.stop().await;
}
