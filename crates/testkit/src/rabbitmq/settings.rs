use std::path::Path;

use super::node::Ports;
use crate::certs::{Certs, Fault};
use crate::tls::{ClientCertificate, Tls};

/// Settings of a private server, in addition to RabbitMQ's defaults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<String>,
    pub(super) plugins: Vec<String>,
    pub(super) users: Vec<(String, String)>,
    tls: Option<Tls>,
}

impl Settings {
    /// RabbitMQ's defaults: no plugins, the user `guest` with the password `guest`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to `rabbitmq.conf`: `.config("vm_memory_high_watermark.relative = 0.1")`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Enables the management API, which makes the start slower.
    #[must_use]
    pub fn management(self) -> Self {
        self.plugin("rabbitmq_management")
    }

    /// Enables a plugin: `.plugin("rabbitmq_auth_mechanism_ssl")`.
    #[must_use]
    pub fn plugin(mut self, name: &str) -> Self {
        self.plugins.push(name.to_owned());
        self
    }

    /// Adds a user: an administrator with all permissions in the virtual host `/`.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Enables TLS, on a second port beside the plain one.
    #[must_use]
    pub fn tls(self, certs: &Certs, client: ClientCertificate) -> Self {
        self.faulty_tls(certs, Fault::None, client)
    }

    /// Enables TLS with a defective certificate, which a strict client refuses.
    #[must_use]
    pub fn faulty_tls(mut self, certs: &Certs, fault: Fault, client: ClientCertificate) -> Self {
        self.tls = Some(Tls::new(certs, fault, client));
        self
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn has_management(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "rabbitmq_management")
    }

    /// Writes the files that `node.sh` uses.
    pub(super) fn write(&self, directory: &Path, ports: Ports) {
        let mut lines = vec![format!("listeners.tcp.1 = 127.0.0.1:{}", ports.amqp), "loopback_users = none".to_owned()];
        if self.has_management() {
            lines.push("management.tcp.ip = 127.0.0.1".to_owned());
            lines.push(format!("management.tcp.port = {}", ports.management));
        }
        if let Some(tls) = &self.tls {
            tls.write(directory);
            lines.push(format!("listeners.ssl.1 = 127.0.0.1:{}", ports.tls));
            for (option, file) in [("cacertfile", "ca.pem"), ("certfile", "cert.pem"), ("keyfile", "key.pem")] {
                lines.push(format!("ssl_options.{option} = {}", directory.join(file).display()));
            }
            let required = tls.client == ClientCertificate::Required;
            lines.push(format!("ssl_options.verify = {}", if required { "verify_peer" } else { "verify_none" }));
            lines.push(format!("ssl_options.fail_if_no_peer_cert = {required}"));
        }
        lines.extend_from_slice(&self.lines);
        let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
        let plugins = format!("[{}].\n", self.plugins.join(","));
        for (name, content) in [("rabbitmq.conf", text), ("plugins", plugins)] {
            std::fs::write(directory.join(name), content).expect("the directory can be written");
        }
    }
}
