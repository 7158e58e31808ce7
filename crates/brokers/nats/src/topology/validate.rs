//! Rejects impossible topologies before any request to the server, with the rules for names and subjects.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_core::address_template::PatternWord;
use relevo_core::slot::SLOTS;

use super::{Group, Stream, Topology};
use crate::classify::Error;

/// The maximum length of a name, which the server uses in file names.
const NAME_BYTES_MAX: usize = 200;
/// The server's limit.
const REPLICAS_MAX: usize = 5;
/// A shorter window would not cover a single retry.
const DUPLICATE_WINDOW_MIN: Duration = Duration::from_millis(100);
const ACK_WAIT_MIN: Duration = Duration::from_secs(1);
/// The record of a lane lists its unacknowledged messages. This many fit into a message with the default `max_payload`.
const ACK_PENDING_MAX: usize = 10_000;
/// The maximum size of one entry in the record: a number of 20 digits and a comma.
const ENTRY_BYTES_MAX: usize = 21;
/// The maximum size of the rest of a record, with its headers.
const RECORD_BYTES_MAX: usize = 1_000;

impl Topology {
    /// Rejects an invalid topology, with the reason.
    pub fn validate(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        for stream in &self.streams {
            stream.validate()?;
            if !names.insert(&stream.name) {
                return Err(Error::Config(format!("the topology has two streams named `{}`", stream.name)));
            }
        }
        for (index, stream) in self.streams.iter().enumerate() {
            for earlier in &self.streams[..index] {
                if let Some((subject, earlier_subject)) = stream.overlap(earlier) {
                    return Err(Error::Config(format!(
                        "the streams `{}` and `{}` of the topology overlap: `{earlier_subject}` and `{subject}`",
                        earlier.name, stream.name
                    )));
                }
            }
        }
        let mut names = BTreeSet::new();
        for group in &self.groups {
            group.validate()?;
            if !names.insert(&group.name) {
                return Err(Error::Config(format!("the topology has two groups named `{}`", group.name)));
            }
        }
        Ok(())
    }
}

impl Stream {
    /// A subject of each stream, if a message could match both.
    fn overlap<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        let pairs = self.subjects.iter().flat_map(|own| other.subjects.iter().map(move |theirs| (&**own, &**theirs)));
        pairs.into_iter().find(|(own, theirs)| overlap(own, theirs))
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let invalid = |reason: &str| Err(Error::Config(format!("stream `{}`: {reason}", self.name)));
        if !is_name(&self.name) {
            return Err(Error::Config(
                "the name of a stream must have 1 to 200 letters, digits, `-` or `_`".to_owned(),
            ));
        }
        if self.subjects.is_empty() {
            return invalid("`subjects` is empty");
        }
        if !self.subjects.iter().all(|subject| is_subject(subject)) {
            return invalid("`subjects` has an invalid subject");
        }
        if !(1..=REPLICAS_MAX).contains(&self.replicas) {
            return invalid("`replicas` must be 1 to 5");
        }
        // The server cannot detect duplicates for longer than it keeps messages.
        if self.max_age.is_some_and(|age| age < self.duplicate_window) {
            return invalid("`duplicate_window` is longer than `max_age`");
        }
        if self.duplicate_window < DUPLICATE_WINDOW_MIN {
            return invalid("`duplicate_window` must be at least 100 ms");
        }
        Ok(())
    }
}

impl Group {
    /// Rejects an invalid group.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let invalid = |reason: &str| Err(Error::Config(format!("group `{}`: {reason}", self.name)));
        if !is_name(&self.name) || !is_name(&self.stream) {
            let reason = "the names of a group and of its stream must have 1 to 200 letters, digits, `-` or `_`";
            return Err(Error::Config(reason.to_owned()));
        }
        if self.lanes.is_some_and(|lanes| !(1..=SLOTS).contains(&lanes)) {
            return invalid("`lanes` must be 1 to 256");
        }
        if self.lanes.is_some() && (self.subjects.is_empty() || self.subjects.iter().any(|one| one.ends_with('>'))) {
            return invalid("with `lanes`, it needs subjects that do not end in `>`: the last token is the lane");
        }
        if !self.subjects.iter().all(|subject| is_subject(subject)) {
            return invalid("`subjects` has an invalid subject");
        }
        if !(1..=ACK_PENDING_MAX).contains(&self.max_ack_pending) {
            return invalid("`max_ack_pending` must be 1 to 10000");
        }
        if self.ack_wait < ACK_WAIT_MIN {
            return invalid("`ack_wait` must be at least one second");
        }
        Ok(())
    }

    /// Checks that the largest possible lane record fits into this many bytes.
    pub(crate) fn validate_record_size(&self, bytes_max: usize) -> Result<(), Error> {
        let entries_max = bytes_max.saturating_sub(RECORD_BYTES_MAX) / ENTRY_BYTES_MAX;
        if self.max_ack_pending <= entries_max {
            return Ok(());
        }
        let Self { name, max_ack_pending, .. } = self;
        Err(Error::Config(format!(
            "group `{name}`: a lane record with {max_ack_pending} unacknowledged messages exceeds the server's \
             `max_payload`; set `max_ack_pending` to {entries_max} or less, or increase `max_payload`"
        )))
    }
}

