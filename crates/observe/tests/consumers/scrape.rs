//! The result of a scrape.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Requests a page. Returns its status and body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// The metrics at one moment.
pub(crate) struct Scrape {
    pub(crate) text: String,
}

impl Scrape {
    /// All series of this name, with their values.
    pub(crate) fn series(&self, name: &str) -> Vec<(&str, f64)> {
        let samples = self.text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let of = samples.filter(|(series, _)| series.split('{').next() == Some(name));
        of.map(|(series, value)| (series, value.parse().expect("a number"))).collect()
    }

    /// The sum of all series of this name.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        let series = self.series(name);
        // A missing metric is not zero.
        if series.is_empty() { f64::NAN } else { series.iter().map(|(_, value)| value).sum() }
    }

    /// The only series of this name. It has labels for service and consumer.
    pub(crate) fn one(&self, name: &str) -> f64 {
        let series = self.series(name);
        let [(labels, value)] = series[..] else { panic!("{name}: {series:?}") };
        assert!(labels.ends_with("{service=\"shop\",consumer=\"billing\"}"), "{labels}");
        value
    }

    /// The value of exactly this series.
    pub(crate) fn exactly(&self, series: &str) -> f64 {
        let prefix = format!("{series} ");
        let found = self.text.lines().find_map(|line| line.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no {series} in\n{}", self.text)).parse().expect("a number")
    }

    /// Checks that every family has a type and a help text, and that nothing occurs twice.
    pub(crate) fn is_well_formed(&self) {
        let mut series: Vec<&str> = Vec::new();
        let mut families: Vec<&str> = Vec::new();
        for line in self.text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                families.push(help.split(' ').next().expect("a name"));
            } else if !line.starts_with('#') {
                let name = line.rsplit_once(' ').expect("a sample").0;
                let known = families.iter().any(|family| name.starts_with(family));
                assert!(known && name.contains("service=\"shop\""), "{line}");
                series.push(name);
            }
        }
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert!(series.len() == all && all > 20, "{}", self.text);
        assert!(self.text.ends_with("# EOF\n"));
    }
}
