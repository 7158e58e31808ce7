//! Lists, reports, and what describes the API.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ticketflow::{config, flow};
use tokio_util::sync::CancellationToken;

use crate::world::{ANA, BEN, CARLA, EVA, World};

pub(crate) async fn a_cursor_returns_all_while_others_open_more(world: &World) {
    for number in 0..23 {
        world.opened(ANA, &format!("Ticket {number}")).await;
    }
    let mut numbers = Vec::new();
    let mut path = "/api/tickets?limit=5".to_owned();
    loop {
        let page = world.get(CARLA, &path).send().await;
        numbers.extend(page.items().iter().map(|ticket| ticket["number"].as_i64().unwrap()));
        world.opened(BEN, "Meanwhile").await;
        let Some(cursor) = page.json["next"].as_str() else { break };
        path = format!("/api/tickets?limit=5&cursor={cursor}");
    }
    assert_eq!(numbers, (1..=23).rev().collect::<Vec<_>>());
    // A page that is exactly full is the last if nothing follows.
    let full = world.get(ANA, "/api/tickets?limit=23").send().await;
    assert_eq!((full.items().len(), &full.json["next"]), (23, &Value::Null));
}

pub(crate) async fn filters_hold_together(world: &World) {
    let first = world.opened(ANA, "Printer 100% jammed").await;
    world.opened(BEN, "Printer on fire, MAñANA too").await;
    let carla = world.get(CARLA, "/api/me").send().await.json["id"].as_str().unwrap().to_owned();
    let given = world.change(CARLA, &first, "assignee", &json!({ "assignee": carla })).send().await;
    world.change(CARLA, &given, "status", &json!({ "status": "waiting" })).send().await;
    let ana = first.json["requester"]["id"].as_str().unwrap();
    let cases = [
        ("", 2),
        ("?q=printer", 2),
        ("?q=100%25", 1),
        ("?q=_", 0),
        ("?q=Ma%C3%B1ana", 1),
        ("?q=NOT+WORK&limit=1", 1),
        ("?status=waiting", 1),
        ("?status=closed", 0),
        ("?assignee=me", 1),
        ("?assignee=none", 1),
        ("?priority=urgent", 0),
    ];
    for (query, count) in cases {
        assert_eq!(world.get(CARLA, &format!("/api/tickets{query}")).send().await.items().len(), count, "{query}");
    }
    for (query, count) in
        [(format!("?requester={ana}&status=waiting"), 1), (format!("?assignee={carla}&status=open"), 0)]
    {
        assert_eq!(world.get(CARLA, &format!("/api/tickets{query}")).send().await.items().len(), count, "{query}");
    }
}

