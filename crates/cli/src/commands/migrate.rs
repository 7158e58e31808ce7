//! `relevo migrate`

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use relevo_core::store_adapter::MigrationStep;
use relevo_host::registry::STORES;
use serde_json::json;

use crate::args::OutboxArgs;
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
        // The script depends on the kind of the database alone, so none need be named.
        let location = match args.target.find()? {
            Some(location) => location,
            None => args.target.named(STORES[0].example_url.to_owned(), "--print")?,
        };
        let script = location.store.migration_script();
        io::stdout().write_all(script.as_bytes())?;
        return Ok(ExitStatus::Success);
    }
    let place = Place::of(&args.target)?;
    let at = place.shown();
    if args.dry_run {
        let pending = place.adapter().pending_migrations().await;
        let pending = pending.with_context(|| format!("the outbox at {at} cannot be looked at"))?;
        would_apply(&at, &pending, args.output.is_json())?;
        return Ok(ExitStatus::Success);
    }
    let applied = place.adapter().migrate().await.with_context(|| format!("the outbox at {at} was not changed"))?;
    told(&at, &applied);
    Ok(ExitStatus::Success)
}

/// Writes the versions with their names, and how many there are.
fn would_apply(at: &str, pending: &[MigrationStep], json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    for MigrationStep { version, name } in pending {
        if json {
            writeln!(out, "{}", json!({ "version": version, "name": name }))?;
        } else {
            writeln!(out, "{version}  {name}")?;
        }
    }
    print_stderr(&match pending.len() {
        0 => format!("{at}: nothing to do"),
        1 => format!("{at}: 1 version would be applied, nothing was changed"),
        count => format!("{at}: {count} versions would be applied, nothing was changed"),
    });
    Ok(())
}

fn told(at: &str, applied: &[MigrationStep]) {
    if applied.is_empty() {
        print_stderr(&format!("{at}: nothing to do"));
    }
    for MigrationStep { version, name } in applied {
        print_stderr(&format!("{at}: version {version} ({name}) applied"));
    }
    if applied.first().is_some_and(|step| step.version == 1) {
        print_stderr("next: `relevo destination add NAME`, so that a relay can carry messages there");
    }
}
