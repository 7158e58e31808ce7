//! Requests that come again, and requests that fail half way.

use std::time::Duration;

use serde_json::{Value, json};
use ticketflow::desk::Old;

use crate::world::{ANA, BEN, CARLA, Call, EVA, World};

fn open(world: &World, token: &str, title: &str, key: &str) -> Call {
    let body = json!({ "title": title, "description": "It does not work" });
    world.post(token, "/api/tickets", &body).with("idempotency-key", key)
}

pub(crate) async fn a_repeat_gets_the_same_response_and_changes_nothing(world: &World) {
    let first = open(world, ANA, "No light", "k1").send().await;
    let changed = world.change(CARLA, &first, "status", &json!({ "status": "waiting" })).with("idempotency-key", "k2");
    let changed = changed.send().await;
    let path = format!("{}/comments", first.path());
    let written = world.post(ANA, &path, &json!({ "body": "hello" })).with("idempotency-key", "k3").send().await;
    let before = world.stored().await;
    let again = [
        (first.text.clone(), open(world, ANA, "No light", "k1")),
        // The version is stale by now, and the first response is still returned.
        (
            changed.text,
            world.change(CARLA, &first, "status", &json!({ "status": "waiting" })).with("idempotency-key", "k2"),
        ),
        (written.text, world.post(ANA, &path, &json!({ "body": "hello" })).with("idempotency-key", "k3")),
    ];
    for (text, call) in again {
        let repeat = call.send().await;
        assert_eq!((repeat.header("idempotent-replayed"), &*repeat.text), ("true", &*text));
    }
    assert_eq!(first.header("idempotent-replayed"), "");
    let repeat = open(world, ANA, "No light", "k1").send().await;
    assert_eq!(
        (repeat.status.as_u16(), repeat.header("etag"), repeat.header("location")),
        (201, "\"1\"", &*first.path())
    );
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn a_key_is_one_persons_and_one_requests(world: &World) {
    let first = open(world, ANA, "No light", "k").send().await;
    let before = world.stored().await;
    let other = open(world, ANA, "No sound", "k").refused().await;
    assert_eq!((other.0, &*other.1), (422, "key-reused"));
    let path = format!("{}/comments", first.path());
    let elsewhere = world.post(ANA, &path, &json!({ "body": "hello" })).with("idempotency-key", "k").refused().await;
    assert_eq!((elsewhere.0, &*elsewhere.1), (422, "key-reused"));
    assert_eq!(world.stored().await, before);
    let bens = open(world, BEN, "No light", "k").send().await;
    assert_eq!((bens.status.as_u16(), bens.header("idempotent-replayed")), (201, ""));
    // What was refused was not remembered: the key is still free.
    let refused = open(world, BEN, "", "later").refused().await;
    assert_eq!(refused.0, 422);
    assert_eq!(open(world, BEN, "No light", "later").send().await.status, 201);
}

pub(crate) async fn a_key_is_of_the_version_that_was_seen(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let waits = || world.change(CARLA, &seen, "status", &json!({ "status": "waiting" })).with("idempotency-key", "k");
    assert_eq!(waits().send().await.status, 200);
    let before = world.stored().await;
    // A caller who has read a newer version makes another request, though with the same text.
    for version in ["\"2\"", "\"1\", \"2\"", "*"] {
        let other = waits().with("if-match", version).refused().await;
        assert_eq!((other.0, &*other.1), (422, "key-reused"), "{version}");
    }
    assert_eq!(world.stored().await, before);
    assert_eq!(waits().send().await.header("idempotent-replayed"), "true");
}

pub(crate) async fn two_repeats_at_once_have_one_effect(world: &World) {
    let before = world.stored().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        calls.spawn(open(world, ANA, "No light", "k").send());
    }
    let replies = calls.join_all().await;
    assert!(replies.iter().all(|reply| reply.status == 201 && reply.text == replies[0].text));
    assert_eq!(replies.iter().filter(|reply| reply.header("idempotent-replayed").is_empty()).count(), 1);
    let added: Vec<_> = world.stored().await.iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(added, [0, 1, 0, 1, 1, 1, 1]);
}

pub(crate) async fn an_old_key_is_forgotten(world: &World) {
    let first = open(world, ANA, "No light", "k").send().await;
    let day = "UPDATE ticketflow.idempotency SET created_at = created_at";
    world.run_each(&format!("{day} - interval '25 hours'"), &format!("{day} - 25 * 3600000")).await;
    let later = open(world, ANA, "No light", "k").send().await;
    assert_eq!(later.header("idempotent-replayed"), "");
    assert_ne!(later.json["id"], first.json["id"]);
    let ahead = jiff::Timestamp::now() + Duration::from_mins(1);
    assert_eq!(world.desk.prune(Old::Requests, ahead).await.unwrap(), 1);
    assert_eq!(world.desk.prune(Old::Requests, ahead).await.unwrap(), 0);
}

pub(crate) async fn a_change_that_fails_late_leaves_nothing(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let before = world.stored().await;
    // The last statement before the commit, after the event, is refused.
    world
        .run_each(
            "CREATE FUNCTION ticketflow.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
             CREATE TRIGGER no BEFORE UPDATE ON ticketflow.idempotency FOR EACH ROW EXECUTE FUNCTION ticketflow.no();",
            "CREATE TRIGGER no BEFORE UPDATE ON idempotency BEGIN SELECT raise(ABORT, 'no'); END;",
        )
        .await;
    let person = json!({ "name": "Zoe", "email": "zoe@example.org", "role": "agent" });
    let calls: [Call; 4] = [
        open(world, ANA, "No light", "k"),
        world.change(CARLA, &seen, "status", &json!({ "status": "waiting" })).with("idempotency-key", "k"),
        world.post(ANA, &format!("{}/comments", seen.path()), &json!({ "body": "hello" })).with("idempotency-key", "k"),
        world.post(EVA, "/api/people", &person).with("idempotency-key", "k"),
    ];
    for call in calls {
        let reply = call.send().await;
        assert_eq!((reply.status.as_u16(), &reply.json["errors"]), (500, &Value::Array(vec![])));
        assert!(!reply.text.contains("trigger") && !reply.text.contains("raise"), "{}", reply.text);
    }
    assert_eq!(world.stored().await, before);
    // Nor is the desk any worse for it.
    assert_eq!(world.opened(ANA, "No sound").await.status, 201);
}
