//! Reads the file and the environment.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Table;

use super::section::Section;
use super::{Broker, Config, Database, Mail, days};

/// A day in milliseconds, the maximum of most durations.
const DAY_MS: u64 = 86_400_000;

/// All problems of a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// Reads a file's text over the defaults of [`Config::embedded`]. `environment` has secrets and overrides. All problems are
/// reported at once.
pub fn read(text: &str, data: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Result<Config, Problems> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| Problems(vec![unreadable(text, &error)]))?;
    let mut config = Config::embedded(data);
    let mut problems = Vec::new();
    let mut top = Section::new("", table, environment, &mut problems);
    put(&mut config.role, top.parsed("role"));
    put(&mut config.one_machine, top.flag("one_machine"));
    put(&mut config.listen, top.parsed("listen"));
    let sections = [
        ("database", database as fn(&mut Section, &mut Config)),
        ("broker", broker),
        ("mail", mail),
        ("outbox", outbox),
        ("worker", worker),
        ("limits", limits),
    ];
    let tables = sections.map(|(name, read)| (name, read, top.table(name)));
    top.finish();
    for (name, read, table) in tables {
        // Without the table the environment still counts. A database or a broker that is not configured is embedded.
        let is_left_out = table.is_none() && matches!(name, "database" | "broker");
        if !is_left_out {
            let mut section = Section::new(name, table.unwrap_or_default(), environment, &mut problems);
            read(&mut section, &mut config);
            section.finish();
        }
    }
    if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
}

/// The position and the reason. The line itself, which the error would show, may contain a password.
fn unreadable(text: &str, error: &toml::de::Error) -> String {
    let why = error.message();
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return why.to_owned() };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|character| *character != '\n').count() + 1;
    format!("line {line}, column {column}: {why}")
}

fn database(section: &mut Section, config: &mut Config) {
    let url = section.needed("url", "url_env", &["postgres", "postgresql"]);
    put(&mut config.database, url.map(Database::Postgres));
}

fn broker(section: &mut Section, config: &mut Config) {
    let url = section.needed("url", "url_env", &["amqp", "amqps"]);
    let management_url = section.secret("management_url", "management_url_env", &["http", "https"]);
    let ladder = section.waits("ladder_ms");
    let ladder = ladder.unwrap_or_else(|| [60_000, 300_000, 900_000].map(Duration::from_millis).to_vec());
    put(&mut config.broker, url.map(|url| Broker::RabbitMq { url, management_url, ladder }));
}

fn mail(section: &mut Section, config: &mut Config) {
    let url = section.secret("smtp_url", "smtp_url_env", &["smtp", "smtp+starttls", "smtps"]);
    let ca_file = section.text("ca_file").map(PathBuf::from);
    if ca_file.is_some() && url.is_none() {
        section.problem("ca_file", "is for a mail server; hint: name one with `smtp_url_env`".to_owned());
    }
    put(&mut config.mail, url.map(|url| Mail::Smtp { url, ca_file }));
    let letters = &mut config.letters;
    put(&mut letters.from, section.text("from"));
    put(&mut letters.domain, section.text("domain"));
    if !is_domain(&letters.domain) {
        section.problem("domain", format!("must be a domain such as `desk.example.org`, is `{}`", letters.domain));
    }
    put(&mut letters.retention, section.number("retention_days", None, 1, 3650).map(days));
    let base = section.text("base_url").map(|url| url.trim_end_matches('/').to_owned());
    put(&mut letters.base_url, base);
    if !["http://", "https://"].iter().any(|scheme| letters.base_url.starts_with(scheme)) {
        section.problem("base_url", format!("must begin with `http://` or `https://`, is `{}`", letters.base_url));
    }
}

/// Whether it is valid in a Message-ID: names of letters, digits and hyphens, with dots between them.
fn is_domain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.split('.').all(|name| !name.is_empty() && name.bytes().all(is_plain))
}

fn outbox(section: &mut Section, config: &mut Config) {
    let outbox = &mut config.outbox;
    let interval = section.number("dispatch_interval_ms", Some("OUTBOX_DISPATCH_INTERVAL_MS"), 1, DAY_MS);
    put(&mut outbox.dispatch_interval, interval.map(Duration::from_millis));
    put(&mut outbox.batch, section.number("batch", Some("OUTBOX_BATCH"), 1, 10_000).map(size));
    put(&mut outbox.retention, section.number("retention_days", None, 1, 3650).map(days));
}

fn worker(section: &mut Section, config: &mut Config) {
    let worker = &mut config.worker;
    put(&mut worker.heartbeat, section.number("heartbeat_s", None, 1, 3600).map(Duration::from_secs));
    put(&mut worker.deadline, section.number("deadline_s", None, 1, 600).map(Duration::from_secs));
    put(&mut worker.answer, section.number("answer_s", None, 1, 600).map(Duration::from_secs));
    put(&mut worker.concurrency, section.number("concurrency", None, 1, 256).map(size));
    put(&mut worker.retries, section.waits("retries_ms"));
}

fn limits(section: &mut Section, config: &mut Config) {
    let limits = &mut config.limits;
    put(&mut limits.body_bytes, section.number("body_bytes", None, 1024, 1 << 24).map(size));
    put(&mut limits.idempotency, section.number("idempotency_hours", None, 1, 24 * 365).map(Duration::from_hours));
}

