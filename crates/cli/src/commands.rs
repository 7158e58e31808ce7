//! The commands that act on an outbox in a database.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result, ensure};
use relevo_core::operate::{Inspect as _, Operate as _};
use relevo_core::operate::{Inspect as _, Operate as _};
use relevo_store_postgres as postgres;
use serde_json::json;

use crate::args::{Backlog, Destination, Migrate, Start, Switch, Takeover, Target};
use crate::ask::confirm;
use crate::database::{ANSWER_DEADLINE, Place, REWRITE_DEADLINE};
use crate::report::say;

/// Creates the schema or brings it up to date; or prints what would do so.
pub(crate) async fn migrate(args: &Migrate) -> Result<()> {
    if args.print {
        let script = postgres::migrate::script(&args.target.place.schema);
        io::stdout().write_all(script.as_bytes())?;
        return Ok(());
    }
    let place = Place::of(&args.target)?;
    let (schema, at) = (place.schema.name().to_owned(), place.shown());
    let applied = postgres::migrate::migrate(&mut place.connect().await?, &place.schema).await;
    let applied = applied.with_context(|| format!("schema `{schema}` at {at} was not changed"))?;
    if applied.is_empty() {
        // Nothing to apply may also mean that the schema is newer than this program: then opening it fails.
        place.open("", ANSWER_DEADLINE).await?;
        say(&format!("schema `{schema}` at {at} is at version {}: nothing to do", postgres::migrate::VERSION));
        return Ok(());
    }
    for version in &applied {
        say(&format!("schema `{schema}` at {at}: version {version} applied"));
    }
    if applied.first() == Some(&1) {
        say("next: `relevo destination add NAME`, so that a relay can carry messages there");
    }
    Ok(())
}

/// Adds, removes and changes destinations.
pub(crate) async fn destination(command: Destination) -> Result<()> {
    match command {
        Destination::Add { target, name, shards, start } => add(&target, &name, shards, start).await,
        Destination::Remove { target, name, sure } => {
            let place = Place::of(&target)?;
            let store = place.open(&name, REWRITE_DEADLINE).await?;
            place.expect_destination(&name).await?;
            if !sure.yes {
                let waits = Waits(store.backlog().await?);
                let question = format!(
                    "remove destination `{name}` at {}? {waits} would never reach it, dead letters are deleted",
                    place.shown()
                );
                confirm(sure, &question)?;
            }
            ensure!(store.remove_destination().await?, "destination `{name}` was removed by somebody else");
            say(&format!("destination `{name}` is removed"));
            Ok(())
        }
        Destination::Switch { target, name, to } => {
            let place = Place::of(&target)?;
            let store = place.open(&name, ANSWER_DEADLINE).await?;
            place.expect_destination(&name).await?;
            store.switch(to == Switch::On).await?;
            say(&match to {
                Switch::On => format!("destination `{name}` is on"),
                Switch::Off => format!("destination `{name}` is off: its relays stop, and retention waits for it"),
            });
            Ok(())
        }
        Destination::Regroup { target, name, shards } => {
            let place = Place::of(&target)?;
            let store = place.open(&name, ANSWER_DEADLINE).await?;
            place.expect_destination(&name).await?;
            store.regroup(shards).await?;
            say(&format!("destination `{name}` will have {shards} shards as soon as its relays have met at one tick"));
            Ok(())
        }
    }
}

async fn add(target: &Target, name: &str, shards: u16, start: Start) -> Result<()> {
    let store = Place::of(target)?.open(name, ANSWER_DEADLINE).await?;
    let (start, from) = match start {
        Start::Now => (postgres::Start::Now, "what commits from now on"),
        Start::Oldest => (postgres::Start::Oldest, "the oldest message that is retained"),
    };
    say(&if store.add_destination(shards, start).await? {
        format!("destination `{name}` is added, with {shards} shards; it starts with {from}")
    } else {
        format!("destination `{name}` exists, nothing was changed")
    });
    Ok(())
}

/// Takes an outbox over as it is.
pub(crate) async fn adopt(args: &Takeover) -> Result<()> {
    let place = Place::of(&args.target)?;
    let store = place.open("", ANSWER_DEADLINE).await?;
    let at = place.shown();
    confirm(args.sure, &format!("adopt the outbox at {at}? If it is a copy, its original must publish no more"))?;
    store.adopt().await?;
    say(&format!("the outbox at {at} is adopted: relays may run"));
    Ok(())
}

/// Gives a restored outbox this server's transaction ids.
pub(crate) async fn rebase(args: &Takeover) -> Result<()> {
    let place = Place::of(&args.target)?;
    let store = place.open("", REWRITE_DEADLINE).await?;
    let at = place.shown();
    confirm(args.sure, &format!("rebase the outbox at {at}? Every message is rewritten while writers wait"))?;
    let waiting = store.rebase().await?;
    say(&format!("the outbox at {at} is rebased: relays may run, {waiting} messages will be sent"));
    Ok(())
}

/// Says how much waits for a destination.
pub(crate) async fn backlog(args: &Backlog) -> Result<()> {
    let place = Place::of(&args.target)?;
    let store = place.open(&args.name, ANSWER_DEADLINE).await?;
    place.expect_destination(&args.name).await?;
    let backlog = store.backlog().await?;
    let mut out = io::stdout().lock();
    if args.json {
        let postgres::Backlog { pending, exact, parked, dead } = backlog;
        let object =
            json!({ "destination": args.name, "pending": pending, "exact": exact, "parked": parked, "dead": dead });
        writeln!(out, "{object}")?;
    } else {
        let estimate = if backlog.exact { "" } else { " (estimate)" };
        writeln!(out, "pending  {}{estimate}", backlog.pending)?;
        writeln!(out, "parked   {}", backlog.parked)?;
        writeln!(out, "dead     {}", backlog.dead)?;
    }
    Ok(())
}

/// A backlog in the middle of a sentence.
struct Waits(postgres::Backlog);

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let about = if self.0.exact { "" } else { "about " };
        write!(f, "{about}{} pending and {} parked messages", self.0.pending, self.0.parked)
    }
}
