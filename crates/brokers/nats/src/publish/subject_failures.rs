//! Subjects that accept no messages, and since when.
//!
//! On a single server, no response means that the stream is missing. In a cluster, a stream without a leader looks the
//! same, and has a new leader within seconds: that needs no operator. A full stream has space again when messages are
//! consumed or expire. A stream that stays full needs an operator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::classify::Error;

/// An election takes 4 to 9 seconds after the loss of a leader.
const ELECTION_MAX: Duration = Duration::from_secs(15);
/// A stream that stored nothing for this long while it was full does not recover without an operator.
const FULL_MAX: Duration = Duration::from_mins(5);
/// The maximum number of tracked subjects. Above it the table is cleared.
const SUBJECTS_MAX: usize = 1_024;

/// Since when each subject accepts no messages.
#[derive(Debug, Default)]
pub(super) struct SubjectFailures {
    /// Whether the server is part of a cluster.
    clustered: bool,
    no_stream: FailingSince,
    full_since: FailingSince,
}

#[derive(Debug, Default)]
struct FailingSince(BTreeMap<String, Instant>);

impl FailingSince {
    /// Records a failure. Returns how long it has lasted.
    fn lasting(&mut self, subject: &str, now: Instant) -> Duration {
        if self.0.len() >= SUBJECTS_MAX && !self.0.contains_key(subject) {
            self.0.clear();
        }
        now.saturating_duration_since(*self.0.entry(subject.to_owned()).or_insert(now))
    }

    fn clear(&mut self, subject: &str) {
        if !self.0.is_empty() {
            self.0.remove(subject);
        }
    }
}

impl SubjectFailures {
    pub(super) fn new(clustered: bool) -> Self {
        Self { clustered, ..Self::default() }
    }

    /// Adjusts the error of a response, depending on earlier responses.
    pub(super) fn classify<T>(&mut self, subject: &str, answer: Result<T, Error>, now: Instant) -> Result<T, Error> {
        match answer {
            Err(Error::NoStream) => {
                self.full_since.clear(subject);
                Err(self.no_stream_error(subject, now))
            }
            Err(Error::StreamFull(why)) => {
                self.no_stream.clear(subject);
                let lasted = self.full_since.lasting(subject, now);
                Err(if lasted < FULL_MAX { Error::StreamFull(why) } else { Error::StreamStaysFull { lasted, why } })
            }
            answer => {
                self.no_stream.clear(subject);
                self.full_since.clear(subject);
                answer
            }
        }
    }

    fn no_stream_error(&mut self, subject: &str, now: Instant) -> Error {
        if self.clustered && self.no_stream.lasting(subject, now) < ELECTION_MAX {
            Error::Unavailable("nobody listens to the subject, perhaps its stream elects a leader".to_owned())
        } else {
            Error::NoStream
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;

    use super::*;

    /// The class of a response, by the time since the first one.
    struct TestFailures(SubjectFailures, Instant);

    impl TestFailures {
        fn new(clustered: bool) -> Self {
            Self(SubjectFailures::new(clustered), Instant::now())
        }

        fn classify(&mut self, subject: &str, answer: Result<(), Error>, after: u64) -> Option<Class> {
            self.0.classify(subject, answer, self.1 + Duration::from_secs(after)).err().map(|error| error.class())
        }
    }

    fn stream_full() -> Result<(), Error> {
        Err(Error::StreamFull("maximum messages exceeded".to_owned()))
    }

    #[test]
    fn on_a_single_server_no_responder_means_no_stream() {
        assert_eq!(TestFailures::new(false).classify("a", Err(Error::NoStream), 0), Some(Class::Blocked));
    }

    #[test]
    fn in_a_cluster_a_missing_responder_is_throttled_during_an_election() {
        let mut told = TestFailures::new(true);
        let nobody = || Err(Error::NoStream);
        assert!(matches!(told.classify("a", nobody(), 0), Some(Class::Throttled(_))));
        assert!(matches!(told.classify("a", nobody(), 14), Some(Class::Throttled(_))));
        assert!(matches!(told.classify("b", nobody(), 15), Some(Class::Throttled(_))));
        assert_eq!(told.classify("a", nobody(), 15), Some(Class::Blocked));
        assert_eq!(told.classify("a", Ok(()), 16), None);
        assert!(matches!(told.classify("a", nobody(), 16), Some(Class::Throttled(_))));
    }

    #[test]
    fn a_stream_that_stays_full_for_minutes_needs_an_operator() {
        let mut told = TestFailures::new(false);
        assert!(matches!(told.classify("a", stream_full(), 0), Some(Class::Throttled(_))));
        assert!(matches!(told.classify("a", stream_full(), 299), Some(Class::Throttled(_))));
        assert_eq!(told.classify("a", stream_full(), 300), Some(Class::Blocked));
        assert_eq!(told.classify("a", Ok(()), 301), None);
        assert!(matches!(told.classify("a", stream_full(), 302), Some(Class::Throttled(_))));
    }
}
