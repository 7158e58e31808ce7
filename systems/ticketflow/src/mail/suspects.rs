//! Letters that a server refused when it had them, for reasons that may hold for all.
//!
//! A scanner that is down, a full disk, a rule about our sender: a server says so behind a letter, by the codes with which it
//! refuses one letter, and nothing but another letter tells which it is.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lettre::Address;

/// From so many different recipients on it is not about them. Until then each refusal counts as the letter's own.
const RECIPIENTS_MAX: usize = 3;

/// Whose letters were refused since one was taken.
#[derive(Default)]
pub(super) struct Suspects(Mutex<BTreeSet<String>>);

impl Suspects {
    /// One more was refused: whether by now nothing seems to be taken.
    pub(super) fn refused(&self, recipients: &[Address]) -> bool {
        let mut suspects = self.lock();
        if suspects.len() < RECIPIENTS_MAX {
            suspects.extend(recipients.iter().map(ToString::to_string));
        }
        suspects.len() >= RECIPIENTS_MAX
    }

    /// A letter was taken.
    pub(super) fn taken(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_recipient_is_never_all_and_a_letter_that_is_taken_clears_the_others() {
        let suspects = Suspects::default();
        let refused = |name: &str| suspects.refused(&[format!("{name}@example.org").parse().unwrap()]);
        assert_eq!([refused("a"), refused("a"), refused("a"), refused("b")], [false; 4]);
        suspects.taken();
        assert_eq!([refused("a"), refused("b"), refused("c"), refused("a")], [false, false, true, true]);
        suspects.taken();
        assert!(!refused("c"));
    }
}
