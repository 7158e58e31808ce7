//! The contract of the SQL functions and of `emit` in Rust: messages arrive unchanged, and invalid arguments raise a
//! specific error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::relay_support::{RunningRelay, TestDatabase, config, execute, expect_error};
use bytes::Bytes;
use relevo_broker_memory::{Config, MemoryBroker};
use relevo_core::inbox::transactions::{BeginOutcome, Enter};
use relevo_core::inbox::{Inbox as _, InboxRetention};
use relevo_core::message::Headers;
use relevo_core::slot::slot_of;
use relevo_core::{DraftError, Message, MessageId, StoreTransaction as _};
use relevo_store_postgres::inbox::{Config as InboxConfig, Inbox};
use relevo_store_postgres::{Draft, EmitError, Emitter, OnDuplicate, emit};
use relevo_testkit::PgVersion;
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

/// A call with valid arguments, except for these.
fn call(function: &str, changed: &[(&str, &str)]) -> String {
    let mut arguments = vec![("topic", "'orders'"), ("key", "'o-1'"), ("type", "'OrderPlaced'"), ("payload", "'{}'")];
    if function == "emit_bytes" {
        arguments.push(("content_type", "'application/json'"));
    }
    for (name, value) in changed {
        match arguments.iter_mut().find(|(known, _)| known == name) {
            Some(argument) => argument.1 = value,
            None => arguments.push((name, value)),
        }
    }
    let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{name} => {value}")).collect();
    format!("SELECT relevo.{function}({})", arguments.join(", "))
}

const NULL: &str = "22004";
const INVALID_VALUES: &str = "22023";

#[tokio::test]
async fn every_invalid_argument_is_rejected_by_name() {
    let both = [
        ("topic", "NULL", NULL),
        ("topic", "''", INVALID_VALUES),
        ("topic", "E'a\\nb'", INVALID_VALUES),
        ("topic", "repeat('t', 256)", INVALID_VALUES),
        ("key", "NULL", NULL),
        ("key", "''", INVALID_VALUES),
        ("key", "E'a\\tb'", INVALID_VALUES),
        ("key", "repeat('k', 513)", INVALID_VALUES),
        ("key", "repeat('ñ', 257)", INVALID_VALUES),
        ("type", "NULL", NULL),
        ("type", "''", INVALID_VALUES),
        ("type", "repeat('t', 300)", INVALID_VALUES),
        ("payload", "NULL", NULL),
        ("headers", "'[]'", INVALID_VALUES),
        ("headers", "'\"x\"'", INVALID_VALUES),
        ("headers", "'{\"a\": 1}'", INVALID_VALUES),
        ("headers", "'{\"a\": null}'", INVALID_VALUES),
        ("headers", "'{\"\": \"x\"}'", INVALID_VALUES),
        ("headers", "'{\"a\": \"b\\nc\"}'", INVALID_VALUES),
        ("headers", "'{\"a\\tb\": \"c\"}'", INVALID_VALUES),
        ("headers", "jsonb_build_object('a', repeat('x', 65536))", INVALID_VALUES),
        ("deliver_at", "'infinity'", INVALID_VALUES),
        ("deliver_at", "'-infinity'", INVALID_VALUES),
        ("deliver_at", "now() + interval '11 years'", INVALID_VALUES),
        ("lock_key", "NULL", NULL),
        ("on_duplicate", "NULL", INVALID_VALUES),
        ("on_duplicate", "'maybe'", INVALID_VALUES),
    ];
    let bytes = [
        ("content_type", "NULL", NULL),
        ("content_type", "''", INVALID_VALUES),
        ("content_type", "repeat('c', 256)", INVALID_VALUES),
        ("payload", "convert_to(repeat('x', 16777217), 'UTF8')", INVALID_VALUES),
    ];
    let cases = both.iter().flat_map(|case| [("emit", case), ("emit_bytes", case)]);
    let cases: Vec<_> = cases.chain(bytes.iter().map(|case| ("emit_bytes", case))).collect();
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let mut connection = world.connect().await;
        for (function, (name, value, expected)) in &cases {
            let sql = call(function, &[(name, value)]);
            let (code, message) = expect_error(&mut connection, &sql).await;
            assert_eq!(code, *expected, "PostgreSQL {}: {sql}: {message}", version.major());
            assert!(message.contains(&format!("argument \"{name}\"")), "{sql}: {message}");
        }
        assert_eq!(world.number("SELECT count(*) FROM relevo.outbox").await, 0);
    }
}

