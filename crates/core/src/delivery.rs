//! The states of a message at one destination, and the transitions between them.

use std::fmt;

/// The state of a message at one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waits in its own table until it is due.
    Scheduled,
    /// In the log, not yet confirmed.
    Pending,
    /// Rejected. Waits for its next attempt at the head of its key.
    Retrying,
    /// Its address is held. It waits, and no attempt is counted.
    Held,
    /// It broke connections. It is tried alone and rarely, and no attempt is counted.
    Quarantined,
    /// Waits behind another message of its key.
    Behind,
    /// Dead-lettered. An operator decides.
    Dead,
    /// The broker confirmed it. Final.
    Published,
    /// An operator discarded it. Final.
    Discarded,
    /// Deleted before it was due. Final.
    Cancelled,
}

/// An event that changes the state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// It became due.
    Due,
    /// The broker confirmed it.
    Confirmed,
    /// The broker was unreachable, or its confirmation was lost.
    Unanswered,
    /// Rejected, with attempts left.
    Refused,
    /// Rejected at its last attempt, or rejected permanently.
    GivenUp,
    /// Its address was held.
    AddressHeld,
    /// Sent alone, it broke the connection again.
    Suspected,
    /// An earlier message of its key waits.
    KeyParked,
    /// No earlier message of its key is left.
    HeadGone,
    /// An operator redrives it.
    Redriven,
    /// An operator discards it.
    Discard,
    /// Its writer cancels it.
    Cancel,
}

impl State {
    /// Every state, in life-cycle order.
    pub const ALL: [Self; 10] = [
        Self::Scheduled,
        Self::Pending,
        Self::Retrying,
        Self::Held,
        Self::Quarantined,
        Self::Behind,
        Self::Dead,
        Self::Published,
        Self::Discarded,
        Self::Cancelled,
    ];

    /// Whether no event can change the state.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Published | Self::Discarded | Self::Cancelled)
    }

    /// The state after `event`, or `None` if the event cannot happen in this state.
    pub const fn after(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::Scheduled, E::Due) => S::Pending,
            (S::Scheduled, E::Cancel) => S::Cancelled,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::Confirmed) => S::Published,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::Unanswered) => self,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::Refused)
            | (S::Behind, E::HeadGone)
            | (S::Dead, E::Redriven) => S::Retrying,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::GivenUp) => S::Dead,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::AddressHeld) => S::Held,
            (S::Pending | S::Retrying | S::Held | S::Quarantined, E::Suspected) => S::Quarantined,
            (S::Pending, E::KeyParked) => S::Behind,
            (S::Dead, E::Discard) => S::Discarded,
            _ => return None,
        })
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 12] = [
        Self::Due,
        Self::Confirmed,
        Self::Unanswered,
        Self::Refused,
        Self::GivenUp,
        Self::AddressHeld,
        Self::Suspected,
        Self::KeyParked,
        Self::HeadGone,
        Self::Redriven,
        Self::Discard,
        Self::Cancel,
    ];
}

/// The transition table as text: one row per state, one line per transition.
pub struct Table;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for state in State::ALL {
            let end = if state.is_final() { "  (final)" } else { "" };
            writeln!(f, "{state:?}{end}")?;
            for event in Event::ALL {
                if let Some(next) = state.after(event) {
                    writeln!(f, "    {event:<12} -> {next:?}", event = format!("{event:?}"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn states() -> impl Strategy<Value = State> {
        prop::sample::select(State::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn no_arrow_leaves_a_final_state(state in states(), event in prop::sample::select(Event::ALL.to_vec())) {
            prop_assert!(!state.is_final() || state.after(event).is_none());
        }

        #[test]
        fn only_the_far_side_can_publish(state in states(), event in prop::sample::select(Event::ALL.to_vec())) {
            prop_assert!(state.after(event) != Some(State::Published) || event == Event::Confirmed);
        }

        #[test]
        fn only_a_person_takes_a_message_out_of_the_dead(event in prop::sample::select(Event::ALL.to_vec())) {
            prop_assert!(State::Dead.after(event).is_none() || matches!(event, Event::Redriven | Event::Discard));
        }
    }

    #[test]
    fn every_state_that_is_not_final_can_reach_published_or_cancelled() {
        for start in State::ALL.into_iter().filter(|state| !state.is_final()) {
            let mut seen = vec![start];
            let mut next = 0;
            while next < seen.len() {
                for event in Event::ALL {
                    if let Some(state) = seen[next].after(event)
                        && !seen.contains(&state)
                    {
                        seen.push(state);
                    }
                }
                next += 1;
            }
            assert!(seen.contains(&State::Published), "{start:?} is a dead end");
        }
    }

    #[test]
    fn the_transition_table() {
        insta::assert_snapshot!(Table);
    }
}
