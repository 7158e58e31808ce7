//! A service with a real consumer, tested through its port.

#![expect(clippy::float_cmp, reason = "what is compared is counted")]

#[path = "consumers/scrape.rs"]
mod scrape;
#[path = "consumers/stage.rs"]
mod stage;

use std::time::Duration;

use stage::{At, Stage};

const BROKERS: [At; 2] = [At::Embedded, At::RabbitMq];

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_shows_what_waits_what_became_of_messages_and_how_long_it_took() {
    for at in BROKERS {
        let stage = Stage::at(at).await;
        // The consumer handles one message at a time, and the first one waits.
        stage.hold(true);
        for number in 0..8 {
            stage.publish("OrderPlaced", number).await;
        }
        stage.publish("Poison", 8).await;
        stage.publish("Unwanted", 9).await;
        let service = stage.start().await;
        let lag = service.until("one is handled and nine wait", |seen| {
            seen.one("inbox_running") == 1.0 && seen.sum("inbox_lag_messages") == 9.0
        });
        let lag = lag.await;
        assert_eq!(lag.series("inbox_lag_messages").len(), 4, "every lane is told: {}", lag.text);
        assert_eq!(lag.one("inbox_in_memory"), 1.0);

        stage.hold(false);
        stage.publish_again("OrderPlaced", 3).await;
        let verdict =
            |verdict| format!("inbox_handled_total{{service=\"shop\",consumer=\"billing\",verdict=\"{verdict}\"}}");
        let seen = service.until("everything is handled", |seen| {
            let ended = ["done", "skip", "duplicate", "dead"].map(|word| seen.exactly(&verdict(word)));
            ended == [8.0, 1.0, 1.0, 1.0] && seen.sum("inbox_lag_messages") == 0.0
        });
        let seen = seen.await;
        assert_eq!(stage.effects().await, 8, "{at:?}");
        assert_eq!((seen.one("inbox_received_total"), seen.one("inbox_failed_total")), (11.0, 1.0));
        // Unwanted messages and duplicates do not reach the handler.
        assert_eq!(seen.one("inbox_handler_duration_seconds_count"), 9.0);
        assert!(seen.one("inbox_handler_duration_seconds_sum") > 0.0);
        let buckets = seen.series("inbox_handler_duration_seconds_bucket");
        assert!(buckets.len() == 15 && buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
        assert_eq!(buckets.last().map(|(_, count)| *count), Some(9.0));
        assert!(seen.one("inbox_beat_age_seconds") < 5.0);
        assert_eq!((seen.one("inbox_panics_total"), seen.one("inbox_database_away_total")), (0.0, 0.0));
        assert_eq!(seen.one("inbox_copies_failed_total"), 0.0, "nobody wants copies");
        seen.is_well_formed();
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_is_seen_to_open_and_to_close() {
    for at in BROKERS {
        let stage = Stage::at(at).await;
        stage.far_side_away(true);
        stage.publish("Letter", 1).await;
        let service = stage.start().await;
        let open = service.until("it is open", |seen| seen.one("inbox_breakers_open") == 1.0).await;
        assert_eq!(open.one("inbox_failed_total"), 0.0, "an outage is no failure");
        let (status, body) = service.get("/readyz").await;
        assert!(
            status == 200 && body.contains("1 breakers are open") && body.contains("the post is closed"),
            "{status} {body}"
        );
        stage.far_side_away(false);
        service.until("it is closed", |seen| seen.one("inbox_breakers_open") == 0.0).await;
        assert_eq!(stage.effects().await, 1, "{at:?}");
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_say_whether_a_consumer_started_works_and_lives() {
    let stage = Stage::at(At::Embedded).await;
    let mut service = stage.start_hasty().await;
    for probe in ["/startupz", "/livez"] {
        service.becomes(probe, 200).await;
    }
    let body = service.becomes("/readyz", 200).await;
    assert!(
        body == "{\"ok\":true,\"checks\":[{\"consumer\":\"billing\",\"ok\":true,\"seen\":\"it works\"}]}",
        "{body}"
    );

    stage.cut_database(true).await;
    let body = service.becomes("/readyz", 503).await;
    assert!(body.contains("the database took the last sign of life"), "{body}");
    // It waits, and needs no restart.
    for probe in ["/startupz", "/livez"] {
        assert_eq!(service.get(probe).await.0, 200, "{probe}");
    }
    service.until("its age grows", |seen| seen.one("inbox_beat_age_seconds") > 2.0).await;
    stage.cut_database(false).await;
    service.becomes("/readyz", 200).await;

    service.kill_consumer().await;
    let (status, body) = service.get("/livez").await;
    assert!(status == 503 && body.contains("it ended by itself"), "{status} {body}");
    assert_eq!(service.get("/readyz").await.0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_told_to_stop_owes_nobody_a_sign_of_life() {
    let stage = Stage::at(At::Embedded).await;
    let mut service = stage.start().await;
    service.becomes("/readyz", 200).await;
    assert_eq!(service.scrape().await.series("inbox_beat_age_seconds").len(), 1);
    service.stop_consumer().await;
    let seen = service.scrape().await;
    assert_eq!(seen.series("inbox_beat_age_seconds"), [], "its age would grow for as long as the process lives");
    assert_eq!(seen.series("inbox_received_total").len(), 1, "what it did is still told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_waits_for_nothing() {
    let stage = Stage::at(At::Embedded).await;
    let service = stage.start_hasty().await;
    service.becomes("/readyz", 200).await;
    stage.cut_database(true).await;
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
