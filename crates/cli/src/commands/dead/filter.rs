//! Which dead letters are meant. The store looks for them.

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::dead_letters::DeadLetterFilter;

use crate::output::time;

/// What dead letters are chosen by; everything that is given must hold.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Filter {
    /// Those of this key.
    #[arg(long, group = "chosen")]
    key: Option<String>,
    /// Those of this route.
    #[arg(long, group = "chosen")]
    route: Option<String>,
    /// Those of this topic.
    #[arg(long, group = "chosen")]
    topic: Option<String>,
    /// Those of this type.
    #[arg(long = "type", value_name = "TYPE", group = "chosen")]
    kind: Option<String>,
    /// Those that failed with this class, such as `poison`.
    #[arg(long, group = "chosen")]
    class: Option<String>,
    /// Those whose error contains this, in whatever case.
    #[arg(long, value_name = "TEXT", group = "chosen")]
    error: Option<String>,
    /// Those given up since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past, group = "chosen")]
    since: Option<Timestamp>,
    /// Those given up before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past, group = "chosen")]
    until: Option<Timestamp>,
}

impl Filter {
    /// What can be told before the database is asked.
    pub(super) fn check(&self) -> Result<()> {
        time::in_order(self.since, self.until)
    }

    /// Whether anything was given.
    pub(super) const fn chooses(&self) -> bool {
        self.key.is_some()
            || self.route.is_some()
            || self.topic.is_some()
            || self.kind.is_some()
            || self.class.is_some()
            || self.error.is_some()
            || self.since.is_some()
            || self.until.is_some()
    }

    /// The same for the store.
    pub(super) fn of_store(&self, destination: &str) -> DeadLetterFilter {
        DeadLetterFilter {
            key: self.key.clone(),
            topic: self.topic.clone(),
            kind: self.kind.clone(),
            route: self.route.clone(),
            class: self.class.clone(),
            error: self.error.clone(),
            since: self.since,
            until: self.until,
            ..DeadLetterFilter::of_destination(destination)
        }
    }
}
