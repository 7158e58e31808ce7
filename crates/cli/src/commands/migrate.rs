//! `relevo migrate`

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use serde_json::json;

use crate::args::OutboxArgs;
use crate::database::{self, ANSWER_DEADLINE};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox::Place;
use crate::output::OutputArgs;

/// What to migrate.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// Only prints the script, for a DBA to read and run; needs no database.
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Only says which versions would be applied.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    if args.print {
        // No database need be named for it.
        let place = args.target.find()?.map(|_| Place::of(&args.target)).transpose()?;
        let script = match place {
            Some(Place::Sqlite(_)) => sqlite::migrate::sql_script(),
            Some(Place::Postgres(_)) | None => postgres::migrate::sql_script(&args.target.place.schema()),
        };
        io::stdout().write_all(script.as_bytes())?;
        return Ok(ExitStatus::Success);
    }
    match Place::of(&args.target)? {
        Place::Postgres(place) => in_postgres(&place, args).await,
        Place::Sqlite(file) => in_sqlite(&file.path, args).await,
    }
}

async fn in_sqlite(file: &Path, args: &Args) -> Result<ExitStatus> {
    let at = file.display();
    if args.dry_run {
        let pending = sqlite::migrate::pending(file).await?;
        let pending: Vec<_> = pending.into_iter().map(|version| (version, None)).collect();
        would_apply(&at.to_string(), &pending, args.output.is_json())?;
        return Ok(ExitStatus::Success);
    }
    let applied = sqlite::migrate::migrate(file).await?;
    if applied.is_empty() {
        print_stderr(&format!("{at} is at version {}: nothing to do", sqlite::migrate::VERSION));
    }
    told(&at.to_string(), &applied);
    Ok(ExitStatus::Success)
}

/// Writes the versions, with their names as far as they are known, and says how many there are.
fn would_apply(at: &str, pending: &[(i32, Option<&str>)], json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    for (version, name) in pending {
        match name {
            _ if json => writeln!(out, "{}", json!({ "version": version, "name": name }))?,
            Some(name) => writeln!(out, "{version}  {name}")?,
            None => writeln!(out, "{version}")?,
        }
    }
    print_stderr(&match pending.len() {
        0 => format!("{at}: nothing to do"),
        1 => format!("{at}: 1 version would be applied, nothing was changed"),
        count => format!("{at}: {count} versions would be applied, nothing was changed"),
    });
    Ok(())
}

fn told(at: &str, applied: &[i32]) {
    for version in applied {
        print_stderr(&format!("{at}: version {version} applied"));
    }
    if applied.first() == Some(&1) {
        print_stderr("next: `relevo destination add NAME`, so that a relay can carry messages there");
    }
}

async fn in_postgres(place: &database::Place, args: &Args) -> Result<ExitStatus> {
    let (schema, at) = (place.schema.name().to_owned(), place.shown());
    let mut connection = place.connect().await?;
    if args.dry_run {
        let pending = postgres::migrate::pending(&mut connection, &place.schema).await;
        let pending = pending.with_context(|| format!("schema `{schema}` at {at} cannot be looked at"))?;
        let pending: Vec<_> = pending.into_iter().map(|(version, name)| (version, Some(name))).collect();
        would_apply(&format!("schema `{schema}` at {at}"), &pending, args.output.is_json())?;
        return Ok(ExitStatus::Success);
    }
    let applied = postgres::migrate::migrate(&mut connection, &place.schema).await;
    let applied = applied.with_context(|| format!("schema `{schema}` at {at} was not changed"))?;
    if applied.is_empty() {
        // Nothing to apply may also mean that the schema is newer than this program: then opening it fails.
        place.open(ANSWER_DEADLINE).await?;
        print_stderr(&format!("schema `{schema}` at {at} is at version {}: nothing to do", postgres::migrate::VERSION));
        return Ok(ExitStatus::Success);
    }
    told(&format!("schema `{schema}` at {at}"), &applied);
    Ok(ExitStatus::Success)
}
