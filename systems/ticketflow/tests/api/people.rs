//! People, and databases that are not ready for them.

use std::process::Command;

use serde_json::json;
use ticketflow::config::Database;
use ticketflow::desk::{self, DeskError, Kind, Token};
use ticketflow::sample;

use crate::world::{ANA, CARLA, DAN, EVA, World};

async fn id(world: &World, token: &str) -> String {
    world.get(token, "/api/me").send().await.json["id"].as_str().unwrap().to_owned()
}

/// Who is listed under this query.
async fn names(world: &World, query: &str) -> Vec<String> {
    let people = world.get(EVA, &format!("/api/people{query}")).send().await;
    people.items().iter().map(|person| person["name"].as_str().unwrap().to_owned()).collect()
}

pub(crate) async fn an_admin_adds_people_whose_token_is_shown_once(world: &World) {
    let body = json!({ "name": "Zoe", "email": "zoe@example.org", "role": "agent", "language": "en" });
    let add = || world.post(EVA, "/api/people", &body).with("idempotency-key", "k").send();
    let added = add().await;
    assert_eq!(added.status, 201, "{}", added.text);
    let token = added.json["token"].as_str().unwrap().to_owned();
    let me = world.get(&token, "/api/me").send().await;
    assert_eq!(
        (&me.json["name"], &me.json["role"], &me.json["language"]),
        (&json!("Zoe"), &json!("agent"), &json!("en"))
    );
    assert!(me.json.get("token").is_none());
    let again = add().await;
    assert_eq!((again.status.as_u16(), again.header("idempotent-replayed")), (201, "true"));
    assert!(again.json.get("token").is_none());
    assert_eq!(again.json["id"], added.json["id"]);
    // The token is kept nowhere, not even for the repeat.
    let kept = world.texts("SELECT body FROM ticketflow.idempotency").await;
    assert!(kept.iter().all(|body| !body.contains(&token)));
    assert_eq!(names(world, "?role=agent").await, ["Carla", "Dan", "Zoe"]);
    assert_eq!(world.get(CARLA, "/api/people").send().await.items().len(), 6);
}

pub(crate) async fn a_new_token_replaces_the_old_one(world: &World) {
    let carla = id(world, CARLA).await;
    let path = format!("/api/people/{carla}/token");
    let give = || world.post(EVA, &path, &json!({})).with("idempotency-key", "k").send();
    let given = give().await;
    assert_eq!((given.status.as_u16(), &given.json["name"]), (200, &json!("Carla")), "{}", given.text);
    let token = given.json["token"].as_str().unwrap().to_owned();
    let ended = world.get(CARLA, "/api/me").refused().await;
    assert_eq!((ended.0, &*ended.1), (401, "token"));
    assert_eq!(id(world, &token).await, carla);
    // A repeat gives no third one, and does not tell the second.
    let again = give().await;
    assert_eq!((again.status.as_u16(), again.header("idempotent-replayed")), (200, "true"));
    assert!(again.json.get("token").is_none());
    assert_eq!(id(world, &token).await, carla);
    let kept = world.texts("SELECT body FROM ticketflow.idempotency").await;
    assert!(kept.iter().all(|body| !body.contains(&token)));
}

pub(crate) async fn a_new_token_enables_a_disabled_person_again(world: &World) {
    let dan = id(world, DAN).await;
    let (has, other) = (world.opened(ANA, "No light").await, world.opened(ANA, "No sound").await);
    let give = |seen| world.change(CARLA, seen, "assignee", &json!({ "assignee": dan }));
    assert_eq!(give(&has).send().await.status, 200);
    let path = |what: &str| format!("/api/people/{dan}/{what}");
    let disabled = world.post(EVA, &path("disable"), &json!({})).send().await;
    assert_eq!((disabled.status.as_u16(), &disabled.json["name"]), (200, &json!("Dan")), "{}", disabled.text);
    assert_eq!(world.get(DAN, "/api/me").refused().await.0, 401);
    // He keeps what he has, and is given no more.
    assert_eq!(world.get(CARLA, &has.path()).send().await.json["assignee"]["name"], "Dan");
    assert_eq!(give(&other).refused().await, (422, "invalid".into(), vec!["assignee unknown".into()]));
    assert_eq!(names(world, "?role=agent").await, ["Carla"]);
    assert_eq!(names(world, "?disabled=true&role=agent").await, ["Dan"]);
    let let_in = world.post(EVA, &path("token"), &json!({})).send().await;
    assert_eq!(id(world, let_in.json["token"].as_str().unwrap()).await, dan);
    assert_eq!(world.get(DAN, "/api/me").refused().await.0, 401, "the token of before has ended");
    assert_eq!(names(world, "?disabled=true").await, Vec::<String>::new());
    assert_eq!(give(&other).send().await.status, 200);
}

