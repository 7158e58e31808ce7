//! Which dead letters are meant. The store knows ids, keys and routes; the rest is looked for among what it gives.

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter};

use crate::commands::moment;

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
    #[arg(long, value_name = "TIME", value_parser = moment::past, group = "chosen")]
    since: Option<Timestamp>,
    /// Those given up before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = moment::past, group = "chosen")]
    until: Option<Timestamp>,
}

impl Filter {
    /// What can be told before the database is asked.
    pub(super) fn check(&self) -> Result<()> {
        moment::in_order(self.since, self.until)
    }

    /// What the store can look for by itself.
    pub(super) fn of_store(&self) -> DeadLetterFilter {
        DeadLetterFilter { key: self.key.clone(), route: self.route.clone(), ..DeadLetterFilter::default() }
    }

    /// Whether there is more to it than the store can look for.
    pub(super) const fn looks_inside(&self) -> bool {
        self.topic.is_some()
            || self.kind.is_some()
            || self.class.is_some()
            || self.error.is_some()
            || self.since.is_some()
            || self.until.is_some()
    }

    /// Whether anything was given.
    pub(super) const fn chooses(&self) -> bool {
        self.key.is_some() || self.route.is_some() || self.looks_inside()
    }

    /// Whether a letter that the store gave is meant.
    pub(super) fn admits(&self, letter: &DeadLetter) -> bool {
        let message = &letter.message;
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        let contains = |part: &String| letter.error.to_lowercase().contains(&part.to_lowercase());
        is(&self.topic, &message.topic)
            && is(&self.kind, &message.kind)
            && is(&self.class, &letter.class)
            && self.error.as_ref().is_none_or(contains)
            && self.since.is_none_or(|since| letter.dead_at >= since)
            && self.until.is_none_or(|until| letter.dead_at < until)
    }
}
