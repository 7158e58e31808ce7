//! Which dead letters are meant.

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterOwner};

use crate::output::time;

/// What dead letters are chosen by; everything that is given must hold.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Filter {
    /// Those of this key. Of a consumer that keeps no order, the message's id is its key.
    #[arg(long, group = "chosen")]
    key: Option<String>,
    /// Those that failed with this class, such as `poison`.
    #[arg(long, group = "chosen")]
    class: Option<String>,
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
        self.key.is_some() || self.class.is_some() || self.since.is_some() || self.until.is_some()
    }

    /// The same for the store, of one consumer or of all.
    pub(super) fn of_store(&self, consumer: Option<&str>) -> DeadLetterFilter {
        let any = DeadLetterOwner::AnyConsumer;
        let owner = consumer.map_or(any, |name| DeadLetterOwner::Consumer(name.to_owned()));
        DeadLetterFilter {
            key: self.key.clone(),
            class: self.class.clone(),
            since: self.since,
            until: self.until,
            ..DeadLetterFilter::of(owner)
        }
    }
}
