//! Compares the configured topology with the broker.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::broker::admin::{Difference, TopologyItem, TopologyStatus};
use serde_json::Value;

use super::{BindingDeclaration, BindingTarget, Declarations, ExchangeDeclaration, Policy, QueueDeclaration};
use crate::management::{BindingInfo, ExchangeInfo, PolicyInfo, QueueInfo, ServerState};

/// On 3.10, at-least-once dead-lettering needs this flag. Without it the broker silently uses at-most-once.
pub(crate) const AT_LEAST_ONCE_FLAG: &str = "stream_queue";

/// One part of a topology, in the order of creation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TopologyPart<'a> {
    Flag(&'static str),
    Policy(&'a Policy),
    Exchange(&'a ExchangeDeclaration),
    Queue(&'a QueueDeclaration),
    Binding(&'a BindingDeclaration),
}

impl Declarations {
    /// Every part. Policies come first, so that no queue exists without them.
    pub(crate) fn parts(&self) -> Vec<TopologyPart<'_>> {
        let at_least_once = |queue: &QueueDeclaration| queue.arguments.contains_key("x-dead-letter-strategy");
        let flag = self.queues.iter().any(at_least_once).then_some(TopologyPart::Flag(AT_LEAST_ONCE_FLAG));
        flag.into_iter()
            .chain(self.policies.iter().map(TopologyPart::Policy))
            .chain(self.exchanges.iter().map(TopologyPart::Exchange))
            .chain(self.queues.iter().map(TopologyPart::Queue))
            .chain(self.bindings.iter().map(TopologyPart::Binding))
            .collect()
    }
}

impl TopologyPart<'_> {
    /// The display name.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Flag(name) => format!("feature flag `{name}`"),
            Self::Policy(policy) => format!("policy `{}`", policy.name),
            Self::Exchange(exchange) => format!("exchange `{}`", exchange.name),
            Self::Queue(queue) => format!("queue `{}`", queue.name),
            Self::Binding(binding) => {
                let (what, to) = match &binding.to {
                    BindingTarget::Queue(name) => ("queue", name),
                    BindingTarget::Exchange(name) => ("exchange", name),
                };
                format!("binding of {what} `{to}` to `{}` by `{}`", binding.exchange, binding.key)
            }
        }
    }

    /// Compares it with the broker.
    pub(crate) fn compare(&self, with: &ServerState) -> TopologyItem {
        let state = match self {
            Self::Flag(name) if with.lacks_feature_flag(name) => {
                TopologyStatus::Different(vec![difference("state", "enabled", "disabled")])
            }
            Self::Flag(_) if with.flags.is_none() => TopologyStatus::Unknown,
            Self::Flag(_) => TopologyStatus::Unchanged,
            Self::Policy(policy) => state(with.policies.get(&policy.name), |seen| policy_differences(policy, seen)),
            Self::Exchange(exchange) => {
                state(with.exchanges.get(&exchange.name), |seen| exchange_differences(exchange, seen))
            }
            Self::Queue(queue) => state(with.queues.get(&queue.name), |seen| queue_differences(queue, seen)),
            Self::Binding(binding) => {
                state(with.bindings.iter().find(|seen| same_binding(binding, seen)), |_| Vec::new())
            }
        };
        let unseen = match state {
            TopologyStatus::Unknown => " (it cannot be seen by a user without the tag `administrator`)",
            TopologyStatus::Unchanged
            | TopologyStatus::Missing
            | TopologyStatus::Created
            | TopologyStatus::Different(_) => "",
        };
        TopologyItem { name: format!("{}{unseen}", self.name()), status: state }
    }

    /// Whether it is created by an AMQP declaration, which the broker answers.
    pub(crate) const fn is_declared(&self) -> bool {
        match self {
            Self::Exchange(_) | Self::Queue(_) | Self::Binding(_) => true,
            Self::Flag(_) | Self::Policy(_) => false,
        }
    }
}

fn state<T>(seen: Option<&T>, differs: impl Fn(&T) -> Vec<Difference>) -> TopologyStatus {
    let Some(seen) = seen else { return TopologyStatus::Missing };
    let differences = differs(seen);
    if differences.is_empty() { TopologyStatus::Unchanged } else { TopologyStatus::Different(differences) }
}

