//! `relevo status` and `relevo top` beside a running daemon.

use std::process::{Command, Output};

use serde_json::Value;

use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

/// A daemon that has published messages.
async fn busy(shop: &TestOutbox) -> Daemon {
    let daemon = shop.start("");
    shop.emit("orders", 40).await;
    TestOutbox::delivered(&daemon, "shop", 40);
    daemon
}

/// A key whose first message is tried again in an hour, and one that a dead letter holds; its name plays a trick on terminals.
const WAITING: &str = "
    INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, next_at, route, class, error)
    VALUES ('main', 'late', relevo.slot_of('late'), 'retrying', 2, clock_timestamp() + interval '1 hour', 'all', 'transient', 'no room');
    INSERT INTO relevo.parked_message (destination, key, seq, slot, id, created_at, topic, type, content_type, payload)
    VALUES ('main', 'late', 900, relevo.slot_of('late'), gen_random_uuid(), clock_timestamp(), 'orders', 'Happened', 'text/plain', 'x');
    WITH letter AS (
        INSERT INTO relevo.dead_letter
            (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, route, attempts, class, error)
        VALUES ('main', gen_random_uuid(), 901, relevo.slot_of(E'gone\\x1b[2J'), clock_timestamp(), 'orders', E'gone\\x1b[2J', 'Happened',
            'text/plain', 'x', 'all', 3, 'poison', 'never') RETURNING id
    )
    INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, dead_id, route, class, error)
    SELECT 'main', E'gone\\x1b[2J', relevo.slot_of(E'gone\\x1b[2J'), 'dead', 3, id, 'all', 'poison', 'never' FROM letter";

