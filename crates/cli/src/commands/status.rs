//! `relevo status`, and what `relevo top` shows again and again.

mod exposition;
mod moment;
mod object;
mod ports;
#[cfg(test)]
mod tests;
mod told;

use std::io;
use std::time::Duration;

use anyhow::Result;

use self::moment::{Moment, Watcher};
use self::ports::Ports;
use crate::args::OutboxArgs;
use crate::exit::ExitStatus;
use crate::outbox::Place;
use crate::output::time::duration;
use crate::output::{self, OutputArgs};

/// What is looked at.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct What {
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    ports: ports::Asked,
    /// At most so many lanes, keys, queues and dead letters of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=1000))]
    rows: u16,
}

/// One look.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    /// How long it is looked for rates and latencies.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    over: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let mut looks = Looks::new(&args.what)?;
    looks.look().await?;
    tokio::time::sleep(args.over).await;
    looks.look().await?;
    if args.output.is_json() {
        output::line(&looks.object())?;
    } else {
        looks.tell(&mut io::stdout().lock())?;
    }
    Ok(ExitStatus::Success)
}

/// The last look, and the one before.
pub(super) struct Looks {
    watcher: Watcher,
    last: Option<Moment>,
    before: Option<Moment>,
}

impl Looks {
    pub(super) fn new(what: &What) -> Result<Self> {
        let (place, ports) = (Place::of(&what.target)?, Ports::of(&what.ports)?);
        Ok(Self {
            watcher: Watcher::new(place, ports, what.rows.into(), what.target.outbox.clone()),
            last: None,
            before: None,
        })
    }

    /// Looks once more; what was seen stays if it cannot.
    pub(super) async fn look(&mut self) -> Result<()> {
        let now = self.watcher.look().await?;
        self.before = self.last.replace(now);
        Ok(())
    }

    /// Nothing before the first look.
    pub(super) fn tell(&self, out: &mut impl io::Write) -> io::Result<()> {
        match &self.last {
            Some(now) => told::told(out, &self.watcher.shown(), now, self.before.as_ref()),
            None => Ok(()),
        }
    }

    pub(super) fn object(&self) -> serde_json::Value {
        self.last.as_ref().map_or_else(Default::default, |now| object::object(now, self.before.as_ref()))
    }
}
