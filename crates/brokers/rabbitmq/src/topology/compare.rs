//! Compares the configured topology with the broker.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::administer::{Difference, Piece, State};
use serde_json::Value;

use super::{Declared, DeclaredBinding, DeclaredExchange, DeclaredQueue, Policy, Target};
use crate::management::{SeenBinding, SeenExchange, SeenPolicy, SeenQueue, Snapshot};

/// On 3.10, at-least-once dead-lettering needs this flag. Without it the broker silently uses at-most-once.
pub(crate) const AT_LEAST_ONCE_FLAG: &str = "stream_queue";

/// One part of a topology, in the order of creation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Flag(&'static str),
    Policy(&'a Policy),
    Exchange(&'a DeclaredExchange),
    Queue(&'a DeclaredQueue),
    Binding(&'a DeclaredBinding),
}

impl Declared {
    /// Every part. Policies come first, so that no queue exists without them.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let at_least_once = |queue: &DeclaredQueue| queue.arguments.contains_key("x-dead-letter-strategy");
        let flag = self.queues.iter().any(at_least_once).then_some(Part::Flag(AT_LEAST_ONCE_FLAG));
        flag.into_iter()
            .chain(self.policies.iter().map(Part::Policy))
            .chain(self.exchanges.iter().map(Part::Exchange))
            .chain(self.queues.iter().map(Part::Queue))
            .chain(self.bindings.iter().map(Part::Binding))
            .collect()
    }
}

impl Part<'_> {
    /// The display name.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Flag(name) => format!("feature flag `{name}`"),
            Self::Policy(policy) => format!("policy `{}`", policy.name),
            Self::Exchange(exchange) => format!("exchange `{}`", exchange.name),
            Self::Queue(queue) => format!("queue `{}`", queue.name),
            Self::Binding(binding) => {
                let (what, to) = match &binding.to {
                    Target::Queue(name) => ("queue", name),
                    Target::Exchange(name) => ("exchange", name),
                };
                let arguments = if binding.arguments.is_empty() {
                    String::new()
                } else {
                    format!(" and {}", Value::from_iter(binding.arguments.clone()))
                };
                format!("binding of {what} `{to}` to `{}` by `{}`{arguments}", binding.exchange, binding.key)
            }
        }
    }

    /// Compares it with the broker.
    pub(crate) fn compared(&self, with: &Snapshot) -> Piece {
        let state = match self {
            Self::Flag(name) if with.lacks(name) => State::Differs(vec![difference("state", "enabled", "disabled")]),
            Self::Flag(_) if with.flags.is_none() => State::Unseen,
            Self::Flag(_) => State::Same,
            Self::Policy(policy) => state(with.policies.get(&policy.name), |seen| policy_differs(policy, seen)),
            Self::Exchange(exchange) => {
                state(with.exchanges.get(&exchange.name), |seen| exchange_differs(exchange, seen))
            }
            Self::Queue(queue) => state(with.queues.get(&queue.name), |seen| queue_differs(queue, seen)),
            Self::Binding(binding) => state(with.bindings.iter().find(|seen| is(binding, seen)), |_| Vec::new()),
        };
        let unseen = match state {
            State::Unseen => " (it cannot be seen by a user without the tag `administrator`)",
            State::Same | State::Missing | State::Made | State::Differs(_) => "",
        };
        Piece { name: format!("{}{unseen}", self.name()), state }
    }

    /// Whether it is created by an AMQP declaration, which the broker answers.
    pub(crate) const fn is_declared(&self) -> bool {
        match self {
            Self::Exchange(_) | Self::Queue(_) | Self::Binding(_) => true,
            Self::Flag(_) | Self::Policy(_) => false,
        }
    }
}

fn state<T>(seen: Option<&T>, differs: impl Fn(&T) -> Vec<Difference>) -> State {
    let Some(seen) = seen else { return State::Missing };
    let differences = differs(seen);
    if differences.is_empty() { State::Same } else { State::Differs(differences) }
}

