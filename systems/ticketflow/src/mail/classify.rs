//! The meaning of a mail server's response: whether it is about the letter, the recipient or this sender.

use std::error::Error as _;

use lettre::transport::smtp::Error;

use super::PostError;

/// The server closes the connection: it shuts down, or limits this client.
const CLOSING: u16 = 421;
/// The letter is too large.
const TOO_LARGE: u16 = 552;
/// The server requires or rejects a login: its responses to AUTH, and to clients that should have used it.
const LOGIN: [u16; 4] = [530, 534, 535, 538];

/// The stage at which a letter was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// After the sender.
    Sender,
    /// After the recipient.
    Recipient,
    /// During or after the content: the server may have accepted the letter whatever it responded.
    Content,
}

/// The failure of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No session: no connection, no TLS, no greeting, or no login.
    NoEntry,
    /// The server temporarily rejects a session.
    Stranger,
    /// The connection broke, the timeout passed, or the response was invalid.
    Unanswered,
    /// The server closes the session.
    Closing,
    /// A temporary rejection, 4xx.
    NotNow,
    /// A permanent rejection, 5xx.
    Never,
    /// The client cannot send it to this server.
    Unsendable,
}

/// How to find out whether a response is about the letter or about this sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It is about this sender.
    None,
    /// By a probe of the sender.
    Sender,
    /// By a probe of recent recipients; for a policy without known recipients, by a probe of the sender.
    Others {
        /// A policy rejected it, which may be about this sender.
        by_policy: bool,
    },
    /// No probe is possible without sending a letter, so nothing is final at once. The attempt counts: a few permanently rejected
    /// letters must not delay all others, as an outage would.
    Letters,
}

/// A response at a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) stage: Stage,
    pub(super) failure: Failure,
    code: Option<u16>,
    status: Option<Status>,
}

/// Subject and detail of an enhanced status (RFC 3463).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(u16, u16);

impl Refusal {
    /// No session.
    pub(super) const NO_ENTRY: Self =
        Self { stage: Stage::Sender, failure: Failure::NoEntry, code: None, status: None };

    /// The timeout passed.
    pub(super) const fn late(stage: Stage) -> Self {
        Self { stage, failure: Failure::Unanswered, code: None, status: None }
    }

    /// A response within a session.
    pub(super) fn of(stage: Stage, error: &Error) -> Self {
        let code = error.status().map(u16::from);
        let failure = match code {
            Some(CLOSING) => Failure::Closing,
            Some(code) if LOGIN.contains(&code) => Failure::Stranger,
            Some(_) if error.is_transient() => Failure::NotNow,
            Some(_) => Failure::Never,
            None if error.is_client() => Failure::Unsendable,
            None => Failure::Unanswered,
        };
        let said = error.source().map(ToString::to_string).unwrap_or_default();
        Self { stage, failure, code, status: code.and_then(|code| Status::read(code, &said)) }
    }

    /// A server that shuts down, or rejects the connection, the login or the sender, behaves like one that fails at a letter. A
    /// server with an unavailable component reports it after the recipient or after the letter.
    pub(super) fn doubt(&self) -> Doubt {
        match self.failure {
            Failure::NoEntry | Failure::Stranger => Doubt::None,
            Failure::Unanswered | Failure::Closing | Failure::Unsendable => Doubt::Sender,
            Failure::NotNow | Failure::Never => match (self.stage, self.status) {
                (Stage::Sender, _) => Doubt::Sender,
                (_, Some(status)) if status.is_of_recipient() => Doubt::Sender,
                (Stage::Recipient, Some(status)) => Doubt::Others { by_policy: status.is_policy() },
                (Stage::Recipient, None) => Doubt::Others { by_policy: false },
                (Stage::Content, Some(status)) if status.is_of_content() => Doubt::Sender,
                (Stage::Content, None) if self.code == Some(TOO_LARGE) => Doubt::Sender,
                (Stage::Content, _) => Doubt::Letters,
            },
        }
    }

