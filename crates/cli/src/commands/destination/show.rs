//! `relevo destination show`

use std::io::{self, Write};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, ShardInfo};
use serde_json::json;

use crate::args::OutboxArgs;
use crate::connect;
use crate::exit::ExitStatus;
use crate::output::table::{self, Table};
use crate::output::{self, OutputArgs, time};

/// Which destination.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The destination [default: all of them].
    #[arg(value_parser = crate::args::destination)]
    name: Option<String>,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let outbox = args.target.locate()?.outbox().await?;
    let known = outbox.destinations().await?;
    let selected = match &args.name {
        None if known.len() > 1 => known,
        name => vec![connect::choose(known, name.as_deref())?],
    };
    let mut out = io::stdout().lock();
    for (at, destination) in selected.iter().enumerate() {
        let backlog = outbox.sample_destination(&destination.name).await?.backlog;
        let shards = outbox.shards(&destination.name).await?;
        if args.output.is_json() {
            writeln!(out, "{}", object(destination, backlog, &shards))?;
        } else {
            if at > 0 {
                writeln!(out)?;
            }
            text(&mut out, destination, backlog, &shards)?;
        }
    }
    Ok(ExitStatus::Success)
}

/// Its state in one word.
pub(super) const fn state(destination: &DestinationInfo) -> &'static str {
    if destination.enabled { "enabled" } else { "disabled" }
}

fn object(destination: &DestinationInfo, backlog: Backlog, shards: &[ShardInfo]) -> serde_json::Value {
    json!({
        "name": destination.name,
        "enabled": destination.enabled,
        "pending": backlog.pending,
        "exact": backlog.exact,
        "parked": backlog.parked,
        "dead": backlog.dead,
        "target_shards": destination.resharding_to,
        "shards": shards.iter().map(output::shard).collect::<Vec<_>>(),
    })
}

fn text(out: &mut impl Write, destination: &DestinationInfo, backlog: Backlog, shards: &[ShardInfo]) -> io::Result<()> {
    let estimate = if backlog.exact { "" } else { " (estimate)" };
    let mut pairs = vec![
        ("name", destination.name.clone()),
        ("state", state(destination).to_owned()),
        ("pending", format!("{}{estimate}", backlog.pending)),
        ("parked", backlog.parked.to_string()),
        ("dead", backlog.dead.to_string()),
        ("shards", destination.shards.to_string()),
    ];
    pairs.extend(destination.resharding_to.map(|shards| ("target shards", shards.to_string())));
    table::pairs(out, &pairs)?;
    writeln!(out)?;
    let now = Timestamp::now();
    let rows: Vec<_> = shards.iter().map(|shard| row(shard, now)).collect();
    Table::new(&["SHARD", "RELAY", "EPOCH", "LEASE EXPIRES IN", "PARKED KEYS", "SETTLED"]).write(out, &rows)
}

fn row(shard: &ShardInfo, now: Timestamp) -> Vec<String> {
    let expires_in = match (&shard.owner, shard.lease_remaining.is_zero()) {
        (None, _) => "-".to_owned(),
        (Some(_), true) => "expired".to_owned(),
        (Some(_), false) => time::short(shard.lease_remaining),
    };
    vec![
        shard.shard.to_string(),
        shard.owner.clone().unwrap_or_else(|| "-".to_owned()),
        shard.epoch.to_string(),
        expires_in,
        shard.parked_keys.to_string(),
        shard.settled_at.map_or_else(|| "never".to_owned(), |at| time::with_age(at, now)),
    ]
}