pub(crate) async fn the_description_names_every_route(world: &World) {
    let description = world.call("GET", "/openapi.json").send().await;
    let mut described = BTreeSet::new();
    for (path, methods) in description.json["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            described.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let expected = [
        "GET /api/emails",
        "GET /api/figures",
        "GET /api/me",
        "GET /api/people",
        "GET /api/tickets",
        "GET /api/tickets/{id}",
        "GET /api/tickets/{id}/comments",
        "GET /api/tickets/{id}/history",
        "POST /api/people",
        "POST /api/people/{id}/disable",
        "POST /api/people/{id}/token",
        "POST /api/tickets",
        "POST /api/tickets/{id}/assignee",
        "POST /api/tickets/{id}/comments",
        "POST /api/tickets/{id}/status",
    ];
    let refusal = &description.json["paths"]["/api/tickets"]["post"]["responses"]["default"];
    let problem = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
    assert_eq!(refusal["content"]["application/problem+json"], problem);
    assert_eq!(described.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let id = "00000000-0000-7000-8000-000000000000";
    for route in &described {
        let (method, path) = route.split_once(' ').unwrap();
        let reply = world.call(method, &path.replace("{id}", id)).send().await;
        assert_eq!(reply.status, 401, "{route}");
        // Whatever the router has at this path is described.
        let allow = world.call("PATCH", &path.replace("{id}", id)).send().await;
        for method in allow.header("allow").split(',').filter(|method| *method != "HEAD") {
            assert!(described.contains(&format!("{method} {path}")), "{method} {path} is not described");
        }
    }
    let schemas = description.json["components"]["schemas"].as_object().unwrap();
    assert_eq!(schemas["Status"]["enum"], json!(["open", "in_progress", "waiting", "resolved", "closed"]));
    assert_eq!(description.json["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert!(!description.text.contains("TicketBody"), "internal names are not part of the API");
}

pub(crate) async fn the_owners_views_answer(world: &World) {
    world.opened(ANA, "No light").await;
    // PostgreSQL keeps capitals only in quotes.
    let named = |name: &str| if world.is_sqlite() { name.to_owned() } else { format!("\"{name}\"") };
    let view = |name: &str| format!("ticketflow.{}", named(name));
    let event = &world.events().await[0];
    let id = format!("SELECT CAST({} AS text) FROM {}", named("Id"), view("Outbox"));
    assert_eq!(world.texts(&id).await, [event["event_id"].as_str().unwrap()]);
    let payload =
        format!("SELECT {} FROM {} WHERE {} = 'ticket.created'", named("PayloadJson"), view("Outbox"), named("Type"));
    assert_eq!(serde_json::from_str::<Value>(&world.texts(&payload).await[0]).unwrap(), *event);
    let tickets = format!("SELECT count(*) FROM {} WHERE {} = 'open'", view("Tickets"), named("Status"));
    assert_eq!(world.number(&tickets).await, 1);
    let columns = ["EventId", "Consumer", "ProcessedAt"].map(named).join(", ");
    let processed = format!("SELECT count(*) FROM (SELECT {columns} FROM {}) AS p", view("ProcessedEvents"));
    assert_eq!(world.number(&processed).await, 0);
}

pub(crate) async fn dispatched_is_what_the_broker_has(world: &World) {
    world.opened(ANA, "No light").await;
    let (view, at, made) = if world.is_sqlite() {
        ("Outbox", "DispatchedAt", "CreatedAt")
    } else {
        ("ticketflow.\"Outbox\"", "\"DispatchedAt\"", "\"CreatedAt\"")
    };
    let dispatched = format!("SELECT count(*) FROM {view} WHERE {at} >= {made}");
    let waiting = format!("SELECT count(*) FROM {view} WHERE {at} IS NULL");
    assert_eq!((world.number(&dispatched).await, world.number(&waiting).await), (0, 1));
    let config = config::Outbox::default();
    let outbox = flow::open_outbox(&world.database, &config).await.unwrap();
    assert_eq!((world.number(&dispatched).await, world.number(&waiting).await), (0, 1));
    let broker = flow::Broker::open(&config::Broker::Embedded(world.folder.join("broker.db"))).await.unwrap();
    let relay = flow::relay(&outbox, broker.publisher(), &config).unwrap();
    let stop = CancellationToken::new();
    let end = Instant::now() + Duration::from_mins(1);
    let watch = async {
        while world.number(&dispatched).await == 0 {
            assert!(Instant::now() < end, "nothing is dispatched");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut running = std::pin::pin!(relay.run(stop.clone()));
    tokio::select! {
        ended = &mut running => panic!("the relay ended by itself: {ended:?}"),
        () = watch => stop.cancel(),
    }
    running.await.unwrap();
    world.opened(ANA, "No sound").await;
    assert_eq!((world.number(&dispatched).await, world.number(&waiting).await), (1, 1));
}

pub(crate) async fn the_newest_lines_of_a_long_history_are_returned(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let (id, ana) = (seen.json["id"].as_str().unwrap(), seen.json["requester"]["id"].as_str().unwrap());
    let numbers = "WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 1003)";
    let (at, uuid) = if world.is_sqlite() {
        ("1000", "printf('00000000-0000-7000-8000-%012d', n)")
    } else {
        ("to_timestamp(1)", "('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid")
    };
    world
        .run(&format!(
            "{numbers} INSERT INTO ticketflow.comment (id, ticket_id, author_id, body, created_at) \
             SELECT {uuid}, '{id}', '{ana}', 'comment ' || n, {at} FROM n; \
             {numbers} INSERT INTO ticketflow.history (ticket_id, version, at, actor_id, kind, comment_id, correlation_id) \
             SELECT '{id}', n, {at}, '{ana}', 'comment', {uuid}, 'c' FROM n"
        ))
        .await;
    for (what, field) in [("comments", "body"), ("history", "comment")] {
        let reply = world.get(ANA, &format!("{}/{what}", seen.path())).send().await;
        let [first, .., last] = reply.items() else { panic!("{}", reply.text) };
        assert_eq!((&first[field], &last[field]), (&json!("comment 4"), &json!("comment 1003")), "{what}");
        assert_eq!(reply.items().len(), 1000, "{what}");
    }
}

pub(crate) async fn published_events_are_retained_for_thirty_days(world: &World) {
    let config = config::Outbox::default();
    flow::open_outbox(&world.database, &config).await.unwrap();
    let days = if world.is_sqlite() {
        "SELECT retention_ms / 86400000 FROM relevo_settings"
    } else {
        "SELECT extract(epoch FROM retention)::bigint / 86400 FROM relevo.settings"
    };
    assert_eq!(world.number(days).await, 30);
    let retention = Duration::from_hours(24);
    flow::open_outbox(&world.database, &config::Outbox { retention, ..config }).await.unwrap();
    assert_eq!(world.number(days).await, 1);
}

pub(crate) async fn emails_and_figures_are_returned(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    let id = seen.json["id"].as_str().unwrap();
    let (ana, event) = (seen.json["requester"]["id"].as_str().unwrap(), world.events().await[0]["event_id"].clone());
    let carla = world.get(CARLA, "/api/me").send().await.json["id"].as_str().unwrap().to_owned();
    let (at, day) = if world.is_sqlite() { ("1000", "'2026-11-16'") } else { ("to_timestamp(1)", "date '2026-11-16'") };
    world
        .run(&format!(
            "INSERT INTO ticketflow.email (event_id, ticket_id, person_id, recipient, subject, language, message_id, \
             correlation_id, body_text, body_html, sent_at) VALUES ('{}', '{id}', '{ana}', 'ana@ticketflow.example', \
             'Hola', 'es', 'm@t', 'c', 'text', '<p>html</p>', {at}); \
             INSERT INTO ticketflow.figure_ticket (ticket_id, number, status, requester_id, opened_at, version) \
             VALUES ('{id}', 1, 'open', '{ana}', {at}, 1); \
             INSERT INTO ticketflow.figure_ticket (ticket_id, number, status, requester_id, agent_id, agent_name, \
             opened_at, version) VALUES ('{ana}', 2, 'open', '{ana}', '{carla}', 'Carla', {at}, 2), \
             ('{carla}', 3, 'waiting', '{ana}', '{carla}', 'Carla', {at}, 3); \
             INSERT INTO ticketflow.figure_day (day, agent_id, agent_name, opened, resolved, first_responses, \
             first_response_ms, resolution_ms) VALUES ({day}, '{carla}', 'Carla', 3, 0, 2, 5000, 0)",
            event.as_str().unwrap()
        ))
        .await;
    let mine = world.get(ANA, &format!("/api/emails?ticket={id}")).send().await;
    let [email] = mine.items() else { panic!("{}", mine.text) };
    assert_eq!((&email["event_id"], &email["number"], &email["html"]), (&event, &json!(1), &json!("<p>html</p>")));
    assert_eq!(email["sent_at"], "1970-01-01T00:00:01Z");
    assert!(world.get(BEN, "/api/emails").send().await.items().is_empty());
    assert_eq!(world.get(CARLA, "/api/emails?limit=1").send().await.items().len(), 1);
    let figures = world.get(EVA, "/api/figures").send().await;
    assert_eq!(
        figures.json,
        json!({
            "by_status": { "open": 2, "waiting": 1 },
            "by_agent": [
                { "agent": null, "by_status": { "open": 1 } },
                { "agent": { "id": carla, "name": "Carla" }, "by_status": { "open": 1, "waiting": 1 } },
            ],
            "days": [{ "day": "2026-11-16", "agent": { "id": carla, "name": "Carla" }, "opened": 3, "resolved": 0,
                "first_responses": 2, "first_response_seconds_avg": 2.5, "resolution_seconds_avg": null }],
            "pending": 3,
            "dead": { "notifications": 1 },
        })
    );
}

pub(crate) async fn every_response_has_the_security_headers(world: &World) {
    let seen = world.opened(ANA, "No light").await;
    for reply in [seen, world.call("GET", "/nothing").send().await, world.call("GET", "/health").send().await] {
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("content-security-policy"), "default-src 'none'; frame-ancestors 'none'");
        assert_eq!(reply.header("cache-control"), "no-store");
        assert!(!reply.header("x-correlation-id").is_empty());
    }
    let page = world.call("GET", "/").send().await;
    assert!(page.header("content-security-policy").contains("script-src 'self'"));
}
