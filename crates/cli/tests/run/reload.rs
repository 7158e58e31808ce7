//! SIGHUP.

use crate::command::relevo;
use crate::daemon::until;
use crate::test_outbox::TestOutbox;

const ROUTE: &str = "[[outboxes.shop.destinations.main.routes]]\naddress = ";
const READ: &str = "configuration reloaded";
const REFUSED: &str = "configuration reload rejected, nothing changed";

#[tokio::test(flavor = "multi_thread")]
async fn a_valid_file_replaces_routes_and_the_log_names_keys_that_need_a_restart() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start(&format!("{ROUTE}\"old\"\n"));
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    shop.config(&format!("{ROUTE}\"new\"\n[relay.advanced]\npages_max = 5\n"));
    daemon.signal("HUP");
    assert_eq!(daemon.line(READ)["exchanged"], 1);
    let restart = daemon.line("changes that need a restart were ignored");
    assert_eq!(restart["keys"], "relay.advanced.pages_max");
    daemon.line("routes replaced");
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 20);
    assert_eq!(daemon.metric("relevo_config_reloads_total{"), Some(1));
    daemon.stop();
    assert_eq!(shop.arrived("shop").await, [vec!["old"; 10], vec!["new"; 10]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_changes_nothing_and_all_its_problems_are_logged() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start(&format!("{ROUTE}\"old\"\n"));
    daemon.ready();
    shop.config(&format!("{ROUTE}\"new\"\nadress = \"x\"\nafter_dead = \"sometimes\"\n"));
    daemon.signal("HUP");
    assert_eq!(daemon.line(REFUSED)["problems"], 2);
    let first = daemon.line("the configuration is wrong");
    assert_eq!(
        (&first["problem"], &first["hint"]),
        (
            &"unknown key `adress` in `outboxes.shop.destinations.main.routes[0]`".into(),
            &"did you mean `address`?".into(),
        )
    );
    let log = daemon.log();
    assert!(log.contains("did you mean `address`?") && log.contains("`after_dead` must be one of"), "{log}");
    shop.emit("orders", 5).await;
    TestOutbox::delivered(&daemon, "shop", 5);
    assert_eq!(daemon.metric("relevo_config_last_reload_successful{"), Some(0));
    let file = shop.directory.path().join("relevo.toml");
    let (code, _, stderr) = relevo(&file, &["config", "check"]);
    assert!(code == 2 && stderr.contains("`adress`") && stderr.contains("`after_dead`"), "{code} {stderr}");
    // A valid file is applied again.
    let file = shop.config(&format!("{ROUTE}\"third\"\n"));
    assert_eq!(relevo(&file, &["config", "check"]).0, 0);
    daemon.signal("HUP");
    daemon.line("routes replaced");
    until("the reload is reported as successful", || daemon.metric("relevo_config_last_reload_successful{") == Some(1));
    shop.emit("orders", 5).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    daemon.stop();
    assert_eq!(shop.arrived("shop").await, [vec!["old"; 5], vec!["third"; 5]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_in_place_of_a_variable_s_name_is_refused_and_not_shown() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    daemon.ready();
    let text = std::fs::read_to_string(shop.config("")).unwrap();
    let wrong = text.replace("database = \"", "database_env = \"").replace("postgres@", "postgres:sesame@");
    shop.directory.write("relevo.toml", &wrong);
    daemon.signal("HUP");
    assert_eq!(daemon.line(REFUSED)["problems"], 1);
    let line = daemon.line("the configuration is wrong");
    assert_eq!(line["problem"], "`database_env` must be the name of a variable");
    daemon.stop();
    assert!(wrong.contains("sesame") && !daemon.log().contains("sesame"), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_named_and_not_shown() {
    let shop = TestOutbox::new().await;
    let url = shop.database.url();
    let secret = shop.directory.write("url", &url);
    let text = std::fs::read_to_string(shop.config("")).unwrap();
    let text = text.replace(&format!("database = \"{url}\""), &format!("database_file = {secret:?}"));
    let mut daemon = crate::daemon::Daemon::start(&shop.directory.write("secret.toml", &text), &[]);
    daemon.ready();
    shop.directory.write("url", &url.replace("postgres@", "postgres:sesame@"));
    daemon.signal("HUP");
    let restart = daemon.line("changes that need a restart were ignored");
    assert_eq!(restart["keys"], "outboxes.shop.database");
    assert!(!daemon.log().contains("sesame"));
    daemon.stop();
}
