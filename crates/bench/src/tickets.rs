//! `TicketFlow` under load: tickets through its API, their events through RabbitMQ, their e-mails to an SMTP server.

mod buckets;
mod people;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use relevo_testkit::smtp::Smtp;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::fill::{number, run};
use crate::latency::{Rounds, Stolen};
use crate::process::{Process, Scratch, free_port};
use crate::report::Report;

/// The required number of tickets per second.
const RATE: u32 = 500;
const TIME: Duration = Duration::from_mins(1);
/// The number of tickets per minute in the owners' document.
const DOCUMENT_PER_MINUTE: f64 = 10_000.0;
/// The maximum dispatch latency, far below the 2 s in the owners' document. It is a bucket bound of the histogram.
const DISPATCH_MS: f64 = 200.0;
const DATABASE: &str = "relevo_bench_tickets";
const DEADLINE: Duration = Duration::from_mins(10);

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut service = Service::install(server).await?;
    let (api, worker) = (service.start("api").await?, service.start("worker").await?);
    let stolen = Stolen::since_now();
    let start = Instant::now();
    let durations = people::open_tickets(api.port(), &service.token, RATE, TIME).await?;
    let opened = u32::try_from(durations.len())?;
    let rate = f64::from(opened) / start.elapsed().as_secs_f64();
    let mailed = service.all_mailed(opened).await?;
    let details = format!(
        "{opened} tickets in {:.0} s; {:.0} % of the CPU time was stolen",
        TIME.as_secs_f64(),
        stolen.percent()
    );
    report.rate("tickets: opened through the API", rate, Some(f64::from(RATE) * 0.99), details);
    let per_minute =
        format!("{:.1} times the owners' {DOCUMENT_PER_MINUTE:.0} a minute", rate * 60.0 / DOCUMENT_PER_MINUTE);
    let metrics = api.get("/metrics").await?;
    let dispatch = buckets::percentile(&metrics, "outbox_dispatch_latency_ms", 95)?;
    report.at_most("tickets: emit to RabbitMQ, p95", dispatch, "ms", DISPATCH_MS, per_minute);
    let publish = buckets::percentile(&metrics, "outbox_publish_latency_seconds", 95)? * 1000.0;
    report.record("tickets: emit to RabbitMQ's confirm, p95", publish, "ms", "upper bound of its bucket".to_owned());
    let mut millis = Rounds::new();
    millis.push(durations);
    for percent in [50, 95, 99] {
        let name = format!("tickets: API response, p{percent}");
        report.record(
            &name,
            millis.percentile(percent),
            "ms",
            format!("{RATE}/s requested; a client behind schedule sends at once"),
        );
    }
    let details = format!("{opened} tickets and {opened} e-mails, counted from the first ticket");
    report.rate("tickets: e-mails accepted by SMTP", f64::from(opened) / (mailed - start).as_secs_f64(), None, details);
    for (name, process) in [("API with relay", &api), ("worker", &worker)] {
        let details = format!("{:.0} s of CPU time", process.cpu_seconds()?);
        report.record(&format!("tickets: resident memory, {name}"), process.megabytes("VmHWM:")?, "MB", details);
    }
    worker.stop().await?;
    api.stop().await
}

/// The installed service: its program, directory, database and mail server.
struct Service {
    program: PathBuf,
    scratch: Scratch,
    connection: PgConnection,
    token: String,
    _smtp: Smtp,
}

impl Service {
    /// Sets up a fresh database, the queues, a mail server, and a user who may open tickets.
    async fn install(server: &PgConnectOptions) -> anyhow::Result<Self> {
        let program = std::env::var_os("RELEVO_BENCH_TICKETFLOW")
            .context("`RELEVO_BENCH_TICKETFLOW` is not set; hint: run `cargo xtask bench tickets`")?
            .into();
        let rabbitmq = std::env::var("RELEVO_TEST_RABBITMQ_URL").context("`RELEVO_TEST_RABBITMQ_URL` is not set")?;
        let mut admin = server.connect().await?;
        run(&mut admin, &format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")).await?;
        run(&mut admin, &format!("CREATE DATABASE {DATABASE}")).await?;
        let options = server.clone().database(DATABASE);
        let (scratch, smtp) = (Scratch::new()?, Smtp::start());
        let config = format!(
            "[database]\nurl = {:?}\n[broker]\nurl = {rabbitmq:?}\n[mail]\nsmtp_url = {:?}\n",
            options.to_url_lossy().as_str(),
            smtp.url()
        );
        std::fs::write(scratch.0.join("ticketflow.toml"), config)?;
        let connection = options.connect().await?;
        let mut service = Self { program, scratch, connection, token: String::new(), _smtp: smtp };
        service.run_command(&["migrate"]).await?;
        service.run_command(&["topology", "apply"]).await?;
        let output = service.run_command(&["person", "add", "Ana", "ana@example.com", "requester"]).await?;
        output.trim_end().clone_into(&mut service.token);
        Ok(service)
    }

    /// Runs a command of the service and returns its output.
    async fn run_command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command().args(arguments).output().await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ticketflow {}` failed: {errors}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts one of its roles as a separate process.
    async fn start(&self, role: &str) -> anyhow::Result<Process> {
        let port = free_port().await?;
        let mut command = self.command();
        command.args(["--role", role, "--listen", &format!("127.0.0.1:{port}")]);
        Process::start(&mut command, port, "/health").await.with_context(|| format!("role `{role}` did not start"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.scratch.0.join("ticketflow.toml")).arg("--data").arg(&self.scratch.0);
        command
    }

    /// Waits for the last e-mail, and returns the time of its commit. Fails if there are too many.
    async fn all_mailed(&mut self, tickets: u32) -> anyhow::Result<Instant> {
        let start = Instant::now();
        loop {
            let emails = number(&mut self.connection, "SELECT count(*) FROM ticketflow.email").await?;
            ensure!(emails <= i64::from(tickets), "{emails} e-mails for {tickets} tickets");
            if emails == i64::from(tickets) {
                return Ok(Instant::now());
            }
            ensure!(start.elapsed() < DEADLINE, "{emails} of {tickets} e-mails were sent");
            sleep(Duration::from_millis(100)).await;
        }
    }
}
