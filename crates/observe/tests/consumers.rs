//! A service with a real consumer, tested through its port.

#![expect(clippy::float_cmp, reason = "the values are counts")]

#[path = "consumers/harness.rs"]
mod harness;
#[path = "consumers/scrape.rs"]
mod scrape;

use std::time::Duration;

use harness::{At, Harness};

const BROKERS: [At; 2] = [At::Embedded, At::RabbitMq];

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_has_lag_results_and_durations() {
    for at in BROKERS {
        let harness = Harness::at(at).await;
        // The consumer handles one message at a time, and the first one waits.
        harness.hold(true);
        for number in 0..8 {
            harness.publish("OrderPlaced", number).await;
        }
        harness.publish("Poison", 8).await;
        harness.publish("Unhandled", 9).await;
        let service = harness.start().await;
        let lag = service.until("one is handled and nine wait", |seen| {
            seen.one("inbox_handlers_running") == 1.0 && seen.sum("inbox_lag_messages") == 9.0
        });
        let lag = lag.await;
        assert_eq!(lag.series("inbox_lag_messages").len(), 4, "every lane is exported: {}", lag.text);
        assert_eq!(lag.one("inbox_buffered_messages"), 1.0);

        harness.hold(false);
        harness.publish_again("OrderPlaced", 3).await;
        let outcome =
            |outcome| format!("inbox_handled_total{{service=\"shop\",consumer=\"billing\",outcome=\"{outcome}\"}}");
        let seen = service.until("everything is handled", |seen| {
            let ended = ["done", "skipped", "duplicate", "dead_lettered"].map(|word| seen.exactly(&outcome(word)));
            ended == [8.0, 1.0, 1.0, 1.0] && seen.sum("inbox_lag_messages") == 0.0
        });
        let seen = seen.await;
        assert_eq!(harness.effects().await, 8, "{at:?}");
        assert_eq!((seen.one("inbox_received_total"), seen.one("inbox_handler_failures_total")), (11.0, 1.0));
        // Messages without a handler and duplicates do not reach the handler.
        assert_eq!(seen.one("inbox_handler_duration_seconds_count"), 9.0);
        assert!(seen.one("inbox_handler_duration_seconds_sum") > 0.0);
        let buckets = seen.series("inbox_handler_duration_seconds_bucket");
        assert!(buckets.len() == 15 && buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
        assert_eq!(buckets.last().map(|(_, count)| *count), Some(9.0));
        assert!(seen.one("inbox_member_heartbeat_age_seconds") < 5.0);
        assert_eq!((seen.one("inbox_handler_panics_total"), seen.one("inbox_database_outages_total")), (0.0, 0.0));
        assert_eq!(seen.one("inbox_dead_letter_copies_failed_total"), 0.0, "no copies are configured");
        seen.is_well_formed();
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_readiness_show_an_open_breaker() {
    for at in BROKERS {
        let harness = Harness::at(at).await;
        harness.set_service_down(true);
        harness.publish("Letter", 1).await;
        let service = harness.start().await;
        let open = service.until("it is open", |seen| seen.one("inbox_member_breakers_open") == 1.0).await;
        assert_eq!(open.one("inbox_handler_failures_total"), 0.0, "an outage is not a failure");
        let (status, body) = service.get("/readyz").await;
        assert!(
            status == 200 && body.contains("open breakers: 1") && body.contains("the mail server is down"),
            "{status} {body}"
        );
        harness.set_service_down(false);
        service.until("it is closed", |seen| seen.one("inbox_member_breakers_open") == 0.0).await;
        assert_eq!(harness.effects().await, 1, "{at:?}");
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_report_whether_a_consumer_started_works_and_lives() {
    let harness = Harness::at(At::Embedded).await;
    let mut service = harness.start_with_short_ttl().await;
    for probe in ["/startupz", "/livez"] {
        service.becomes(probe, 200).await;
    }
    let body = service.becomes("/readyz", 200).await;
    assert!(
        body == "{\"ok\":true,\"checks\":[{\"consumer\":\"billing\",\"ok\":true,\"detail\":\"running\"}]}",
        "{body}"
    );

    harness.cut_database(true).await;
    let body = service.becomes("/readyz", 503).await;
    assert!(body.contains("the database accepted the last heartbeat"), "{body}");
    // It waits, and needs no restart.
    for probe in ["/startupz", "/livez"] {
        assert_eq!(service.get(probe).await.0, 200, "{probe}");
    }
    service.until("the heartbeat age grows", |seen| seen.one("inbox_member_heartbeat_age_seconds") > 2.0).await;
    harness.cut_database(false).await;
    service.becomes("/readyz", 200).await;

    service.kill_consumer().await;
    let (status, body) = service.get("/livez").await;
    assert!(status == 503 && body.contains("it stopped unexpectedly"), "{status} {body}");
    assert_eq!(service.get("/readyz").await.0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_consumer_has_no_heartbeat_age() {
    let harness = Harness::at(At::Embedded).await;
    let mut service = harness.start().await;
    service.becomes("/readyz", 200).await;
    assert_eq!(service.scrape().await.series("inbox_member_heartbeat_age_seconds").len(), 1);
    service.stop_consumer().await;
    let seen = service.scrape().await;
    assert_eq!(
        seen.series("inbox_member_heartbeat_age_seconds"),
        [],
        "its age would grow for as long as the process lives"
    );
    assert_eq!(seen.series("inbox_received_total").len(), 1, "its counters are still exported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_does_not_wait_for_the_database() {
    let harness = Harness::at(At::Embedded).await;
    let service = harness.start_with_short_ttl().await;
    service.becomes("/readyz", 200).await;
    harness.cut_database(true).await;
    let mut took = Vec::new();
    for _ in 0..20 {
        let begun = std::time::Instant::now();
        service.scrape().await;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    // If scrapes waited for the database, all of them would be slow. A single slow one may be due to the machine.
    assert!(took[0] < Duration::from_millis(50), "{took:?}");
}
