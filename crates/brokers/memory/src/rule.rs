//! What shall fail, how, and how often.

use relevo_core::{Class, MessageId, Publication};

/// Which messages a rule means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Those of this key.
    Key(String),
    /// This one.
    Id(MessageId),
    /// Those to this address.
    Address(String),
    /// All of them.
    Everything,
}

/// Makes messages fail. Of several rules that match, the one that was told first applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    what: Match,
    class: Class,
    left: Option<u32>,
    received: bool,
}

impl Rule {
    /// These messages fail with this class, for ever, and are not received.
    pub const fn new(what: Match, class: Class) -> Self {
        Self { what, class, left: None, received: false }
    }

    /// Only so many messages fail.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { left: Some(times), ..self }
    }

    /// The messages are received all the same, as when the answer is lost.
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

/// What a rule says of one message: its class, and whether it is received.
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