fn queue_differences(wanted: &QueueDeclaration, seen: &QueueInfo) -> Vec<Difference> {
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
    compare_arguments(&mut all, &without_kind(&wanted.arguments), &without_kind(&seen.arguments));
    all
}

fn exchange_differences(wanted: &ExchangeDeclaration, seen: &ExchangeInfo) -> Vec<Difference> {
    let mut all = Vec::new();
    flat(&mut all, "type", wanted.kind, &seen.kind);
    flat(&mut all, "durable", &true, &seen.durable);
    flat(&mut all, "auto-delete", &false, &seen.auto_delete);
    flat(&mut all, "internal", &false, &seen.internal);
    compare_arguments(&mut all, &wanted.arguments, &seen.arguments);
    all
}

fn policy_differences(wanted: &Policy, seen: &PolicyInfo) -> Vec<Difference> {
    let mut all = Vec::new();
    flat(&mut all, "pattern", &wanted.pattern, &seen.pattern);
    flat(&mut all, "apply-to", &wanted.apply_to, &seen.apply_to);
    flat(&mut all, "priority", &wanted.priority, &seen.priority);
    compare_arguments(&mut all, &wanted.definition, &seen.definition);
    all
}

fn same_binding(wanted: &BindingDeclaration, seen: &BindingInfo) -> bool {
    let (kind, to) = match &wanted.to {
        BindingTarget::Queue(name) => ("queue", name),
        BindingTarget::Exchange(name) => ("exchange", name),
    };
    (seen.source.as_str(), seen.destination_type.as_str()) == (wanted.exchange.as_str(), kind)
        && (&seen.destination, &seen.routing_key) == (to, &wanted.key)
        && seen.arguments.is_empty()
}

fn flat<T: PartialEq + ToString + ?Sized>(all: &mut Vec<Difference>, setting: &str, wanted: &T, found: &T) {
    if wanted != found {
        all.push(difference(setting, &wanted.to_string(), &found.to_string()));
    }
}

fn compare_arguments(all: &mut Vec<Difference>, wanted: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) {
    let names: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    for name in names {
        if wanted.get(name) != found.get(name) {
            all.push(difference(name, &format_value(wanted.get(name)), &format_value(found.get(name))));
        }
    }
}

fn format_value(value: Option<&Value>) -> String {
    match value {
        None => "not set".to_owned(),
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn difference(setting: &str, wanted: &str, found: &str) -> Difference {
    Difference { setting: setting.to_owned(), expected: wanted.to_owned(), actual: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::topology::{Queue, Topology};

    #[test]
    fn at_least_once_dead_lettering_needs_its_feature_flag() {
        let declared = Topology { queues: vec![Queue::new("billing")], ..Topology::default() }.declarations();
        let mut seen = ServerState { flags: Some(BTreeSet::new()), ..ServerState::default() };
        let piece = declared.parts()[0].compare(&seen);
        assert_eq!(piece.name, "feature flag `stream_queue`");
        assert_eq!(piece.status, TopologyStatus::Different(vec![difference("state", "enabled", "disabled")]));
        seen.flags = Some(BTreeSet::from([AT_LEAST_ONCE_FLAG.to_owned()]));
        assert_eq!(declared.parts()[0].compare(&seen).status, TopologyStatus::Unchanged);
        seen.flags = None;
        let hidden = declared.parts()[0].compare(&seen);
        assert!(hidden.name.contains("cannot be seen") && hidden.status == TopologyStatus::Unknown, "{hidden:?}");
    }

    #[test]
    fn arguments_of_either_side_are_compared() {
        let declared = Topology { queues: vec![Queue::new("billing")], ..Topology::default() }.declarations();
        let wanted = &declared.queues[0];
        let arguments = BTreeMap::from([("x-max-length".to_owned(), json!(5))]);
        let (name, kind) = (wanted.name.clone(), "classic".to_owned());
        let seen = QueueInfo { name, kind, durable: true, arguments, ..QueueInfo::default() };
        let told: Vec<String> = queue_differences(wanted, &seen).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["`x-queue-type` is classic, wanted quorum", "`x-max-length` is 5, wanted not set"]);
    }
}
