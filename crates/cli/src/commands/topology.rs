//! `relevo topology`: what the configuration wants at the brokers, compared and made.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use clap::Subcommand;
use relevo_core::broker::admin::{BrokerAdmin, Difference, TopologyItem, TopologyStatus};
use serde_json::{Value, json};

use crate::args::ConfirmArg;
use crate::config::{self, Destination, Loaded, Sources};
use crate::connect::{self, broker_error, topology_word};
use crate::error_report::{ErrorReport, print_stderr};
use crate::exit::{ExitStatus, not_found};
use crate::output::table::plain;
use crate::output::{self, OutputArgs};
use crate::prompt::confirm;

/// What to do about the topology.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compares exchanges, queues, bindings, policies, streams and groups with the configuration; changes nothing.
    Plan(Plan),
    /// Makes what is missing. What is there is neither changed nor deleted; if anything differs, nothing is made.
    Apply(Apply),
}

/// Which brokers are compared.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    output: OutputArgs,
}

/// Where it is made.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which destinations of the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    #[command(flatten)]
    sources: Sources,
    /// Only destinations of this outbox.
    #[arg(long, value_name = "NAME")]
    outbox: Option<String>,
    /// Only destinations of this name.
    #[arg(long, short, value_name = "NAME")]
    destination: Option<String>,
}

/// One broker that has a topology, and how that stands.
pub(super) struct Looked {
    outbox: String,
    destination: String,
    admin: Box<dyn BrokerAdmin>,
    pub(super) pieces: Vec<TopologyItem>,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::Plan(args) => plan(&args.which, args.output).await,
        Command::Apply(args) => apply(&args).await,
    }
}

async fn plan(which: &Which, output: OutputArgs) -> Result<ExitStatus> {
    let (all, unseen) = look(which).await?;
    told(&all, output)?;
    // What could not be looked at is worse than anything that was.
    last_of(unseen)?;
    let wanting = all.iter().flat_map(|looked| &looked.pieces).any(|piece| !piece.is_in_place());
    Ok(if wanting { ExitStatus::Findings } else { ExitStatus::Success })
}

async fn apply(args: &Apply) -> Result<ExitStatus> {
    let (all, mut failed_at) = look(&args.which).await?;
    let pieces = || all.iter().flat_map(|looked| &looked.pieces);
    let differing = pieces().filter(|piece| matches!(piece.status, TopologyStatus::Different(_))).count();
    // What could not be seen is declared as well: it may be missing, and if it is there nothing changes.
    let wanting: Vec<&TopologyItem> =
        pieces().filter(|piece| matches!(piece.status, TopologyStatus::Missing | TopologyStatus::Unknown)).collect();
    if differing > 0 || wanting.is_empty() {
        told(&all, args.output)?;
        if differing > 0 {
            print_stderr(
                "nothing was made, for something differs: mend it at the broker or in the configuration first",
            );
        }
        last_of(failed_at)?;
        return Ok(if differing > 0 { ExitStatus::Findings } else { ExitStatus::Success });
    }
    for piece in &wanting {
        print_stderr(&format!("{:9}  {}", topology_word(&piece.status), plain(&piece.name)));
    }
    let count = wanting.len();
    confirm(args.yes, &format!("make {count} {}?", if count == 1 { "thing" } else { "things" }))?;
    let mut done = Vec::new();
    for looked in all {
        match looked.admin.apply().await {
            Ok(pieces) => done.push(Looked { pieces, ..looked }),
            Err(failure) => {
                let hint = "some of it may have been made; `relevo topology plan` tells";
                failed_at.push(broker_error(&failure).context(format!(
                    "{}: it was not all made; hint: {hint}",
                    at(&looked.outbox, &looked.destination)
                )));
            }
        }
    }
    told(&done, args.output)?;
    last_of(failed_at)?;
    // Somebody else may have been at work meanwhile.
    let whole = done.iter().flat_map(|looked| &looked.pieces).all(TopologyItem::is_in_place);
    Ok(if whole { ExitStatus::Success } else { ExitStatus::Findings })
}

/// Every broker that can be looked at, and what went wrong with the others.
async fn look(which: &Which) -> Result<(Vec<Looked>, Vec<anyhow::Error>)> {
    let Loaded { config, warnings, .. } = config::report_problems(which.sources.load())?;
    config::warn(&warnings);
    let wanted = |name: &str, wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let (mut all, mut unseen, mut found) = (Vec::new(), Vec::new(), false);
    for outbox in config.outboxes.iter().filter(|outbox| wanted(&outbox.name, &which.outbox)) {
        for destination in outbox.destinations.iter().filter(|it| wanted(&it.name, &which.destination)) {
            found = true;
            match looked(&outbox.name, destination).await {
                Ok(Some(looked)) => all.push(looked),
                Err(error) => unseen.push(error),
                Ok(None) => {
                    let (at, kind) = (at(&outbox.name, &destination.name), destination.broker.adapter.kind());
                    print_stderr(&format!("{at}: the broker ({kind}) has no topology"));
                }
            }
        }
    }
    if !found {
        return Err(not_found("the configuration has no such destination"));
    }
    Ok((all, unseen))
}

/// The last of several errors as the command's own; those before are told.
fn last_of(mut errors: Vec<anyhow::Error>) -> Result<()> {
    let last = errors.pop();
    for error in errors {
        print_stderr(&ErrorReport::of(&error).to_string());
    }
    last.map_or(Ok(()), Err)
}

/// Compares the topology of a destination. `None` if its broker has none.
pub(super) async fn looked(outbox: &str, destination: &Destination) -> Result<Option<Looked>> {
    let at = || at(outbox, &destination.name);
    let Some(admin) = connect::broker_admin(&destination.broker).with_context(at)? else { return Ok(None) };
    let pieces = admin.plan().await.map_err(|failure| broker_error(&failure)).with_context(at)?;
    Ok(Some(Looked { outbox: outbox.to_owned(), destination: destination.name.clone(), admin, pieces }))
}

fn at(outbox: &str, destination: &str) -> String {
    format!("outbox `{outbox}`, destination `{destination}`")
}

fn told(all: &[Looked], output: OutputArgs) -> Result<()> {
    if output.is_json() {
        return all
            .iter()
            .flat_map(|looked| looked.pieces.iter().map(move |piece| (looked, piece)))
            .try_for_each(|(looked, piece)| output::line(&json(looked, piece)));
    }
    let mut out = io::stdout().lock();
    for looked in all {
        writeln!(out, "{}: {} in all", at(&looked.outbox, &looked.destination), looked.pieces.len())?;
        for TopologyItem { name, status: state } in &looked.pieces {
            writeln!(out, "{:9}  {}", topology_word(state), plain(name))?;
            let differences: &[Difference] =
                if let TopologyStatus::Different(differences) = state { differences } else { &[] };
            for difference in differences {
                writeln!(out, "{:9}  {}", "", plain(&difference.to_string()))?;
            }
        }
    }
    Ok(())
}

fn json(looked: &Looked, piece: &TopologyItem) -> Value {
    let differences: &[Difference] =
        if let TopologyStatus::Different(differences) = &piece.status { differences } else { &[] };
    let differences = differences
        .iter()
        .map(|Difference { setting, expected: wanted, actual: found }| json!({ "setting": setting, "wanted": wanted, "found": found }));
    json!({
        "outbox": looked.outbox,
        "destination": looked.destination,
        "piece": piece.name,
        "state": topology_word(&piece.status),
        "differences": differences.collect::<Vec<_>>(),
    })
}
