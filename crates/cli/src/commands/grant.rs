//! `relevo grant`

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use relevo_core::outbox::admin::RoleKind;

use crate::args::OutboxArgs;
use crate::connect::ANSWER_TIMEOUT;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};

/// Which rights, and who gets them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, as the owner of the schema:\n  \
    psql -c 'CREATE ROLE shop LOGIN' && relevo grant writer shop")]
pub(crate) struct Args {
    /// What the role is used for.
    #[arg(value_parser = kinds())]
    kind: RoleKind,
    /// An existing role of the database.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    role: String,
    #[command(flatten)]
    target: OutboxArgs,
}

fn kinds() -> impl TypedValueParser<Value = RoleKind> {
    let explained = RoleKind::ALL.map(|kind| PossibleValue::new(kind.as_str()).help(rights(kind)));
    PossibleValuesParser::new(explained).try_map(|name| RoleKind::parse(&name).ok_or("an unknown kind of role"))
}

const fn rights(kind: RoleKind) -> &'static str {
    match kind {
        RoleKind::Writer => "emit messages, and cancel scheduled ones",
        RoleKind::Relay => {
            "add destinations, read and settle messages, maintain the outbox, redrive and discard dead letters"
        }
        RoleKind::Consumer => "use the inbox and its retry queues",
        RoleKind::Operator => "read everything, redrive and discard dead letters, control consumers and replays",
    }
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let (place, role) = (args.target.locate()?, &args.role);
    if !place.open(ANSWER_TIMEOUT).await?.grant(args.kind, role).await? {
        return Err(not_found(format!("role `{role}` does not exist; hint: create it with `CREATE ROLE`")));
    }
    print_stderr(&format!("role `{role}` may {} at {}", rights(args.kind), place.location()));
    Ok(ExitStatus::Success)
}