#[tokio::test]
async fn every_invalid_element_is_rejected_by_index_and_name() {
    let good = r#""topic": "orders", "type": "T""#;
    let cases = [
        ("NULL".to_owned(), "messages", NULL),
        ("'{}'".to_owned(), "messages", INVALID_VALUES),
        ("'[null]'".to_owned(), "messages[1]", INVALID_VALUES),
        ("'[[]]'".to_owned(), "messages[1]", INVALID_VALUES),
        (format!(r#"'[{{{good}, "key": "k", "payload": 1, "color": "red"}}]'"#), "messages[1].color", INVALID_VALUES),
        (format!(r#"'[{{{good}, "key": "k"}}]'"#), "messages[1]", INVALID_VALUES),
        (format!(r#"'[{{{good}, "key": "k", "payload": 1, "payload_base64": ""}}]'"#), "messages[1]", INVALID_VALUES),
        (format!(r#"'[{{{good}, "payload": 1}}]'"#), "messages[1].key", NULL),
        (format!(r#"'[{{{good}, "key": "", "payload": 1}}]'"#), "messages[1].key", INVALID_VALUES),
        (format!(r#"'[{{{good}, "key": "k", "payload_base64": "!"}}]'"#), "messages[1].payload_base64", INVALID_VALUES),
        (format!(r#"'[{{{good}, "key": "k", "payload_base64": ""}}]'"#), "messages[1].content_type", NULL),
        (format!(r#"'[{{{good}, "key": "k", "payload": 1, "id": "7"}}]'"#), "messages[1].id", INVALID_VALUES),
        (
            format!(r#"'[{{{good}, "key": "k", "payload": 1, "deliver_at": "soon"}}]'"#),
            "messages[1].deliver_at",
            INVALID_VALUES,
        ),
        (
            format!(r#"'[{{{good}, "key": "k", "payload": 1, "lock_key": "x"}}]'"#),
            "messages[1].lock_key",
            INVALID_VALUES,
        ),
        (
            format!(r#"'[{{{good}, "key": "k", "payload": 1, "on_duplicate": "x"}}]'"#),
            "messages[1].on_duplicate",
            INVALID_VALUES,
        ),
        (format!(r#"'[{{{good}, "key": "k", "payload": 1, "headers": []}}]'"#), "messages[1].headers", INVALID_VALUES),
        (
            format!(r#"'[{{{good}, "key": "k", "payload": 1}}, {{{good}, "key": "k", "payload": 1, "headers": 7}}]'"#),
            "messages[2].headers",
            INVALID_VALUES,
        ),
    ];
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let mut connection = world.connect().await;
        for (array, place, expected) in &cases {
            let sql = format!("SELECT relevo.emit_many({array})");
            let (code, message) = expect_error(&mut connection, &sql).await;
            assert_eq!(code, *expected, "PostgreSQL {}: {sql}: {message}", version.major());
            assert!(message.contains(&format!("argument \"{place}\"")), "{sql}: {message}");
        }
        assert_eq!(world.number("SELECT count(*) FROM relevo.outbox").await, 0, "the good element neither");
    }
}

/// Returns what the broker receives, in order.
async fn delivered(world: &TestDatabase) -> Vec<Message> {
    let broker = MemoryBroker::new(Config::default());
    let got = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&got);
    broker.on_receipt(move |publication| list.lock().expect("no panic").push((*publication.message).clone()));
    let relay = RunningRelay::start(world.store().await, &broker, config());
    world.wait_until_drained().await;
    relay.stop().await;
    std::mem::take(&mut *got.lock().expect("no panic"))
}

#[tokio::test]
async fn a_message_emitted_in_rust_arrives_byte_for_byte() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let all: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let headers = Headers::from([
            ("x-slashes".to_owned(), r#"C:\temp\new "quoted" \u0041 \\"#.to_owned()),
            ("x-ünïcode-名".to_owned(), "héllo 🦀 \u{202e} ñ\ttab".to_owned()),
            ("x-empty".to_owned(), String::new()),
            ("x-long".to_owned(), "ü".repeat(30_000)),
        ]);
        let long = "κ".repeat(256);
        let drafts = [
            Draft { headers, ..Draft::bytes("a.b", "clave-ñ 'x' \\", "Tipo", all, "application/x-any; v=\"1\"") },
            Draft::bytes("t", &long, "T", Bytes::new(), "c"),
            Draft::json("t", "{}", "T", r#"{"b": 1,   "a": "ñ"}"#),
        ];
        let mut connection = world.connect().await;
        let mut tx = connection.begin().await.expect("a transaction");
        let mut ids = Vec::new();
        for draft in &drafts {
            ids.push(emit(&mut tx, draft.clone()).await.expect("a good message"));
        }
        tx.commit().await.expect("it commits");
        // A handler's transaction sends them in another protocol.
        let inbox =
            Inbox::open(&InboxConfig::new(world.database.options()), "billing", InboxRetention::default()).await;
        let inbox = inbox.expect("a migrated database");
        let begun = inbox.begin(Enter { held: None, arrivals: &[] }).await.expect("a server");
        let BeginOutcome::Open(mut tx, _) = begun else { panic!("no other worker runs") };
        for draft in &drafts {
            ids.push(tx.emit(draft.clone()).await.expect("a good message"));
        }
        inbox.commit(tx).await.expect("it commits");
        let mut messages = delivered(&world).await;
        messages.sort_by_key(|message| ids.iter().position(|id| *id == message.id));
        assert_eq!(messages.len(), 2 * drafts.len());
        for (message, draft) in messages.iter().zip(drafts.iter().chain(&drafts)) {
            assert_eq!((&message.topic, &message.key, &message.kind), (&draft.topic, &draft.key, &draft.kind));
            assert_eq!((&message.content_type, &message.headers), (&draft.content_type, &draft.headers));
            assert!(message.payload == draft.payload, "the payload of `{}` changed", draft.key);
        }
    }
}

#[tokio::test]
async fn a_json_payload_arrives_as_the_text_of_its_jsonb() {
    let world = TestDatabase::new().await;
    world.run(&call("emit", &[("payload", r#"'{"b": 1,   "a": "ñ", "b": 2}'"#)])).await;
    let messages = delivered(&world).await;
    assert_eq!(&messages[0].payload[..], r#"{"a": "ñ", "b": 2}"#.as_bytes());
    assert_eq!(&*messages[0].content_type, "application/json");
}

#[tokio::test]
async fn effect_and_message_commit_and_roll_back_together() {
    let world = TestDatabase::new().await;
    world.run("CREATE TABLE effect (n int)").await;
    let mut connection = world.connect().await;
    for n in 0..4 {
        let mut tx = connection.begin().await.expect("a transaction");
        sqlx::query("INSERT INTO effect VALUES ($1)").bind(n).execute(&mut *tx).await.expect("an effect");
        emit(&mut tx, Draft::json("orders", "k", "Counted", n.to_string())).await.expect("a good message");
        if n % 2 == 0 { tx.commit().await.expect("it commits") } else { tx.rollback().await.expect("it rolls back") }
    }
    let payloads: Vec<_> = delivered(&world).await.iter().map(|message| message.payload.clone()).collect();
    assert_eq!(payloads, ["0", "2"]);
    assert_eq!(world.texts("SELECT n::text FROM effect ORDER BY n").await, ["0", "2"]);
}

#[tokio::test]
async fn an_invalid_draft_is_rejected_before_the_transaction_is_used() {
    let world = TestDatabase::new().await;
    let mut connection = world.connect().await;
    let mut tx = connection.begin().await.expect("a transaction");
    let good = Draft::json("orders", "k", "T", "{}");
    let long = "k".repeat(513);
    let bad = [
        ("key", Draft { key: long.into(), ..good.clone() }),
        ("topic", Draft { topic: "".into(), ..good.clone() }),
        ("type", Draft { kind: "a\nb".into(), ..good.clone() }),
        ("payload", Draft { payload: vec![0; (16 << 20) + 1].into(), ..good.clone() }),
        ("headers", Draft { headers: Headers::from([("h".to_owned(), "x".repeat(70_000))]), ..good.clone() }),
        ("headers", Draft { headers: Headers::from([("h".to_owned(), "\0".to_owned())]), ..good.clone() }),
    ];
    for (part, draft) in bad {
        let Err(EmitError::Invalid(error)) = emit(&mut tx, draft).await else { panic!("`{part}` was not refused") };
        let named = match error {
            DraftError::TooLong { part, .. } | DraftError::Empty(part) | DraftError::ControlCharacter(part) => part,
        };
        assert_eq!(named, part);
    }
    emit(&mut tx, good).await.expect("the transaction is unharmed");
    tx.commit().await.expect("it commits");
    assert_eq!(world.number("SELECT count(*) FROM relevo.message").await, 1);
}

#[tokio::test]
async fn a_duplicate_id_is_rejected_or_ignored() {
    let world = TestDatabase::new().await;
    let mut connection = world.connect().await;
    let id = MessageId::from_uuid(Uuid::from_u128(77));
    let draft = Draft { id: Some(id), ..Draft::json("orders", "k", "T", "{}") };
    let mut tx = connection.begin().await.expect("a transaction");
    assert_eq!(emit(&mut tx, draft.clone()).await.expect("a new id"), id);
    tx.commit().await.expect("it commits");
    let mut tx = connection.begin().await.expect("a transaction");
    let repeated = emit(&mut tx, draft.clone()).await;
    assert!(matches!(repeated, Err(EmitError::DuplicateId(again)) if again == id), "{repeated:?}");
    tx.rollback().await.expect("it rolls back");
    let mut tx = connection.begin().await.expect("a transaction");
    let ignored = emit(&mut tx, Draft { on_duplicate: OnDuplicate::Ignore, ..draft }).await.expect("it does nothing");
    assert_eq!(ignored, id);
    tx.commit().await.expect("it commits");
    assert_eq!(world.number("SELECT count(*) FROM relevo.message").await, 1);
}

#[tokio::test]
async fn a_message_with_a_future_time_is_scheduled() {
    let world = TestDatabase::new().await;
    let mut connection = world.connect().await;
    let now: String =
        world.texts("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text").await.remove(0);
    let now = jiff::Timestamp::from_millisecond(now.parse().expect("a number")).expect("a time");
    let at = now + Duration::from_hours(1);
    let mut tx = connection.begin().await.expect("a transaction");
    let later = Draft { deliver_at: Some(at), ..Draft::json("orders", "k", "T", "1") };
    let later = emit(&mut tx, later).await.expect("a good message");
    let past = Draft { deliver_at: Some(now - Duration::from_hours(1)), ..Draft::json("orders", "k", "T", "2") };
    let past = emit(&mut tx, past).await.expect("a good message");
    let cancelled = Draft { deliver_at: Some(at), ..Draft::json("orders", "k", "T", "3") };
    let cancelled = emit(&mut tx, cancelled).await.expect("a good message");
    for (id, was_scheduled) in [(cancelled, true), (cancelled, false), (past, false)] {
        let result = Emitter::default().cancel(&mut tx, id).await.expect("an open transaction");
        assert_eq!(result, was_scheduled);
    }
    tx.commit().await.expect("it commits");
    let due = "SELECT (extract(epoch FROM due_at) * 1000)::bigint::text FROM relevo.scheduled";
    assert_eq!(world.texts(due).await, [at.as_millisecond().to_string()]);
    let ids = |messages: &[Message]| messages.iter().map(|message| message.id).collect::<Vec<_>>();
    assert_eq!(ids(&delivered(&world).await), [past]);
    world.run("UPDATE relevo.scheduled SET due_at = clock_timestamp()").await;
    world.run(&call("emit", &[("key", "'other'")])).await;
    let messages = delivered(&world).await;
    assert_eq!(messages.len(), 2);
    assert!(ids(&messages).contains(&later));
}

#[tokio::test]
async fn generated_ids_are_version_7_and_sort_by_time() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let sql = format!("{}, pg_sleep(0.002) FROM generate_series(1, 50)", call("emit", &[]));
        let rows = world.rows(&sql).await;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get(0).expect("an id")).collect();
        assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        let now = world.number("SELECT extract(epoch FROM clock_timestamp()) * 1000").await;
        let (seconds, nanos) = ids[0].get_timestamp().expect("version 7 has a time").to_unix();
        let made = i64::try_from(seconds * 1000 + u64::from(nanos) / 1_000_000).expect("a time");
        assert!((now - 60_000..=now).contains(&made), "{made} is not just before {now}");
    }
}

#[tokio::test]
async fn the_database_and_the_program_agree_on_every_slot() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let mut connection = world.connect().await;
        let letters: Vec<char> = "aZ0 -'\\\"ñß漢🦀\u{301}\u{10ffff}".chars().collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).expect("31 bits")
        };
        let keys: Vec<String> = (0..1000)
            .map(|_| {
                let length = 1 + random() % 40;
                (0..length).map(|_| letters[random() % letters.len()]).collect()
            })
            .collect();
        let rows =
            sqlx::query("SELECT relevo.slot_of(k) FROM unnest($1::text[]) WITH ORDINALITY AS k(k, n) ORDER BY n")
                .bind(&keys)
                .fetch_all(&mut connection)
                .await
                .expect("slots");
        let slots: Vec<i16> = rows.iter().map(|row| row.try_get(0).expect("a slot")).collect();
        let ours: Vec<i16> = keys.iter().map(|key| i16::try_from(slot_of(key)).expect("a byte")).collect();
        assert_eq!(slots, ours, "PostgreSQL {}", version.major());
    }
}

#[tokio::test]
async fn emit_many_keeps_its_order_and_emits_a_duplicate_id_once() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let (own, low) = (Uuid::from_u128(9), Uuid::from_u128(1));
        let item = |rest: &str| format!(r#"{{"topic": "orders", "type": "T", "key": "k", {rest}}}"#);
        let items = [
            item(r#""payload": {"n": 1}"#),
            item(&format!(r#""payload": 2, "id": "{own}", "on_duplicate": "ignore", "lock_key": true"#)),
            item(r#""payload_base64": "AP8=", "content_type": "application/octet-stream", "headers": {"a": "b"}"#),
            item(&format!(r#""payload": 4, "id": "{own}", "on_duplicate": "ignore""#)),
            item(&format!(r#""payload": 5, "id": "{low}""#)),
        ];
        let rows =
            sqlx::query("SELECT unnest(relevo.emit_many($1::text::jsonb))").bind(format!("[{}]", items.join(",")));
        let rows = rows.fetch_all(&mut world.connect().await).await.expect("good messages");
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get(0).expect("an id")).collect();
        assert_eq!((ids.len(), ids[1], ids[3], ids[4]), (5, own, own, low));
        let messages = delivered(&world).await;
        let received: Vec<Uuid> = messages.iter().map(|message| *message.id.as_uuid()).collect();
        assert_eq!(received, [ids[0], ids[1], ids[2], ids[4]]);
        let payloads: Vec<&[u8]> = messages.iter().map(|message| &message.payload[..]).collect();
        assert_eq!(payloads, [&b"{\"n\": 1}"[..], b"2", b"\x00\xff", b"5"]);
        assert_eq!(messages[2].headers, Headers::from([("a".to_owned(), "b".to_owned())]));
        let (code, _) = {
            let sql = format!("SELECT relevo.emit_many('[{}]')", items[4]);
            expect_error(&mut world.connect().await, &sql).await
        };
        assert_eq!(code, "23505", "refused unless it may be ignored");
        assert!(execute(&mut world.connect().await, "SELECT relevo.emit_many('[]')").await.is_ok(), "nothing is fine");
    }
}
