//! Recent recipients whose letters were accepted, for probes when a policy rejects a recipient.
//!
//! A server may reject a client, a name or a sender only after the recipient, and the code for a rejected relay is the same as for a
//! recipient that wants no mail. So recipients whose letters were accepted are probed: if all of them are rejected too, the rejection
//! is about this sender.

use lettre::Address;
use parking_lot::Mutex;

/// The maximum number of remembered recipients per domain, so that a busy domain does not displace the others. Two, because one of
/// them may be the rejected recipient.
const OF_A_DOMAIN_MAX: usize = 2;
/// The maximum number of remembered recipients.
const ALL_MAX: usize = 16;
/// The maximum number of recipients in one probe. More than one, because a recipient that was accepted once may be rejected now.
const ASKED_MAX: usize = 3;

/// Recipients whose letters were accepted, newest last.
#[derive(Default)]
pub(super) struct Taken(Mutex<Vec<Address>>);

impl Taken {
    /// Records that a letter to this recipient was accepted.
    pub(super) fn note(&self, recipient: &Address) {
        // Other addresses need extensions, which a probe does not use.
        if !is_plain(recipient) {
            return;
        }
        let mut taken = self.0.lock();
        taken.retain(|known| known != recipient);
        let of_domain = |known: &Address| is_same_domain(known, recipient);
        if taken.iter().filter(|known| of_domain(known)).count() >= OF_A_DOMAIN_MAX
            && let Some(oldest) = taken.iter().position(of_domain)
        {
            taken.remove(oldest);
        }
        if taken.len() >= ALL_MAX {
            taken.remove(0);
        }
        taken.push(recipient.clone());
    }

    /// The recipients to probe instead of this one: similar ones, nearest and newest first, because a server may accept letters for its
    /// own domain, which is usually the sender's, and relay none. Without similar ones: others. Without any: the sender, if wanted.
    pub(super) fn instead_of(&self, recipient: &Address, sender: &Address, at_last: bool) -> Vec<Address> {
        let is_own = |address: &Address| is_same_domain(address, sender);
        let taken = self.0.lock();
        let (mut alike, others): (Vec<_>, Vec<_>) = taken
            .iter()
            .rev()
            .filter(|known| *known != recipient)
            .cloned()
            .partition(|known| is_own(known) == is_own(recipient));
        alike.sort_by_key(|known| !is_same_domain(known, recipient)); // stable: the newest stay first
        let mut asked = [alike, others].into_iter().find(|group| !group.is_empty()).unwrap_or_default();
        asked.truncate(ASKED_MAX);
        if asked.is_empty() && at_last && sender != recipient {
            asked.push(sender.clone());
        }
        asked
    }
}

fn is_plain(address: &Address) -> bool {
    let text: &str = address.as_ref();
    text.is_ascii()
}

fn is_same_domain(one: &Address, other: &Address) -> bool {
    one.domain().eq_ignore_ascii_case(other.domain())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESK: &str = "desk@here.example";

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn instead(taken: &[&str], recipient: &str) -> Vec<String> {
        let known = Taken::default();
        for recipient in taken {
            known.note(&address(recipient));
        }
        known.instead_of(&address(recipient), &address(DESK), true).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn similar_recipients_are_probed_nearest_first() {
        let taken = ["a@here.example", "b@there.example", "c@there.example", "d@else.example", "e@far.example"];
        for (recipient, expected) in [
            ("x@here.example", &["a@here.example"][..]),
            ("x@There.Example", &["c@there.example", "b@there.example", "e@far.example"]),
            ("c@there.example", &["b@there.example", "e@far.example", "d@else.example"]),
            ("x@beyond.example", &["e@far.example", "d@else.example", "c@there.example"]),
        ] {
            assert_eq!(instead(&taken, recipient), expected, "{recipient}");
        }
    }

    #[test]
    fn without_similar_recipients_others_are_probed_and_at_last_the_sender() {
        assert_eq!(instead(&["a@here.example"], "x@there.example"), ["a@here.example"]);
        assert_eq!(instead(&["a@there.example"], "x@here.example"), ["a@there.example"]);
        assert_eq!(instead(&["x@here.example", "ñ@here.example"], "x@here.example"), [DESK]);
        assert!(instead(&[], DESK).is_empty());
        assert!(Taken::default().instead_of(&address("x@here.example"), &address(DESK), false).is_empty());
    }

    #[test]
    fn a_busy_domain_does_not_make_others_forgotten_and_nothing_grows() {
        let mut taken = vec!["only@there.example".to_owned()];
        taken.extend((0..100).map(|number| format!("{number}@here.example")));
        let taken: Vec<_> = taken.iter().map(String::as_str).collect();
        assert_eq!(instead(&taken, "x@there.example"), ["only@there.example"]);
        let known = Taken::default();
        for number in 0..100 {
            known.note(&address(&format!("a@{number}.example")));
        }
        assert_eq!(known.0.lock().len(), ALL_MAX);
    }
}
