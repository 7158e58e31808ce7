//! Messages that a ledger fails to handle: the same ones in every process.

use relevo_core::MessageId;

/// How many messages fail, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureRates {
    /// For one message in N, the first two counted attempts fail. 0 disables it.
    pub retry_one_in: u32,
    /// One message in N is poison, until the consumer is [cured](super::Store::cure). 0 disables it.
    pub poison_one_in: u32,
}

/// How one message behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Good,
    Fails,
    Poison,
}

/// Number of attempts that fail for a message that fails at first.
pub(super) const FAILS: u32 = 2;

impl FailureRates {
    pub(super) fn of(self, id: MessageId) -> MessageKind {
        // Any bits that differ between messages are sufficient.
        let hash = id
            .as_uuid()
            .as_bytes()
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        let one_in = |number: u32| number > 0 && hash % number == 0;
        if one_in(self.poison_one_in) {
            MessageKind::Poison
        } else if one_in(self.retry_one_in) {
            MessageKind::Fails
        } else {
            MessageKind::Good
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_share_of_messages_fails_and_always_the_same() {
        let ids: Vec<_> = (0..10_000).map(|number| MessageId::v7(number, [7; 10])).collect();
        let failure_rates = FailureRates { retry_one_in: 5, poison_one_in: 100 };
        let count = |mood| ids.iter().filter(|id| failure_rates.of(**id) == mood).count();
        assert!((1_600..2_400).contains(&count(MessageKind::Fails)), "{}", count(MessageKind::Fails));
        assert!((50..200).contains(&count(MessageKind::Poison)), "{}", count(MessageKind::Poison));
        assert!(ids.iter().all(|id| FailureRates::default().of(*id) == MessageKind::Good));
    }
}