fn put<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// A number whose limit fits all types.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Role, Secret};

    fn environment(name: &str) -> Option<String> {
        let value = match name {
            "TICKETFLOW_DATABASE_URL" => "postgres://desk:s3cret@db/tickets",
            "TICKETFLOW_AMQP_URL" => "amqp://desk:s3cret@mq",
            "TICKETFLOW_SMTP_URL" => "smtp+starttls://desk:s3cret@mail:587",
            "WRONG" => "mysql://desk:s3cret@db",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn problems(text: &str) -> Vec<String> {
        read(text, Path::new("data"), &environment).unwrap_err().0
    }

    #[test]
    fn an_empty_file_means_everything_embedded() {
        assert_eq!(read("", Path::new("data"), &|_| None), Ok(Config::embedded(Path::new("data"))));
    }

    #[test]
    fn the_example_names_every_key_with_its_default() {
        let text = include_str!("../../ticketflow.example.toml");
        let config = read(text, Path::new("data"), &environment).unwrap();
        let Broker::RabbitMq { ladder, management_url, .. } = &config.broker else { panic!("{config:?}") };
        assert_eq!(ladder.iter().map(Duration::as_secs).collect::<Vec<_>>(), [60, 300, 900]);
        assert_eq!(*management_url, None);
        assert_eq!(config.database, Database::Postgres(Secret::new("postgres://desk:s3cret@db/tickets")));
        assert_eq!(config.mail, Mail::Smtp { url: Secret::new("smtp+starttls://desk:s3cret@mail:587"), ca_file: None });
        let embedded = Config::embedded(Path::new("data"));
        let rest = Config {
            database: embedded.database.clone(),
            broker: embedded.broker.clone(),
            mail: embedded.mail.clone(),
            ..config
        };
        assert_eq!(rest, embedded);
        for key in ["management_url_env", "url =", "smtp_url =", "management_url =", "ca_file ="] {
            assert!(text.contains(key), "the example does not show {key}");
        }
    }

    #[test]
    fn every_problem_is_reported_at_once_with_a_hint() {
        let text = "role = 'boss'\nlisten = 8080\n[databse]\n[broker]\nladder_ms = [0]\n[outbox]\nbatch = 0\nretention_dys = 3\n\
                    [mail]\nsmtp_url = 'smtp://a'\nsmtp_url_env = 'B'\nbase_url = 'desk.example'\ndomain = 'us@desk.example'";
        assert_eq!(
            problems(text),
            [
                "`role`: must be `api`, `worker` or `all`, is `boss`",
                "`listen`: must be text",
                "`databse`: is not known; hint: did you mean `database`?",
                "`broker.url_env`: is missing; hint: name it, or leave out `[broker]` to run embedded",
                "`broker.ladder_ms`: must be a list of milliseconds, each above zero",
                "`mail.smtp_url`: stands beside `smtp_url_env`; hint: keep one of them",
                "`mail.domain`: must be a domain such as `desk.example.org`, is `us@desk.example`",
                "`mail.base_url`: must begin with `http://` or `https://`, is `desk.example`",
                "`outbox.batch`: must be from 1 to 10000, is 0",
                "`outbox.retention_dys`: is not known; hint: did you mean `retention_days`?",
            ]
        );
    }

    #[test]
    fn a_domain_is_names_with_dots_between_them() {
        for domain in ["ticketflow.example", "localhost", "a-1.b.c", "xn--espaa-rta.example"] {
            assert!(is_domain(domain), "{domain}");
        }
        for domain in ["", ".", "a..b", "a.b.", ".a", "a b.c", "us@a.b", "a.b>", "españa.example", "a_b.c", "a.b:25"] {
            assert!(!is_domain(domain), "{domain}");
        }
    }

    #[test]
    fn no_secret_is_ever_shown() {
        let found = problems("[database]\nurl_env = 'WRONG'\n[broker]\nurl_env = 'NOT_THERE'");
        assert_eq!(
            found,
            [
                "`database.url_env`: must be a URL that begins with `postgres://` or `postgresql://`",
                "`broker.url_env`: the environment has no `NOT_THERE`",
            ]
        );
        // Not even where a quote is missing in its own line.
        for url in ["'postgres://desk:s3cret@db", "postgres://desk:s3cret@db"] {
            let found = problems(&format!("[database]\nurl = {url}"));
            assert!(found.len() == 1 && found[0].starts_with("line 2, column "), "{found:?}");
            assert!(!found[0].contains("s3cret") && !found[0].contains("desk"), "{found:?}");
        }
        let config = read("[database]\nurl = 'postgres://desk:s3cret@db'", Path::new("data"), &environment).unwrap();
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let environment = |name: &str| match name {
            "OUTBOX_DISPATCH_INTERVAL_MS" => Some("40".to_owned()),
            "OUTBOX_BATCH" => Some("7".to_owned()),
            _ => None,
        };
        let config = read("role = 'api'\n[outbox]\nbatch = 9", Path::new("data"), &environment).unwrap();
        assert_eq!((config.role, config.outbox.batch), (Role::Api, 7));
        assert_eq!(config.outbox.dispatch_interval, Duration::from_millis(40));
        let wrong = read("", Path::new("data"), &|_| Some("soon".to_owned())).unwrap_err();
        assert_eq!(wrong.0[0], "environment `OUTBOX_DISPATCH_INTERVAL_MS`: must be a whole number, is `soon`");
    }

    #[test]
    fn broken_toml_says_where() {
        let found = problems("role = \n[outbox]");
        assert!(found[0].starts_with("line 1, column "), "{found:?}");
    }
}
