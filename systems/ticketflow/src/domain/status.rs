//! The status of a ticket, and its allowed transitions.

use super::words::words;

words! {
    /// The status of a ticket.
    Status {
        /// Not started.
        Open = "open",
        /// An agent works on it.
        InProgress = "in_progress",
        /// Waits for the requester, or for another person.
        Waiting = "waiting",
        /// Solved; the requester may close or reopen it.
        Resolved = "resolved",
        /// Final: a closed ticket stays closed.
        Closed = "closed",
    }
}

impl Status {
    /// The statuses that may follow.
    pub const fn next(self) -> &'static [Self] {
        match self {
            Self::Open => &[Self::InProgress, Self::Waiting, Self::Resolved, Self::Closed],
            Self::InProgress => &[Self::Waiting, Self::Resolved, Self::Open],
            Self::Waiting => &[Self::InProgress, Self::Resolved],
            Self::Resolved => &[Self::Closed, Self::InProgress],
            Self::Closed => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_closed_and_nothing_goes_to_itself() {
        assert!(Status::Closed.next().is_empty());
        assert!(Status::ALL.iter().all(|status| !status.next().contains(status)));
    }

    #[test]
    fn every_status_can_be_reached_from_open() {
        let mut reached = vec![Status::Open];
        let mut at = 0;
        while let Some(status) = reached.get(at) {
            let next: Vec<_> = status.next().iter().filter(|next| !reached.contains(next)).copied().collect();
            reached.extend(next);
            at += 1;
        }
        reached.sort();
        assert_eq!(reached, Status::ALL);
    }

    #[test]
    fn words_are_read_back_and_others_name_what_was_expected() {
        assert_eq!("in_progress".parse(), Ok(Status::InProgress));
        let error = "done".parse::<Status>().unwrap_err();
        assert_eq!(error.to_string(), "must be one of open, in_progress, waiting, resolved, closed");
    }
}
