//! Failure rules: which messages fail, how, and how often.

use relevo_core::{Class, MessageId, Publication};

/// The messages that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Messages of this key.
    Key(String),
    /// The message with this id.
    Id(MessageId),
    /// Messages to this address.
    Address(String),
    /// All messages.
    Everything,
}

/// Makes messages fail. If several rules match, the oldest one applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    what: Match,
    class: Class,
    left: Option<u32>,
    received: bool,
}

impl Rule {
    /// Creates a rule without an end: matching messages fail with this class and are not received.
    pub const fn new(what: Match, class: Class) -> Self {
        Self { what, class, left: None, received: false }
    }

    /// Limits the rule to this number of messages.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { left: Some(times), ..self }
    }

    /// Makes the broker receive the messages anyway, as when a confirmation is lost.
    #[must_use]
    pub fn received(self) -> Self {
        Self { received: true, ..self }
    }

    fn matches(&self, publication: &Publication) -> bool {
        let what = match &self.what {
            Match::Key(key) => *key == *publication.message.key,
            Match::Id(id) => *id == publication.message.id,
            Match::Address(address) => **address == *publication.address,
            Match::Everything => true,
        };
        what && self.left != Some(0)
    }
}

/// The effect of the rules on one message: its class, and whether it is received.
pub(crate) fn apply(rules: &mut Vec<Rule>, publication: &Publication) -> Option<(Class, bool)> {
    let index = rules.iter().position(|rule| rule.matches(publication))?;
    let rule = &mut rules[index];
    let verdict = (rule.class, rule.received);
    if let Some(left) = &mut rule.left {
        *left -= 1;
        if *left == 0 {
            rules.remove(index);
        }
    }
    Some(verdict)
}
