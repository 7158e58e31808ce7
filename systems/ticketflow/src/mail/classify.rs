//! What an answer of a mail server means.

use std::error::Error as _;

use lettre::transport::smtp::Error;

use super::PostError;

/// The server ends the connection: it goes away, or has enough of us.
const CLOSING: u16 = 421;

/// The server wants to know who we are, or does not believe it: its answers to AUTH, and to whoever should have used it.
const LOGIN: [u16; 4] = [530, 534, 535, 538];

/// The subject of an enhanced status that is neither address nor mailbox, but whether something may be: X.7.Y.
const POLICY: &str = "7";

/// Whether a policy refused it, which may be one about us as well as one about the letter.
pub(super) fn is_policy(error: &Error) -> bool {
    let said = error.source().map(ToString::to_string).unwrap_or_default();
    is_policy_said(error.status().map(u16::from), &said)
}

/// By the code and the words of an answer, of which the first is the enhanced status if the server has such.
fn is_policy_said(code: Option<u16>, said: &str) -> bool {
    let status: Vec<_> = said.split_whitespace().next().unwrap_or_default().split('.').collect();
    let [class, subject, detail] = status[..] else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    code.is_some_and(|code| (code / 100).to_string() == class) && subject == POLICY && is_number(detail)
}

/// What became of a letter that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody let us in, so that no letter was spoken of: no connection, no TLS, no greeting, no login.
    NoEntry,
    /// The server does not let us in, it says later.
    Stranger,
    /// The connection broke, the time was over, or there was no sense in what was said: the letter may have been taken.
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

impl Failure {
    /// What a server means that let us in.
    pub(super) fn of(error: &Error) -> Self {
        match error.status().map(u16::from) {
            Some(CLOSING) => Self::Closing,
            Some(code) if LOGIN.contains(&code) => Self::Stranger,
            Some(_) if error.is_transient() => Self::NotNow,
            Some(_) => Self::Never,
            None if error.is_client() => Self::Unsendable,
            None => Self::Unanswered,
        }
    }

    /// A server that is going down, or that refuses our connection, our login or our sender, says and does the same as one that
    /// fails at a letter. Whether it takes letters of ours at all tells them apart.
    pub(super) const fn may_be_about_us(self) -> bool {
        match self {
            Self::Unanswered | Self::Closing | Self::NotNow | Self::Never | Self::Unsendable => true,
            Self::NoEntry | Self::Stranger => false,
        }
    }

    /// What it means for the letter, of a server that takes others.
    pub(super) fn told(self, why: String) -> PostError {
        match self {
            Self::NoEntry | Self::Stranger => PostError::Away(why),
            Self::Unanswered => PostError::Unanswered(why),
            Self::Closing | Self::NotNow => PostError::Later(why),
            Self::Never | Self::Unsendable => PostError::Refused(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_told_by_the_subject_of_the_enhanced_status() {
        for (code, said) in [
            (554, "5.7.1 <pia@example.org>: Relay access denied"),
            (550, "5.7.54 SMTP; Unable to relay recipient in non-accepted domain"),
            (454, "4.7.1 <pia@example.org>: Relay access denied"),
            (450, "4.7.25 Client host rejected: cannot find your hostname"),
        ] {
            assert!(is_policy_said(Some(code), said), "{code} {said}");
        }
        for (code, said) in [
            (550, "5.1.1 no such mailbox"),
            (452, "4.2.2 the mailbox is full"),
            (550, "relay not permitted"),
            (550, "5.7"),
            (550, "5.7.x odd"),
            (550, "4.7.1 of another class than the code"),
            (550, ""),
        ] {
            assert!(!is_policy_said(Some(code), said), "{code} {said}");
        }
        assert!(!is_policy_said(None, "5.7.1 nobody said it"));
    }
}
