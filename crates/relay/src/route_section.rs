//! Routes as they are written in a configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use relevo_config::{Checks, DurationText, Problem, Section};
use relevo_core::header_rules::{self, HeaderRules};
use relevo_core::{RetryPolicy, Route, retry, wire};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which messages are published to which address, and when they are retried and dead-lettered. The first route that
/// matches is used. A message without a route is not for this destination. Without any route, every message is published
/// to the address named like its topic. SIGHUP replaces the routes of running relays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RouteSection {
    /// The name in metrics and errors. It is unique in a destination.
    pub name: String,
    /// The topics that match: words between dots, `*` for one word, `**` at the end for the rest.
    pub topic: String,
    /// The types that match, with the same patterns.
    #[serde(rename = "type")]
    pub kind: String,
    /// The broker's address. `{topic}`, `{type}` and `{key}` are replaced; any other `{` is an error.
    pub address: String,
    /// Headers to add, such as `{ x-event-id = "{id}" }`. `{id}`, `{topic}`, `{type}`, `{key}` and `{header:NAME}` are
    /// replaced. A header that refers to a missing header of the message is omitted.
    pub headers: BTreeMap<String, String>,
    /// New names for the message's own headers, such as `{ correlation-id = "x-correlation-id" }`.
    pub rename_headers: BTreeMap<String, String>,
    /// What happens to a key after one of its messages is dead-lettered: it waits for an operator, or it continues
    /// without a guaranteed order.
    pub after_dead: AfterDead,
    /// When messages are retried.
    pub retry: RetrySection,
}

/// When messages are retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetrySection {
    /// How delays grow: `delay_min × factor^(n-1)` or `delay_min × n`.
    pub backoff: Backoff,
    /// The first delay.
    #[serde(with = "DurationText")]
    pub delay_min: Duration,
    /// The growth of exponential delays, from 1 to 100.
    pub factor: u32,
    /// The longest delay, including jitter.
    #[serde(with = "DurationText")]
    pub delay_max: Duration,
    /// The maximum random addition to a delay, in percent.
    pub jitter_percent: u32,
    /// The maximum number of attempts per message.
    pub attempts_max: u32,
}

/// How delays grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    /// By a factor.
    Exponential,
    /// By the first delay.
    Linear,
}

/// The treatment of a key after a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AfterDead {
    /// It waits for an operator.
    Hold,
    /// It continues.
    Continue,
}

/// The placeholders of an address.
const PLACEHOLDERS: [&str; 3] = ["{topic}", "{type}", "{key}"];

impl Default for RouteSection {
    fn default() -> Self {
        let Route { name, topic, kind, address, .. } = Route::catch_all();
        Self {
            name,
            topic,
            kind,
            address,
            headers: BTreeMap::new(),
            rename_headers: BTreeMap::new(),
            after_dead: AfterDead::Hold,
            retry: RetrySection::default(),
        }
    }
}

impl Default for RetrySection {
    fn default() -> Self {
        let RetryPolicy { base, max, jitter_percent, attempts_max, .. } = RetryPolicy::default();
        Self { backoff: Backoff::Exponential, delay_min: base, factor: 2, delay_max: max, jitter_percent, attempts_max }
    }
}

impl From<RouteSection> for Route {
    fn from(section: RouteSection) -> Self {
        let RouteSection { name, topic, kind, address, headers, rename_headers, after_dead, retry } = section;
        Self {
            name,
            topic,
            kind,
            address,
            headers: Arc::new(HeaderRules { add: headers, rename: rename_headers }),
            policy: RetryPolicy {
                base: retry.delay_min,
                backoff: match retry.backoff {
                    Backoff::Exponential => retry::Backoff::Exponential { factor: retry.factor },
                    Backoff::Linear => retry::Backoff::Linear,
                },
                max: retry.delay_max,
                jitter_percent: retry.jitter_percent,
                attempts_max: retry.attempts_max,
            },
            after_dead: match after_dead {
                AfterDead::Hold => relevo_core::AfterDead::Hold,
                AfterDead::Continue => relevo_core::AfterDead::Continue,
            },
        }
    }
}

impl Section for RouteSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        for (key, pattern) in [("topic", &self.topic), ("type", &self.kind)] {
            if !is_pattern(pattern) {
                let problem = Problem::new(format!("`{key}` is not a pattern"));
                checks.report(key, problem.hint("words between dots, `*` for one word, `**` at the end for the rest"));
            }
        }
        for (key, text) in [("name", &self.name), ("address", &self.address)] {
            if text.is_empty() {
                checks.report(key, Problem::new(format!("`{key}` is empty")));
            }
        }
        if unknown_placeholders(&self.address, &PLACEHOLDERS).next().is_some() {
            let problem = Problem::new("`address` has an unknown placeholder");
            checks.report("address", problem.hint(format!("`{}` are known", PLACEHOLDERS.join("`, `"))));
        }
        self.validate_headers(checks);
        self.retry.validate(checks);
    }
}

