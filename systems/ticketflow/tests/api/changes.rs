//! Changes of tickets, and their events.

use serde_json::{Value, json};
use ticketflow::domain::Event;

use crate::world::{ANA, BEN, CARLA, DAN, Reply, World};

pub(crate) async fn a_ticket_is_opened_and_read_and_its_event_is_emitted(world: &World) {
    let body = json!({ "title": "No light", "description": "None\nat all", "priority": "high" });
    let opened = world.post(ANA, "/api/tickets", &body).with("x-correlation-id", "call-7").send().await;
    assert_eq!(opened.status, 201, "{}", opened.text);
    assert_eq!((opened.header("etag"), opened.header("x-correlation-id")), ("\"1\"", "call-7"));
    assert_eq!(opened.header("location"), opened.path());
    let ticket = &opened.json;
    assert_eq!((&ticket["number"], &ticket["status"], &ticket["version"]), (&json!(1), &json!("open"), &json!(1)));
    assert_eq!((&ticket["allowed"], &ticket["assignee"]), (&json!([]), &Value::Null));
    assert_eq!(ticket["requester"]["name"], "Ana");

    let read = world.get(ANA, &opened.path()).send().await;
    assert_eq!(read.json, opened.json);
    let again = world.get(ANA, &opened.path()).with("if-none-match", "\"1\"").send().await;
    assert_eq!((again.status.as_u16(), &*again.text, again.header("etag")), (304, "", "\"1\""));
    let seen = world.get(CARLA, &opened.path()).send().await;
    assert_eq!(seen.json["allowed"], json!(["in_progress", "waiting", "resolved", "closed"]));
    // The same version says something else to her than to Ana, so no cache may give her Ana's.
    assert_eq!(seen.header("etag"), read.header("etag"));
    for reply in [&opened, &read, &again, &seen] {
        assert_eq!(reply.header("vary"), "Authorization");
    }

    let history = world.get(ANA, &format!("{}/history", opened.path())).send().await;
    let [line] = history.items() else { panic!("{}", history.text) };
    assert_eq!(
        (&line["kind"], &line["actor"]["name"], &line["correlation_id"]),
        (&json!("created"), &json!("Ana"), &json!("call-7"))
    );

    let [emitted] = &world.events().await[..] else { panic!("one event") };
    let event: Event = serde_json::from_value(emitted.clone()).unwrap();
    assert_eq!(event.what.name(), "ticket.created");
    assert_eq!((&*event.ticket.requester.email, event.ticket.number), ("ana@ticketflow.example", 1));
    assert_eq!(emitted["ticket"]["created_at"], ticket["created_at"]);
    let headers: Value =
        serde_json::from_str(&world.texts("SELECT headers::text FROM relevo.message").await[0]).unwrap();
    let id = event.event_id.to_string();
    assert_eq!(headers, json!({ "x-event-id": id, "x-correlation-id": "call-7", "correlation-id": "call-7" }));
    let named = "SELECT topic || ' ' || type || ' ' || key FROM relevo.message";
    assert_eq!(world.texts(named).await, [format!("ticket.created ticket.created {}", event.ticket.id)]);
}

pub(crate) async fn a_ticket_is_closed_step_by_step(world: &World) {
    let mut seen = world.opened(ANA, "No light").await;
    let dan = world.get(DAN, "/api/me").send().await.json["id"].clone();
    seen = changed(world, DAN, &seen, "assignee", &json!({ "assignee": dan })).await;
    assert_eq!((&seen.json["assignee"]["name"], &seen.json["first_response_at"]), (&json!("Dan"), &Value::Null));
    let comment = world.post(DAN, &format!("{}/comments", seen.path()), &json!({ "body": "Which lamp?" })).send().await;
    assert_eq!((comment.status.as_u16(), &comment.json["author"]["role"]), (201, &json!("agent")));
    seen = world.get(DAN, &seen.path()).send().await;
    assert_eq!(seen.json["first_response_at"], comment.json["created_at"]);
    for status in ["in_progress", "waiting", "resolved", "closed"] {
        seen = changed(world, DAN, &seen, "status", &json!({ "status": status })).await;
        assert_eq!(seen.json["status"], status);
    }
    assert_eq!(seen.json["allowed"], json!([]));
    assert_eq!((seen.header("etag"), &seen.json["version"]), ("\"7\"", &json!(7)));

    let history = world.get(ANA, &format!("{}/history", seen.path())).send().await;
    let kinds: Vec<_> = history.items().iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["created", "assigned", "comment", "status", "status", "status", "status"]);
    let last = &history.items()[6];
    assert_eq!((&last["from"], &last["to"]), (&json!("resolved"), &json!("closed")));
    assert_eq!((&history.items()[1]["to"], &history.items()[2]["comment"]), (&dan, &json!("Which lamp?")));
    let comments = world.get(ANA, &format!("{}/comments", seen.path())).send().await;
    assert_eq!(comments.items(), [comment.json]);
}

