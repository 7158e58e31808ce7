//! A minimal HTTP client for test servers on loopback. It blocks, so that a `Drop` can use it too.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The default deadline for a request.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Returns the status and the body. The URL is `http://user:password@host:port`; the path starts with a slash.
pub(crate) fn request(url: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    // An HTTP/1.0 response is never chunked.
    request_in("HTTP/1.0", DEADLINE, url, method, path, body)
}

/// Like `request`, with a given deadline and the HTTP version that the server requires. Does not support chunks.
pub(crate) fn request_in(
    version: &str,
    deadline: Duration,
    url: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| unexpected("only plain HTTP"))?.trim_end_matches('/');
    let (login, address) = match rest.rsplit_once('@') {
        Some((login, address)) => (format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(login)), address),
        None => (String::new(), rest),
    };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(deadline))?;
    stream.set_write_timeout(Some(deadline))?;
    write!(
        stream,
        "{method} {path} {version}\r\nHost: {address}\r\nConnection: close\r\n{login}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut stream = BufReader::new(stream);
    let head = head(&mut stream)?;
    let mut body = Vec::new();
    // Without a length, the body ends when the connection closes. With a length, some servers keep the connection open.
    stream.take(length(&head).unwrap_or(u64::MAX)).read_to_end(&mut body)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| unexpected("no status"))?, String::from_utf8_lossy(&body).into_owned()))
}

/// The status line and the headers, up to and including the empty line.
fn head(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(unexpected("no end of the headers"));
        }
    }
    Ok(head)
}

fn length(head: &str) -> Option<u64> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1.trim().parse().ok()
}

/// Whether a `GET` request returns status 200.
pub(crate) fn is_well(url: &str, path: &str) -> bool {
    request(url, "GET", path, "").is_ok_and(|(status, _)| status == 200)
}

fn unexpected(problem: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, problem.to_owned())
}
