//! A letter in its wire format.

use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart, SinglePart};
use lettre::{Address, Message};

use super::{Letter, PostError};

impl Letter {
    /// The same bytes at every attempt. A letter that cannot be encoded is permanently rejected.
    pub(super) fn message(&self) -> Result<Message, PostError> {
        let wrong = |error: &dyn std::fmt::Display| PostError::Refused(format!("it cannot be written: {error}"));
        let address: Address = self.to.email.parse().map_err(|error| wrong(&error))?;
        let name = self.to.name.replace(char::is_control, " ");
        // The boundary of the parts. User text cannot contain it, because it is never a whole line of a letter.
        let parts = MultiPart::builder()
            .kind(lettre::message::MultiPartKind::Alternative)
            .boundary(format!("part-{}", self.message_id.split('@').next().unwrap_or_default()))
            .singlepart(SinglePart::plain(self.text.clone()))
            .singlepart(SinglePart::html(self.html.clone()));
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(Some(name), address))
            .subject(self.subject.clone())
            .date(self.date.into())
            .message_id(Some(format!("<{}>", self.message_id)))
            .raw_header(header("X-Event-Id", self.event_id.to_string()))
            .raw_header(header("X-Correlation-Id", plain(&self.correlation_id)))
            .raw_header(header("Auto-Submitted", "auto-generated".to_owned()))
            .raw_header(header("Content-Language", self.language().to_string()))
            .multipart(parts)
            .map_err(|error| wrong(&error))
    }
}

fn header(name: &'static str, value: String) -> HeaderValue {
    HeaderValue::new(HeaderName::new_from_ascii_str(name), value)
}

/// The correlation id is user input: only letters, digits, dots, dashes and underscores remain.
fn plain(id: &str) -> String {
    id.chars().filter(|char| char.is_ascii_alphanumeric() || ".-_".contains(*char)).take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::super::letter::tests::{RESOLVED, event, letter};
    use super::*;

    fn bytes(letter: &Letter) -> String {
        String::from_utf8(letter.message().unwrap().formatted()).unwrap()
    }

    #[test]
    fn a_letter_is_these_bytes() {
        insta::assert_snapshot!(bytes(&letter(&event(RESOLVED)).unwrap()).replace("\r\n", "\n"));
    }

    #[test]
    fn nothing_that_people_write_becomes_a_header() {
        let mut event = event(RESOLVED);
        let evil = "x\r\nBcc: everybody@example.org\r\n\r\nboo";
        event.ticket.title = evil.to_owned();
        event.ticket.requester.name = evil.to_owned();
        event.actor.name = evil.to_owned();
        let mut letter = letter(&event).unwrap();
        letter.correlation_id = evil.to_owned();
        let bytes = bytes(&letter);
        let (head, _) = bytes.split_once("\r\n\r\n").unwrap();
        let names: Vec<_> = head
            .split("\r\n")
            .filter(|line| !line.starts_with([' ', '\t']))
            .map(|line| line.split_once(':').unwrap().0)
            .collect();
        let expected = [
            "From",
            "To",
            "Subject",
            "Date",
            "Message-ID",
            "X-Event-Id",
            "X-Correlation-Id",
            "Auto-Submitted",
            "Content-Language",
            "MIME-Version",
            "Content-Type",
        ];
        assert_eq!(names, expected, "{head}");
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let mut letter = letter(&event(RESOLVED)).unwrap();
        for wrong in ["", "invalid", "a@b\r\nRCPT TO:<c@d>", "a b@c.org"] {
            letter.to.email = wrong.to_owned();
            assert!(matches!(letter.message(), Err(PostError::Refused(_))), "{wrong}");
        }
    }
}
