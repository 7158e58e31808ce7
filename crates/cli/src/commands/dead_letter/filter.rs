//! Which dead letters. The store applies the filter.

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterOwner};

use crate::output::time;

/// Selects dead letters. All given options must match.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FilterArgs {
    /// With this key. For a consumer without order, the key is the message id.
    #[arg(long, group = "selection")]
    key: Option<String>,
    /// With this route; destinations only.
    #[arg(long, group = "selection", conflicts_with = "consumer")]
    route: Option<String>,
    /// With this topic; destinations only.
    #[arg(long, group = "selection", conflicts_with = "consumer")]
    topic: Option<String>,
    /// With this type; destinations only.
    #[arg(long = "type", value_name = "TYPE", group = "selection", conflicts_with = "consumer")]
    kind: Option<String>,
    /// With an error of this class, such as `poison`.
    #[arg(long, group = "selection")]
    class: Option<String>,
    /// With an error that contains this text, in upper or lower case.
    #[arg(long, value_name = "TEXT", group = "selection")]
    error: Option<String>,
    /// Dead-lettered since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past, group = "selection")]
    since: Option<Timestamp>,
    /// Dead-lettered before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past, group = "selection")]
    until: Option<Timestamp>,
}

impl FilterArgs {
    /// Rejects a range that ends before it starts.
    pub(super) fn check(&self) -> Result<()> {
        time::in_order(self.since, self.until)
    }

    /// Whether an option only applies to destinations.
    pub(super) const fn excludes_consumers(&self) -> bool {
        self.route.is_some() || self.topic.is_some() || self.kind.is_some()
    }

    /// The filter for the dead letters of an owner.
    pub(super) fn of(&self, owner: DeadLetterOwner) -> DeadLetterFilter {
        DeadLetterFilter {
            key: self.key.clone(),
            topic: self.topic.clone(),
            kind: self.kind.clone(),
            route: self.route.clone(),
            class: self.class.clone(),
            error: self.error.clone(),
            since: self.since,
            until: self.until,
            ..DeadLetterFilter::of(owner)
        }
    }
}
