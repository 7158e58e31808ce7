//! Subjects that accept no messages, and since when.
//!
//! On a single server, no response means that the stream is missing. In a cluster, a stream without a leader looks the
//! same, and has a new leader within seconds: that needs no operator. A full stream has space again when messages are
//! consumed or expire. A stream that stays full needs an operator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::classify::Error;

/// An election takes 4 to 9 seconds after the loss of a leader.
const ELECTION: Duration = Duration::from_secs(15);
/// A stream that stored nothing for this long while it was full does not recover without an operator.
const FULL: Duration = Duration::from_mins(5);
/// The maximum number of tracked subjects. Above it the table is cleared.
const SUBJECTS_MAX: usize = 1_024;

/// Since when each subject accepts no messages.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// Whether the server is part of a cluster.
    clustered: bool,
    nobody: Since,
    full: Since,
}

#[derive(Debug, Default)]
struct Since(BTreeMap<String, Instant>);

impl Since {
    /// Records a failure. Returns how long it has lasted.
    fn lasted(&mut self, subject: &str, now: Instant) -> Duration {
        if self.0.len() >= SUBJECTS_MAX && !self.0.contains_key(subject) {
            self.0.clear();
        }
        now.saturating_duration_since(*self.0.entry(subject.to_owned()).or_insert(now))
    }

    fn end(&mut self, subject: &str) {
        if !self.0.is_empty() {
            self.0.remove(subject);
        }
    }
}

impl Absent {
    pub(super) fn new(clustered: bool) -> Self {
        Self { clustered, ..Self::default() }
    }

    /// Adjusts the error of a response, depending on earlier responses.
    pub(super) fn judged<T>(&mut self, subject: &str, answer: Result<T, Error>, now: Instant) -> Result<T, Error> {
        match answer {
            Err(Error::NoStream) => {
                self.full.end(subject);
                Err(self.nobody(subject, now))
            }
            Err(Error::Full(why)) => {
                self.nobody.end(subject);
                let lasted = self.full.lasted(subject, now);
                Err(if lasted < FULL { Error::Full(why) } else { Error::StaysFull { lasted, why } })
            }
            answer => {
                self.nobody.end(subject);
                self.full.end(subject);
                answer
            }
        }
    }

    fn nobody(&mut self, subject: &str, now: Instant) -> Error {
        if self.clustered && self.nobody.lasted(subject, now) < ELECTION {
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
    struct Told(Absent, Instant);

    impl Told {
        fn new(clustered: bool) -> Self {
            Self(Absent::new(clustered), Instant::now())
        }

        fn of(&mut self, subject: &str, answer: Result<(), Error>, after: u64) -> Option<Class> {
            self.0.judged(subject, answer, self.1 + Duration::from_secs(after)).err().map(|error| error.class())
        }
    }

    fn full() -> Result<(), Error> {
        Err(Error::Full("maximum messages exceeded".to_owned()))
    }

    #[test]
    fn a_single_server_has_no_such_stream() {
        assert_eq!(Told::new(false).of("a", Err(Error::NoStream), 0), Some(Class::Blocked));
    }

    #[test]
    fn in_a_cluster_an_election_is_waited_for_and_no_longer() {
        let mut told = Told::new(true);
        let nobody = || Err(Error::NoStream);
        assert!(matches!(told.of("a", nobody(), 0), Some(Class::Throttled(_))));
        assert!(matches!(told.of("a", nobody(), 14), Some(Class::Throttled(_))));
        assert!(matches!(told.of("b", nobody(), 15), Some(Class::Throttled(_))));
        assert_eq!(told.of("a", nobody(), 15), Some(Class::Blocked));
        assert_eq!(told.of("a", Ok(()), 16), None);
        assert!(matches!(told.of("a", nobody(), 16), Some(Class::Throttled(_))));
    }

    #[test]
    fn a_stream_that_stays_full_for_minutes_needs_a_person() {
        let mut told = Told::new(false);
        assert!(matches!(told.of("a", full(), 0), Some(Class::Throttled(_))));
        assert!(matches!(told.of("a", full(), 299), Some(Class::Throttled(_))));
        assert_eq!(told.of("a", full(), 300), Some(Class::Blocked));
        assert_eq!(told.of("a", Ok(()), 301), None);
        assert!(matches!(told.of("a", full(), 302), Some(Class::Throttled(_))));
    }
}
