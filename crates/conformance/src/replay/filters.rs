//! A filter reads and counts exactly the messages that match.

use relevo_core::inbox::source::{Filter, ReplaySource};

use super::harness::{Harness, all, draft, drafts, ids};

/// Reads the messages that match a filter, and checks that `count` agrees.
async fn counted(source: &dyn ReplaySource, filter: &Filter) -> Vec<relevo_core::MessageId> {
    let found = all(source, filter, 2).await;
    assert_eq!(source.count(filter).await.expect("the log can be read"), found.len() as u64, "{filter:?}");
    ids(&found)
}

/// Topic, type, key, address: every field that is set must match.
pub async fn messages_are_chosen_by_what_they_say(h: &mut impl Harness) {
    let put = h.put(drafts(12)).await;
    let source = h.source().await;
    let text = |text: &str| Some(text.to_owned());
    for filter in [
        Filter { topic: text("orders.eu"), ..Filter::default() },
        Filter { kind: text("Shipped"), ..Filter::default() },
        Filter { key: text("k-1"), ..Filter::default() },
        Filter { key: text("k-1"), topic: text("orders.us"), ..Filter::default() },
        Filter { address: text("orders.*"), key: text("k-2"), ..Filter::default() },
        Filter { address: text("bills"), ..Filter::default() },
        Filter { topic: text("orders"), ..Filter::default() },
    ] {
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        let meant = (0..put.len()).filter(|number| {
            let sent = draft(*number);
            is(&filter.topic, &sent.topic)
                && is(&filter.kind, &sent.kind)
                && is(&filter.key, &sent.key)
                && filter.address.as_deref() != Some("bills")
        });
        let meant: Vec<_> = meant.map(|number| put[number]).collect();
        assert_eq!(counted(&*source, &filter).await, meant, "{filter:?}");
    }
}

/// From one offset to another.
pub async fn messages_are_chosen_by_their_numbers(h: &mut impl Harness) {
    let put = h.put(drafts(6)).await;
    let source = h.source().await;
    let whole = all(&*source, &Filter::default(), 100).await;
    let (from, to) = (Some(whole[2].number), Some(whole[4].number));
    assert_eq!(counted(&*source, &Filter { from, ..Filter::default() }).await, put[2..]);
    assert_eq!(counted(&*source, &Filter { to, ..Filter::default() }).await, put[..=4]);
    assert_eq!(counted(&*source, &Filter { from, to, ..Filter::default() }).await, put[2..=4]);
    let behind = Filter { from: Some(whole[5].number + 1), ..Filter::default() };
    assert_eq!(counted(&*source, &behind).await, []);
}

/// From one time until another, whatever the resolution of the clock.
pub async fn messages_are_chosen_by_their_times(h: &mut impl Harness) {
    h.put(drafts(6)).await;
    let source = h.source().await;
    let whole = all(&*source, &Filter::default(), 100).await;
    for since in whole.iter().map(|logged| logged.at) {
        let meant: Vec<_> = whole.iter().filter(|logged| logged.at >= since).cloned().collect();
        let filter = Filter { since: Some(since), ..Filter::default() };
        assert_eq!(counted(&*source, &filter).await, ids(&meant));
        let meant: Vec<_> = whole.iter().filter(|logged| logged.at < since).cloned().collect();
        let filter = Filter { until: Some(since), ..Filter::default() };
        assert_eq!(counted(&*source, &filter).await, ids(&meant));
    }
}

/// A replay ends where the log ended when it began: later messages are live.
pub async fn what_comes_later_is_behind_the_end(h: &mut impl Harness) {
    let put = h.put(drafts(3)).await;
    let source = h.source().await;
    let extent = source.extent().await.expect("the log can be read").expect("it is not empty");
    h.put(drafts(3)).await;
    let filter = Filter { from: Some(extent.first), to: Some(extent.last), ..Filter::default() };
    assert_eq!(counted(&*source, &filter).await, put);
}

/// Any number of other messages may lie between the matches.
pub async fn what_is_rare_is_found_and_counted(h: &mut impl Harness) {
    let mut sent = drafts(200);
    for rare in [3, 150] {
        sent[rare].key = "rare".into();
    }
    let put = h.put(sent).await;
    let filter = Filter { key: Some("rare".to_owned()), ..Filter::default() };
    assert_eq!(counted(&*h.source().await, &filter).await, [put[3], put[150]]);
}
