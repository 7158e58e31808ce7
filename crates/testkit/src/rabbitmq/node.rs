//! One node and its files, with blocking calls.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Settings;
use crate::scratch::Scratch;
use crate::{http, marked};

/// Debian's wrapper script requires the user `rabbitmq`. The program that it wraps does not.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
const STARTS_MAX: usize = 5;
const READY_DEADLINE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(20);

pub(super) struct Node {
    scratch: Scratch,
    name: &'static str,
    settings: Settings,
    ports: Ports,
    process: Mutex<Option<Child>>,
}

#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) amqp: u16,
    pub(super) management: u16,
    pub(super) tls: u16,
    between_nodes: u16,
    epmd: u16,
}

impl Node {
    /// Creates a node on free ports with its own epmd, and starts it.
    pub(super) fn launch(settings: &Settings) -> Self {
        let node = Self::launch_as("relevo@localhost", None, settings);
        node.add_users();
        node
    }

    /// Creates a node on free ports and starts it, without adding users. Without an `epmd` port it gets its own.
    pub(super) fn launch_as(name: &'static str, epmd: Option<u16>, settings: &Settings) -> Self {
        for _ in 0..STARTS_MAX {
            let (scratch, process) = (Scratch::for_marked(), Mutex::new(None));
            let ports = Ports {
                amqp: scratch.reserve_port(),
                management: scratch.reserve_port(),
                tls: scratch.reserve_port(),
                between_nodes: scratch.reserve_port(),
                epmd: epmd.unwrap_or_else(|| scratch.reserve_port()),
            };
            let node = Self { scratch, name, settings: settings.clone(), ports, process };
            node.settings.write(node.directory(), ports);
            write_cookie(node.directory());
            if node.try_start() {
                return node;
            }
            // Another process may have taken a port first.
            assert!(node.log().contains("eaddrinuse"), "RabbitMQ does not start:\n{}", node.log());
        }
        panic!("RabbitMQ finds no free ports");
    }

    pub(super) fn directory(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) fn ports(&self) -> Ports {
        self.ports
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Starts the node again with the same ports and files.
    pub(super) fn start(&self) {
        assert!(self.try_start(), "RabbitMQ does not start:\n{}", self.log());
    }

    /// The output before the log file was created, followed by the log.
    pub(super) fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.directory().join(name)).unwrap_or_default();
        format!("{}{}", read("output"), read(&format!("log/{}.log", self.name)))
    }

    fn try_start(&self) -> bool {
        let output = std::fs::File::options().create(true).append(true).open(self.directory().join("output"));
        let output = output.expect("the directory can be written");
        let mut command = self.command("rabbitmq-server");
        command.stdout(output.try_clone().expect("a file has another handle")).stderr(output);
        // The server gets its own process group: an interrupt of the test must not end only some of its processes.
        let child = command.stdin(Stdio::null()).process_group(0).spawn().expect("`sh` runs");
        *self.process.lock().expect("no holder panics") = Some(child);
        let deadline = Instant::now() + READY_DEADLINE;
        while Instant::now() < deadline {
            if self.has_ended() {
                marked::kill9(self.directory());
                return false;
            }
            if self.is_ready() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }

    fn is_ready(&self) -> bool {
        greets(self.ports.amqp)
            && (!self.settings.has_management() || http::is_well(&self.management_url(), "/api/overview"))
    }

    pub(super) fn management_url(&self) -> String {
        assert!(self.settings.has_management(), "this server was started without `Settings::management`");
        format!("http://guest:guest@127.0.0.1:{}", self.ports.management)
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process.lock().expect("no holder panics");
        process.as_mut().is_none_or(|child| child.try_wait().expect("the process is ours").is_some())
    }

    pub(super) fn add_users(&self) {
        for (name, password) in &self.settings.users {
            self.ctl(&["add_user", name, password]);
            self.ctl(&["set_user_tags", name, "administrator"]);
            self.ctl(&["set_permissions", name, ".*", ".*", ".*"]);
        }
    }

    /// Creates a virtual host in which `guest` has all permissions.
    pub(super) fn add_vhost(&self, name: &str) {
        // A single call, because each call starts an Erlang runtime.
        let all = "<<\".*\">>";
        self.ctl(&[
            "eval",
            &format!(
                "ok = rabbit_vhost:add(<<\"{name}\">>, <<\"guest\">>), \
                 rabbit_auth_backend_internal:set_permissions(\
                 <<\"guest\">>, <<\"{name}\">>, {all}, {all}, {all}, <<\"guest\">>)."
            ),
        ]);
    }

    /// Runs `rabbitmqctl` to its end and returns its output.
    pub(super) fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.command("rabbitmqctl").args(arguments).stdin(Stdio::null()).output().expect("`sh` runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "`rabbitmqctl {}` failed: {}{}",
            arguments.join(" "),
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Kills all processes of the node, like a crash of the machine.
    pub(super) fn kill9(&self) {
        marked::kill9(self.directory());
        self.wait_for_child();
    }

    /// Shuts the node down cleanly.
    pub(super) fn stop(&self) {
        let emulators = || {
            let mut pids = marked::processes(self.directory());
            pids.retain(|pid| is_emulator(*pid));
            pids
        };
        marked::send("TERM", &emulators());
        marked::wait_until_ended("the stopped server", || emulators().is_empty());
        // Also ends its epmd.
        self.kill9();
    }

    pub(super) fn pause(&self) {
        marked::pause(self.directory());
    }

    pub(super) fn resume(&self) {
        marked::signal(self.directory(), "CONT");
    }

    /// Collects the child, so that no zombie remains.
    fn wait_for_child(&self) {
        let child = self.process.lock().expect("no holder panics").take();
        if let Some(mut child) = child {
            child.wait().expect("the process is ours");
        }
    }

    fn command(&self, program: &str) -> Command {
        let program = Path::new(PROGRAMS).join(program);
        assert!(
            program.exists(),
            "no `{}`: `cargo xtask test` and `cargo xtask services up` install RabbitMQ",
            program.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", include_str!("node.sh"), "node"]).arg(self.directory()).arg(self.name);
        command.args([self.ports.between_nodes, self.ports.epmd].map(|port| port.to_string())).arg(program);
        command.current_dir(self.directory());
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The watchdog would kill it a moment later, but cannot collect the zombie.
        marked::kill9(self.directory());
        if let Ok(Some(mut child)) = self.process.lock().map(|mut process| process.take()) {
            child.wait().ok();
        }
    }
}

/// Whether a server answers an AMQP protocol header.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let mut first = [0];
    stream.set_read_timeout(Some(Duration::from_secs(10))).is_ok()
        && stream.write_all(b"AMQP\x00\x00\x09\x01").is_ok()
        && stream.read_exact(&mut first).is_ok()
}

fn write_cookie(directory: &Path) {
    let file = std::fs::File::options().create_new(true).write(true).mode(0o400).open(directory.join(".erlang.cookie"));
    file.and_then(|mut file| file.write_all(b"relevo")).expect("the directory can be written");
}

fn is_emulator(pid: u32) -> bool {
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command_line.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(b"beam.smp"))
}
