//! Validates a topology before any request to the server.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_core::address_template::PatternWord;

use super::{Stream, Topology};
use crate::classify::Error;

/// As for groups: names become parts of subjects and of file names.
const NAME_BYTES_MAX: usize = 200;
/// The server's limit.
const REPLICAS_MAX: usize = 5;

impl Topology {
    /// Rejects an invalid topology, with the reason.
    pub fn validate(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        for stream in &self.streams {
            stream.validate()?;
            if !names.insert(stream.name.clone()) {
                return Err(Error::Config(format!("two streams of the topology are called `{}`", stream.name)));
            }
        }
        for (at, one) in self.streams.iter().enumerate() {
            for other in &self.streams[..at] {
                if let Some((ours, theirs)) = one.overlap(other) {
                    let (one, other) = (&one.name, &other.name);
                    return Err(Error::Config(format!(
                        "the streams `{other}` and `{one}` of the topology overlap: `{theirs}` and `{ours}`"
                    )));
                }
            }
        }
        let mut groups = BTreeSet::new();
        for group in &self.groups {
            group.validate()?;
            if !groups.insert(&group.name) {
                let name = &group.name;
                return Err(Error::Config(format!("two groups of the topology are called `{name}`")));
            }
        }
        Ok(())
    }
}

impl Stream {
    /// A subject of each stream, if a message could match both.
    fn overlap<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        let pairs = self.subjects.iter().flat_map(|ours| other.subjects.iter().map(move |theirs| (&**ours, &**theirs)));
        pairs.into_iter().find(|(ours, theirs)| overlap(ours, theirs))
    }

    fn validate(&self) -> Result<(), Error> {
        let wrong = |why: &str| Err(Error::Config(format!("the stream `{}` {why}", self.name)));
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.bytes().all(fits) {
            return wrong("needs a name of letters, digits, `-` and `_`, at most 200");
        }
        if self.subjects.is_empty() {
            return wrong("has no subjects");
        }
        if !self.subjects.iter().all(|subject| is_subject(subject)) {
            return wrong("has a subject that is none");
        }
        if !(1..=REPLICAS_MAX).contains(&self.replicas) {
            return wrong("needs 1 to 5 replicas");
        }
        // The server cannot detect duplicates for longer than it keeps messages.
        if self.max_age.is_some_and(|age| age < self.duplicate_window) {
            return wrong("has a `duplicate_window` longer than its `max_age`");
        }
        if self.duplicate_window < Duration::from_millis(100) {
            return wrong("needs a `duplicate_window` of at least 100 ms");
        }
        Ok(())
    }
}

fn is_subject(subject: &str) -> bool {
    let words: Vec<&str> = subject.split('.').collect();
    let last = words.len() - 1;
    let is_word = |(at, word): (usize, &&str)| match *word {
        "" => false,
        ">" => at == last,
        word => word.bytes().all(|byte| byte.is_ascii_graphic()) && (word == "*" || !word.contains(['*', '>'])),
    };
    words.iter().enumerate().all(is_word)
}

/// The tokens of a stream's or consumer's subject.
pub(crate) fn words(subject: &str) -> Vec<PatternWord<'_>> {
    let word = |word| match word {
        "*" => PatternWord::One,
        ">" => PatternWord::OneOrMore,
        text => PatternWord::Literal(text),
    };
    subject.split('.').map(word).collect()
}

/// Whether a subject can match both.
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
    use crate::topology::Group;

    #[test]
    fn an_impossible_topology_is_rejected() {
        let good = || Stream::new("ORDERS", ["orders.>"]);
        let of = |stream: Stream| Topology { streams: vec![stream], groups: Vec::new() };
        of(good()).validate().expect("a good one");
        for bad in [
            Stream { name: "a.b".to_owned(), ..good() },
            Stream { subjects: Vec::new(), ..good() },
            Stream { subjects: vec!["a.>.b".to_owned()], ..good() },
            Stream { subjects: vec!["a..b".to_owned()], ..good() },
            Stream { replicas: 0, ..good() },
            Stream { max_age: Some(Duration::from_secs(1)), ..good() },
            Stream { duplicate_window: Duration::ZERO, ..good() },
        ] {
            assert!(matches!(of(bad.clone()).validate(), Err(Error::Config(_))), "{bad:?}");
        }
        let twice = Topology { streams: vec![good(), good()], groups: Vec::new() };
        assert!(twice.validate().is_err());
        let overlapping = vec![good(), Stream::new("PAID", ["invoices", "orders.paid"])];
        let refused =
            Topology { streams: overlapping, groups: Vec::new() }.validate().expect_err("one subject, two streams");
        assert!(refused.to_string().ends_with("overlap: `orders.>` and `orders.paid`"), "{refused}");
        let group = Group::new("billing", "ORDERS", ["orders.>"]);
        let clash = Topology { streams: vec![good()], groups: vec![group.clone(), group] };
        assert!(clash.validate().is_err());
    }

    #[test]
    fn subjects_overlap_as_the_server_decides() {
        for (one, other, wanted) in [
            ("orders", "orders", true),
            ("orders", "invoices", false),
            ("orders.*", "orders.paid", true),
            ("orders.*", "*.paid", true),
            ("orders.*", "orders", false),
            ("orders.>", "orders", false),
            ("orders.>", "orders.a.b", true),
            (">", "orders", true),
            ("orders.*.eu", "orders.paid", false),
        ] {
            assert_eq!(overlap(one, other), wanted, "{one} {other}");
            assert_eq!(overlap(other, one), wanted, "{other} {one}");
        }
    }
}
