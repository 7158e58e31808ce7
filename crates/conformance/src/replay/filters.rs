//! A filter reads and counts exactly the messages that match.

use relevo_core::replay_source::{ReplayFilter, ReplaySource};

use super::harness::{Harness, draft, drafts, ids, read_all};

/// Reads the messages that match a filter, and checks that `count` agrees.
async fn read_and_count(source: &dyn ReplaySource, filter: &ReplayFilter) -> Vec<relevo_core::MessageId> {
    let found = read_all(source, filter, 2).await;
    assert_eq!(source.count(filter).await.expect("the log can be read"), found.len() as u64, "{filter:?}");
    ids(&found)
}

/// Topic, type, key, address: every field that is set must match.
pub async fn messages_are_filtered_by_content(h: &mut impl Harness) {
    let published = h.publish(drafts(12)).await;
    let source = h.source().await;
    let text = |text: &str| Some(text.to_owned());
    for filter in [
        ReplayFilter { topic: text("orders.eu"), ..ReplayFilter::default() },
        ReplayFilter { kind: text("Shipped"), ..ReplayFilter::default() },
        ReplayFilter { key: text("k-1"), ..ReplayFilter::default() },
        ReplayFilter { key: text("k-1"), topic: text("orders.us"), ..ReplayFilter::default() },
        ReplayFilter { address: text("orders.*"), key: text("k-2"), ..ReplayFilter::default() },
        ReplayFilter { address: text("bills"), ..ReplayFilter::default() },
        ReplayFilter { topic: text("orders"), ..ReplayFilter::default() },
    ] {
        let is = |expected: &Option<String>, has: &str| expected.as_deref().is_none_or(|expected| expected == has);
        let matching = (0..published.len()).filter(|number| {
            let sent = draft(*number);
            is(&filter.topic, &sent.topic)
                && is(&filter.kind, &sent.kind)
                && is(&filter.key, &sent.key)
                && filter.address.as_deref() != Some("bills")
        });
        let matching: Vec<_> = matching.map(|number| published[number]).collect();
        assert_eq!(read_and_count(&*source, &filter).await, matching, "{filter:?}");
    }
}

/// From one offset to another.
pub async fn messages_are_filtered_by_number(h: &mut impl Harness) {
    let published = h.publish(drafts(6)).await;
    let source = h.source().await;
    let all = read_all(&*source, &ReplayFilter::default(), 100).await;
    let (from, to) = (Some(all[2].number), Some(all[4].number));
    assert_eq!(read_and_count(&*source, &ReplayFilter { from, ..ReplayFilter::default() }).await, published[2..]);
    assert_eq!(read_and_count(&*source, &ReplayFilter { to, ..ReplayFilter::default() }).await, published[..=4]);
    assert_eq!(read_and_count(&*source, &ReplayFilter { from, to, ..ReplayFilter::default() }).await, published[2..=4]);
    let behind = ReplayFilter { from: Some(all[5].number + 1), ..ReplayFilter::default() };
    assert_eq!(read_and_count(&*source, &behind).await, []);
}

/// From one time until another, whatever the resolution of the clock.
pub async fn messages_are_filtered_by_time(h: &mut impl Harness) {
    h.publish(drafts(6)).await;
    let source = h.source().await;
    let all = read_all(&*source, &ReplayFilter::default(), 100).await;
    for since in all.iter().map(|message| message.at) {
        let matching: Vec<_> = all.iter().filter(|message| message.at >= since).cloned().collect();
        let filter = ReplayFilter { since: Some(since), ..ReplayFilter::default() };
        assert_eq!(read_and_count(&*source, &filter).await, ids(&matching));
        let matching: Vec<_> = all.iter().filter(|message| message.at < since).cloned().collect();
        let filter = ReplayFilter { until: Some(since), ..ReplayFilter::default() };
        assert_eq!(read_and_count(&*source, &filter).await, ids(&matching));
    }
}

/// A replay ends where the log ended when it began: later messages are live.
pub async fn messages_after_the_end_are_not_read(h: &mut impl Harness) {
    let published = h.publish(drafts(3)).await;
    let source = h.source().await;
    let extent = source.bounds().await.expect("the log can be read").expect("it is not empty");
    h.publish(drafts(3)).await;
    let filter = ReplayFilter { from: Some(extent.first), to: Some(extent.last), ..ReplayFilter::default() };
    assert_eq!(read_and_count(&*source, &filter).await, published);
}

/// Any number of other messages may lie between the matches.
pub async fn rare_messages_are_found_and_counted(h: &mut impl Harness) {
    let mut sent = drafts(200);
    for rare in [3, 150] {
        sent[rare].key = "rare".into();
    }
    let published = h.publish(sent).await;
    let filter = ReplayFilter { key: Some("rare".to_owned()), ..ReplayFilter::default() };
    assert_eq!(read_and_count(&*h.source().await, &filter).await, [published[3], published[150]]);
}
