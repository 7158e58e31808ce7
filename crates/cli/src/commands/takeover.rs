//! `relevo adopt` and `relevo rebase`: an outbox whose rows were written in another database.

use anyhow::Result;

use crate::args::{Sure, Target};
use crate::ask::confirm;
use crate::database::{self, ANSWER_DEADLINE, REWRITE_DEADLINE};
use crate::exit::{Code, usage};
use crate::outbox::Place;
use crate::report::say;

/// Which outbox is taken over.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sure: Sure,
}

pub(super) async fn adopt(args: &Args) -> Result<Code> {
    let place = in_postgres(&args.target)?;
    let store = place.open(ANSWER_DEADLINE).await?;
    let at = place.shown();
    confirm(args.sure, &format!("adopt the outbox at {at}? If it is a copy, its original must publish no more"))?;
    store.adopt().await?;
    say(&format!("the outbox at {at} is adopted: relays may run"));
    Ok(Code::Done)
}

pub(super) async fn rebase(args: &Args) -> Result<Code> {
    let place = in_postgres(&args.target)?;
    let store = place.open(REWRITE_DEADLINE).await?;
    let at = place.shown();
    confirm(args.sure, &format!("rebase the outbox at {at}? Every message is rewritten while writers wait"))?;
    let waiting = store.rebase().await?;
    say(&format!("the outbox at {at} is rebased: relays may run, {waiting} messages will be sent"));
    Ok(Code::Done)
}

fn in_postgres(target: &Target) -> Result<database::Place> {
    match Place::of(target)? {
        Place::Postgres(place) => Ok(*place),
        Place::Sqlite(_) => Err(usage("a SQLite file may be copied and moved as it is; only PostgreSQL needs this")),
    }
}
