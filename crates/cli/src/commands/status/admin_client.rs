//! The client of the admin ports of running processes.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use relevo_admin::{ProcessStatus, RelayRates};
use tokio::time::timeout;

use crate::exit::usage;

/// The default admin port.
const DEFAULT: &str = "http://127.0.0.1:9464";
/// The variable that holds the token of admin ports.
const TOKEN_VARIABLE: &str = "RELEVO_ADMIN_TOKEN";
/// Timeout of a request. A port answers from memory.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a response. Thousands of relays fit into it.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// The processes that report rates and latencies.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AdminArgs {
    /// The admin port of a relay or a consumer, as `http://host:9464`; may be repeated. The token in `RELEVO_ADMIN_TOKEN`
    /// is sent to loopback addresses only. Without this option, the default port of this machine is tried without a token.
    #[arg(long, value_name = "URL")]
    admin: Vec<String>,
}

/// Requests the status of processes.
pub(super) struct AdminClient {
    client: Client<HttpConnector, Empty<Bytes>>,
    ports: Vec<AdminPort>,
    /// Whether the user named the ports: then a failure is reported.
    named: bool,
}

/// One admin port.
#[derive(Debug)]
struct AdminPort {
    uri: Uri,
    /// The token, where it may be sent.
    token: Option<String>,
}

/// The status of a process, or the reason why it is unknown.
pub(super) struct AdminReply {
    pub(super) port: String,
    pub(super) status: Result<ProcessStatus, String>,
}

/// The reason why a request failed.
enum Failure {
    /// The port requires a token, or another one.
    Unauthorized,
    Other(String),
}

impl AdminClient {
    pub(super) fn new(args: &AdminArgs) -> Result<Self> {
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        let named = !args.admin.is_empty();
        let ports = if named {
            args.admin.iter().map(|url| AdminPort::named(url, token.as_deref())).collect::<Result<_>>()?
        } else {
            vec![AdminPort { uri: status_uri(DEFAULT)?, token: None }]
        };
        Ok(Self { client: Client::builder(TokioExecutor::new()).build_http(), ports, named })
    }

    /// Whether a relay may read the outbox of this database. A port that the user named is trusted: it may know the database
    /// by another name.
    pub(super) fn accepts(&self, relay: &RelayRates, database: &str) -> bool {
        self.named || relay.database.is_empty() || relay.database == database
    }

    /// Requests the status of all processes, one after the other. The default port is omitted unless it responds.
    pub(super) async fn fetch_all(&self) -> Vec<AdminReply> {
        let mut replies = Vec::new();
        for port in &self.ports {
            let fetched = timeout(TIMEOUT, self.fetch(port)).await;
            let status = match fetched.unwrap_or_else(|_| Err(Failure::Other("no response in time".to_owned()))) {
                Ok(status) => Ok(status),
                Err(Failure::Unauthorized) => Err(port.unauthorized(self.named)),
                Err(Failure::Other(_)) if !self.named => continue,
                Err(Failure::Other(error)) => Err(error),
            };
            let name = port.uri.authority().map_or_else(String::new, ToString::to_string);
            replies.push(AdminReply { port: name, status });
        }
        replies
    }

    async fn fetch(&self, port: &AdminPort) -> Result<ProcessStatus, Failure> {
        let mut request = Request::get(&port.uri);
        if let Some(token) = &port.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|error| Failure::Other(error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| root_cause(&error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(Failure::Unauthorized),
            status => return Err(Failure::Other(format!("it responded with {status}"))),
        }
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| root_cause(&*error))?.to_bytes();
        serde_json::from_slice(&body).map_err(|_| Failure::Other("it is not an admin port of this version".to_owned()))
    }
}

impl AdminPort {
    /// A port that the user named. The token is not sent in plain text to another host.
    fn named(url: &str, token: Option<&str>) -> Result<Self> {
        let uri = status_uri(url)?;
        let token = token.filter(|_| is_loopback(&uri)).map(str::to_owned);
        Ok(Self { uri, token })
    }

    fn unauthorized(&self, named: bool) -> String {
        if self.token.is_some() {
            format!("it rejects the token in `{TOKEN_VARIABLE}`")
        } else if !is_loopback(&self.uri) {
            "it requires a token, which is not sent in plain text to another host; hint: forward the port, as with \
             `ssh -L 9464:127.0.0.1:9464 HOST`, and use `--admin http://127.0.0.1:9464`"
                .to_owned()
        } else if named {
            format!("it requires a token; hint: set `{TOKEN_VARIABLE}`")
        } else {
            format!("it requires a token; hint: set `{TOKEN_VARIABLE}`, and name the port with `--admin {DEFAULT}`")
        }
    }
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

fn status_uri(url: &str) -> Result<Uri> {
    let invalid = || usage(format!("`{url}` is not an admin port; hint: `--admin {DEFAULT}`"));
    let rest = url.strip_prefix("http://").ok_or_else(invalid)?;
    let host = rest.trim_end_matches('/').trim_end_matches("/status");
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(invalid());
    }
    format!("http://{host}/status").parse().map_err(|_| invalid())
}

/// The last cause has the reason: the others only report that a request failed.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Failure::Other(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_by_its_address() {
        for url in ["http://db:9464", "http://db:9464/", "http://db:9464/status"] {
            assert_eq!(status_uri(url).unwrap().to_string(), "http://db:9464/status");
        }
        for url in ["db:9464", "https://db:9464", "http://", "http://db/other", "http://me@db:9464"] {
            assert!(status_uri(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_default_port_of_another_database_is_ignored() {
        let client = |admin: &[&str]| {
            AdminClient::new(&AdminArgs { admin: admin.iter().map(ToString::to_string).collect() }).unwrap()
        };
        let relay = |database: &str| RelayRates { database: database.to_owned(), ..RelayRates::default() };
        let default = client(&[]);
        assert!(default.accepts(&relay("localhost/shop"), "localhost/shop"));
        assert!(!default.accepts(&relay("localhost/billing"), "localhost/shop"));
        assert!(default.accepts(&relay(""), "localhost/shop"), "a service that does not report its database");
        assert!(client(&["http://127.0.0.1:9464"]).accepts(&relay("db/shop"), "localhost/shop"));
    }

    #[test]
    fn the_token_is_sent_in_plain_text_to_loopback_only() {
        for url in ["http://127.0.0.1:9464", "http://localhost:9464", "http://[::1]:9464", "http://127.3.2.1"] {
            assert_eq!(AdminPort::named(url, Some("secret")).unwrap().token.as_deref(), Some("secret"), "{url}");
        }
        for url in ["http://db:9464", "http://10.0.0.1:9464", "http://localhost.example.org", "http://[2001:db8::1]"] {
            let port = AdminPort::named(url, Some("secret")).unwrap();
            assert_eq!(port.token, None, "{url}");
            assert!(port.unauthorized(true).contains("ssh -L"), "{url}");
        }
    }

    #[test]
    fn a_port_that_the_user_did_not_name_gets_no_token() {
        let client = AdminClient::new(&AdminArgs { admin: Vec::new() }).unwrap();
        assert!(client.ports.iter().all(|port| port.token.is_none()) && !client.named);
    }
}
