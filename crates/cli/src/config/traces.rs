//! Where spans go, and which.

use relevo_observe::traces::{Config, Exporter, Ratio};

use super::keys::{Key, Kind};
use super::problem::Problem;
use super::resolved::Reader;
use super::settings::Path;

pub(super) const TRACES: &[Key] = &[
    Key::unset(
        "endpoint",
        Kind::Text,
        "\"http://127.0.0.1:4318\"",
        "The collector that takes OTLP over HTTP; `/v1/traces` is added. Without it nothing is told.",
    ),
    Key::new(
        "sample",
        Kind::Ratio,
        "0.01",
        "Which part of the messages without a trace context is told, by their ids. A message with one is told if its \
         context is sampled.",
    ),
    Key::number(
        "queue_max",
        1,
        "16384",
        "Spans that wait for the collector; what comes beyond is dropped and counted.",
    ),
];

/// `None` where no collector is named.
pub(super) fn resolve(reader: &mut Reader<'_>, service: &str) -> Option<Config> {
    let section = Path::of(&["traces"]);
    let path = section.name("endpoint");
    let endpoint = reader.find_text(&path)?;
    let sample = reader.ratio(&section.name("sample"));
    let queue_max = reader.integer(&section.name("queue_max"));
    let config = Config { sample, queue_max, ..Config::new(endpoint, service) };
    match Exporter::new(config.clone()) {
        Ok(_) => Some(config),
        Err(error) => {
            // The endpoint is not repeated: it may hold a password.
            let what = match error {
                relevo_observe::traces::ConfigError::Endpoint(_) => {
                    "`endpoint` is no address of a collector".to_owned()
                }
                other => other.to_string(),
            };
            reader.problem(&path, Problem::new(what).hint("`http://127.0.0.1:4318`"));
            None
        }
    }
}

impl Reader<'_> {
    fn ratio(&self, path: &Path) -> Ratio {
        match self.settings.get(path).map(|setting| &setting.value) {
            Some(super::value::Value::Ratio(ratio)) => *ratio,
            _ => Ratio::NONE,
        }
    }
}
