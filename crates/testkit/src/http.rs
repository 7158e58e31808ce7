//! As much of HTTP as a test needs to look after a server on loopback: blocking, so that a `Drop` can use it too.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// What anything may take that is not known to take longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The status and the body; the URL is `http://user:password@host:port`, the path begins with a slash.
pub(crate) fn request(url: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    // Version 1.0: the answer never comes in chunks.
    request_in("HTTP/1.0", DEADLINE, url, method, path, body)
}

/// The same within another time, in a version that the server insists on; one that answers in chunks is not understood.
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
    // Without a length the answer ends where the connection does; with one, some servers leave it open.
    stream.take(length(&head).unwrap_or(u64::MAX)).read_to_end(&mut body)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| unexpected("no status"))?, String::from_utf8_lossy(&body).into_owned()))
}

/// The first line and the headers, without the empty line that ends them.
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

/// Whether a `GET` is answered with 200.
pub(crate) fn is_well(url: &str, path: &str) -> bool {
    request(url, "GET", path, "").is_ok_and(|(status, _)| status == 200)
}

fn unexpected(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned())
}
