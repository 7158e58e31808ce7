//! Probes and metrics of a member's process.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::backends::{Backends, OrderMode};
use crate::harness::{Harness, until};

pub(crate) async fn metrics_report_handled_messages_and_no_lag(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let mut process = harness.process("metrics", &["--admin", "127.0.0.1:0", "--service", "shop"]).await;
    let address = process.printed_line("admin ").to_owned();
    harness.send(20, 4).await;
    harness.until_all().await;
    let done =
        format!("inbox_handled_total{{service=\"shop\",consumer=\"{}\",outcome=\"done\"}} 20\n", harness.consumer);
    until("the metrics report everything", async || {
        let response = get(&address, "/metrics").await;
        let waiting: Vec<&str> = response.lines().filter(|line| line.starts_with("inbox_lag_messages{")).collect();
        response.contains(&done) && !waiting.is_empty() && waiting.iter().all(|line| line.ends_with(" 0"))
    })
    .await;
    for probe in ["/livez", "/readyz", "/startupz"] {
        let response = get(&address, probe).await;
        assert!(response.starts_with("HTTP/1.0 200"), "{probe}: {response}");
    }
    process.leave().await;
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await.expect("it listens");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response
}
