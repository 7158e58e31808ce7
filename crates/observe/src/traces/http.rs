//! The HTTP client for the collector.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, crypto};

/// The path at which collectors accept traces.
const PATH: &str = "/v1/traces";
/// Maximum size of a response. Collectors send less.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// The reason why an exporter cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The URL of the collector is invalid.
    #[error("the endpoint `{0}` is not like `http://127.0.0.1:4318`")]
    Endpoint(String),
    /// TLS cannot be set up.
    #[error("TLS cannot be used")]
    Tls(#[source] rustls::Error),
    /// A limit is zero.
    #[error("`{0}` is 0")]
    Zero(&'static str),
}

/// Sends requests to the collector.
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    deadline: Duration,
}

impl Http {
    pub(super) fn new(endpoint: &str, deadline: Duration) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Endpoint(endpoint.to_owned());
        let base = endpoint.trim_end_matches('/');
        let full = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let uri: Uri = full.parse().map_err(|_| wrong())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() || full.contains(['#', '@']) {
            return Err(wrong());
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(ConfigError::Tls)?
            .with_webpki_roots()
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), uri, deadline })
    }

    /// Sends a request. Returns the body of the response, or the reason of the failure.
    pub(super) async fn post(&self, body: Vec<u8>) -> Result<Bytes, String> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::from(body))
            .map_err(|error| error.to_string())?;
        let response = async {
            let response = self.client.request(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            if status.is_success() { Ok(body) } else { Err(format!("it responded with {status}")) }
        };
        let late = |_| Err(format!("no response within {} ms", self.deadline.as_millis()));
        tokio::time::timeout(self.deadline, response).await.unwrap_or_else(late)
    }
}

/// The library's message only says that it could not connect. The causes say why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_added_once() {
        let uri =
            |endpoint: &str| Http::new(endpoint, Duration::from_secs(1)).map(|http| http.uri.to_string()).unwrap();
        for endpoint in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"] {
            assert_eq!(uri(endpoint), "http://127.0.0.1:4318/v1/traces");
        }
        assert_eq!(uri("https://otlp.example.com/in"), "https://otlp.example.com/in/v1/traces");
    }

    #[test]
    fn an_invalid_endpoint_is_rejected() {
        for endpoint in ["", "127.0.0.1:4318", "ftp://a", "http://", "http://me:sesame@host", "http://a?b=c"] {
            assert!(Http::new(endpoint, Duration::from_secs(1)).is_err(), "{endpoint}");
        }
    }
}
