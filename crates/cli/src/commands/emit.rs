//! `relevo emit`

mod lines;

use std::io::{self, Read as _, Write as _};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::store_adapter::EmitSessionError;
use relevo_core::{Draft, MessageId, OnDuplicate};
use serde_json::{Value, json};

use crate::args::OutboxArgs;
use crate::connect::emit_error;
use crate::exit::{ExitStatus, usage};
use crate::output::time;
use crate::output::{OutputArgs, is_json};

const EXAMPLES: &str = "Examples:
  relevo emit orders o-42 OrderPlaced '{\"total\": 12}'
  relevo emit orders o-42 OrderPlaced @order.json --header tenant=acme --deliver-at 10m
  relevo emit --jsonl messages.jsonl";

/// What to emit.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The topic; routes match it first.
    #[arg(required_unless_present = "jsonl")]
    topic: Option<String>,
    /// The key; messages of one key are published in order.
    #[arg(required_unless_present = "jsonl")]
    key: Option<String>,
    /// The type: the event or the command.
    #[arg(value_name = "TYPE", required_unless_present = "jsonl")]
    kind: Option<String>,
    /// The payload, `@FILE` for the bytes of a file, or `-` for stdin.
    #[arg(required_unless_present = "jsonl", allow_hyphen_values = true)]
    payload: Option<String>,
    /// The media type of the payload; JSON is validated.
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,
    /// A header, as `name=value`; can be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Your own id; an id can be emitted once.
    #[arg(long, value_parser = crate::args::message_id)]
    id: Option<MessageId>,
    /// Publishes it at this time: RFC 3339, or a duration from now, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::ahead)]
    deliver_at: Option<Timestamp>,
    /// Takes the lock of the key, for writers that lock no row of their own.
    #[arg(long)]
    serialize: bool,
    /// Does nothing if the id was emitted before.
    #[arg(long, requires = "id")]
    ignore_duplicate: bool,
    /// Emits JSON lines from this file, or from `-` for stdin, one message per line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["topic", "key", "kind", "payload", "headers", "id", "deliver_at", "serialize"])]
    jsonl: Option<String>,
    /// The number of messages per transaction.
    #[arg(long, value_name = "N", default_value_t = 500, requires = "jsonl", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Skips this number of lines, which were committed before.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "jsonl")]
    skip: u64,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let place = args.target.locate()?;
    if let Some(source) = &args.jsonl {
        let lines = lines::LinesArgs { source, batch: args.batch, skip: args.skip, output: args.output };
        return lines::run(&place, &lines).await;
    }
    let draft = draft(args)?;
    let mut writer = place.writer().await?;
    let ids = writer.emit(vec![draft]).await.map_err(|failure| match failure.error {
        EmitSessionError::Store(error) if failure.rolled_back => anyhow!(error).context("nothing was written"),
        error => emit_error(error),
    })?;
    let mut out = io::stdout().lock();
    for id in ids {
        if args.output.is_json() {
            writeln!(out, "{}", json!({ "id": id.to_string() }))?;
        } else {
            writeln!(out, "{id}")?;
        }
    }
    Ok(ExitStatus::Success)
}

/// The message of the arguments. Checked before the database is opened.
fn draft(args: &Args) -> Result<Draft> {
    let typed = |text: &Option<String>| text.clone().unwrap_or_default();
    let payload = payload(&typed(&args.payload))?;
    if is_json(&args.content_type)
        && let Err(error) = serde_json::from_slice::<Value>(&payload)
    {
        let hint = "`--content-type text/plain` sends any text";
        return Err(usage(format!("the payload is not JSON: {error}; hint: {hint}")));
    }
    let mut draft =
        Draft::bytes(&typed(&args.topic), &typed(&args.key), &typed(&args.kind), payload, &args.content_type);
    for (name, value) in &args.headers {
        if draft.headers.insert(name.clone(), value.clone()).is_some() {
            return Err(usage(format!("header `{name}` is given twice; hint: a message has each header once")));
        }
    }
    draft.id = args.id;
    draft.deliver_at = args.deliver_at;
    draft.lock_key = args.serialize;
    if args.ignore_duplicate {
        draft.on_duplicate = OnDuplicate::Ignore;
    }
    draft.check().map_err(|error| usage(error.to_string()))?;
    Ok(draft)
}

fn payload(text: &str) -> Result<Bytes> {
    if text == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("stdin cannot be read")?;
        return Ok(bytes.into());
    }
    match text.strip_prefix('@') {
        Some(file) => Ok(std::fs::read(file).with_context(|| format!("`{file}` cannot be read"))?.into()),
        None => Ok(Bytes::from(text.to_owned())),
    }
}
