//! The sample's tokens are public, so they must not give access to real tickets.

use crate::running::{Directory, Running, refusal, ticketflow};

const CONFIG: [&str; 2] = ["--config", "ticketflow.toml"];
const ADD: [&str; 5] = ["person", "add", "Zoe", "zoe@ticketflow.example", "admin"];

/// A directory with a configuration in which everything is left out, and so is the database.
fn configured(name: &str) -> Directory {
    let directory = Directory::new(name);
    std::fs::write(directory.path().join("ticketflow.toml"), "").expect("the directory can be written");
    directory
}

#[test]
fn sample_people_are_never_added_to_a_real_database() {
    let directory = configured("sample-late");
    let service = Running::start_with(directory.path(), &CONFIG);
    // Neither while the real service runs, although it has no users yet, nor later.
    let refused = refusal(directory.path(), &["--role", "worker", "--listen", "127.0.0.1:0"]);
    assert!(refused.contains("hint: start with `--config FILE`"), "{refused}");
    let answer = service.curl("curl -s http://127.0.0.1:8080/api/me -H 'Authorization: Bearer demo-eva'");
    assert!(answer.contains(r#""status":401"#), "{answer}");
    service.kill();
    for arguments in [&["--listen", "127.0.0.1:0"][..], &ADD] {
        let refused = refusal(directory.path(), arguments);
        assert!(refused.contains("hint: start with `--config FILE`"), "{refused}");
    }
    let added = ticketflow(directory.path()).args(ADD).args(CONFIG).output().expect("`ticketflow` runs");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
}

#[test]
fn a_database_with_sample_people_never_becomes_a_real_one() {
    let directory = configured("sample-first");
    Running::start(directory.path()).kill();
    for arguments in [&["--listen", "127.0.0.1:0"][..], &["--role", "worker", "--listen", "127.0.0.1:0"], &ADD] {
        let refused = refusal(directory.path(), &[arguments, &CONFIG].concat());
        assert!(refused.contains("the database is a sample's") && refused.contains("hint: "), "{refused}");
    }
    // Who tries it further finds everything as it was.
    Running::start(directory.path()).wait_for("demo-eva", "/api/me", "Eva");
}

#[test]
fn the_sample_is_served_on_this_machine_only() {
    let directory = configured("sample-open");
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = refusal(directory.path(), &["--listen", address]);
        assert!(refused.contains("listens on this machine only") && refused.contains("hint: "), "{refused}");
    }
    assert!(!directory.path().join("ticketflow-data").exists(), "nothing was made");
}