pub(crate) async fn only_admins_manage_people(world: &World) {
    let carla = id(world, CARLA).await;
    let before = world.stored().await;
    for what in ["token", "disable"] {
        let path = format!("/api/people/{carla}/{what}");
        for token in [ANA, CARLA] {
            let refused = world.post(token, &path, &json!({})).refused().await;
            assert_eq!((refused.0, &*refused.1), (403, "role"), "{what} {token}");
        }
        for unknown in ["no-id", "00000000-0000-7000-8000-000000000000"] {
            let refused = world.post(EVA, &format!("/api/people/{unknown}/{what}"), &json!({})).refused().await;
            assert_eq!((refused.0, &*refused.1), (404, "no-person"), "{what} {unknown}");
        }
        let refused = world.post(EVA, &path, &json!({ "token": "mine" })).with("idempotency-key", "k").refused().await;
        assert_eq!(refused, (422, "invalid".into(), vec!["token unknown".into()]), "{what}");
    }
    let refused = world.get(EVA, "/api/people?disabled=maybe").refused().await;
    assert_eq!(refused, (400, "invalid".into(), vec!["disabled unknown".into()]));
    assert_eq!(id(world, CARLA).await, carla);
    assert_eq!(world.stored().await, before);
}

pub(crate) async fn tokens_are_given_and_people_disabled_from_the_command_line(world: &World) {
    let real = world.another().await;
    let (config, url) = match &real.database {
        Database::Sqlite(_) => ("", ""),
        Database::Postgres(url) => ("[database]\nurl_env = \"TICKETFLOW_DATABASE_URL\"\n", url.expose()),
    };
    let file = real.folder.join("ticketflow.toml");
    std::fs::write(&file, config).unwrap();
    let ticketflow = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ticketflow"));
        command.arg("person").args(words).arg("--config").arg(&file).arg("--data").arg(&real.folder);
        let output = command.env("TICKETFLOW_DATABASE_URL", url).output().unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap().trim().to_owned());
        (output.status.success(), printed)
    };
    let token = |words: &[&str]| match ticketflow(words) {
        (true, [token, _]) => Token::new(token),
        (false, [_, error]) => panic!("{error}"),
    };
    let first = token(&["add", "Zoe", "zoe@example.org", "agent"]);
    let desk = desk::open(&real.database).await.unwrap();
    let name = async |token: &Token| desk.person_of(token).await.unwrap().map(|person| person.name);
    assert_eq!(name(&first).await.as_deref(), Some("Zoe"));
    let second = token(&["token", "ZOE@example.org"]);
    assert_eq!((name(&first).await, name(&second).await.as_deref()), (None, Some("Zoe")));
    let (_, [printed, _]) = ticketflow(&["disable", "zoe@example.org"]);
    assert_eq!(printed, "Zoe is disabled; hint: `ticketflow person token zoe@example.org` lets them in again");
    assert_eq!(name(&second).await, None);
    let third = token(&["token", "zoe@example.org"]);
    assert_eq!((name(&second).await, name(&third).await.as_deref()), (None, Some("Zoe")));
    for what in ["token", "disable"] {
        let (is_done, [_, error]) = ticketflow(&[what, "ana@example.org"]);
        assert_eq!((is_done, &*error), (false, "error: `ana@example.org`: there is no such person"));
    }
}

pub(crate) async fn the_sample_is_there_once(world: &World) {
    let before = world.stored().await;
    let faces = sample::people(&*world.desk).await.unwrap();
    assert_eq!(world.stored().await, before);
    for face in faces {
        let me = world.get(&face.token, "/api/me").send().await;
        assert_eq!((&me.json["name"], &me.json["role"]), (&json!(face.name), &json!(face.role)));
    }
}

pub(crate) async fn a_desk_is_real_or_a_sample_and_stays_so(world: &World) {
    world.desk.claim(Kind::Sample).await.unwrap();
    let refused = world.desk.claim(Kind::Real).await.unwrap_err();
    assert!(matches!(&refused, DeskError::Schema(what) if what.contains("--data DIR")), "{refused}");
    let real = world.another().await;
    desk::migrate(&real.database).await.unwrap();
    let desk = desk::open(&real.database).await.unwrap();
    let (one, other) = tokio::join!(desk.claim(Kind::Real), desk.claim(Kind::Real));
    one.and(other).unwrap();
    let refused = sample::people(&*desk).await.unwrap_err();
    assert!(matches!(&refused, DeskError::Schema(what) if what.contains("--config FILE")), "{refused}");
    assert_eq!(real.number("SELECT count(*) FROM ticketflow.person").await, 0);
}

pub(crate) async fn two_processes_migrate_at_once(world: &World) {
    let empty = world.another().await;
    let (one, other) = tokio::join!(desk::migrate(&empty.database), desk::migrate(&empty.database));
    let mut applied = [one.unwrap(), other.unwrap()];
    applied.sort();
    assert_eq!(applied, [vec![], (1..=desk::migrate::VERSION).collect()]);
    desk::open(&empty.database).await.unwrap().ping().await.unwrap();
}

pub(crate) async fn a_database_that_is_not_ready_names_the_command(world: &World) {
    assert_eq!(desk::migrate(&world.database).await.unwrap(), Vec::<i64>::new());
    for (version, hint) in [("1", "run `ticketflow migrate`"), ("99", "upgrade the program")] {
        world.run("DELETE FROM ticketflow.migration").await;
        world.run(&format!("INSERT INTO ticketflow.migration (version, name) VALUES ({version}, 'n')")).await;
        let error = desk::open(&world.database).await.err().unwrap();
        assert!(matches!(&error, DeskError::Schema(what) if what.ends_with(hint)), "{error}");
    }
    world.run("DROP TABLE ticketflow.migration").await;
    let error = desk::open(&world.database).await.err().unwrap();
    assert!(matches!(&error, DeskError::Schema(what) if what.contains("version 0")), "{error}");
}
