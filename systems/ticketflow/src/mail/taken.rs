//! For whom letters were taken lately, and whom to ask for when a policy refuses somebody.
//!
//! Servers tell a client, a name or a sender that they do not like only when a recipient is named, and a recipient whom they would
//! have to pass mail on to is refused by the same code as one who wants nothing of us. So others are asked for, whose letters were
//! taken: if all of them are refused as well, it is about us.

use lettre::Address;
use parking_lot::Mutex;

/// The most that are remembered of one domain, so that a busy one does not make us forget the others. Two, because one of them may
/// be whom the question is about.
const OF_A_DOMAIN_MAX: usize = 2;
/// The most that are remembered.
const ALL_MAX: usize = 16;
/// The most that are asked for at once. More than one: that somebody was taken once does not mean that they still are.
const ASKED_MAX: usize = 3;

/// Recipients whose letters were taken, the newest last.
#[derive(Default)]
pub(super) struct Taken(Mutex<Vec<Address>>);

impl Taken {
    /// A letter for them was taken.
    pub(super) fn note(&self, recipient: &Address) {
        // Others need more than a plain question.
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

    /// Whom to ask for instead of this recipient: those who are like them, because a server may take what is for its own domain, as
    /// the sender's mostly is, and pass nothing on; the nearest and newest first. If there are none, others; if nothing was taken
    /// yet, the sender, if that is wanted.
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
    fn those_who_are_like_the_recipient_are_asked_for_the_nearest_first() {
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
    fn where_nobody_is_like_them_others_are_asked_for_and_at_last_the_sender() {
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
