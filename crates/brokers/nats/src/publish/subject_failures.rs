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
    pub(super) fn classify<T>(&mut self, subject: &str, response: Result<T, Error>, now: Instant) -> Result<T, Error> {
        match response {
            Err(Error::NoStream) => {
                self.full_since.clear(subject);
                Err(self.no_stream_error(subject, now))
            }
            Err(Error::StreamFull(description)) => {
                self.no_stream.clear(subject);
                let lasted = self.full_since.lasting(subject, now);
                Err(if lasted < FULL_MAX {
                    Error::StreamFull(description)
                } else {
                    Error::StreamStaysFull { lasted, description }
                })
            }
            response => {
                self.no_stream.clear(subject);
                self.full_since.clear(subject);
                response
            }
        }
    }

    fn no_stream_error(&mut self, subject: &str, now: Instant) -> Error {
        if self.clustered && self.no_stream.lasting(subject, now) < ELECTION_MAX {
            Error::Unavailable("no stream responds for the subject; it may be electing a leader".to_owned())
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

        fn classify(&mut self, subject: &str, response: Result<(), Error>, after: u64) -> Option<Class> {
            self.0.classify(subject, response, self.1 + Duration::from_secs(after)).err().map(|error| error.class())
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
        let mut failures = TestFailures::new(true);
        let no_stream = || Err(Error::NoStream);
        assert!(matches!(failures.classify("a", no_stream(), 0), Some(Class::Throttled(_))));
        assert!(matches!(failures.classify("a", no_stream(), 14), Some(Class::Throttled(_))));
        assert!(matches!(failures.classify("b", no_stream(), 15), Some(Class::Throttled(_))));
        assert_eq!(failures.classify("a", no_stream(), 15), Some(Class::Blocked));
        assert_eq!(failures.classify("a", Ok(()), 16), None);
        assert!(matches!(failures.classify("a", no_stream(), 16), Some(Class::Throttled(_))));
    }

    #[test]
    fn a_stream_that_stays_full_for_minutes_needs_an_operator() {
        let mut failures = TestFailures::new(false);
        assert!(matches!(failures.classify("a", stream_full(), 0), Some(Class::Throttled(_))));
        assert!(matches!(failures.classify("a", stream_full(), 299), Some(Class::Throttled(_))));
        assert_eq!(failures.classify("a", stream_full(), 300), Some(Class::Blocked));
        assert_eq!(failures.classify("a", Ok(()), 301), None);
        assert!(matches!(failures.classify("a", stream_full(), 302), Some(Class::Throttled(_))));
    }
}
