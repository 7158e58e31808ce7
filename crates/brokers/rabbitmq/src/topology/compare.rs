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
    pub(crate) fn compare(&self, server: &ServerState) -> TopologyItem {
        let status = match self {
            Self::Flag(_) if server.flags.is_none() => TopologyStatus::Unknown,
            Self::Flag(name) => {
                let state = if server.lacks_feature_flag(name) { "disabled" } else { "enabled" };
                Vec::from_iter(Difference::between("state", "enabled", state)).into()
            }
            Self::Policy(policy) => {
                status(server.policies.get(&policy.name), |existing| policy_differences(policy, existing))
            }
            Self::Exchange(exchange) if exchange.implied => {
                status(server.exchanges.get(&exchange.name), |_| Vec::new())
            }
            Self::Exchange(exchange) => {
                status(server.exchanges.get(&exchange.name), |existing| exchange_differences(exchange, existing))
            }
            Self::Queue(queue) => status(server.queues.get(&queue.name), |existing| queue_differences(queue, existing)),
            Self::Binding(binding) => {
                status(server.bindings.iter().find(|existing| same_binding(binding, existing)), |_| Vec::new())
            }
        };
        let reason = match status {
            TopologyStatus::Unknown => " (not visible to a user without the tag `administrator`)",
            TopologyStatus::Unchanged
            | TopologyStatus::Missing
            | TopologyStatus::Created
            | TopologyStatus::Different(_) => "",
        };
        TopologyItem { name: format!("{}{reason}", self.name()), status }
    }

    /// Whether it is created by an AMQP declaration, which the broker answers.
    pub(crate) const fn is_declared(&self) -> bool {
        match self {
            Self::Exchange(_) | Self::Queue(_) | Self::Binding(_) => true,
            Self::Flag(_) | Self::Policy(_) => false,
        }
    }
}

fn status<T>(existing: Option<&T>, differences: impl Fn(&T) -> Vec<Difference>) -> TopologyStatus {
    existing.map_or(TopologyStatus::Missing, |existing| differences(existing).into())
}

fn queue_differences(expected: &QueueDeclaration, actual: &QueueInfo) -> Vec<Difference> {
    // The broker fills in the type argument, so the actual type is compared.
    let kind = expected.arguments.get("x-queue-type").and_then(Value::as_str).unwrap_or("classic");
    let settings = [
        Difference::between("x-queue-type", kind, actual.kind.as_str()),
        Difference::between("durable", &true, &actual.durable),
        Difference::between("auto-delete", &false, &actual.auto_delete),
        Difference::between("exclusive", &false, &actual.exclusive),
    ];
    let without_kind = |arguments: &BTreeMap<String, Value>| {
        let mut arguments = arguments.clone();
        arguments.remove("x-queue-type");
        arguments
    };
    let arguments = argument_differences(&without_kind(&expected.arguments), &without_kind(&actual.arguments));
    settings.into_iter().flatten().chain(arguments).collect()
}

fn exchange_differences(expected: &ExchangeDeclaration, actual: &ExchangeInfo) -> Vec<Difference> {
    let settings = [
        Difference::between("type", expected.kind, actual.kind.as_str()),
        Difference::between("durable", &true, &actual.durable),
        Difference::between("auto-delete", &false, &actual.auto_delete),
        Difference::between("internal", &false, &actual.internal),
    ];
    settings.into_iter().flatten().chain(argument_differences(&expected.arguments, &actual.arguments)).collect()
}

fn policy_differences(expected: &Policy, actual: &PolicyInfo) -> Vec<Difference> {
    let settings = [
        Difference::between("pattern", &expected.pattern, &actual.pattern),
        Difference::between("apply-to", &expected.apply_to, &actual.apply_to),
        Difference::between("priority", &expected.priority, &actual.priority),
    ];
    settings.into_iter().flatten().chain(argument_differences(&expected.definition, &actual.definition)).collect()
}

fn same_binding(expected: &BindingDeclaration, actual: &BindingInfo) -> bool {
    let (kind, to) = match &expected.to {
        BindingTarget::Queue(name) => ("queue", name),
        BindingTarget::Exchange(name) => ("exchange", name),
    };
    (actual.source.as_str(), actual.destination_type.as_str()) == (expected.exchange.as_str(), kind)
        && (&actual.destination, &actual.routing_key) == (to, &expected.key)
        && actual.arguments.is_empty()
}

fn argument_differences(expected: &BTreeMap<String, Value>, actual: &BTreeMap<String, Value>) -> Vec<Difference> {
    let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
    let differing = names.into_iter().filter(|name| expected.get(*name) != actual.get(*name));
    let difference = |name: &String| Difference {
        setting: name.clone(),
        expected: format_value(expected.get(name)),
        actual: format_value(actual.get(name)),
    };
    differing.map(difference).collect()
}

fn format_value(value: Option<&Value>) -> String {
    match value {
        None => "not set".to_owned(),
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(value) => value.to_string(),
    }
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
        let mut server = ServerState { flags: Some(BTreeSet::new()), ..ServerState::default() };
        let item = declared.parts()[0].compare(&server);
        assert_eq!(item.name, "feature flag `stream_queue`");
        let difference = Difference::between("state", "enabled", "disabled").expect("they differ");
        assert_eq!(item.status, TopologyStatus::Different(vec![difference]));
        server.flags = Some(BTreeSet::from([AT_LEAST_ONCE_FLAG.to_owned()]));
        assert_eq!(declared.parts()[0].compare(&server).status, TopologyStatus::Unchanged);
        server.flags = None;
        let hidden = declared.parts()[0].compare(&server);
        assert!(hidden.name.contains("not visible") && hidden.status == TopologyStatus::Unknown, "{hidden:?}");
    }

    #[test]
    fn arguments_of_either_side_are_compared() {
        let declared = Topology { queues: vec![Queue::new("billing")], ..Topology::default() }.declarations();
        let expected = &declared.queues[0];
        let arguments = BTreeMap::from([("x-max-length".to_owned(), json!(5))]);
        let (name, kind) = (expected.name.clone(), "classic".to_owned());
        let actual = QueueInfo { name, kind, durable: true, arguments, ..QueueInfo::default() };
        let differences: Vec<String> = queue_differences(expected, &actual).iter().map(ToString::to_string).collect();
        assert_eq!(differences, ["`x-queue-type` is classic, wanted quorum", "`x-max-length` is 5, wanted not set"]);
    }
}
