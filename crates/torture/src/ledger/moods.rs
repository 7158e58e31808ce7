//! Messages that a ledger fails to handle: the same ones in every process.

use relevo_core::MessageId;

/// How many messages fail, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moods {
    /// For one message in N, the first two counted attempts fail. 0 disables it.
    pub retry_one_in: u32,
    /// One message in N is poison, until the consumer is [cured](super::Store::cure). 0 disables it.
    pub poison_one_in: u32,
}

/// How one message behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Good,
    Fails,
    Poison,
}

/// Number of attempts that fail for a message that fails at first.
pub(super) const FAILS: u32 = 2;

impl Moods {
    pub(super) fn of(self, id: MessageId) -> Mood {
        // Any bits that differ between messages are good enough.
        let hash = id
            .as_uuid()
            .as_bytes()
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        let one_in = |number: u32| number > 0 && hash % number == 0;
        if one_in(self.poison_one_in) {
            Mood::Poison
        } else if one_in(self.retry_one_in) {
            Mood::Fails
        } else {
            Mood::Good
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_in_so_many_fails_and_always_the_same() {
        let ids: Vec<_> = (0..10_000).map(|number| MessageId::v7(number, [7; 10])).collect();
        let moods = Moods { retry_one_in: 5, poison_one_in: 100 };
        let count = |mood| ids.iter().filter(|id| moods.of(**id) == mood).count();
        assert!((1_600..2_400).contains(&count(Mood::Fails)), "{}", count(Mood::Fails));
        assert!((50..200).contains(&count(Mood::Poison)), "{}", count(Mood::Poison));
        assert!(ids.iter().all(|id| Moods::default().of(*id) == Mood::Good));
    }
}
