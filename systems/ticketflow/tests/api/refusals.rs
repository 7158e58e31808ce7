//! Rejected requests. The response names the reason, and nothing is stored.

use serde_json::{Value, json};

use crate::world::{ANA, BEN, CARLA, DAN, EVA, World};

fn refusal(status: u16, word: &str, fields: &[&str]) -> (u16, String, Vec<String>) {
    (status, word.to_owned(), fields.iter().map(|&field| field.to_owned()).collect())
}

pub(crate) async fn every_invalid_field_is_reported_and_nothing_is_stored(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let before = world.stored().await;
    let (ticket, status, comments) =
        ("/api/tickets".to_owned(), format!("{}/status", seen.path()), format!("{}/comments", seen.path()));
    let assignee = format!("{}/assignee", seen.path());
    let cases: [(&str, Value, &[&str]); 20] = [
        (&ticket, json!({}), &["title missing", "description missing"]),
        (&ticket, json!({ "title": "", "description": " \n" }), &["title empty", "description empty"]),
        (
            &ticket,
            json!({ "title": "x".repeat(201), "description": "ñ".repeat(10_001) }),
            &["title too_long", "description too_long"],
        ),
        (&ticket, json!({ "title": "a\r\nBcc: all@example.org", "description": "d" }), &["title control_character"]),
        (&ticket, json!({ "title": "t", "description": "a\u{0}b" }), &["description control_character"]),
        (
            &ticket,
            json!({ "title": 7, "description": null, "priority": "now" }),
            &["title malformed", "description malformed", "priority unknown"],
        ),
        (&ticket, json!({ "title": "t", "description": "d", "status": "closed" }), &["status unknown"]),
        (&status, json!({ "status": "done" }), &["status unknown"]),
        (&status, json!({ "status": null }), &["status malformed"]),
        (&status, json!({}), &["status missing"]),
        (&assignee, json!({ "assignee": "Dan" }), &["assignee malformed"]),
        (&assignee, json!({}), &["assignee missing"]),
        (&comments, json!({ "body": "" }), &["body empty"]),
        (&comments, json!({ "body": "x".repeat(10_001) }), &["body too_long"]),
        (&comments, json!({ "body": "\u{1b}[31m" }), &["body control_character"]),
        (&comments, json!({ "text": "hello" }), &["body missing", "text unknown"]),
        (
            "/api/people",
            json!({ "name": "Z\nX", "email": "z", "role": "boss", "language": "fr" }),
            &["name control_character", "email malformed", "role unknown", "language unknown"],
        ),
        (
            "/api/people",
            json!({ "name": "Zoe", "email": "a@b.c>\r\nBcc: d@e.f", "role": "agent" }),
            &["email control_character"],
        ),
        ("/api/people", json!({ "name": "Zoe", "email": "ANA@ticketflow.example", "role": "agent" }), &["email taken"]),
        ("/api/people", json!({}), &["name missing", "email missing", "role missing"]),
    ];
    for (path, body, fields) in cases {
        let call = world.post(EVA, path, &body).with("if-match", "\"1\"").with("idempotency-key", "k");
        assert_eq!(call.refused().await, refusal(422, "invalid", fields), "{path} {body}");
    }
    let queries: [(&str, &[&str]); 4] = [
        (
            "status=done&priority=now&limit=0&cursor=x",
            &["status unknown", "priority unknown", "cursor malformed", "limit malformed"],
        ),
        ("assignee=dan&requester=ana", &["requester malformed", "assignee malformed"]),
        ("q=%00", &["q control_character"]),
        ("sort=title&limit=101", &["limit malformed", "sort unknown"]),
    ];
    for (query, fields) in queries {
        let refused = world.get(EVA, &format!("/api/tickets?{query}")).refused().await;
        assert_eq!(refused, refusal(400, "invalid", fields), "{query}");
    }
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn bodies_that_cannot_be_read_are_rejected(world: &World) {
    let before = world.stored().await;
    let post = |body: &str| world.post(ANA, "/api/tickets", &Value::Null).body(body.to_owned());
    let broken = post("{\"title\": \"t\",\n  \"description\" \"d\"}").send().await;
    assert_eq!(broken.json["detail"], "the body is not JSON: expected `:` at line 2 column 17");
    assert_eq!(post("").refused().await, refusal(400, "json", &[]));
    assert_eq!(post("[]").refused().await, refusal(400, "json", &[]));
    assert_eq!(post("\u{feff}{}").refused().await, refusal(400, "json", &[]));
    assert_eq!(post("{}").with("content-type", "text/plain").refused().await, refusal(415, "kind", &[]));
    assert_eq!(post("{}").without("content-type").refused().await, refusal(415, "kind", &[]));
    let large = json!({ "title": "t", "description": "x".repeat(65536) }).to_string();
    assert_eq!(post(&large).refused().await, refusal(413, "body", &[]));
    let deep = "[".repeat(20_000);
    assert_eq!(post(&deep).refused().await, refusal(400, "json", &[]));
    let key = "k".repeat(256);
    assert_eq!(post("{}").with("idempotency-key", &key).refused().await, refusal(400, "key", &[]));
    for id in ["", "a b", "ñ", "a\"b", &"x".repeat(129)] {
        let refused = post("{}").with("x-correlation-id", id).refused().await;
        assert_eq!(refused, refusal(400, "correlation-id", &[]), "{id}");
    }
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn a_stale_or_missing_version_is_rejected(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let body = json!({ "status": "waiting" });
    let before = world.stored().await;
    for path in ["status", "assignee"] {
        let missing = world.change(CARLA, &seen, path, &body).without("if-match").refused().await;
        assert_eq!(missing, refusal(428, "no-version", &[]));
    }
    for (etag, expected) in [
        ("\"0\"", refusal(412, "stale", &[])),
        ("\"2\", \"3\"", refusal(412, "stale", &[])),
        ("W/\"1\"", refusal(412, "stale", &[])),
        ("\"x\"", refusal(412, "stale", &[])),
        ("1", refusal(400, "version", &[])),
    ] {
        let refused = world.change(CARLA, &seen, "status", &body).with("if-match", etag).refused().await;
        assert_eq!(refused, expected, "{etag}");
    }
    assert_eq!(world.stored().await, before);
    let any = world.change(CARLA, &seen, "status", &body).with("if-match", "\"7\", \"1\"").send().await;
    assert_eq!(any.status, 200, "{}", any.text);
    let star =
        world.change(CARLA, &seen, "status", &json!({ "status": "resolved" })).with("if-match", "*").send().await;
    assert_eq!(star.status, 200, "{}", star.text);
}

pub(crate) async fn forbidden_transitions_name_the_allowed_ones(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let closed = world.change(CARLA, &seen, "status", &json!({ "status": "closed" })).send().await;
    let before = world.stored().await;
    let refused = world.change(CARLA, &closed, "status", &json!({ "status": "open" })).send().await;
    assert_eq!((refused.status.as_u16(), &refused.json["allowed"]), (409, &json!([])));
    let other = world.opened(ANA, "No sound").await;
    let waiting = world.change(CARLA, &other, "status", &json!({ "status": "waiting" })).send().await;
    let refused = world.change(CARLA, &waiting, "status", &json!({ "status": "closed" })).send().await;
    assert_eq!((refused.status.as_u16(), &refused.json["allowed"]), (409, &json!(["in_progress", "resolved"])));
    assert_eq!(
        refused.json["detail"],
        "a ticket that is waiting cannot become closed; you may set: in_progress, resolved"
    );
    let added: Vec<_> = world.stored().await.iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(added, [0, 1, 0, 2, 0, 2, 2]);
}

pub(crate) async fn a_request_without_a_token_is_rejected(world: &World) {
    let before = world.stored().await;
    for token in ["Bearer wrong", "Bearer", "Bearer  ", "Basic YW5hOmRlbW8tYW5h", "demo-ana", "Bearer demo-ana\u{e9}"] {
        let call = world.call("POST", "/api/tickets").with("content-type", "application/json").body("{}");
        let reply = call.with("authorization", token).send().await;
        assert_eq!(
            (reply.status.as_u16(), reply.header("www-authenticate")),
            (401, "Bearer realm=\"ticketflow\""),
            "{token}"
        );
    }
    assert_eq!(world.call("GET", "/api/me").refused().await, refusal(401, "token", &[]));
    assert_eq!(world.stored().await, before);
    for open in ["/health", "/metrics", "/openapi.json", "/"] {
        assert_eq!(world.call("GET", open).send().await.status, 200, "{open}");
    }
}

pub(crate) async fn unknown_paths_methods_and_ids_are_problems(world: &World) {
    for path in ["/api", "/api/ticket", "/nothing", "/api/tickets/1/2/3"] {
        assert_eq!(world.get(EVA, path).refused().await, refusal(404, "no-route", &[]), "{path}");
    }
    let reply = world.call("DELETE", "/api/tickets").send().await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, "GET,HEAD,POST"));
    assert_eq!(world.call("PUT", "/health").refused().await, refusal(405, "method", &[]));
    for id in ["7", "no-id", "00000000-0000-7000-8000-000000000000"] {
        assert_eq!(
            world.get(EVA, &format!("/api/tickets/{id}")).refused().await,
            refusal(404, "no-ticket", &[]),
            "{id}"
        );
    }
}

