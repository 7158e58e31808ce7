//! Operator queries on an outbox.

use std::time::Duration;

use jiff::Timestamp;
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::AfterDead;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::finding::Severity;
use relevo_core::inbox::admin::{ConsumerAdmin as _, RemoveOutcome};
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin as _};
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::log::{ParkAction, ParkedMessage, PublishFailure};
use relevo_core::outbox::parked::ParkedReader as _;
use relevo_core::outbox::search::{MessageFilter, TimeRange};
use relevo_core::outbox::why::WaitCause;
use relevo_store_sqlite::{Draft, Operator};

use crate::scratch::{MAIN, Reader, TempDirectory, connect, draft, emit_one, operator, outbox, run};

const BUDGET: Duration = Duration::from_secs(5);

fn stopped(stop: ParkAction) -> PublishFailure {
    PublishFailure { action: stop, attempts: 3, class: "transient", error: "no".to_owned(), route: "all".into() }
}

fn park(entry: &LogEntry, stopped: Option<PublishFailure>) -> ParkedMessage {
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: stopped }
}

fn all() -> DeadLetterFilter {
    DeadLetterFilter::of_destination(MAIN)
}

/// An outbox with a message in every status except quarantined and discarded. Keys have the names of the statuses.
async fn outbox_with_every_status(scratch: &TempDirectory) -> (Reader, Operator) {
    let mut reader = Reader::start(outbox(&scratch.file(), 4).await).await;
    let mut connection = connect(&scratch.file()).await;
    for key in ["published", "retrying", "retrying", "held", "dead", "dead"] {
        emit_one(&mut connection, draft(key)).await;
    }
    let page = reader.read().await.expect("a page");
    let entries = &page.entries;
    let pause = Duration::from_hours(1);
    let parks = vec![
        park(&entries[1], Some(stopped(ParkAction::Retry { after: pause }))),
        park(&entries[2], None),
        park(&entries[3], Some(stopped(ParkAction::HoldAddress { address: "there".into(), after: pause }))),
        park(&entries[4], Some(stopped(ParkAction::DeadLetter(AfterDead::Hold)))),
        park(&entries[5], None),
    ];
    reader.settle(page.end, parks).await.expect("a free file");
    emit_one(&mut connection, draft("pending")).await;
    let later = Timestamp::now() + pause;
    emit_one(&mut connection, Draft { deliver_at: Some(later), ..draft("scheduled") }).await;
    (reader, operator(&scratch.file()).await)
}

#[tokio::test]
async fn a_search_shows_the_status_of_every_message() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let found = operator.search(&MessageFilter::default(), 100, BUDGET).await.unwrap();
    let seen: Vec<_> = found.messages.iter().map(|it| (it.key.as_str(), it.status, it.attempts)).collect();
    assert_eq!(
        seen,
        [
            ("scheduled", MessageStatus::Scheduled, 0),
            ("pending", MessageStatus::Pending, 0),
            ("dead", MessageStatus::Waiting, 0),
            ("dead", MessageStatus::Dead, 3),
            ("held", MessageStatus::Held, 3),
            ("retrying", MessageStatus::Waiting, 0),
            ("retrying", MessageStatus::Retrying, 3),
            ("published", MessageStatus::Published, 0),
        ]
    );
    assert!(found.messages.iter().all(|it| it.published_at.is_some() == (it.status == MessageStatus::Published)));
    assert_eq!((found.next, found.searched_back_to), (None, None));
    for status in [MessageStatus::Scheduled, MessageStatus::Waiting, MessageStatus::Published] {
        let search = MessageFilter { status: Some(status), ..MessageFilter::default() };
        let found = operator.search(&search, 100, BUDGET).await.unwrap();
        assert!(!found.messages.is_empty() && found.messages.iter().all(|it| it.status == status));
    }
}

