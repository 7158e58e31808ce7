//! As much of HTTP as a test needs to look after a server on loopback: blocking, so that a `Drop` can use it too.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const DEADLINE: Duration = Duration::from_secs(30);

/// The status and the body; the URL is `http://user:password@host:port`, the path begins with a slash.
pub(crate) fn request(url: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| unexpected("only plain HTTP"))?.trim_end_matches('/');
    let (login, address) = match rest.rsplit_once('@') {
        Some((login, address)) => (format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(login)), address),
        None => (String::new(), rest),
    };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    // Version 1.0: the answer ends where the connection does, and never comes in chunks.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{login}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| unexpected("no end of the headers"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| unexpected("no status"))?, body.to_owned()))
}

/// Whether a `GET` is answered with 200.
pub(crate) fn is_well(url: &str, path: &str) -> bool {
    request(url, "GET", path, "").is_ok_and(|(status, _)| status == 200)
}

fn unexpected(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned())
}