/// Whether Relevo can use this name in subjects, and the server in file names.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed)
}

/// Whether the server accepts this name for a stream. Its rule is less strict than ours.
pub(crate) fn is_stream_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|char: char| !char.is_ascii_graphic() || ".*>/\\".contains(char))
}

/// Whether a stream or consumer can have this subject, with wildcards.
fn is_subject(subject: &str) -> bool {
    let tokens: Vec<&str> = subject.split('.').collect();
    let last = tokens.len() - 1;
    let is_token = |(index, token): (usize, &&str)| match *token {
        "" => false,
        ">" => index == last,
        token => token.bytes().all(|byte| byte.is_ascii_graphic()) && (token == "*" || !token.contains(['*', '>'])),
    };
    tokens.iter().enumerate().all(is_token)
}

/// The tokens of a stream's or consumer's subject.
pub(crate) fn pattern_words(subject: &str) -> Vec<PatternWord<'_>> {
    let word = |token| match token {
        "*" => PatternWord::One,
        ">" => PatternWord::OneOrMore,
        text => PatternWord::Literal(text),
    };
    subject.split('.').map(word).collect()
}

/// Whether a subject can match both. A subject without wildcards matches only itself.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut ones, mut others) = (one.split('.'), other.split('.'));
    loop {
        match (ones.next(), others.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == "*" || b == "*" || a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_topology_is_rejected() {
        let good = || Stream::new("ORDERS", ["orders.>"]);
        let topology = |stream: Stream| Topology { streams: vec![stream], groups: Vec::new() };
        topology(good()).validate().expect("it is valid");
        for bad in [
            Stream { name: "a.b".to_owned(), ..good() },
            Stream { subjects: Vec::new(), ..good() },
            Stream { subjects: vec!["a.>.b".to_owned()], ..good() },
            Stream { subjects: vec!["a..b".to_owned()], ..good() },
            Stream { replicas: 0, ..good() },
            Stream { max_age: Some(Duration::from_secs(1)), ..good() },
            Stream { duplicate_window: Duration::ZERO, ..good() },
        ] {
            assert!(matches!(topology(bad.clone()).validate(), Err(Error::Config(_))), "{bad:?}");
        }
        let twice = Topology { streams: vec![good(), good()], groups: Vec::new() };
        assert!(twice.validate().is_err());
        let overlapping = vec![good(), Stream::new("PAID", ["invoices", "orders.paid"])];
        let error =
            Topology { streams: overlapping, groups: Vec::new() }.validate().expect_err("one subject, two streams");
        assert!(error.to_string().ends_with("overlap: `orders.>` and `orders.paid`"), "{error}");
        let group = Group::new("billing", "ORDERS", ["orders.>"]);
        let clash = Topology { streams: vec![good()], groups: vec![group.clone(), group] };
        assert!(clash.validate().is_err());
    }

    #[test]
    fn subjects_overlap_as_the_server_decides() {
        for (one, other, expected) in [
            ("orders", "orders", true),
            ("orders", "invoices", false),
            ("orders.*", "orders.paid", true),
            ("orders.*", "*.paid", true),
            ("orders.*", "orders", false),
            ("orders.>", "orders", false),
            ("orders.>", "orders.a.b", true),
            (">", "orders", true),
            (">", "orders.eu.3", true),
            ("orders.*.eu", "orders.paid", false),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
            assert_eq!(overlap(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn an_impossible_group_is_rejected() {
        let good = Group { lanes: Some(4), ..Group::new("billing", "ORDERS", ["orders.*"]) };
        good.validate().expect("it is valid");
        Group::new("billing", "ORDERS", ["orders.>"]).validate().expect("`>` is allowed without lanes");
        let bad = [
            Group { name: "a.b".to_owned(), ..good.clone() },
            Group { name: "x".repeat(201), ..good.clone() },
            Group { stream: String::new(), ..good.clone() },
            Group { subjects: vec!["orders.>".to_owned()], ..good.clone() },
            Group { subjects: vec!["a..b".to_owned()], ..good.clone() },
            Group { subjects: vec!["a b".to_owned()], ..good.clone() },
            Group { subjects: vec!["a.b*".to_owned()], ..good.clone() },
            Group { subjects: Vec::new(), ..good.clone() },
            Group { lanes: Some(0), ..good.clone() },
            Group { lanes: Some(257), ..good.clone() },
            Group { max_ack_pending: 0, ..good.clone() },
            Group { ack_wait: Duration::from_millis(999), ..good },
        ];
        for group in bad {
            assert_eq!(group.validate().expect_err("it is invalid").class(), relevo_core::Class::Blocked, "{group:?}");
        }
    }
}
