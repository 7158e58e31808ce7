//! `relevo shards`

use std::io;

use anyhow::Result;
use jiff::Timestamp;

use crate::args::DestinationArgs;
use crate::exit::ExitStatus;
use crate::outbox;
use crate::output::table::Table;
use crate::output::time;
use crate::output::{self, OutputArgs};

/// Whose shards.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let opened = outbox::open(&args.which).await?;
    let shards = opened.outbox.shards(&opened.destination.name).await?;
    if args.output.is_json() {
        for shard in &shards {
            let mut value = output::shard(shard);
            value["destination"] = opened.destination.name.as_str().into();
            output::line(&value)?;
        }
        return Ok(ExitStatus::Success);
    }
    let now = Timestamp::now();
    let rows = shards.iter().map(|shard| {
        let lasts = match (&shard.owner, shard.lease_remaining.is_zero()) {
            (None, _) => "-".to_owned(),
            (Some(_), true) => "expired".to_owned(),
            (Some(_), false) => time::short(shard.lease_remaining),
        };
        vec![
            shard.shard.to_string(),
            shard.owner.clone().unwrap_or_else(|| "nobody".to_owned()),
            shard.epoch.to_string(),
            lasts,
            shard.parked_keys.to_string(),
            shard.settled_at.map_or_else(|| "never".to_owned(), |at| time::with_age(at, now)),
        ]
    });
    let mut table = Table::new(&["SHARD", "RELAY", "EPOCH", "LASTS", "PARKED KEYS", "SETTLED"]);
    table.write(&mut io::stdout().lock(), &rows.collect::<Vec<_>>())?;
    Ok(ExitStatus::Success)
}
