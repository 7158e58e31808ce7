//! `relevo migrate`

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;

use crate::args::Target;
use crate::database::{self, ANSWER_DEADLINE};
use crate::exit::Code;
use crate::outbox::Place;
use crate::report::say;

/// What to migrate.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only prints the script, for a DBA to read and run; needs no database.
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Only says which versions would be applied.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    if args.print {
        let script = match Place::of(&args.target) {
            Ok(Place::Sqlite(_)) => sqlite::migrate::script(),
            // No database need be named for it.
            Ok(Place::Postgres(_)) | Err(_) => postgres::migrate::script(&args.target.place.schema),
        };
        io::stdout().write_all(script.as_bytes())?;
        return Ok(Code::Done);
    }
    match Place::of(&args.target)? {
        Place::Postgres(place) => in_postgres(&place, args.dry_run).await,
        Place::Sqlite(file) => in_sqlite(&file, args.dry_run).await,
    }
}

async fn in_sqlite(file: &Path, dry_run: bool) -> Result<Code> {
    let at = file.display();
    if dry_run {
        let pending = sqlite::migrate::pending(file).await?;
        let mut out = io::stdout().lock();
        for version in &pending {
            writeln!(out, "{version}")?;
        }
        say(&would_apply(&at.to_string(), pending.len()));
        return Ok(Code::Done);
    }
    let applied = sqlite::migrate::migrate(file).await?;
    if applied.is_empty() {
        say(&format!("{at} is at version {}: nothing to do", sqlite::migrate::VERSION));
    }
    told(&at.to_string(), &applied);
    Ok(Code::Done)
}

fn would_apply(at: &str, count: usize) -> String {
    match count {
        0 => format!("{at}: nothing to do"),
        1 => format!("{at}: 1 version would be applied, nothing was changed"),
        _ => format!("{at}: {count} versions would be applied, nothing was changed"),
    }
}

fn told(at: &str, applied: &[i32]) {
    for version in applied {
        say(&format!("{at}: version {version} applied"));
    }
    if applied.first() == Some(&1) {
        say("next: `relevo destination add NAME`, so that a relay can carry messages there");
    }
}

async fn in_postgres(place: &database::Place, dry_run: bool) -> Result<Code> {
    let (schema, at) = (place.schema.name().to_owned(), place.shown());
    let mut connection = place.connect().await?;
    if dry_run {
        let pending = postgres::migrate::pending(&mut connection, &place.schema).await;
        let pending = pending.with_context(|| format!("schema `{schema}` at {at} cannot be looked at"))?;
        let mut out = io::stdout().lock();
        for (version, name) in &pending {
            writeln!(out, "{version}  {name}")?;
        }
        say(&would_apply(&format!("schema `{schema}` at {at}"), pending.len()));
        return Ok(Code::Done);
    }
    let applied = postgres::migrate::migrate(&mut connection, &place.schema).await;
    let applied = applied.with_context(|| format!("schema `{schema}` at {at} was not changed"))?;
    if applied.is_empty() {
        // Nothing to apply may also mean that the schema is newer than this program: then opening it fails.
        place.open("", ANSWER_DEADLINE).await?;
        say(&format!("schema `{schema}` at {at} is at version {}: nothing to do", postgres::migrate::VERSION));
        return Ok(Code::Done);
    }
    told(&format!("schema `{schema}` at {at}"), &applied);
    Ok(Code::Done)
}
