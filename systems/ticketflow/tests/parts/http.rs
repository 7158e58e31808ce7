//! As much of HTTP as asking the API needs.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What the API answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// Asks once, on a connection of its own; `headers` are whole lines.
pub(crate) async fn ask(to: SocketAddr, method: &str, path: &str, headers: &[String], body: &str) -> Answer {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    let headers: String = headers.iter().flat_map(|line| [line.as_str(), "\r\n"]).collect();
    // Version 1.0: the answer never comes in chunks.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nhost: {to}\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, text: text.to_owned() }
}
