//! What a replay reads, as it is kept with it: whoever resumes it reads the same.

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use relevo_core::replay_source::ReplayFilter;
use relevo_inbox::{Config, ForeignMessages, MessageOrder};
use serde_json::{Value, json};

use crate::output::time;

/// Which log messages are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Log {
    /// The outbox in the same database.
    Outbox,
    /// The broker of a destination of the configuration, if it keeps what was acknowledged.
    Broker,
}

/// Whether messages of a key are handled one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Ordering {
    /// One of a key at a time, in order.
    Key,
    /// Each by itself.
    None,
}

/// What a replay reads, and how its consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) log: Log,
    /// Outbox and destination of the configuration, which say routes and broker; none if no configuration was read.
    pub(super) at: Option<(String, String)>,
    /// The group of the broker whose addresses and lanes are read.
    pub(super) group: Option<String>,
    pub(super) order: Ordering,
    /// Headers of messages that are not ours, which hold their id and their key.
    pub(super) id_header: Option<String>,
    pub(super) key_header: Option<String>,
    pub(super) filter: ReplayFilter,
}

impl Spec {
    /// As it is kept. It holds no secret: where a broker is, and how to get in, is in the configuration.
    pub(super) fn kept(&self) -> String {
        let ReplayFilter { address, topic, kind, key, since, until, from, to } = &self.filter;
        let time = |at: &Option<Timestamp>| at.map(|at| at.to_string());
        json!({
            "log": word(self.log),
            "outbox": self.at.as_ref().map(|(outbox, _)| outbox),
            "destination": self.at.as_ref().map(|(_, destination)| destination),
            "group": self.group,
            "order": if self.order == Ordering::Key { "key" } else { "none" },
            "id_header": self.id_header,
            "key_header": self.key_header,
            "address": address, "topic": topic, "type": kind, "key": key,
            "since": time(since), "until": time(until), "from": from, "to": to,
        })
        .to_string()
    }

    /// What was kept.
    pub(super) fn read(kept: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(kept).context("what the replay reads is not known to this program")?;
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let time = |name: &str| text(name).map(|text| text.parse::<Timestamp>()).transpose();
        let log = match value["log"].as_str() {
            Some("outbox") => Log::Outbox,
            Some("broker") => Log::Broker,
            _ => bail!("what the replay reads is not known to this program"),
        };
        Ok(Self {
            log,
            at: text("outbox").zip(text("destination")),
            group: text("group"),
            order: if value["order"] == "none" { Ordering::None } else { Ordering::Key },
            id_header: text("id_header"),
            key_header: text("key_header"),
            filter: ReplayFilter {
                address: text("address"),
                topic: text("topic"),
                kind: text("type"),
                key: text("key"),
                since: time("since")?,
                until: time("until")?,
                from: value["from"].as_u64(),
                to: value["to"].as_u64(),
            },
        })
    }

    /// In words.
    pub(super) fn told(&self) -> String {
        let ReplayFilter { address, topic, kind, key, since, until, from, to } = &self.filter;
        let log = match (self.log, &self.at) {
            (Log::Outbox, _) => "the outbox's own log".to_owned(),
            (Log::Broker, Some((_, destination))) => format!("the broker of destination `{destination}`"),
            (Log::Broker, None) => "a broker".to_owned(),
        };
        let mut parts = vec![log];
        let mut add = |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("{name} {value}")));
        let quoted = |text: &Option<String>| text.as_ref().map(|text| format!("`{text}`"));
        add("group", quoted(&self.group));
        add("address", quoted(address));
        add("topic", quoted(topic));
        add("type", quoted(kind));
        add("key", quoted(key));
        add("since", since.map(time::utc));
        add("until", until.map(time::utc));
        add("from number", from.map(|number| number.to_string()));
        add("to number", to.map(|number| number.to_string()));
        parts.join(", ")
    }

    /// How the consumer sees messages.
    pub(super) fn consumer_config(&self) -> Config {
        let order = match self.order {
            Ordering::Key => MessageOrder::ByKey { concurrency: 1 },
            Ordering::None => MessageOrder::None { concurrency: 1 },
        };
        let foreign = (self.id_header.is_some() || self.key_header.is_some()).then(|| ForeignMessages {
            kind: "foreign".into(),
            id_header: self.id_header.clone(),
            key_header: self.key_header.clone(),
        });
        Config { order, foreign_messages: foreign, ..Config::default() }
    }
}

const fn word(log: Log) -> &'static str {
    match log {
        Log::Outbox => "outbox",
        Log::Broker => "broker",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            log: Log::Broker,
            at: Some(("shop".to_owned(), "main".to_owned())),
            group: Some("billing".to_owned()),
            order: Ordering::None,
            id_header: Some("x-id".to_owned()),
            key_header: None,
            filter: ReplayFilter {
                kind: Some("OrderPlaced".to_owned()),
                since: Some("2026-01-31T12:00:00.123456Z".parse().unwrap()),
                from: Some(7),
                to: Some(u64::MAX),
                ..ReplayFilter::default()
            },
        }
    }

    #[test]
    fn what_is_kept_is_read_back() {
        assert_eq!(Spec::read(&spec().kept()).unwrap(), spec());
        let plain = Spec { log: Log::Outbox, at: None, group: None, order: Ordering::Key, ..spec() };
        assert_eq!(Spec::read(&plain.kept()).unwrap(), plain);
        assert!(Spec::read("orders from 2026-01-01").is_err() && Spec::read("{}").is_err());
    }

    #[test]
    fn it_is_told_in_words() {
        let told = "the broker of destination `main`, group `billing`, type `OrderPlaced`, since 2026-01-31T12:00:00Z, \
                    from number 7, to number 18446744073709551615";
        assert_eq!(spec().told(), told);
    }
}
