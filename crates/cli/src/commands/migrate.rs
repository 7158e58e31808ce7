//! `relevo migrate`

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use relevo_core::store_adapter::MigrationStep;
use relevo_host::registry::STORES;
use serde_json::json;

use crate::args::OutboxArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, usage};
use crate::output::OutputArgs;

/// What to migrate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    relevo migrate --database postgres://owner@localhost/shop\n  \
    relevo migrate --print > relevo.sql\n  \
    relevo migrate --print --from 0 --to 1 > V7__relevo_1.sql")]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// Only prints the script, for a DBA to read and run; needs no database.
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// With `--print`: the version that the schema has, 0 for none. The script has no transaction commands, for Flyway,
    /// Alembic or goose.
    #[arg(long, value_name = "N", requires = "print", value_parser = clap::value_parser!(i32).range(0..))]
    from: Option<i32>,
    /// With `--print`: the version that the script upgrades to, this program's by default.
    #[arg(long, value_name = "N", requires = "from", value_parser = clap::value_parser!(i32).range(1..))]
    to: Option<i32>,
    /// Only prints which versions would be applied.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    if args.print {
        let script = script(args)?;
        io::stdout().write_all(script.as_bytes())?;
        return Ok(ExitStatus::Success);
    }
    let place = args.target.locate()?;
    let at = place.location();
    if args.dry_run {
        let pending = place.adapter().pending_migrations().await;
        let pending = pending.with_context(|| format!("cannot open the outbox at {at}"))?;
        would_apply(&at, &pending, args.output.is_json())?;
        return Ok(ExitStatus::Success);
    }
    let applied = place.adapter().migrate().await.with_context(|| format!("the outbox at {at} was not changed"))?;
    print_stderr(&report(&at, &applied));
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

/// The script depends on the kind of the database alone, so none need be named.
fn script(args: &Args) -> Result<String> {
    let location = match args.target.find()? {
        Some(location) => location,
        None => args.target.named(STORES[0].example_url.to_owned(), "--print")?,
    };
    let Some(from) = args.from else { return Ok(location.store.migration_script()) };
    location.store.migration_between(from, args.to).ok_or_else(|| {
        let to = args.to.map_or_else(|| "the newest".to_owned(), |to| to.to_string());
        usage(format!(
            "there is no script from version {from} to {to}; hint: 0 is an empty database, and `relevo --version` prints the newest \
             version"
        ))
    })
}

/// What was done, in one line.
fn report(at: &str, applied: &[MigrationStep]) -> String {
    let (Some(first), Some(last)) = (applied.first(), applied.last()) else { return format!("{at}: nothing to do") };
    match (first.version - 1, last.version) {
        (0, newest) => format!("{at}: created, version {newest}"),
        (before, newest) => format!("{at}: upgraded from version {before} to {newest}"),
    }
}
