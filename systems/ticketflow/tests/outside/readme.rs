//! The demo of the READMEs, done as they say it: their commands are these, and each does what they promise.

use std::path::Path;

use crate::running::{Directory, Running, eventually, shell};

const README: &str = include_str!("../../README.md");
const LEEME: &str = include_str!("../../README.es.md");

const START: &str = "cargo run --release -p ticketflow";
const OPEN: &str = r#"curl -s http://127.0.0.1:8080/api/tickets -H 'Authorization: Bearer demo-ana' -H 'Content-Type: application/json' -H 'X-Correlation-Id: from-the-readme' -d '{"title": "The printer eats paper", "description": "Third floor."}'"#;
const TRACE: &str = "grep -h -i '^X-Correlation-Id' ticketflow-data/mail/*.eml";
const FIGURES: &str = "curl -s http://127.0.0.1:8080/api/figures -H 'Authorization: Bearer demo-carla'";
const HEALTH: &str = "curl -s http://127.0.0.1:8080/health";
const NONSENSE: &str = r#"curl -s http://127.0.0.1:8080/api/tickets -H 'Authorization: Bearer demo-ana' -H 'Content-Type: application/json' -d '{"title": "", "priority": "panic"}'"#;
const TWICE: &str = r#"for i in 1 2; do curl -s http://127.0.0.1:8080/api/tickets -H 'Authorization: Bearer demo-ana' -H 'Content-Type: application/json' -H 'Idempotency-Key: once' -d '{"title": "Only one", "description": "Sent twice."}'; done"#;
const MANY: &str = r#"for i in $(seq 20); do curl -s http://127.0.0.1:8080/api/tickets -H 'Authorization: Bearer demo-ana' -H 'Content-Type: application/json' -d '{"title": "Killed", "description": "In mid-work."}'; done"#;
/// The test kills only the process that it started.
const KILL: &str = "pkill -9 -x ticketflow";
const COUNT: &str = "grep -l '^Subject: .*Killed' ticketflow-data/mail/*.eml | wc -l";

/// What stands in the blocks of a shell.
fn commands(readme: &str) -> Vec<&str> {
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("a first part"));
    blocks.flat_map(str::lines).collect()
}

#[test]
fn both_readmes_have_the_same_commands() {
    let said = [START, OPEN, TRACE, FIGURES, HEALTH, NONSENSE, TWICE, MANY, KILL, START, COUNT];
    assert_eq!(commands(README), said);
    assert_eq!(commands(LEEME), said);
}

#[test]
fn the_demo_does_what_the_readme_says() {
    let directory = Directory::new("readme");
    let service = Running::start(directory.path());
    // The reader has opened a ticket on the page.
    service.post("demo-ana", "/api/tickets", r#"{"title": "On the page", "description": "x"}"#);
    let opened = service.curl(OPEN);
    assert!(opened.contains(r#""title":"The printer eats paper""#), "{opened}");
    let traced = until(TRACE, directory.path(), |said| said.contains("from-the-readme"));
    assert_eq!(traced.matches("from-the-readme").count(), 1, "one e-mail: {traced}");
    service.wait_for("demo-carla", "/api/figures", r#""open":2"#);
    assert!(service.curl(FIGURES).contains(r#""open":2"#));
    assert!(service.wait_for("", "/health", r#""status":"ok""#).contains("worker"));
    assert!(service.curl(HEALTH).contains("broker"));

    let refused = service.curl(NONSENSE);
    for field in ["title", "description", "priority"] {
        assert!(refused.contains(&format!(r#""field":"{field}""#)), "{field} is not named: {refused}");
    }
    let twice = service.curl(TWICE);
    assert_eq!(twice.matches(r#""number":3,"#).count(), 2, "one ticket, returned twice: {twice}");
    let many = service.curl(MANY);
    assert_eq!(many.matches(r#""number":23,"#).count(), 1, "nothing was stored of the nonsense: {many}");
    service.kill();
    let service = Running::start(directory.path());
    until(COUNT, directory.path(), |said| said.trim() == "20");
    // Each e-mail once, and written down once: of those that were in hand when it was killed, when their claims are over.
    let emails = "curl -s 'http://127.0.0.1:8080/api/emails?limit=100' -H 'Authorization: Bearer demo-carla'";
    let written = eventually(|| {
        let written = service.curl(emails);
        if written.matches(r#""message_id":"#).count() >= 23 { Ok(written) } else { Err(written) }
    });
    assert_eq!(written.matches(r#""message_id":"#).count(), 23, "{written}");
}

/// What a command says once it says it so.
fn until(command: &str, directory: &Path, so: impl Fn(&str) -> bool) -> String {
    eventually(|| {
        let said = shell(&format!("{command} || true"), directory);
        if so(&said) { Ok(said) } else { Err(format!("`{command}` says `{said}`")) }
    })
}
