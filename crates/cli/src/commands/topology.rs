//! `relevo topology`: compares brokers with the configuration, and creates missing objects.

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
    /// Creates missing objects. Existing ones are neither changed nor deleted; if one differs, nothing is created.
    Apply(Apply),
}

/// Which brokers are compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: relevo topology plan -c relevo.toml --destination rabbit")]
pub(crate) struct Plan {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which brokers are changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: relevo topology apply --yes")]
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

/// The objects of one broker, with their status.
pub(super) struct BrokerTopology {
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
    let (all, unseen) = compare(which).await?;
    print(&all, output)?;
    // An error is worse than a difference.
    last_of(unseen)?;
    let wanting = all.iter().flat_map(|broker| &broker.pieces).any(|piece| !piece.is_in_place());
    Ok(if wanting { ExitStatus::Findings } else { ExitStatus::Success })
}

async fn apply(args: &Apply) -> Result<ExitStatus> {
    let (all, mut failed_at) = compare(&args.which).await?;
    let pieces = || all.iter().flat_map(|broker| &broker.pieces);
    let differing = pieces().filter(|piece| matches!(piece.status, TopologyStatus::Different(_))).count();
    // An object of unknown status is declared too: it may be missing, and an existing one does not change.
    let wanting: Vec<&TopologyItem> =
        pieces().filter(|piece| matches!(piece.status, TopologyStatus::Missing | TopologyStatus::Unknown)).collect();
    if differing > 0 || wanting.is_empty() {
        print(&all, args.output)?;
        if differing > 0 {
            print_stderr(
                "nothing was created, because some objects differ: correct them at the broker or in the configuration first",
            );
        }
        last_of(failed_at)?;
        return Ok(if differing > 0 { ExitStatus::Findings } else { ExitStatus::Success });
    }
    for piece in &wanting {
        print_stderr(&format!("{:9}  {}", topology_word(&piece.status), plain(&piece.name)));
    }
    let count = wanting.len();
    confirm(args.yes, &format!("create {}?", output::count(count as u64, "object")))?;
    let mut done = Vec::new();
    for broker in all {
        match broker.admin.apply().await {
            Ok(pieces) => done.push(BrokerTopology { pieces, ..broker }),
            Err(failure) => {
                let hint = "some objects may have been created; `relevo topology plan` compares them again";
                failed_at.push(broker_error(&failure).context(format!(
                    "{}: not all objects were created; hint: {hint}",
                    at(&broker.outbox, &broker.destination)
                )));
            }
        }
    }
    print(&done, args.output)?;
    last_of(failed_at)?;
    // Another process may have changed an object in the meantime.
    let whole = done.iter().flat_map(|broker| &broker.pieces).all(TopologyItem::is_in_place);
    Ok(if whole { ExitStatus::Success } else { ExitStatus::Findings })
}

/// The topology of every reachable broker, and the errors of the others.
async fn compare(which: &Which) -> Result<(Vec<BrokerTopology>, Vec<anyhow::Error>)> {
    let Loaded { config, warnings, .. } = config::report_problems(which.sources.load())?;
    config::warn(&warnings);
    let wanted = |name: &str, wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let (mut all, mut unseen, mut found) = (Vec::new(), Vec::new(), false);
    for outbox in config.outboxes.iter().filter(|outbox| wanted(&outbox.name, &which.outbox)) {
        for destination in outbox.destinations.iter().filter(|it| wanted(&it.name, &which.destination)) {
            found = true;
            match broker_topology(&outbox.name, destination).await {
                Ok(Some(broker)) => all.push(broker),
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

/// Returns the last of several errors and prints the others.
fn last_of(mut errors: Vec<anyhow::Error>) -> Result<()> {
    let last = errors.pop();
    for error in errors {
        print_stderr(&ErrorReport::of(&error).to_string());
    }
    last.map_or(Ok(()), Err)
}

/// Compares the topology of a destination. `None` if its broker has none.
pub(super) async fn broker_topology(outbox: &str, destination: &Destination) -> Result<Option<BrokerTopology>> {
    let at = || at(outbox, &destination.name);
    let Some(admin) = connect::broker_admin(&destination.broker).with_context(at)? else { return Ok(None) };
    let pieces = admin.plan().await.map_err(|failure| broker_error(&failure)).with_context(at)?;
    Ok(Some(BrokerTopology { outbox: outbox.to_owned(), destination: destination.name.clone(), admin, pieces }))
}

fn at(outbox: &str, destination: &str) -> String {
    format!("outbox `{outbox}`, destination `{destination}`")
}

fn print(all: &[BrokerTopology], output: OutputArgs) -> Result<()> {
    if output.is_json() {
        return all
            .iter()
            .flat_map(|broker| broker.pieces.iter().map(move |piece| (broker, piece)))
            .try_for_each(|(broker, piece)| output::line(&json(broker, piece)));
    }
    let mut out = io::stdout().lock();
    for broker in all {
        writeln!(
            out,
            "{}: {}",
            at(&broker.outbox, &broker.destination),
            output::count(broker.pieces.len() as u64, "object")
        )?;
        for TopologyItem { name, status: state } in &broker.pieces {
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

fn json(broker: &BrokerTopology, piece: &TopologyItem) -> Value {
    let differences: &[Difference] =
        if let TopologyStatus::Different(differences) = &piece.status { differences } else { &[] };
    let differences = differences
        .iter()
        .map(|Difference { setting, expected: wanted, actual: found }| json!({ "setting": setting, "wanted": wanted, "found": found }));
    json!({
        "outbox": broker.outbox,
        "destination": broker.destination,
        "piece": piece.name,
        "state": topology_word(&piece.status),
        "differences": differences.collect::<Vec<_>>(),
    })
}
