//! A client for the parts of the management API that the topology, the checks and the metrics need. It sends one request
//! at a time, each with a time limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lapin::uri::AMQPUserInfo;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::classify::Error;
use crate::config::{Config, Tls};
use crate::connection;
use crate::topology::Policy;

mod server_state;

pub(crate) use server_state::{
    BindingInfo, ExchangeInfo, FeatureFlagInfo, NodeInfo, PolicyInfo, QueueInfo, ServerState,
};

type Body = Full<bytes::Bytes>;

/// A broker with a hundred thousand queues sends a smaller response.
const RESPONSE_BYTES_MAX: usize = 128 << 20;

/// The management API for one virtual host.
pub(crate) struct ManagementClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    endpoints: Vec<Endpoint>,
    /// The index of the last endpoint that responded.
    last_used: AtomicUsize,
    vhost: String,
    /// The time limit of a request to one endpoint.
    timeout: Duration,
}

/// The management API of one node.
struct Endpoint {
    base: String,
    authorization: HeaderValue,
}

impl Endpoint {
    /// Parses a URL. Without a login in it, the user of the AMQP URL is used.
    fn parse(url: &str, amqp_user: &AMQPUserInfo) -> Result<Self, Error> {
        // The URL is not repeated: it may contain a password.
        let invalid = || Error::Config("`management_url` is not like `http://user:password@host:15672`".to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        let (login, host) = rest.rsplit_once('@').map_or((None, rest), |(login, host)| (Some(login), host));
        if !matches!(scheme, "http" | "https") || host.is_empty() || host.contains(['?', '#']) {
            return Err(invalid());
        }
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (percent_decode(user), percent_decode(password)),
            None => (amqp_user.username.clone(), amqp_user.password.clone()),
        };
        let base = format!("{scheme}://{}", host.trim_end_matches('/'));
        base.parse::<Uri>().map_err(|_| invalid())?;
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
        let mut authorization = HeaderValue::try_from(basic).map_err(|_| invalid())?;
        authorization.set_sensitive(true);
        Ok(Self { base, authorization })
    }
}

impl ManagementClient {
    /// The configured API, if any. It sends no request.
    pub(crate) fn new(config: &Config) -> Result<Option<Self>, Error> {
        if config.management_urls.is_empty() {
            return Ok(None);
        }
        let amqp = config.endpoints()?.swap_remove(0);
        let endpoints = config.management_urls.iter().map(|url| Endpoint::parse(url, &amqp.authority.userinfo));
        Ok(Some(Self {
            client: client(&config.tls)?,
            endpoints: endpoints.collect::<Result<_, _>>()?,
            last_used: AtomicUsize::new(0),
            vhost: percent_encode(&amqp.vhost),
            timeout: config.connect_timeout,
        }))
    }

