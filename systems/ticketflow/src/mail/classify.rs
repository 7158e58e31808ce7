//! What an answer of a mail server means, and whom it is about.

use std::error::Error as _;

use lettre::transport::smtp::Error;

use super::PostError;

/// The server ends the connection: it goes away, or has enough of us.
const CLOSING: u16 = 421;
/// The letter is too large.
const TOO_LARGE: u16 = 552;
/// The server wants to know who we are, or does not believe it: its answers to AUTH, and to whoever should have used it.
const LOGIN: [u16; 4] = [530, 534, 535, 538];

/// How far a letter had come when it was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The server was told of us.
    Sender,
    /// It was told for whom the letter is.
    Recipient,
    /// It had, or was having, all of the letter: it may have taken it in spite of what it said.
    Content,
}

/// What became of a letter that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody let us in, so that no letter was spoken of: no connection, no TLS, no greeting, no login.
    NoEntry,
    /// The server does not let us in, it says later.
    Stranger,
    /// The connection broke, the time was over, or there was no sense in what was said.
    Unanswered,
    /// The server says goodbye.
    Closing,
    /// A passing refusal, 4xx.
    NotNow,
    /// A lasting refusal, 5xx.
    Never,
    /// The client itself cannot send it to this server.
    Unsendable,
}

/// How it is found out whether an answer is about the letter or about us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It is about us.
    None,
    /// Whether the server takes our sender tells.
    Sender,
    /// Whether it takes others to whom letters went lately tells; by a policy, whether it takes the sender, where nobody is known.
    Others {
        /// A rule was in the way, which may be one about us.
        by_policy: bool,
    },
    /// Nothing can be asked without sending a letter, so that nothing is final at once. It counts all the same: a few letters that
    /// are refused for good must not keep all others waiting, as an outage would.
    Letters,
}

/// An answer, at a stage.
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
    /// Nobody let us in.
    pub(super) const NO_ENTRY: Self =
        Self { stage: Stage::Sender, failure: Failure::NoEntry, code: None, status: None };

    /// The time was over.
    pub(super) const fn late(stage: Stage) -> Self {
        Self { stage, failure: Failure::Unanswered, code: None, status: None }
    }

    /// What a server says that let us in.
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

    /// A server that is going down, or that refuses our connection, our login or our sender, says and does the same as one that
    /// fails at a letter. One whose own parts are away says it when the recipient is named, or behind the letter.
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

    /// What it means for the letter, of a server that takes others.
    pub(super) fn told(self, why: String) -> PostError {
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
    /// By the code and the words of an answer, of which the first is the enhanced status if the server has such.
    fn read(code: u16, said: &str) -> Option<Self> {
        let words: Vec<_> = said.split_whitespace().next().unwrap_or_default().split('.').collect();
        let [class, subject, detail] = words[..] else { return None };
        if class != (code / 100).to_string() {
            return None;
        }
        Some(Self(subject.parse().ok()?, detail.parse().ok()?))
    }

    /// The recipient's address or mailbox; X.1.7 and X.1.8 are about the sender's.
    const fn is_of_recipient(self) -> bool {
        matches!(self, Self(1, detail) if detail != 7 && detail != 8) || matches!(self, Self(2, _))
    }

    /// What the letter says, and how much it is.
    const fn is_of_content(self) -> bool {
        matches!(self, Self(6, _) | Self(3, 4))
    }

    /// Whether something may be, or whether the sender is liked.
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
    fn what_is_about_a_mailbox_or_a_content_is_told_by_the_enhanced_status() {
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
    fn others_are_asked_for_where_a_recipient_may_not_be_the_reason() {
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
            assert!(matches!(refusal.told(said.to_owned()), PostError::Later(_)), "{code} {said}");
        }
        for said in ["5.7.26 this sender fails DMARC", "5.7.1 spam", "rejected"] {
            let refusal = refusal(Stage::Content, 550, said);
            assert!(matches!(refusal.told(said.to_owned()), PostError::Doubted(_)), "{said}");
        }
    }

    #[test]
    fn only_a_letter_that_was_sent_can_have_been_taken() {
        assert!(matches!(Refusal::late(Stage::Content).told(String::new()), PostError::Unanswered(_)));
        assert!(matches!(Refusal::late(Stage::Recipient).told(String::new()), PostError::Later(_)));
    }
}
