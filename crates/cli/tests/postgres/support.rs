//! Runs the binary on a database of one test, and makes its output the same in every run.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::Row as _;

pub(crate) struct Cli {
    pub(crate) database: Database,
}

impl Cli {
    pub(crate) async fn new() -> Self {
        Self { database: Server::shared(PgVersion::V15).database().await }
    }

    /// One with an outbox.
    pub(crate) async fn migrated() -> Self {
        let cli = Self::new().await;
        cli.succeeds(&["migrate"]);
        cli
    }

    /// One with an outbox and the destination `main`, of four shards.
    pub(crate) async fn with_destination() -> Self {
        let cli = Self::migrated().await;
        cli.succeeds(&["destination", "add", "main", "--shards", "4", "--start", "oldest"]);
        cli
    }

    pub(crate) async fn sql(&self, sql: &str) {
        let mut connection = self.database.connect().await;
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let row =
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SELECT ({sql})::bigint"))).fetch_one(&mut connection).await;
        row.and_then(|row| row.try_get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Emits a message and gives its id.
    pub(crate) fn emit(&self, key: &str, payload: &str) -> String {
        self.succeeds(&["emit", "orders", key, "OrderPlaced", payload]).0.trim_end().to_owned()
    }

    /// Everything so far counts as delivered, as a relay would have recorded it.
    pub(crate) async fn settle(&self) {
        self.sql("SELECT relevo.make_tick()").await;
        self.sql(
            "INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             SELECT 'main', 4, s, t.tick, t.tick, 0, 1 FROM generate_series(0, 3) AS s, \
             (SELECT max(tick) AS tick FROM relevo.tick) AS t",
        )
        .await;
    }

    /// The message becomes a dead letter that holds its key, as a relay would have left it.
    pub(crate) async fn dead_letter(&self, id: &str) {
        let from = format!("FROM relevo.message WHERE id = '{id}'");
        self.sql(&format!(
            "INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, headers, \
             payload, route, class, error, attempts) SELECT 'main', id, seq, slot, created_at, topic, key, type, content_type, \
             headers, payload, 'everything', 'poison', 'the schema is not known', 3 {from}; \
             INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, dead_id, route, class, error) \
             SELECT 'main', key, slot, 'dead', 3, id, 'everything', 'poison', 'the schema is not known' {from} \
             ON CONFLICT DO NOTHING"
        ))
        .await;
    }

    /// Passes the URL in the environment and the answer to a question on stdin.
    pub(crate) fn run(&self, args: &[&str], answer: &str) -> (i32, String, String) {
        run(&self.database.url(), args, answer)
    }

    pub(crate) fn succeeds(&self, args: &[&str]) -> (String, String) {
        let (code, stdout, stderr) = self.run(args, "");
        assert_eq!(code, 0, "{args:?}: {stderr}");
        (stdout, stderr)
    }

    /// Requires this exit code and one error, and returns stderr.
    pub(crate) fn fails(&self, expected: i32, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args, "");
        assert_eq!((code, stdout.as_str()), (expected, ""), "{args:?}: {stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
        stderr
    }
}

pub(crate) fn run(url: &str, args: &[&str], answer: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(args)
        .env("RELEVO_DATABASE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    // A command without a question may end before it reads its input.
    child.stdin.take().expect("it is piped").write_all(answer.as_bytes()).ok();
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

/// The JSON objects of an output, one a line.
pub(crate) fn objects(output: &str) -> Vec<serde_json::Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Ids, times, ages, places and process numbers become words, and columns are no longer aligned: what is left is the same
/// in every run.
pub(crate) fn stable(text: &str, cli: &Cli) -> String {
    let place = format!("127.0.0.1:{}/{}", cli.database.options().get_port(), cli.database.name());
    let text = text.replace(&place, "<place>").replace(cli.database.name(), "<database>");
    let words = text.split_inclusive([' ', '\n', '`', '(', ')', '"', ',', ';', '.']).map(|word| {
        let end = word.len() - usize::from(word.ends_with([' ', '\n', '`', '(', ')', '"', ',', ';', '.']));
        let (core, rest) = word.split_at(end);
        match core {
            id if id.len() == 36 && id.matches('-').count() == 4 => format!("<id>{rest}"),
            time if time.len() >= 19 && time.as_bytes()[10] == b'T' && time.starts_with("20") => {
                format!("<time>{rest}")
            }
            _ => word.to_owned(),
        }
    });
    let joined: String = words.collect();
    let lines = joined.lines().map(|line| {
        let mut line = line.trim_end().to_owned();
        for unit in ["s", "min", "h", "days"] {
            line = without_ages(&line, unit);
        }
        let line = line.replace("(now)", "(<age>)").replace("  now  ", "  <age>  ");
        line.split("  ").filter(|part| !part.is_empty()).map(str::trim).collect::<Vec<_>>().join("  ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `3 min ago` and `in 3 min` become `<age>`.
fn without_ages(line: &str, unit: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut replaced: Vec<String> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let age = words[at..].get(..3).and_then(|three| {
            let [first, second, third] = three else { return None };
            let (open, first) = first.strip_prefix('(').map_or(("", *first), |rest| ("(", rest));
            let rest = if is_number(first) && *second == unit {
                third.strip_prefix("ago")
            } else if first == "in" && is_number(second) {
                third.strip_prefix(unit).filter(|rest| !rest.starts_with(char::is_alphabetic))
            } else {
                None
            };
            rest.map(|rest| format!("{open}<age>{rest}"))
        });
        at += if age.is_some() { 3 } else { 1 };
        replaced.push(age.unwrap_or_else(|| words[at - 1].to_owned()));
    }
    replaced.join(" ")
}
