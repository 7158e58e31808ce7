//! What a replay reads. It is stored with the replay, so that a resumed one reads the same.

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use relevo_core::replay_source::ReplayFilter;
use relevo_inbox::{Config, ForeignMessages, MessageOrder};
use serde_json::{Value, json};

use crate::output::time;

/// Which log messages are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SourceKind {
    /// The outbox in the same database.
    Outbox,
    /// The broker of a destination of the configuration, if it keeps what was acknowledged.
    Broker,
}

/// Whether messages of a key are handled one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum KeyOrder {
    /// One message of a key at a time, in order.
    Key,
    /// Each by itself.
    None,
}

/// What a replay reads, and how its consumer interprets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) source: SourceKind,
    /// Outbox and destination that define routes and broker. `None` if no configuration was read.
    pub(super) at: Option<(String, String)>,
    /// The group of the broker whose addresses and lanes are read.
    pub(super) group: Option<String>,
    pub(super) order: KeyOrder,
    /// Headers with the id and the key of foreign messages.
    pub(super) id_header: Option<String>,
    pub(super) key_header: Option<String>,
    pub(super) filter: ReplayFilter,
}

impl Selection {
    /// As it is stored. It has no secrets: the configuration has the addresses and logins of brokers.
    pub(super) fn to_json(&self) -> String {
        let ReplayFilter { address, topic, kind, key, since, until, from, to } = &self.filter;
        let time = |at: &Option<Timestamp>| at.map(|at| at.to_string());
        json!({
            "source": word(self.source),
            "outbox": self.at.as_ref().map(|(outbox, _)| outbox),
            "destination": self.at.as_ref().map(|(_, destination)| destination),
            "group": self.group,
            "order": if self.order == KeyOrder::Key { "key" } else { "none" },
            "id_header": self.id_header,
            "key_header": self.key_header,
            "address": address, "topic": topic, "type": kind, "key": key,
            "since": time(since), "until": time(until), "from": from, "to": to,
        })
        .to_string()
    }

    /// Parses a stored selection.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let value: Value =
            serde_json::from_str(text).context("the selection of the replay is unknown to this version")?;
        let field = |name: &str| value[name].as_str().map(str::to_owned);
        let time = |name: &str| field(name).map(|text| text.parse::<Timestamp>()).transpose();
        let source = match value["source"].as_str() {
            Some("outbox") => SourceKind::Outbox,
            Some("broker") => SourceKind::Broker,
            _ => bail!("the selection of the replay is unknown to this version"),
        };
        Ok(Self {
            source,
            at: field("outbox").zip(field("destination")),
            group: field("group"),
            order: if value["order"] == "none" { KeyOrder::None } else { KeyOrder::Key },
            id_header: field("id_header"),
            key_header: field("key_header"),
            filter: ReplayFilter {
                address: field("address"),
                topic: field("topic"),
                kind: field("type"),
                key: field("key"),
                since: time("since")?,
                until: time("until")?,
                from: value["from"].as_u64(),
                to: value["to"].as_u64(),
            },
        })
    }

    /// In words.
    pub(super) fn described(&self) -> String {
        let ReplayFilter { address, topic, kind, key, since, until, from, to } = &self.filter;
        let log = match (self.source, &self.at) {
            (SourceKind::Outbox, _) => "the log of the outbox".to_owned(),
            (SourceKind::Broker, Some((_, destination))) => format!("the broker of destination `{destination}`"),
            (SourceKind::Broker, None) => "a broker".to_owned(),
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
            KeyOrder::Key => MessageOrder::ByKey { concurrency: 1 },
            KeyOrder::None => MessageOrder::None { concurrency: 1 },
        };
        let foreign = (self.id_header.is_some() || self.key_header.is_some()).then(|| ForeignMessages {
            kind: "foreign".into(),
            id_header: self.id_header.clone(),
            key_header: self.key_header.clone(),
        });
        Config { order, foreign_messages: foreign, ..Config::default() }
    }
}

const fn word(log: SourceKind) -> &'static str {
    match log {
        SourceKind::Outbox => "outbox",
        SourceKind::Broker => "broker",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        Selection {
            source: SourceKind::Broker,
            at: Some(("shop".to_owned(), "main".to_owned())),
            group: Some("billing".to_owned()),
            order: KeyOrder::None,
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
    fn a_selection_is_stored_and_parsed() {
        assert_eq!(Selection::parse(&selection().to_json()).unwrap(), selection());
        let plain =
            Selection { source: SourceKind::Outbox, at: None, group: None, order: KeyOrder::Key, ..selection() };
        assert_eq!(Selection::parse(&plain.to_json()).unwrap(), plain);
        assert!(Selection::parse("orders from 2026-01-01").is_err() && Selection::parse("{}").is_err());
    }

    #[test]
    fn it_is_described_in_words() {
        let expected = "the broker of destination `main`, group `billing`, type `OrderPlaced`, since 2026-01-31T12:00:00Z, \
                    from number 7, to number 18446744073709551615";
        assert_eq!(selection().described(), expected);
    }
}