fn queue_differs(wanted: &DeclaredQueue, seen: &SeenQueue) -> Vec<Difference> {
    let mut all = Vec::new();
    // The broker fills in the type argument, so the actual type is compared.
    let kind = wanted.arguments.get("x-queue-type").and_then(Value::as_str).unwrap_or("classic");
    flat(&mut all, "x-queue-type", kind, &seen.kind);
    flat(&mut all, "durable", &true, &seen.durable);
    flat(&mut all, "auto-delete", &false, &seen.auto_delete);
    flat(&mut all, "exclusive", &false, &seen.exclusive);
    let without_kind = |arguments: &BTreeMap<String, Value>| {
        let mut arguments = arguments.clone();
        arguments.remove("x-queue-type");
        arguments
    };
    maps(&mut all, &without_kind(&wanted.arguments), &without_kind(&seen.arguments));
    all
}

fn exchange_differs(wanted: &DeclaredExchange, seen: &SeenExchange) -> Vec<Difference> {
    let mut all = Vec::new();
    flat(&mut all, "type", wanted.kind, &seen.kind);
    flat(&mut all, "durable", &true, &seen.durable);
    flat(&mut all, "auto-delete", &false, &seen.auto_delete);
    flat(&mut all, "internal", &false, &seen.internal);
    maps(&mut all, &wanted.arguments, &seen.arguments);
    all
}

fn policy_differs(wanted: &Policy, seen: &SeenPolicy) -> Vec<Difference> {
    let mut all = Vec::new();
    flat(&mut all, "pattern", &wanted.pattern, &seen.pattern);
    flat(&mut all, "apply-to", &wanted.apply_to, &seen.apply_to);
    flat(&mut all, "priority", &wanted.priority, &seen.priority);
    maps(&mut all, &wanted.definition, &seen.definition);
    all
}

fn is(wanted: &DeclaredBinding, seen: &SeenBinding) -> bool {
    let (kind, to) = match &wanted.to {
        Target::Queue(name) => ("queue", name),
        Target::Exchange(name) => ("exchange", name),
    };
    (seen.source.as_str(), seen.destination_type.as_str()) == (wanted.exchange.as_str(), kind)
        && (&seen.destination, &seen.routing_key) == (to, &wanted.key)
        && seen.arguments == wanted.arguments
}

fn flat<T: PartialEq + ToString + ?Sized>(all: &mut Vec<Difference>, setting: &str, wanted: &T, found: &T) {
    if wanted != found {
        all.push(difference(setting, &wanted.to_string(), &found.to_string()));
    }
}

fn maps(all: &mut Vec<Difference>, wanted: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) {
    let names: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    for name in names {
        if wanted.get(name) != found.get(name) {
            all.push(difference(name, &shown(wanted.get(name)), &shown(found.get(name))));
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "not set".to_owned(),
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn difference(setting: &str, wanted: &str, found: &str) -> Difference {
    Difference { setting: setting.to_owned(), wanted: wanted.to_owned(), found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::topology::{Queue, Topology};

    #[test]
    fn at_least_once_dead_letters_need_their_feature_flag() {
        let declared = Topology { queues: vec![Queue::new("billing")], ..Topology::default() }.declared();
        let mut seen = Snapshot { flags: Some(BTreeSet::new()), ..Snapshot::default() };
        let piece = declared.parts()[0].compared(&seen);
        assert_eq!(piece.name, "feature flag `stream_queue`");
        assert_eq!(piece.state, State::Differs(vec![difference("state", "enabled", "disabled")]));
        seen.flags = Some(BTreeSet::from([AT_LEAST_ONCE_FLAG.to_owned()]));
        assert_eq!(declared.parts()[0].compared(&seen).state, State::Same);
        seen.flags = None;
        let hidden = declared.parts()[0].compared(&seen);
        assert!(hidden.name.contains("cannot be seen") && hidden.state == State::Unseen, "{hidden:?}");
    }

    #[test]
    fn arguments_on_either_side_are_told() {
        let declared = Topology { queues: vec![Queue::new("billing")], ..Topology::default() }.declared();
        let wanted = &declared.queues[0];
        let arguments = BTreeMap::from([("x-max-length".to_owned(), json!(5))]);
        let (name, kind) = (wanted.name.clone(), "classic".to_owned());
        let seen = SeenQueue { name, kind, durable: true, arguments, ..SeenQueue::default() };
        let told: Vec<String> = queue_differs(wanted, &seen).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["`x-queue-type` is classic, wanted quorum", "`x-max-length` is 5, wanted not set"]);
    }
}
