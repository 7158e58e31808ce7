//! Figures of events that were dead-lettered and redriven, and of many days.

use std::time::Duration;

use relevo::core::dead_letters::{DeadLetterFilter, MarkAction, MarkRequest};
use relevo::core::inbox::ConsumerOperator;
use relevo::stores::{postgres, sqlite};
use serde_json::{Value, json};
use ticketflow::config::{Broker, Config, Database};
use ticketflow::{flow, run};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::world::{ANA, BEN, CARLA, EVA, World};

const DEADLINE: Duration = Duration::from_mins(1);

/// Makes the event of this place in the log unreadable.
async fn spoil(world: &World, place: usize) {
    let spoil = |bytes: &str| {
        format!(
            "UPDATE relevo.message SET payload = {bytes} \
             WHERE seq = (SELECT seq FROM relevo.message ORDER BY seq LIMIT 1 OFFSET {place})"
        )
    };
    world.run_each(&spoil("'no JSON'::bytea"), &spoil("CAST('no JSON' AS BLOB)")).await;
}

/// What operators have of this database.
async fn operator(world: &World) -> Box<dyn ConsumerOperator> {
    match &world.database {
        Database::Postgres(url) => {
            let config = postgres::OperatorConfig::new(url.expose().parse().unwrap());
            Box::new(postgres::Operator::open(config).await.unwrap())
        }
        Database::Sqlite(file) => Box::new(sqlite::Operator::open(sqlite::OperatorConfig::new(file)).await.unwrap()),
    }
}

async fn figures(world: &World) -> Value {
    world.get(EVA, "/api/figures").send().await.json
}

/// Of all days and agents.
fn sums(figures: &Value) -> [i64; 3] {
    let days = figures["days"].as_array().unwrap();
    ["opened", "first_responses", "resolved"].map(|name| days.iter().map(|day| day[name].as_i64().unwrap()).sum())
}

/// Looks until the sums, and the dead letters of the figures, are these, and the last event of each ticket has said how it stands.
async fn until(world: &World, expected: [i64; 3], dead: i64) -> Value {
    let deadline = Instant::now() + DEADLINE;
    let count = "SELECT count(*) FROM relevo.inbox_dead_letter WHERE consumer = 'metrics' AND state = 'dead'";
    loop {
        let (figures, seen) = (figures(world).await, world.number(count).await);
        let stand = figures["by_status"] == json!({ "closed": 1, "open": 1 });
        if stand && (sums(&figures), seen) == (expected, dead) {
            return figures;
        }
        assert!(Instant::now() < deadline, "{seen} are dead: {figures}");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn a_redriven_event_adds_what_is_missing(world: &World) {
    let first = world.opened(ANA, "No light").await;
    let resolved = world.change(CARLA, &first, "status", &json!({ "status": "resolved" })).send().await;
    let closed = world.change(ANA, &resolved, "status", &json!({ "status": "closed" })).send().await;
    assert_eq!(closed.status, 200, "{}", closed.text);
    let second = world.opened(BEN, "No sound").await;
    world.post(BEN, &format!("{}/comments", second.path()), &json!({ "body": "hello" })).send().await;
    world.run("CREATE TABLE whole AS SELECT id, payload FROM relevo.message").await;
    for place in [1, 3] {
        spoil(world, place).await;
    }

    let mut config = Config::embedded(&world.folder);
    config.listen.set_port(0);
    config.database = world.database.clone();
    config.broker = Broker::Embedded(world.folder.join("broker.db"));
    let stop = CancellationToken::new();
    let watch = async {
        // That the second ticket was opened is known from its later event.
        until(world, [2, 0, 0], 2).await;
        world
            .run("UPDATE relevo.inbox_dead_letter AS d SET payload = (SELECT w.payload FROM whole AS w WHERE w.id = d.id)")
            .await;
        let mark = MarkRequest {
            filter: DeadLetterFilter::of_consumer(flow::METRICS),
            action: MarkAction::Redrive,
            dry_run: false,
            rate_per_second: None,
            by: "a test".to_owned(),
            reason: "it can be read now".to_owned(),
        };
        assert_eq!(operator(world).await.mark_dead_letters(&mark).await.unwrap().count, 2);
        let after = until(world, [2, 1, 1], 0).await;
        let carla = after["days"].as_array().unwrap().iter().find(|day| day["agent"]["name"] == "Carla").unwrap();
        assert_eq!((&carla["first_responses"], &carla["resolved"]), (&json!(1), &json!(1)));
        assert_eq!(world.number("SELECT max(version) FROM ticketflow.figure_ticket").await, 3);
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(run::run(config, true, |_| {}, stop.clone()), watch);
    ran.unwrap();
}

pub(crate) async fn days_are_returned_whole_and_in_one_order(world: &World) {
    let day = if world.is_sqlite() { "date('2024-01-01', '+' || n || ' days')" } else { "DATE '2024-01-01' + n" };
    let id = |number: u32| format!("'00000000-0000-7000-8000-00000000000{number}'");
    let quoted = |name: &str| format!("'{name}'");
    let null = || "NULL".to_owned();
    for (id, name) in [(null(), null()), (id(1), quoted("ben")), (id(2), quoted("Ágata")), (id(3), quoted("Zoe"))] {
        world
            .run(&format!(
                "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 400) \
                 INSERT INTO ticketflow.figure_day (day, agent_id, agent_name, opened) SELECT {day}, {id}, {name}, 1 FROM n"
            ))
            .await;
    }
    let figures = figures(world).await;
    let days = figures["days"].as_array().unwrap();
    assert_eq!(days.len(), 4 * 366, "all lines of as many days");
    let of_newest = days[..4].iter().map(|line| (line["day"].as_str(), line["agent"]["name"].as_str()));
    let expected = [None, Some("Zoe"), Some("ben"), Some("Ágata")].map(|agent| (Some("2025-02-04"), agent));
    assert_eq!(of_newest.collect::<Vec<_>>(), expected);
    assert_eq!(days[4 * 366 - 1]["day"], "2024-02-05");
}
