//! The name server of Erlang nodes, for the nodes of one cluster.

use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::marked;
use crate::scratch::Scratch;

const STARTS_MAX: usize = 10;
const READY_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// It must not belong to a single node: killing that node would take it from the others.
pub(super) struct Epmd {
    process: Child,
    port: u16,
    _scratch: Scratch,
}

impl Epmd {
    pub(super) fn start() -> Self {
        for _ in 0..STARTS_MAX {
            let scratch = Scratch::for_marked();
            let port = scratch.reserve_port();
            let mut command = Command::new("epmd");
            command.args(["-address", "127.0.0.1", "-port", &port.to_string()]).current_dir("/");
            command.env(marked::VARIABLE, scratch.path()).process_group(0);
            let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut epmd = Self { process: process.expect("`epmd` comes with RabbitMQ"), port, _scratch: scratch };
            if epmd.is_ready() {
                return epmd;
            }
        }
        panic!("epmd does not start");
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + READY_DEADLINE;
        // `epmd` exits if another process has the port.
        while Instant::now() < deadline && self.process.try_wait().expect("the process is ours").is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }
}

impl Drop for Epmd {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