    /// The queues of the virtual host, without statistics, which are seconds old and expensive to collect.
    pub(crate) async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        self.list(&format!("/api/queues/{}?disable_stats=true&enable_queue_totals=true", self.vhost)).await
    }

    /// The exchanges of the virtual host, including the default one.
    pub(crate) async fn exchanges(&self) -> Result<Vec<ExchangeInfo>, Error> {
        self.list(&format!("/api/exchanges/{}?disable_stats=true", self.vhost)).await
    }

    /// The bindings of the virtual host.
    pub(crate) async fn bindings(&self) -> Result<Vec<BindingInfo>, Error> {
        self.list(&format!("/api/bindings/{}", self.vhost)).await
    }

    /// The policies of the virtual host.
    pub(crate) async fn policies(&self) -> Result<Vec<PolicyInfo>, Error> {
        self.list(&format!("/api/policies/{}", self.vhost)).await
    }

    /// The operator policies of the virtual host; `None` without permission.
    pub(crate) async fn operator_policies(&self) -> Result<Option<Vec<PolicyInfo>>, Error> {
        self.get_if_permitted(&format!("/api/operator-policies/{}", self.vhost)).await
    }

    /// The nodes of the cluster; `None` without permission.
    pub(crate) async fn nodes(&self) -> Result<Option<Vec<NodeInfo>>, Error> {
        self.get_if_permitted("/api/nodes?columns=name,running").await
    }

    /// The feature flags; `None` without permission.
    pub(crate) async fn flags(&self) -> Result<Option<Vec<FeatureFlagInfo>>, Error> {
        self.get_if_permitted("/api/feature-flags").await
    }

    /// The version of the broker, such as `3.10.8`.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let overview: server_state::Overview = self.list("/api/overview?columns=rabbitmq_version").await?;
        Ok(overview.rabbitmq_version)
    }

    /// Creates a policy, or overwrites it with the same content.
    pub(crate) async fn create_policy(&self, policy: &Policy) -> Result<(), Error> {
        let path = format!("/api/policies/{}/{}", self.vhost, percent_encode(&policy.name));
        let body = serde_json::json!({
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "definition": policy.definition,
            "priority": policy.priority,
        });
        let (status, response) = self.request(Method::PUT, &path, body.to_string()).await?;
        if status.is_success() { Ok(()) } else { Err(refused_error(&path, status, &response)) }
    }

    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let (status, response) = self.request(Method::GET, path, String::new()).await?;
        if status == StatusCode::OK {
            parse_response(path, &response)
        } else {
            Err(refused_error(path, status, &response))
        }
    }

    /// Requests data that needs more permissions than the rest.
    async fn get_if_permitted<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Error> {
        match self.request(Method::GET, path, String::new()).await? {
            (StatusCode::OK, response) => parse_response(path, &response).map(Some),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, _) => Ok(None),
            (status, response) => Err(refused_error(path, status, &response)),
        }
    }

    /// Sends a request to the first endpoint that responds, beginning with the one that responded last.
    async fn request(&self, method: Method, path: &str, body: String) -> Result<(StatusCode, bytes::Bytes), Error> {
        let count = self.endpoints.len();
        let first = self.last_used.load(Ordering::Relaxed);
        let mut result = Err(Error::ManagementUnreachable("no URL is configured".to_owned()));
        for index in (first..first + count).map(|index| index % count) {
            result = self.request_at(&self.endpoints[index], method.clone(), path, body.clone()).await;
            match &result {
                Err(Error::ManagementUnreachable(_)) => {}
                Ok((status, _)) if status.is_server_error() => {}
                _ => {
                    self.last_used.store(index, Ordering::Relaxed);
                    break;
                }
            }
        }
        result
    }

    async fn request_at(
        &self,
        endpoint: &Endpoint,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, bytes::Bytes), Error> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", endpoint.base))
            .header(AUTHORIZATION, endpoint.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| Error::ManagementRefused(error.to_string()))?;
        let response = async {
            let response = self.client.request(request).await.map_err(|error| unreachable_error(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| Error::ManagementUnreachable(error.to_string()))?;
            Ok((status, body.to_bytes()))
        };
        let late = || Error::ManagementUnreachable(format!("no response within {} ms", self.timeout.as_millis()));
        tokio::time::timeout(self.timeout, response).await.unwrap_or_else(|_| Err(late()))
    }
}

fn parse_response<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body)
        .map_err(|error| Error::ManagementRefused(format!("the response of `{path}` is invalid: {error}")))
}

fn refused_error(path: &str, status: StatusCode, body: &[u8]) -> Error {
    let text = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    match status {
        StatusCode::UNAUTHORIZED => {
            Error::ManagementRefused("wrong user or password, or a user without the tag `management`".to_owned())
        }
        StatusCode::NOT_FOUND => Error::ManagementRefused(format!("`{path}` does not exist: {text}")),
        status if status.is_server_error() => {
            Error::ManagementUnreachable(format!("`{path}` returned {status}: {text}"))
        }
        status => Error::ManagementRefused(format!("`{path}` returned {status}: {text}")),
    }
}

/// The library reports only that it could not connect; the causes are in the sources.
fn unreachable_error(error: &hyper_util::client::legacy::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    let mut is_tls = false;
    while let Some(source) = cause {
        is_tls |= is_tls_error(source);
        let detail = source.to_string();
        if !text.ends_with(&detail) {
            text = format!("{text}: {detail}");
        }
        cause = source.source();
    }
    // A certificate error on either side lasts until an operator acts.
    if is_tls { Error::ManagementRefused(text) } else { Error::ManagementUnreachable(text) }
}

/// An I/O error does not return its inner error from `source`, and that one may contain another.
fn is_tls_error(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_tls_error(inner))
}

fn client(tls: &Tls) -> Result<Client<HttpsConnector<HttpConnector>, Body>, Error> {
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(connection::tls_config(tls)?)
        .https_or_http()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

fn percent_encode(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

fn percent_decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
