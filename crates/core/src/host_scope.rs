//! How far a connection without encryption would reach.

use std::net::IpAddr;

use crate::finding::{Findings, Severity};

/// The subject of findings about connections without encryption.
pub const PLAIN_TEXT: &str = "plain-text";

/// Where a host is, as far as its name or address shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostScope {
    /// This machine.
    Loopback,
    /// A private network: an address of RFC 1918 or its equivalent for IPv6, or a name without a public domain.
    Private,
    /// Anywhere else.
    Public,
}

/// The last words of names that exist in private networks only.
const PRIVATE_DOMAINS: [&str; 6] = ["internal", "local", "lan", "home.arpa", "test", "localdomain"];

impl HostScope {
    /// The scope of a host name or an address, which may have brackets.
    pub fn of(host: &str) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
        let Ok(address) = host.parse::<IpAddr>() else {
            if host == "localhost" || host.ends_with(".localhost") {
                return Self::Loopback;
            }
            let is_private = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
            return if !host.contains('.') || PRIVATE_DOMAINS.iter().any(|domain| is_private(domain)) {
                Self::Private
            } else {
                Self::Public
            };
        };
        let address = address.to_canonical();
        let is_private = match address {
            IpAddr::V4(address) => address.is_private() || address.is_link_local(),
            IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
        };
        match address {
            address if address.is_loopback() => Self::Loopback,
            _ if is_private => Self::Private,
            _ => Self::Public,
        }
    }

    /// How severe it is to send messages and credentials to this host without encryption.
    pub const fn plain_text_severity(self) -> Severity {
        match self {
            Self::Loopback => Severity::Ok,
            Self::Private => Severity::Warning,
            Self::Public => Severity::Danger,
        }
    }
}

/// A configured connection to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The key of the configuration that sets the URL.
    pub key: &'static str,
    /// The connection, such as ``AMQP to `rabbit.example` ``.
    pub name: String,
    /// The host.
    pub host: String,
    /// Whether everything is sent with TLS.
    pub encrypted: bool,
    /// What is sent without encryption otherwise.
    pub problem: String,
    /// How to encrypt the connection.
    pub fix: &'static str,
}

impl Transport {
    /// How severe a missing encryption is.
    pub fn severity(&self) -> Severity {
        if self.encrypted { Severity::Ok } else { HostScope::of(&self.host).plain_text_severity() }
    }

    /// Adds the finding about this connection.
    pub fn examine(self, findings: &mut Findings) {
        let severity = self.severity();
        let problem = || (self.problem, self.fix.to_owned());
        findings.check(severity == Severity::Ok, severity, PLAIN_TEXT, self.name, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_private_and_public_hosts_differ() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(HostScope::of(host), HostScope::Loopback, "{host}");
        }
        for host in [
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "[fd00::1]",
            "fe80::1",
            "rabbitmq",
            "mq.svc.cluster.local",
        ] {
            assert_eq!(HostScope::of(host), HostScope::Private, "{host}");
        }
        for host in ["8.8.8.8", "172.32.0.1", "2001:db8::1", "rabbit.example.com", "notlocal.example"] {
            assert_eq!(HostScope::of(host), HostScope::Public, "{host}");
        }
    }
}
