//! A RabbitMQ server with the management API, separate from a system-wide one.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::marked::{Kind, Prepared, Probe};
use crate::port::free_port;

/// Debian's wrapper script requires the user `rabbitmq`. The program that it wraps does not.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// The credentials `guest:guest` for the management API.
const LOGIN: &str = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";

pub(crate) const URL_VARIABLES: [&str; 2] = ["RELEVO_TEST_RABBITMQ_URL", "RELEVO_TEST_RABBITMQ_MANAGEMENT_URL"];

/// How long the server's schedulers spin before they sleep.
#[derive(Clone, Copy)]
pub(crate) enum BusyWait {
    /// No spinning: the server shares the machine with tests.
    None,
    /// RabbitMQ's default, because benchmarks measure this server.
    Ordinary,
}

pub(crate) struct RabbitMq(pub(crate) BusyWait);

impl Kind for RabbitMq {
    fn prepare(&self, directory: &Path) -> Result<Prepared> {
        let (amqp, management) = (free_port()?, free_port()?);
        let settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{amqp}\nloopback_users = none\n\
             management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n"
        );
        std::fs::write(directory.join("rabbitmq.conf"), settings)?;
        std::fs::write(directory.join("plugins"), "[rabbitmq_management].\n")?;
        let cookie = directory.join(".erlang.cookie");
        if !cookie.exists() {
            std::fs::File::options().create_new(true).write(true).mode(0o400).open(cookie)?.write_all(b"relevo")?;
        }
        let mut command = Command::new("sh");
        command.args(["-c", include_str!("../../crates/testkit/src/rabbitmq/node.sh"), "node"]);
        command.arg(directory).arg("relevo@localhost");
        command.args([free_port()?.to_string(), free_port()?.to_string()]).arg(PROGRAM);
        if let BusyWait::Ordinary = self.0 {
            command.env("RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD", "medium");
        }
        let greeting = Probe { port: amqp, request: b"AMQP\x00\x00\x09\x01".to_vec(), response: b"\x01" };
        Ok(Prepared {
            command,
            probes: vec![greeting, Probe::http(management, "/api/overview", LOGIN)],
            urls: vec![
                format!("amqp://guest:guest@127.0.0.1:{amqp}"),
                format!("http://guest:guest@127.0.0.1:{management}"),
            ],
        })
    }
}
