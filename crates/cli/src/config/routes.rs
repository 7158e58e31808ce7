//! Routes, as the relay uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use relevo_core::header_rules::{self, HeaderRules};
use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, RetryPolicy, Route, Routes, wire};

use super::problem::Problem;
use super::resolved::Reader;
use super::settings::Path;

pub(super) fn resolve(reader: &mut Reader<'_>, list: &Path) -> Routes {
    let count = reader.settings.len_of(list);
    if count == 0 {
        return Routes::default();
    }
    let mut names = BTreeSet::new();
    let routes = (0..count).map(|index| {
        let path = list.index(index);
        let route = route(reader, &path);
        if !names.insert(route.name.clone()) {
            let problem = Problem::new(format!("two routes of one destination are named `{}`", route.name));
            let at = path.name("name");
            let at = if reader.is_set(&at) { at } else { path };
            reader.problem(&at, problem.hint("each has a `name` of its own"));
        }
        route
    });
    Routes::new(routes.collect())
}

fn route(reader: &mut Reader<'_>, path: &Path) -> Route {
    for name in ["topic", "type"] {
        let at = path.name(name);
        let pattern = reader.text(&at);
        if !is_pattern(&pattern) {
            let problem = Problem::new(format!("`{pattern}` is no pattern of `{name}`"));
            reader.problem(&at, problem.hint("words between dots, `*` for any one word, `**` at the end for any rest"));
        }
    }
    for name in ["name", "address"] {
        if reader.text(&path.name(name)).is_empty() {
            reader.problem(&path.name(name), Problem::new(format!("`{name}` is empty")));
        }
    }
    let at = path.name("address");
    let address = reader.text(&at);
    if let Some(wrong) = unknown_placeholders(&address, &PLACEHOLDERS).next() {
        let problem = Problem::new(format!("`{wrong}` in `address` is replaced by nothing"));
        reader.problem(&at, problem.hint(format!("`{}` are known", PLACEHOLDERS.join("`, `"))));
    }
    let headers = headers(reader, path);
    let policy = policy(reader, path);
    Route {
        name: reader.text(&path.name("name")),
        topic: reader.text(&path.name("topic")),
        kind: reader.text(&path.name("type")),
        address,
        headers: Arc::new(headers),
        policy,
        after_dead: AfterDead::parse(&reader.text(&path.name("after_dead"))).unwrap_or_default(),
    }
}

fn headers(reader: &mut Reader<'_>, path: &Path) -> HeaderRules {
    let (added, renamed) = (path.name("headers"), path.name("rename_headers"));
    let rules = HeaderRules { add: reader.pairs(&added), rename: reader.pairs(&renamed) };
    let mut targets = BTreeMap::new();
    for (old, new) in &rules.rename {
        if let Some(other) = targets.insert(new, old) {
            let problem = Problem::new(format!("`{other}` and `{old}` would both become `{new}`"));
            reader.problem(&renamed, problem.hint("a name is sent once"));
        }
        if wire::is_reserved(old) {
            reader.problem(&renamed, reserved(old));
        }
    }
    let names = rules.add.keys().map(|name| (&added, name)).chain(rules.rename.values().map(|name| (&renamed, name)));
    for (at, name) in names {
        if name.is_empty() {
            reader.problem(at, Problem::new("a header has no name"));
        } else if wire::is_reserved(name) {
            reader.problem(at, reserved(name));
        }
    }
    for value in rules.add.values() {
        let mut unknown = unknown_placeholders(value, &header_rules::PLACEHOLDERS);
        if let Some(wrong) = unknown.find(|wrong| !asks_for_header(wrong)) {
            let problem = Problem::new(format!("`{wrong}` in `headers` is replaced by nothing"));
            let known = header_rules::PLACEHOLDERS.join("`, `");
            reader.problem(&added, problem.hint(format!("`{known}` and `{{header:NAME}}` are known")));
        }
    }
    rules
}

fn reserved(name: &str) -> Problem {
    Problem::new(format!("the header `{name}` cannot be changed: receivers know messages by it"))
}

fn asks_for_header(placeholder: &str) -> bool {
    placeholder.strip_prefix("{header:").and_then(|rest| rest.strip_suffix('}')).is_some_and(|name| !name.is_empty())
}

fn policy(reader: &mut Reader<'_>, path: &Path) -> RetryPolicy {
    let linear = reader.text(&path.name("backoff")) == "linear";
    let factor = path.name("factor");
    if linear && reader.is_set(&factor) {
        reader.problem(&factor, Problem::new("`factor` says nothing about linear pauses"));
    }
    let backoff = if linear { Backoff::Linear } else { Backoff::Exponential { factor: reader.integer(&factor) } };
    let policy = RetryPolicy {
        base: reader.millis(&path.name("base_ms")),
        backoff,
        max: reader.millis(&path.name("ceiling_ms")),
        jitter_percent: reader.integer(&path.name("jitter_percent")),
        attempts_max: reader.integer(&path.name("attempts_max")),
    };
    if policy.base > policy.max {
        reader.problem(&path.name("base_ms"), Problem::new("`base_ms` is more than `ceiling_ms`"));
    }
    policy
}

/// What the core replaces in an address.
const PLACEHOLDERS: [&str; 3] = ["{topic}", "{type}", "{key}"];

/// Every `{…}` that the core would send to the broker as it stands.
fn unknown_placeholders<'a>(text: &'a str, known: &[&str]) -> impl Iterator<Item = &'a str> {
    text.match_indices('{').map(|(at, _)| &text[at..]).filter_map(|rest| {
        let known = known.iter().any(|known| rest.starts_with(known));
        (!known).then(|| rest.find('}').map_or(rest, |end| &rest[..=end]))
    })
}

/// `**` stands at the end only, and stars stand alone.
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
    fn a_placeholder_that_nothing_replaces_is_found() {
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
    fn the_placeholders_are_the_core_s() {
        let draft = Draft::json("orders", "7", "Placed", "");
        let message = draft.into_message(MessageId::v7(0, [0; 10]), jiff::Timestamp::UNIX_EPOCH);
        let route = Route { address: PLACEHOLDERS.concat(), ..Route::catch_all() };
        assert_eq!(&*route.address_of(&message), "ordersPlaced7");
    }

    #[test]
    fn a_pattern_that_could_never_match_is_none() {
        for pattern in ["orders", "orders.*", "orders.**", "*", "**", "*.eu"] {
            assert!(is_pattern(pattern), "{pattern}");
        }
        for pattern in ["", "orders.", "ord*", "**.eu", "a..b"] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
    }
}
