//! Subjects to which nobody listens.
//!
//! On a single server that is a missing stream. In a cluster a stream without a leader says the same, and has one again
//! within seconds: nobody should be called for that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::classify::Error;

/// An election takes 4 to 9 seconds after its leader was lost.
const ELECTION: Duration = Duration::from_secs(15);
/// More subjects than that at once are not told apart in time.
const SUBJECTS_MAX: usize = 1_024;

/// Since when nobody listens to which subject.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// Whether the server is one of a cluster.
    clustered: bool,
    since: BTreeMap<String, Instant>,
}

impl Absent {
    pub(super) fn new(clustered: bool) -> Self {
        Self { clustered, since: BTreeMap::new() }
    }

    /// Nobody listened: what that means.
    pub(super) fn nobody(&mut self, subject: &str, now: Instant) -> Error {
        if !self.clustered {
            return Error::NoStream;
        }
        if self.since.len() >= SUBJECTS_MAX && !self.since.contains_key(subject) {
            self.since.clear();
        }
        let since = *self.since.entry(subject.to_owned()).or_insert(now);
        if now.saturating_duration_since(since) < ELECTION {
            Error::Unavailable("nobody listens to the subject, perhaps its stream elects a leader".to_owned())
        } else {
            Error::NoStream
        }
    }

    /// Somebody listened.
    pub(super) fn somebody(&mut self, subject: &str) {
        if !self.since.is_empty() {
            self.since.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;

    use super::*;

    #[test]
    fn a_single_server_has_no_such_stream() {
        assert_eq!(Absent::new(false).nobody("a", Instant::now()).class(), Class::Blocked);
    }

    #[test]
    fn in_a_cluster_an_election_is_waited_for_and_no_longer() {
        let (mut absent, began) = (Absent::new(true), Instant::now());
        let class =
            |absent: &mut Absent, subject, after| absent.nobody(subject, began + Duration::from_secs(after)).class();
        assert!(matches!(class(&mut absent, "a", 0), Class::Throttled(_)));
        assert!(matches!(class(&mut absent, "a", 14), Class::Throttled(_)));
        assert!(matches!(class(&mut absent, "b", 15), Class::Throttled(_)));
        assert_eq!(class(&mut absent, "a", 15), Class::Blocked);
        absent.somebody("a");
        assert!(matches!(class(&mut absent, "a", 16), Class::Throttled(_)));
    }
}
