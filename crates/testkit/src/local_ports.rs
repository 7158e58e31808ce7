//! The usual ports of servers on loopback, for the programs of one test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::installed::program;

/// A network namespace whose loopback has servers of the test on the ports that a user expects, such as 5432.
///
/// Programs in it run the texts of the documentation unchanged, without disturbing other servers of the machine. Needs root, or
/// a kernel that lets users create namespaces.
pub struct LocalPorts {
    forwarder: Child,
    /// A process in the namespace.
    inside: u32,
}

impl LocalPorts {
    /// Forwards each port of the new namespace to a server outside of it.
    pub fn forward(ports: &[(u16, SocketAddr)]) -> Self {
        let mut command = Command::new(program("RELEVO_TEST_PYTHON", "/usr/bin/python3"));
        command.args(["-c", include_str!("local_ports.py")]);
        command.args(ports.iter().map(|(port, server)| format!("{port}={server}")));
        // The forwarder ends when its standard input does, however the test ends.
        let mut forwarder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python runs");
        let mut line = String::new();
        let output = forwarder.stdout.take().expect("it was piped");
        BufReader::new(output).read_line(&mut line).expect("it prints text");
        let inside = line.trim().parse().expect("the forwarder printed on stderr why it has no namespace");
        Self { forwarder, inside }
    }

    /// A program that runs in the namespace.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.inside.to_string(), "--net"]);
        let user = std::fs::metadata("/proc/self").expect("/proc is mounted").uid();
        if user != 0 {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program.as_ref());
        command
    }
}

impl Drop for LocalPorts {
    fn drop(&mut self) {
        drop(self.forwarder.stdin.take());
        // No caller can act on a failure here, and a panic in `drop` would hide the test's own.
        self.forwarder.wait().ok();
    }
}
