//! The admin ports of running processes.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::exposition::Exposition;
use crate::exit::usage;

/// Where a process listens that was configured for nothing else.
const DEFAULT: &str = "http://127.0.0.1:9464";
/// The variable that holds the token of admin ports.
const TOKEN_VARIABLE: &str = "RELEVO_ADMIN_TOKEN";
/// A port answers from memory.
const DEADLINE: Duration = Duration::from_secs(2);
/// Far more than thousands of series take.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Which processes are asked.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Asked {
    /// The admin port of a relay or a consumer, as `http://host:9464`; may be repeated. Its token is in
    /// `RELEVO_ADMIN_TOKEN`. Without it the usual port of this machine is tried.
    #[arg(long, value_name = "URL")]
    admin: Vec<String>,
}

/// The admin ports that are asked.
pub(super) struct Ports {
    client: Client<HttpConnector, Empty<Bytes>>,
    uris: Vec<Uri>,
    token: Option<String>,
    /// Whether they were named: then it matters that they answer.
    named: bool,
}

/// What a port answered, or why it did not.
pub(super) struct Answer {
    pub(super) port: String,
    pub(super) told: Result<Exposition, String>,
}

impl Ports {
    pub(super) fn of(asked: &Asked) -> Result<Self> {
        let named = !asked.admin.is_empty();
        let urls = if named { asked.admin.clone() } else { vec![DEFAULT.to_owned()] };
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            uris: urls.iter().map(|url| metrics_of(url)).collect::<Result<_>>()?,
            token: std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()),
            named,
        })
    }

    /// Asks all of them, one after the other. One that nobody named and that does not answer is left out.
    pub(super) async fn ask(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for uri in &self.uris {
            let told = timeout(DEADLINE, self.fetch(uri)).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            if told.is_ok() || self.named {
                answers.push(Answer { port: uri.authority().map_or_else(String::new, ToString::to_string), told });
            }
        }
        answers
    }

    async fn fetch(&self, uri: &Uri) -> Result<Exposition, String> {
        let mut request = Request::get(uri);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| root(&error))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(format!("it wants a token; hint: set `{TOKEN_VARIABLE}`")),
            status => return Err(format!("it answered {status}")),
        }
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| root(&*error))?;
        Ok(Exposition::parse(&String::from_utf8_lossy(&body.to_bytes())))
    }
}

fn metrics_of(url: &str) -> Result<Uri> {
    let wrong = || usage(format!("`{url}` is no admin port; hint: `--admin http://127.0.0.1:9464`"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let host = rest.trim_end_matches('/').trim_end_matches("/metrics");
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(wrong());
    }
    format!("http://{host}/metrics").parse().map_err(|_| wrong())
}

/// The last cause says what is wrong: the others say that a request failed.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_by_its_address() {
        for url in ["http://db:9464", "http://db:9464/", "http://db:9464/metrics"] {
            assert_eq!(metrics_of(url).unwrap().to_string(), "http://db:9464/metrics");
        }
        for url in ["db:9464", "https://db:9464", "http://", "http://db/other", "http://me@db:9464"] {
            assert!(metrics_of(url).is_err(), "{url}");
        }
    }
}
