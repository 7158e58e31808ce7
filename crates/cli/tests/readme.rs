//! The README, followed by a newcomer: every file is saved and every command is typed exactly as it is written there.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use relevo_testkit::local_ports::LocalPorts;
use relevo_testkit::walkthrough::{CodeBlock, Walkthrough, code_blocks, section};
use relevo_testkit::{PgVersion, postgres, rabbitmq};
use sqlx::{Connection as _, Executor as _, PgConnection};

const RELEVO: &str = env!("CARGO_BIN_EXE_relevo");
const WITH_YOUR_SERVERS: &str = "Use it with your PostgreSQL and RabbitMQ";
/// The longest README that fits two screens.
const WORDS_MAX: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("the project has a README")
}

/// A Python with the clients of Debian's packages.
fn python() -> PathBuf {
    std::env::var_os("RELEVO_TEST_PYTHON").unwrap_or_else(|| "/usr/bin/python3".into()).into()
}

fn on_loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The servers that the README takes for granted, on their usual ports.
async fn usual_servers(postgres: &postgres::Private, rabbitmq: &rabbitmq::Private) -> LocalPorts {
    let mut admin = PgConnection::connect_with(&postgres.options()).await.expect("the server was started");
    for statement in ["CREATE ROLE shop LOGIN", "CREATE DATABASE shop OWNER shop"] {
        admin.execute(statement).await.expect("the server is new");
    }
    LocalPorts::forward(&[(5432, on_loopback(postgres.port())), (5672, on_loopback(rabbitmq.port()))])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_sees_the_message_in_rabbitmq() {
    let (postgres, rabbitmq) = tokio::join!(postgres::Private::start(PgVersion::V15), rabbitmq::Private::start());
    let ports = usual_servers(&postgres, &rabbitmq).await;
    let mut newcomer = Walkthrough::new(ports, &[("relevo", Path::new(RELEVO)), ("python3", &python())]);
    let steps = newcomer.follow(&code_blocks(section(&readme(), WITH_YOUR_SERVERS)));
    newcomer.leave();
    for step in &steps {
        println!("{:6.2} s  {}", step.took.as_secs_f64(), step.typed);
    }
    println!("{:6.2} s  in all", steps.iter().map(|step| step.took.as_secs_f64()).sum::<f64>());
}

#[test]
fn the_first_screen_has_the_two_commands_and_the_rest_is_followed_above() {
    let readme = readme();
    let blocks = code_blocks(&readme);
    let commands: Vec<&str> =
        blocks[0].text.lines().map(|line| line.split('#').next().unwrap_or(line).trim()).collect();
    assert_eq!(commands, ["cargo run --release", "cargo xtask test"]);
    assert_eq!(blocks[1..], code_blocks(section(&readme, WITH_YOUR_SERVERS)));
    let (first_screen, _) = readme.split_once("\n## ").expect("the README has headings");
    assert_eq!(code_blocks(first_screen).len(), 1);
    let words = readme.split_whitespace().count();
    assert!(words < WORDS_MAX, "the README has {words} words");
}

#[test]
fn cargo_run_starts_the_demo() {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    assert!(workspace.contains("default-members = [\"crates/cli\"]"));
    let mut newcomer = Walkthrough::new(LocalPorts::forward(&[]), &[("relevo", Path::new(RELEVO))]);
    let block =
        |language: &str, text: &str| CodeBlock { language: language.to_owned(), file: None, text: text.to_owned() };
    newcomer.follow(&[block("sh", "relevo"), block("text", "http://127.0.0.1:7373/")]);
    newcomer.leave();
}

#[test]
fn one_sentence_says_what_relevo_is() {
    let paragraph = readme().split("\n\n").nth(1).expect("a sentence follows the title").replace('\n', " ");
    let sentence = paragraph.strip_prefix("Relevo is a ").expect("it says what Relevo is");
    let expected = format!("A {sentence}");
    let help = Command::new(RELEVO).arg("--help").output().expect("`relevo` runs").stdout;
    let help = String::from_utf8(help).expect("help is text");
    assert!(
        help.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(expected.trim_end_matches('.')),
        "{help}"
    );
    for package in ["cli", "relevo"] {
        let manifest = std::fs::read_to_string(root().join("crates").join(package).join("Cargo.toml"));
        let manifest = manifest.expect("every package has a manifest");
        assert!(manifest.contains(&format!("description = \"{expected}\"")), "{package}: {expected}");
    }
}
