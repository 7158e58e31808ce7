//! Failure rules: which messages fail, how, and how often.

use relevo_core::{Class, MessageId, Publication};

/// The messages that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleTarget {
    /// Messages of this key.
    Key(String),
    /// The message with this id.
    Id(MessageId),
    /// Messages to this address.
    Address(String),
    /// All messages.
    All,
}

/// Makes messages fail. If several rules match, the oldest one applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRule {
    target: RuleTarget,
    class: Class,
    remaining: Option<u32>,
    after_receipt: bool,
}

impl FailureRule {
    /// Creates a rule without a limit: matching messages fail with this class and are not received.
    pub const fn new(target: RuleTarget, class: Class) -> Self {
        Self { target, class, remaining: None, after_receipt: false }
    }

    /// Limits the rule to this number of messages.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { remaining: Some(times), ..self }
    }

    /// Makes the broker receive the messages anyway, as when a confirmation is lost.
    #[must_use]
    pub fn after_receipt(self) -> Self {
        Self { after_receipt: true, ..self }
    }

    fn matches(&self, publication: &Publication) -> bool {
        let matches_target = match &self.target {
            RuleTarget::Key(key) => *key == *publication.message.key,
            RuleTarget::Id(id) => *id == publication.message.id,
            RuleTarget::Address(address) => **address == *publication.address,
            RuleTarget::All => true,
        };
        matches_target && self.remaining != Some(0)
    }
}

/// The effect of the rules on one message: its class, and whether it is received.
pub(crate) fn apply_rules(rules: &mut Vec<FailureRule>, publication: &Publication) -> Option<(Class, bool)> {
    let index = rules.iter().position(|rule| rule.matches(publication))?;
    let rule = &mut rules[index];
    let verdict = (rule.class, rule.after_receipt);
    if let Some(remaining) = &mut rule.remaining {
        *remaining -= 1;
        if *remaining == 0 {
            rules.remove(index);
        }
    }
    Some(verdict)
}