pub(crate) async fn a_requester_closes_or_reopens_a_resolved_ticket(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    // Another role may, but not the caller's. A transition that no role may make does not depend on roles.
    let refused = world.change(ANA, &seen, "status", &json!({ "status": "closed" })).send().await;
    assert_eq!((refused.status.as_u16(), &refused.json["type"]), (403, &json!("urn:ticketflow:problem:role")));
    assert!(refused.json["detail"].as_str().unwrap().contains("once it is resolved"), "{}", refused.text);
    let refused = world.change(ANA, &seen, "status", &json!({ "status": "open" })).refused().await;
    assert_eq!((refused.0, &*refused.1), (409, "transition"));
    let seen = changed(world, CARLA, &seen, "status", &json!({ "status": "resolved" })).await;
    let seen = changed(world, ANA, &seen, "status", &json!({ "status": "in_progress" })).await;
    let seen = changed(world, CARLA, &seen, "status", &json!({ "status": "resolved" })).await;
    let seen = changed(world, ANA, &seen, "status", &json!({ "status": "closed" })).await;
    assert_eq!(seen.json["version"], 5);
}

pub(crate) async fn a_closed_ticket_is_neither_assigned_nor_commented(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let seen = changed(world, CARLA, &seen, "status", &json!({ "status": "closed" })).await;
    let before = world.stored().await;
    let carla = world.get(CARLA, "/api/me").send().await.json["id"].clone();
    for assignee in [carla, Value::Null] {
        let refused = world.change(CARLA, &seen, "assignee", &json!({ "assignee": assignee })).refused().await;
        assert_eq!(refused, (409, "closed".into(), vec![]));
    }
    for token in [ANA, CARLA] {
        let path = format!("{}/comments", seen.path());
        let reply = world.post(token, &path, &json!({ "body": "still dark" })).send().await;
        assert_eq!((reply.status.as_u16(), &reply.json["allowed"]), (409, &json!([])), "{}", reply.text);
        assert!(reply.json["detail"].as_str().unwrap().contains("hint: open a new ticket"), "{}", reply.text);
    }
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn an_assignee_is_an_agent_or_none(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let before = world.stored().await;
    let ben = world.get(BEN, "/api/me").send().await.json["id"].clone();
    for invalid in [ben, json!("00000000-0000-7000-8000-000000000000")] {
        let refused = world.change(CARLA, &seen, "assignee", &json!({ "assignee": invalid })).refused().await;
        assert_eq!(refused, (422, "invalid".into(), vec!["assignee unknown".into()]));
    }
    let refused = world.change(ANA, &seen, "assignee", &json!({ "assignee": null })).refused().await;
    assert_eq!((refused.0, &*refused.1), (403, "role"));
    // It has no assignee already: nothing changes and no event is emitted.
    let same = changed(world, CARLA, &seen, "assignee", &json!({ "assignee": null })).await;
    assert_eq!(same.json["version"], 1);
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn of_two_changes_at_once_one_is_stale(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let (in_progress, waiting) = (json!({ "status": "in_progress" }), json!({ "status": "waiting" }));
    let one = world.change(CARLA, &seen, "status", &in_progress).send();
    let other = world.change(DAN, &seen, "status", &waiting).send();
    let (one, other) = tokio::join!(one, other);
    let (won, lost) = if one.status == 200 { (one, other) } else { (other, one) };
    assert_eq!((won.status.as_u16(), lost.status.as_u16()), (200, 412), "{}", lost.text);
    assert_eq!(lost.header("etag"), won.header("etag"));
    let stored = world.get(CARLA, &seen.path()).send().await;
    assert_eq!((&stored.json["status"], &stored.json["version"]), (&won.json["status"], &json!(2)));
    assert_eq!(world.events().await.len(), 2);
}

pub(crate) async fn events_of_a_ticket_are_in_the_order_of_its_versions(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let path = format!("{}/comments", seen.path());
    let comment = |number: i32| {
        let token = if number % 2 == 0 { ANA } else { CARLA };
        let call = world.post(token, &path, &json!({ "body": format!("{number}") }));
        call.with("idempotency-key", &format!("comment-{number}"))
    };
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let call = comment(number).send();
        calls.spawn(async move { (number, call.await) });
    }
    for (number, reply) in calls.join_all().await {
        let reply = reply.or_again(|| comment(number)).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    let versions: Vec<_> =
        world.events().await.iter().map(|event| event["ticket"]["version"].as_i64().unwrap()).collect();
    assert_eq!(versions, (1..=21).collect::<Vec<_>>());
}

async fn changed(world: &World, token: &str, seen: &Reply, what: &str, body: &Value) -> Reply {
    let reply = world.change(token, seen, what, body).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply
}
