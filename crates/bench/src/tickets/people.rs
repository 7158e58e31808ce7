//! Many users who open tickets at a steady rate.

use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;

/// Number of connections that stay open.
const CLIENTS: u32 = 16;

/// The duration of each request in milliseconds, sorted. A client that is late sends at once: no request is left out.
pub(super) async fn open_tickets(port: u16, token: &str, rate: u32, time: Duration) -> anyhow::Result<Vec<f64>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut people = JoinSet::new();
    let period = Duration::from_secs(1) * CLIENTS / rate;
    let start = tokio::time::Instant::now();
    for person in 0..CLIENTS {
        let (client, token) = (client.clone(), format!("Bearer {token}"));
        people.spawn(async move {
            let mut pace = tokio::time::interval_at(start + period * person / CLIENTS, period);
            let mut millis = Vec::new();
            while start.elapsed() < time {
                let scheduled_at = pace.tick().await;
                let title = format!("Printer {person} does not print ({})", millis.len());
                let ticket = serde_json::json!({ "title": title, "description": "It blinks, and nothing comes out." });
                let request = Request::post(format!("http://127.0.0.1:{port}/api/tickets"))
                    .header(header::AUTHORIZATION, &token)
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(Bytes::from(ticket.to_string())))?;
                let response = client.request(request).await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                ensure!(status == StatusCode::CREATED, "{status}: {}", String::from_utf8_lossy(&body));
                // Measured from the scheduled time, so that delays because of earlier slow responses count too.
                millis.push(Instant::now().duration_since(scheduled_at.into_std()).as_secs_f64() * 1000.0);
            }
            anyhow::Ok(millis)
        });
    }
    let mut millis = Vec::new();
    while let Some(result) = people.join_next().await {
        millis.extend(result??);
    }
    millis.sort_by(f64::total_cmp);
    Ok(millis)
}