fn relevo(shop: &TestOutbox, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(arguments)
        .env("RELEVO_DATABASE_URL", shop.database.url())
        .env_remove("RELEVO_ADMIN_TOKEN")
        .output()
        .expect("the binary starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test(flavor = "multi_thread")]
async fn status_prints_the_backlog_and_the_rates_of_the_process() {
    let shop = TestOutbox::new().await;
    let mut daemon = busy(&shop).await;
    let admin = format!("http://{}", daemon.admin());
    let traffic = shop.database.url();
    let mut writer = tokio::task::JoinSet::new();
    let (cancel, cancelled) = tokio::sync::watch::channel(false);
    writer.spawn(async move {
        let options: sqlx::postgres::PgConnectOptions = traffic.parse().expect("a URL");
        let mut connection = sqlx::ConnectOptions::connect(&options).await.expect("the test's database");
        let mut written = 0;
        while !*cancelled.borrow() {
            let sql = format!("SELECT relevo.emit('orders', 'key-{}', 'Happened', '{{}}')", written % 7);
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect("a good statement");
            written += 1;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        written
    });
    until("the process reports a rate", || {
        let status: Value = serde_json::from_str(&daemon.get("/status").1).expect("JSON");
        status["relays"][0]["published_per_second"].as_f64() > Some(5.0)
    });
    let output = tokio::task::block_in_place(|| relevo(&shop, &["status", "--admin", &admin, "-o", "json"]));
    cancel.send_replace(true);
    let written = writer.join_next().await.expect("a writer").expect("it ends");
    let status = json(&output);
    let main = &status["destinations"][0];
    assert_eq!((&main["name"], &main["broker_up"], &main["exact"]), (&"main".into(), &true.into(), &true.into()));
    assert_eq!(main["shards"].as_array().map(Vec::len), Some(8));
    let rate = main["published_per_second"].as_f64().unwrap_or_else(|| panic!("{status}"));
    assert!((5.0..200.0).contains(&rate), "{rate}");
    let (p50, p99) = (main["p50_seconds"].as_f64(), main["p99_seconds"].as_f64());
    assert!(p50 > Some(0.0) && p99 >= p50, "{status}");
    assert_eq!(status["admin_ports"][0]["error"], Value::Null);
    TestOutbox::delivered(&daemon, "shop", 40 + written);
    let text = relevo(&shop, &["status", "--admin", &admin]);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    let row = text.lines().find(|line| line.starts_with("main")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("up") && row.contains("1, 8 of 8 shards"), "{row}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn status_lists_parked_keys_and_dead_letters_without_a_relay() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 1).await;
    TestOutbox::delivered(&daemon, "shop", 1);
    daemon.stop();
    shop.run(WAITING).await;
    let status = json(&relevo(&shop, &["status", "-o", "json"]));
    let main = &status["destinations"][0];
    assert_eq!((&main["parked_keys"], &main["published_per_second"]), (&2.into(), &Value::Null), "{status}");
    assert_eq!((&main["heads"][0]["key"], &main["dead"]), (&"late".into(), &1.into()), "{status}");
    let text = String::from_utf8(relevo(&shop, &["status"]).stdout).expect("UTF-8");
    let row = |begin: &str, key: &str| text.lines().any(|line| line.starts_with(begin) && line.contains(key));
    assert!(row("main", "late") && row("main", "no room") && row("main", "gone\\u{1b}[2J"), "{text}");
    assert!(text.contains("no admin port responded") || text.contains("PUBLISHED/S"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_port_that_does_not_respond_is_reported() {
    let shop = TestOutbox::new().await;
    let mut daemon = busy(&shop).await;
    let text = relevo(&shop, &["status", "--admin", "http://127.0.0.1:1"]);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("no rates from the admin port 127.0.0.1:1: "), "{text}");
    let wrong = relevo(&shop, &["status", "--admin", "localhost:9464"]);
    assert_eq!(wrong.status.code(), Some(2));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn top_refreshes_until_its_last_iteration() {
    let shop = TestOutbox::new().await;
    let mut daemon = busy(&shop).await;
    let output = relevo(&shop, &["top", "--iterations", "3", "--interval", "50ms", "-o", "json"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 3), "{text}");
    let piped = relevo(&shop, &["top"]);
    assert_eq!(piped.status.code(), Some(2), "it needs a terminal");
    let drawn = Command::new("script")
        .args(["-qec", &format!("{} top --iterations 2 --interval 50ms", env!("CARGO_BIN_EXE_relevo")), "/dev/null"])
        .env("RELEVO_DATABASE_URL", shop.database.url())
        .env("TERM", "xterm")
        .output()
        .expect("`script` gives a terminal");
    let drawn = String::from_utf8_lossy(&drawn.stdout).into_owned();
    assert!(drawn.contains("\x1b[?1049h") && drawn.contains("\x1b[?1049l"), "{drawn:?}");
    assert!(drawn.contains("destinations") && drawn.contains("main"), "{drawn:?}");
    until("the daemon still works", || daemon.get("/readyz").0 == 200);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_sent_to_the_port_that_was_named() {
    const TOKEN: &str = "a token that is long enough";
    let shop = TestOutbox::new().await;
    let variables = [("RELEVO__ADMIN__TOKEN_ENV", "TOKEN"), ("TOKEN", TOKEN)];
    let mut daemon = Daemon::start(&shop.config(""), &variables);
    daemon.ready();
    let admin = format!("http://{}", daemon.admin());
    let status = |token: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
        command.args(["status", "--admin", &admin, "-o", "json"]).env("RELEVO_DATABASE_URL", shop.database.url());
        json(&command.env("RELEVO_ADMIN_TOKEN", token).output().expect("the binary starts"))
    };
    let port = |token: &str| status(token)["admin_ports"][0]["error"].clone();
    assert_eq!(port(TOKEN), Value::Null);
    assert_eq!(port("another token"), "it rejects the token in `RELEVO_ADMIN_TOKEN`");
    assert_eq!(port(""), "it requires a token; hint: set `RELEVO_ADMIN_TOKEN`");
    daemon.stop();
}