    /// The error for the letter, from a server that accepts others.
    pub(super) fn error(self, why: String) -> PostError {
        let doubted = self.doubt() == Doubt::Letters;
        match self.failure {
            Failure::NoEntry | Failure::Stranger => PostError::Away(why),
            Failure::Unanswered if self.stage == Stage::Content => PostError::Unanswered(why),
            Failure::Unanswered | Failure::Closing | Failure::NotNow => PostError::Later(why),
            Failure::Never if doubted => PostError::Doubted(why),
            Failure::Never | Failure::Unsendable => PostError::Refused(why),
        }
    }
}

impl Status {
    /// From the code and the text of a response, which begins with the enhanced status if the server sends one.
    fn read(code: u16, said: &str) -> Option<Self> {
        let words: Vec<_> = said.split_whitespace().next().unwrap_or_default().split('.').collect();
        let [class, subject, detail] = words[..] else { return None };
        if class != (code / 100).to_string() {
            return None;
        }
        Some(Self(subject.parse().ok()?, detail.parse().ok()?))
    }

    /// About the recipient's address or mailbox; X.1.7 and X.1.8 are about the sender's.
    const fn is_of_recipient(self) -> bool {
        matches!(self, Self(1, detail) if detail != 7 && detail != 8) || matches!(self, Self(2, _))
    }

    /// About the content or size of the letter.
    const fn is_of_content(self) -> bool {
        matches!(self, Self(6, _) | Self(3, 4))
    }

    /// About a policy, or the reputation of the sender.
    const fn is_policy(self) -> bool {
        matches!(self, Self(1 | 7, _))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(stage: Stage, code: u16, said: &str) -> Refusal {
        let failure = if code < 500 { Failure::NotNow } else { Failure::Never };
        Refusal { stage, failure, code: Some(code), status: Status::read(code, said) }
    }

    #[test]
    fn the_enhanced_status_distinguishes_mailbox_and_content() {
        for (stage, code, said) in [
            (Stage::Recipient, 550, "5.1.1 no such mailbox"),
            (Stage::Recipient, 452, "4.2.2 the mailbox is full"),
            (Stage::Recipient, 450, "4.2.0 greylisted"),
            (Stage::Content, 554, "5.6.0 not this content"),
            (Stage::Content, 552, "5.3.4 too large"),
            (Stage::Content, 552, "too large"),
            (Stage::Sender, 553, "5.7.1 sender is not yours"),
        ] {
            assert_eq!(refusal(stage, code, said).doubt(), Doubt::Sender, "{code} {said}");
        }
    }

    #[test]
    fn others_are_probed_if_the_recipient_may_not_be_the_reason() {
        for (code, said, by_policy) in [
            (554, "5.7.1 <pia@example.org>: Relay access denied", true),
            (550, "5.7.54 SMTP; Unable to relay recipient in non-accepted domain", true),
            (454, "4.7.1 <pia@example.org>: Relay access denied", true),
            (450, "4.7.25 Client host rejected: cannot find your hostname", true),
            (550, "5.1.8 sender address rejected", true),
            (451, "4.3.0 <pia@example.org>: Temporary lookup failure", false),
            (550, "relay not permitted", false),
            (550, "5.7", false),
            (550, "5.7.x odd", false),
            (550, "4.7.1 of another class than the code", false),
            (550, "", false),
        ] {
            assert_eq!(refusal(Stage::Recipient, code, said).doubt(), Doubt::Others { by_policy }, "{code} {said}");
        }
    }

    #[test]
    fn what_is_said_behind_a_letter_is_doubted_and_never_final_at_once() {
        for (code, said) in [(451, "4.7.1 Service unavailable"), (452, "4.3.1 no space"), (451, "try later")] {
            let refusal = refusal(Stage::Content, code, said);
            assert_eq!(refusal.doubt(), Doubt::Letters);
            assert!(matches!(refusal.error(said.to_owned()), PostError::Later(_)), "{code} {said}");
        }
        for said in ["5.7.26 this sender fails DMARC", "5.7.1 spam", "rejected"] {
            let refusal = refusal(Stage::Content, 550, said);
            assert!(matches!(refusal.error(said.to_owned()), PostError::Doubted(_)), "{said}");
        }
    }

    #[test]
    fn only_a_letter_that_was_sent_can_have_been_taken() {
        assert!(matches!(Refusal::late(Stage::Content).error(String::new()), PostError::Unanswered(_)));
        assert!(matches!(Refusal::late(Stage::Recipient).error(String::new()), PostError::Later(_)));
    }
}