#[tokio::test]
async fn a_search_resumes_where_it_stopped_and_reports_when_time_ran_out() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let whole = operator.search(&MessageFilter::default(), 100, BUDGET).await.unwrap().messages;
    let (mut pieces, mut before_seq) = (Vec::new(), None);
    loop {
        let search = MessageFilter { before_seq, ..MessageFilter::default() };
        let found = operator.search(&search, 3, BUDGET).await.unwrap();
        pieces.extend(found.messages);
        before_seq = found.next;
        if before_seq.is_none() {
            break;
        }
    }
    assert_eq!(pieces, whole);
    run(
        &scratch.file(),
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
         INSERT INTO relevo_message (slot, id, created_at_ms, topic, key, type, content_type, payload) \
         SELECT 1, randomblob(16), 1000 + i, 't', 'many', 'T', 'a/b', x'' FROM n",
    )
    .await;
    let search = MessageFilter { key: Some("published".to_owned()), ..MessageFilter::default() };
    let found = operator.search(&search, 10, Duration::ZERO).await.unwrap();
    assert!(found.messages.is_empty() && found.searched_back_to.is_some() && found.next.is_some());
    let found = operator.search(&search, 10, BUDGET).await.unwrap();
    assert_eq!((found.messages.len(), found.searched_back_to), (1, None));
}

#[tokio::test]
async fn a_message_is_shown_completely_after_the_log_dropped_it() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let found = operator.search(&MessageFilter::default(), 100, BUDGET).await.unwrap();
    for listed in &found.messages {
        let shown = operator.message(listed.id).await.unwrap().expect("it is there");
        assert_eq!(&shown.summary, listed);
        assert_eq!((&shown.message.key[..], &shown.message.payload[..]), (&listed.key[..], &b"{}"[..]));
    }
    run(&scratch.file(), "DELETE FROM relevo_message").await;
    for listed in found.messages {
        let waits = !matches!(listed.status, MessageStatus::Published | MessageStatus::Pending);
        assert_eq!(operator.message(listed.id).await.unwrap().is_some(), waits, "{}", listed.key);
    }
}

#[tokio::test]
async fn a_key_report_explains_why_the_key_waits() {
    let scratch = TempDirectory::new();
    let (reader, operator) = outbox_with_every_status(&scratch).await;
    let store = &operator;
    let why = store.key_report("retrying").await.unwrap();
    assert!(matches!(why.cause, WaitCause::Retrying { at } if at > Timestamp::now()));
    assert_eq!((why.waiting, why.head.unwrap().status), (2, MessageStatus::Retrying));
    let why = store.key_report("held").await.unwrap();
    assert!(
        matches!(why.cause, WaitCause::AddressHeld { held_address, probe_at: Some(_) } if held_address.address == "there")
    );
    let dead = store.key_report("dead").await.unwrap();
    let head = dead.head.unwrap();
    assert_eq!(
        (dead.cause, dead.waiting, head.status),
        (WaitCause::DeadLetter { id: head.id }, 2, MessageStatus::Dead)
    );
    assert!(matches!(store.key_report("scheduled").await.unwrap().cause, WaitCause::Scheduled { .. }));
    let why = store.key_report("pending").await.unwrap();
    assert_eq!((why.cause, why.waiting), (WaitCause::NotReadYet, 1));
    assert_eq!(why.shard.owner.as_deref(), Some("reader"));
    assert_eq!(store.key_report("published").await.unwrap().cause, WaitCause::Idle);
    assert_eq!(store.key_report("never heard of").await.unwrap().cause, WaitCause::Idle);

    assert_eq!(store.mark(MarkAction::Redrive, all()).await.unwrap(), 1);
    assert_eq!(store.mark(MarkAction::Redrive, all()).await.unwrap(), 0, "a double click marks once");
    assert_eq!(
        store.key_report("dead").await.unwrap().cause,
        WaitCause::MarkNotApplied { id: head.id, mark: MarkAction::Redrive }
    );
    let runs = reader.store.read_parked(&reader.leases, 10, 10).await.unwrap();
    assert_eq!((&*runs[0].key, runs[0].messages[0].entry.message.id), ("dead", head.id));
    store.update(DestinationChange::Enabled(false)).await.unwrap();
    assert_eq!(store.key_report("pending").await.unwrap().cause, WaitCause::Disabled);
    store.update(DestinationChange::Enabled(true)).await.unwrap();
    run(&scratch.file(), "UPDATE relevo_lease SET expires_at_ms = 0").await;
    assert_eq!(store.key_report("pending").await.unwrap().cause, WaitCause::NoRelay);
}

