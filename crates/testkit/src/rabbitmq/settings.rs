use std::fmt::Write as _;
use std::path::Path;

/// What a private server has beyond RabbitMQ's own settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<String>,
    pub(super) plugins: Vec<String>,
    pub(super) users: Vec<(String, String)>,
}

impl Settings {
    /// RabbitMQ's own: no plugins, the user `guest` with the password `guest`.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more line of `rabbitmq.conf`: `.config("vm_memory_high_watermark.relative = 0.1")`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// With the management API, which makes the start slower.
    #[must_use]
    pub fn management(self) -> Self {
        self.plugin("rabbitmq_management")
    }

    /// With a plugin: `.plugin("rabbitmq_auth_mechanism_ssl")`.
    #[must_use]
    pub fn plugin(mut self, name: &str) -> Self {
        self.plugins.push(name.to_owned());
        self
    }

    /// With another user, an administrator who may do everything in the virtual host `/`.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    pub(super) fn has_management(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "rabbitmq_management")
    }

    /// Writes the files that `node.sh` names.
    pub(super) fn write(&self, directory: &Path, amqp: u16, management: u16) {
        let mut text = format!("listeners.tcp.1 = 127.0.0.1:{amqp}\nloopback_users = none\n");
        if self.has_management() {
            writeln!(text, "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}")
                .expect("a string takes all");
        }
        for line in &self.lines {
            writeln!(text, "{line}").expect("a string takes all");
        }
        let plugins = format!("[{}].\n", self.plugins.join(","));
        for (name, content) in [("rabbitmq.conf", text), ("plugins", plugins)] {
            std::fs::write(directory.join(name), content).expect("the directory can be written");
        }
    }
}
