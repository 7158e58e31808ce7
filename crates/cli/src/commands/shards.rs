//! `relevo shards`

use std::io;

use anyhow::Result;
use jiff::Timestamp;

use super::moment;
use super::output::{self, Format};
use super::table::Table;
use crate::exit::Code;
use crate::outbox::{self, Which};

/// Whose shards.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    let opened = outbox::open(&args.which).await?;
    let shards = opened.outbox.shards(&opened.destination.name).await?;
    if args.format.json {
        for shard in &shards {
            let mut value = output::shard(shard);
            value["destination"] = opened.destination.name.as_str().into();
            output::line(&value)?;
        }
        return Ok(Code::Done);
    }
    let now = Timestamp::now();
    let rows = shards.iter().map(|shard| {
        let lasts = match (&shard.owner, shard.lease_remaining.is_zero()) {
            (None, _) => "-".to_owned(),
            (Some(_), true) => "expired".to_owned(),
            (Some(_), false) => moment::lasting(shard.lease_remaining),
        };
        vec![
            shard.shard.to_string(),
            shard.owner.clone().unwrap_or_else(|| "nobody".to_owned()),
            shard.epoch.to_string(),
            lasts,
            shard.parked_keys.to_string(),
            shard.settled_at.map_or_else(|| "never".to_owned(), |at| moment::told(at, now)),
        ]
    });
    let mut table = Table::new(&["SHARD", "RELAY", "EPOCH", "LASTS", "PARKED KEYS", "SETTLED"]);
    table.write(&mut io::stdout().lock(), &rows.collect::<Vec<_>>())?;
    Ok(Code::Done)
}