#[tokio::test]
async fn a_due_key_without_a_relay_and_a_dead_letter_on_a_disabled_destination_are_explained() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let store = &operator;
    let cause = async |key: &str| store.key_report(key).await.unwrap().cause;
    let dead = cause("dead").await;
    assert!(matches!(dead, WaitCause::DeadLetter { .. }));
    run(&scratch.file(), "UPDATE relevo_lease SET expires_at_ms = 0").await;
    assert!(matches!(cause("retrying").await, WaitCause::Retrying { .. }), "it is not due");
    assert!(matches!(cause("held").await, WaitCause::AddressHeld { .. }), "it is not due");
    run(&scratch.file(), "UPDATE relevo_parked_key SET next_at_ms = 1 WHERE key = 'retrying'").await;
    run(&scratch.file(), "UPDATE relevo_address_hold SET next_at_ms = 1").await;
    assert_eq!(cause("retrying").await, WaitCause::NoRelay);
    assert_eq!(cause("held").await, WaitCause::NoRelay);
    assert_eq!(cause("dead").await, dead, "an operator is needed first");
    store.update(DestinationChange::Enabled(false)).await.unwrap();
    assert_eq!(cause("retrying").await, WaitCause::Disabled);
    assert_eq!(cause("dead").await, dead, "an operator is needed first");
    assert!(matches!(cause("scheduled").await, WaitCause::Scheduled { .. }));
    run(&scratch.file(), "UPDATE relevo_parked_key SET state = 'quarantined' WHERE key = 'retrying'").await;
    store.update(DestinationChange::Enabled(true)).await.unwrap();
    run(&scratch.file(), "UPDATE relevo_lease SET expires_at_ms = 1 << 52").await;
    assert!(matches!(cause("retrying").await, WaitCause::Quarantined { .. }));
}

#[tokio::test]
async fn a_mark_of_a_key_that_continued_is_reported_until_it_is_applied() {
    let scratch = TempDirectory::new();
    let mut reader = Reader::start(outbox(&scratch.file(), 4).await).await;
    emit_one(&mut connect(&scratch.file()).await, draft("k")).await;
    let page = reader.read().await.expect("a page");
    let id = page.entries[0].message.id;
    let parks = vec![park(&page.entries[0], Some(stopped(ParkAction::DeadLetter(AfterDead::Continue))))];
    reader.settle(page.end, parks).await.expect("a free file");
    let operator = operator(&scratch.file()).await;
    let store = &operator;
    assert_eq!(store.key_report("k").await.unwrap().cause, WaitCause::Idle);
    assert_eq!(store.mark(MarkAction::Discard, all()).await.unwrap(), 1);
    let report = store.key_report("k").await.unwrap();
    assert_eq!(report.cause, WaitCause::MarkNotApplied { id, mark: MarkAction::Discard });
    assert_eq!((report.waiting, report.head.map(|head| head.id)), (1, Some(id)));
    reader.store.read_parked(&reader.leases, 10, 10).await.unwrap();
    assert_eq!(store.key_report("k").await.unwrap().cause, WaitCause::Idle);
}

#[tokio::test]
async fn shards_and_destinations_are_listed() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let shards = operator.shards().await.unwrap();
    assert_eq!(shards.iter().map(|it| it.shard).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(
        shards.iter().all(|it| it.owner.as_deref() == Some("reader") && it.epoch == 1 && !it.lease_remaining.is_zero())
    );
    assert_eq!(shards.iter().map(|it| it.parked_keys).sum::<u64>(), 3);
    operator.update(DestinationChange::Shards(2)).await.unwrap();
    let listed = operator.destinations().await.unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].shards, listed[0].resharding_to), ("main", 4, Some(2)));
    assert!(operator.remove_destination(MAIN).await.unwrap());
    assert!(!operator.remove_destination(MAIN).await.unwrap());
    assert_eq!(operator.destinations().await.unwrap(), []);
}