impl RouteSection {
    fn validate_headers(&self, checks: &mut Checks<'_>) {
        let mut targets = BTreeMap::new();
        for (old, new) in &self.rename_headers {
            if let Some(other) = targets.insert(new, old) {
                let problem = Problem::new(format!("`{other}` and `{old}` would both become `{new}`"));
                checks.report("rename_headers", problem.hint("header names are unique"));
            }
            if wire::is_reserved(old) {
                checks.report("rename_headers", reserved(old));
            }
        }
        let added = self.headers.keys().map(|name| ("headers", name));
        for (key, name) in added.chain(self.rename_headers.values().map(|name| ("rename_headers", name))) {
            if name.is_empty() {
                checks.report(key, Problem::new("a header has no name"));
            } else if wire::is_reserved(name) {
                checks.report(key, reserved(name));
            }
        }
        for value in self.headers.values() {
            let mut unknown = unknown_placeholders(value, &header_rules::PLACEHOLDERS);
            if let Some(wrong) = unknown.find(|wrong| !is_header_reference(wrong)) {
                let problem = Problem::new(format!("`{wrong}` in `headers` is not a placeholder"));
                let known = header_rules::PLACEHOLDERS.join("`, `");
                checks.report("headers", problem.hint(format!("`{known}` and `{{header:NAME}}` are known")));
            }
        }
    }
}

impl RetrySection {
    fn validate(&self, checks: &mut Checks<'_>) {
        if self.backoff == Backoff::Linear && checks.is_set("retry.factor") {
            checks.report("retry.factor", Problem::new("`factor` has no effect on linear delays"));
        }
        if self.delay_min.is_zero() {
            checks.report("retry.delay_min", Problem::new("`delay_min` must be longer than 0s"));
        }
        if self.delay_min > self.delay_max {
            let problem = Problem::new("`delay_min` is longer than `delay_max`");
            checks.report_any(&["retry.delay_min", "retry.delay_max"], problem);
        }
        checks.range("retry.factor", self.factor, 1, 100);
        checks.range("retry.jitter_percent", self.jitter_percent, 0, 100);
        checks.range("retry.attempts_max", self.attempts_max, 1, 1_000_000);
    }
}

fn reserved(name: &str) -> Problem {
    Problem::new(format!("the header `{name}` cannot be changed: receivers identify messages by it"))
}

fn is_header_reference(placeholder: &str) -> bool {
    placeholder.strip_prefix("{header:").and_then(|rest| rest.strip_suffix('}')).is_some_and(|name| !name.is_empty())
}

/// Every `{…}` that would be sent to the broker as it is.
fn unknown_placeholders<'a>(text: &'a str, known: &[&str]) -> impl Iterator<Item = &'a str> {
    text.match_indices('{').map(|(at, _)| &text[at..]).filter_map(|rest| {
        let known = known.iter().any(|known| rest.starts_with(known));
        (!known).then(|| rest.find('}').map_or(rest, |end| &rest[..=end]))
    })
}

/// Whether `**` is at the end only, and stars are whole words.
fn is_pattern(pattern: &str) -> bool {
    let words: Vec<&str> = pattern.split('.').collect();
    let last = words.len() - 1;
    words.iter().enumerate().all(|(at, word)| match *word {
        "" => false,
        "*" => true,
        "**" => at == last,
        word => !word.contains('*'),
    })
}

#[cfg(test)]
mod tests {
    use relevo_core::{Draft, MessageId};

    use super::*;

    #[test]
    fn an_unknown_placeholder_is_found() {
        for (address, wrong) in [
            ("shop.{topic}.{type}.{key}", None),
            ("plain", None),
            ("{foo}", Some("{foo}")),
            ("a.{topic", Some("{topic")),
            ("{key}.{Topic}.x", Some("{Topic}")),
        ] {
            assert_eq!(unknown_placeholders(address, &PLACEHOLDERS).next(), wrong, "{address}");
        }
    }

    #[test]
    fn the_placeholders_are_those_of_routes() {
        let draft = Draft::json("orders", "7", "Placed", "");
        let message = draft.into_message(MessageId::v7(0, [0; 10]), jiff::Timestamp::UNIX_EPOCH);
        let route = Route { address: PLACEHOLDERS.concat(), ..Route::catch_all() };
        assert_eq!(&*route.address_of(&message), "ordersPlaced7");
    }

    #[test]
    fn a_pattern_that_can_never_match_is_rejected() {
        for pattern in ["orders", "orders.*", "orders.**", "*", "**", "*.eu"] {
            assert!(is_pattern(pattern), "{pattern}");
        }
        for pattern in ["", "orders.", "ord*", "**.eu", "a..b"] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
    }

    #[test]
    fn a_route_with_defaults_is_the_default_route() {
        assert_eq!(Route::from(RouteSection::default()), Route::catch_all());
    }
}