pub(crate) async fn a_requester_sees_nothing_of_others(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let before = world.stored().await;
    for path in ["", "/comments", "/history"] {
        let refused = world.get(BEN, &format!("{}{path}", seen.path())).refused().await;
        assert_eq!(refused, refusal(404, "no-ticket", &[]), "{path}");
    }
    let comment = world.post(BEN, &format!("{}/comments", seen.path()), &json!({ "body": "hello" })).refused().await;
    let status = world.change(BEN, &seen, "status", &json!({ "status": "closed" })).refused().await;
    assert_eq!((comment, status), (refusal(404, "no-ticket", &[]), refusal(404, "no-ticket", &[])));
    assert!(world.get(BEN, "/api/tickets").send().await.items().is_empty());
    let ana = seen.json["requester"]["id"].as_str().unwrap();
    assert!(world.get(BEN, &format!("/api/tickets?requester={ana}")).send().await.items().is_empty());
    for path in ["/api/people", "/api/figures"] {
        assert_eq!(world.get(BEN, path).refused().await, refusal(403, "role", &[]), "{path}");
    }
    for token in [ANA, DAN] {
        let body = json!({ "name": "Zoe", "email": "zoe@example.org", "role": "admin" });
        assert_eq!(world.post(token, "/api/people", &body).refused().await, refusal(403, "role", &[]));
    }
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn markup_is_text(world: &World) {
    let title = "<script>alert(1)</script> & \"quotes\"";
    let seen = world.opened(ANA, title).await;
    let body = "<img src=x onerror=alert(1)>\n'); DROP TABLE ticket; --";
    let comment = world.post(CARLA, &format!("{}/comments", seen.path()), &json!({ "body": body })).send().await;
    assert_eq!((&seen.json["title"], &comment.json["body"]), (&json!(title), &json!(body)));
    assert_eq!(world.events().await[1]["ticket"]["title"], title);
    let found = world.get(CARLA, "/api/tickets?q=%3Cscript%3E").send().await;
    assert_eq!(found.items().len(), 1);
}