#[tokio::test]
async fn verify_counts_messages_and_finds_inconsistencies() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let verified = operator.verify(TimeRange::default()).await.unwrap();
    assert_eq!((verified.committed, verified.inconsistencies.len()), (7, 0));
    let of = |status| verified.by_status.iter().find(|(it, _)| *it == status).unwrap().1;
    assert_eq!(
        [
            MessageStatus::Published,
            MessageStatus::Pending,
            MessageStatus::Waiting,
            MessageStatus::Dead,
            MessageStatus::Held
        ]
        .map(of),
        [1, 1, 2, 1, 1]
    );
    assert!(verified.oldest_unsettled.is_some());
    let backlog = operator.backlog().await.unwrap();
    assert_eq!((backlog.pending, backlog.exact, backlog.parked, backlog.dead), (1, true, 4, 1));
    let vitals = operator.sample_destination().await.unwrap();
    assert_eq!((vitals.backlog, vitals.parked_keys, vitals.held_addresses), (backlog, 3, 1));
    assert_eq!(vitals.holdback, Duration::ZERO);
    run(&scratch.file(), "UPDATE relevo_message SET created_at_ms = created_at_ms - 608400000").await;
    let vitals = operator.sample_destination().await.unwrap();
    let hour = Duration::from_hours(1);
    assert!(
        vitals.holdback >= hour && vitals.holdback < 2 * hour,
        "it is one hour older than the retention: {vitals:?}"
    );
    let all = operator.sample_outbox().await.unwrap().retention_overdue;
    assert!(all.len() == 1 && all[0].1 >= vitals.holdback, "{all:?}");
    assert!(vitals.oldest_pending >= 169 * hour, "{vitals:?}");
    run(&scratch.file(), "DELETE FROM relevo_dead_letter").await;
    run(&scratch.file(), "DELETE FROM relevo_address_hold").await;
    let verified = operator.verify(TimeRange::default()).await.unwrap();
    assert_eq!(
        verified.inconsistencies,
        ["1 keys that wait for a missing dead letter", "1 keys that wait for an address that is not held"]
    );
}

#[tokio::test]
async fn examine_reports_every_check() {
    let scratch = TempDirectory::new();
    let (_reader, operator) = outbox_with_every_status(&scratch).await;
    let findings = operator.examine().await.unwrap();
    let mut subjects: Vec<_> = findings.iter().map(|it| it.subject.as_str()).collect();
    subjects.sort_unstable();
    let expected = [
        "file system",
        "free space",
        "journal_mode",
        "pages",
        "retention",
        "schema version",
        "synchronous",
        "write-ahead log",
    ];
    assert_eq!(subjects, expected);
    assert!(findings.iter().all(|it| it.severity < Severity::Danger), "{findings:?}");
    run(&scratch.file(), "UPDATE relevo_message SET created_at_ms = 0").await;
    let findings = operator.examine().await.unwrap();
    assert!(findings.iter().any(|it| it.subject == "retention" && it.severity == Severity::Warning));
}

#[tokio::test]
async fn consumers_of_the_same_file_are_sampled() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 4).await;
    let store = operator(&scratch.file()).await;
    assert_eq!(store.sample_outbox().await.unwrap().consumers, []);
    for sql in [
        "INSERT INTO relevo_inbox (consumer, message_id, entered_at_ms) VALUES ('audit', x'01', 1)",
        "INSERT INTO relevo_inbox_consumer (name) VALUES ('billing')",
        "INSERT INTO relevo_inbox_member (consumer, owner, name, expires_at_ms, beat_at_ms, last_message_at_ms) \
         SELECT 'billing', x'01', 'one', now + 60000, now - 120000, now - 5000 FROM (SELECT unixepoch() * 1000 AS now)",
        "INSERT INTO relevo_inbox_lane (consumer, lane, epoch, owner, breaker_reason) \
         VALUES ('billing', '0', 1, x'01', NULL), ('billing', '1', 1, x'01', 'down')",
    ] {
        run(&scratch.file(), sql).await;
    }
    let around = store.sample_outbox().await.unwrap();
    assert_eq!(around.horizon, None, "SQLite has none");
    let [audit, billing] = &around.consumers[..] else { panic!("{around:?}") };
    assert_eq!((audit.name.as_str(), audit.members, audit.heartbeat_age), ("audit", 0, None));
    assert_eq!((billing.name.as_str(), billing.members, billing.waiting, billing.dead), ("billing", 1, 0, 0));
    assert!(billing.heartbeat_age.unwrap() >= Duration::from_secs(119), "{billing:?}");
    assert!(billing.last_message_age.unwrap() >= Duration::from_secs(4), "{billing:?}");
    assert_eq!(billing.breakers, [("0".to_owned(), false), ("1".to_owned(), true)]);
    run(&scratch.file(), "UPDATE relevo_inbox_member SET expires_at_ms = 1").await;
    let billing = &store.sample_outbox().await.unwrap().consumers[1];
    assert_eq!(billing.breakers, [("0".to_owned(), false), ("1".to_owned(), false)], "who said so is dead");
    assert_eq!(store.remove_consumer("billing").await.unwrap(), RemoveOutcome::Removed);
    let names: Vec<_> = store.sample_outbox().await.unwrap().consumers.into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["audit"], "its silence is not reported");
}
