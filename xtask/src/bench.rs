//! `cargo xtask bench`: runs the benchmarks against dedicated servers.

use anyhow::Result;

use crate::cargo;
use crate::install::{self, DEBIAN_15};
use crate::marked::Temporary;
use crate::nats::Nats;
use crate::postgres::{self, Durability};
use crate::rabbitmq::{self, BusyWait, RabbitMq};
use crate::runner::Runner;

/// The suites that need no broker.
const WITHOUT_BROKERS: [&str; 3] = ["engine", "daemon", "observe"];

pub(crate) fn run(runner: &Runner, arguments: &[String]) -> Result<()> {
    let with_brokers = !arguments.iter().any(|argument| WITHOUT_BROKERS.contains(&argument.as_str()));
    install::debian(runner, &[install::POSTGRES_15, install::AIOSMTPD])?;
    let programs = [
        ("RELEVO_BENCH_BINARY", cargo::release(runner, "relevo-cli", "relevo")?),
        ("RELEVO_BENCH_TICKETFLOW", cargo::release(runner, "ticketflow", "ticketflow")?),
    ];
    let postgres = postgres::Temporary::start(DEBIAN_15.as_ref(), Durability::Real)?;
    let brokers = if with_brokers { brokers(runner)? } else { Vec::new() };
    let mut command = cargo::command(&["run", "--release", "-p", "relevo-bench", "--"])?;
    command.args(arguments).env("RELEVO_TEST_POSTGRES_URL", postgres.url()).envs(programs);
    for (variables, server) in &brokers {
        command.envs(variables.iter().zip(&server.urls));
    }
    runner.run(&mut command)
}

/// Starts the brokers. Each comes with the environment variables that hold its URLs.
fn brokers(runner: &Runner) -> Result<Vec<(Vec<&'static str>, Temporary)>> {
    let [_, (newest, program)] = install::all(runner)?.nats;
    let nats = |jetstream| Nats { program: program.clone(), jetstream };
    Ok(vec![
        (vec![newest.url_variable()], Temporary::start(&nats(""))?),
        (vec!["RELEVO_BENCH_NATS_SYNCED_URL"], Temporary::start(&nats("sync_interval: always"))?),
        (rabbitmq::URL_VARIABLES.to_vec(), Temporary::start(&RabbitMq(BusyWait::Ordinary))?),
    ])
}
