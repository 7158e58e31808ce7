//! Probes and metrics of a member's process.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::on::{On, Shape};
use crate::stage::{Stage, until};

pub(crate) async fn a_process_tells_what_it_handled_and_that_nothing_waits(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let mut process = stage.process("told", &["--admin", "127.0.0.1:0", "--service", "shop"]).await;
    let address = process.heard("admin ").to_owned();
    stage.send(20, 4).await;
    stage.until_all().await;
    let done = format!("inbox_handled_total{{service=\"shop\",consumer=\"{}\",verdict=\"done\"}} 20\n", stage.consumer);
    until("everything is told", async || {
        let told = get(&address, "/metrics").await;
        let waiting: Vec<&str> = told.lines().filter(|line| line.starts_with("inbox_lag_messages{")).collect();
        told.contains(&done) && !waiting.is_empty() && waiting.iter().all(|line| line.ends_with(" 0"))
    })
    .await;
    for probe in ["/livez", "/readyz", "/startupz"] {
        let told = get(&address, probe).await;
        assert!(told.starts_with("HTTP/1.0 200"), "{probe}: {told}");
    }
    process.leave().await;
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await.expect("it listens");
    let mut told = String::new();
    stream.read_to_string(&mut told).await.expect("an answer");
    told
}
