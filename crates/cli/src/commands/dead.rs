//! `relevo dead`

mod filter;
mod mark;

use std::io::{self, Write as _};

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter};
use serde_json::{Value, json};

use self::filter::Filter;
use super::output::{self, Format};
use super::table::{self, Table};
use super::{moment, payload, show};
use crate::exit::{Code, not_found};
use crate::outbox::{self, Outbox, Which};
use crate::report::say;

/// What a person may have to decide about; the rest is history.
const OPEN: [&str; 3] = ["dead", "redriving", "discarding"];
/// No more are looked through for a list unless all are asked for: their payloads come with them.
const LOOKED_AT_MAX: usize = 10_000;
/// More than there can be.
const EVERY: usize = isize::MAX.unsigned_abs();

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists dead letters, oldest first.
    List(List),
    /// Shows one dead letter with its payload.
    Show(Show),
    /// Marks dead letters to be sent again, in the order of their key; the relay of their shard acts.
    Redrive(mark::Args),
    /// Marks dead letters to be put aside, so that their keys go on without them.
    Discard(mark::Args),
}

/// Which dead letters are listed.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").multiple(true))]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    filter: Filter,
    /// Those that were redriven or discarded too.
    #[arg(long)]
    history: bool,
    /// At most so many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// All of them, however many there are.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    format: Format,
}

/// Which dead letter is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    #[command(flatten)]
    which: Which,
    /// The message's id.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    /// Writes exactly the bytes of the payload, and nothing else.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(command: Command) -> Result<Code> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show(&args).await,
        Command::Redrive(args) => mark::redrive(&args).await,
        Command::Discard(args) => mark::discard(&args).await,
    }
}

async fn list(args: &List) -> Result<Code> {
    args.filter.check()?;
    let opened = outbox::open(&args.which).await?;
    let seen = look(&*opened.outbox, args).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.format.json {
        for letter in &seen.letters {
            writeln!(out, "{}", object(letter, &opened.destination.name))?;
        }
    } else if !seen.letters.is_empty() {
        let now = Timestamp::now();
        let rows: Vec<_> = seen.letters.iter().map(|letter| row(letter, now)).collect();
        Table::new(&["ID", "STATE", "CLASS", "ATTEMPTS", "EMITTED", "TOPIC", "KEY", "TYPE", "ERROR"])
            .write(&mut out, &rows)?;
    }
    out.flush()?;
    let count = mark::counted(seen.letters.len() as u64);
    say(&match seen.rest {
        Rest::Nothing => count,
        Rest::More => format!("{count}, and more\nhint: see more with `--limit`, or all with `--all`"),
        Rest::Unseen(looked_at) => {
            format!("{count} among the {looked_at} oldest, later ones were not looked at\nhint: `--all` looks at all")
        }
    });
    Ok(Code::Done)
}

/// What a look at the dead letters gave.
struct Seen {
    letters: Vec<DeadLetter>,
    rest: Rest,
}

/// What is left beyond it.
enum Rest {
    /// Every letter was looked at.
    Nothing,
    /// At least one more is wanted.
    More,
    /// Only so many were looked at, and there are others.
    Unseen(usize),
}

/// The first letters that are wanted. Others are between them, and pass by.
async fn look(outbox: &dyn Outbox, args: &List) -> Result<Seen> {
    let limit = if args.all { EVERY } else { usize::try_from(args.limit).unwrap_or(LOOKED_AT_MAX) };
    let mut ask = if args.all { EVERY } else { limit + 1 };
    loop {
        let mut letters = outbox.list_dead_letters(&args.filter.of_store(), ask).await?;
        let is_all = letters.len() < ask;
        letters.retain(|letter| args.filter.admits(letter) && (args.history || OPEN.contains(&letter.state.as_str())));
        let rest = match letters.len() {
            wanted if wanted > limit => Rest::More,
            _ if is_all => Rest::Nothing,
            _ if ask >= LOOKED_AT_MAX => Rest::Unseen(ask),
            _ => {
                ask = (ask * 2).min(LOOKED_AT_MAX);
                continue;
            }
        };
        letters.truncate(limit);
        return Ok(Seen { letters, rest });
    }
}

fn row(letter: &DeadLetter, now: Timestamp) -> Vec<String> {
    let message = &letter.message;
    vec![
        message.id.to_string(),
        letter.state.clone(),
        letter.class.clone(),
        letter.attempts.to_string(),
        moment::told(message.created_at, now),
        message.topic.to_string(),
        message.key.to_string(),
        message.kind.to_string(),
        letter.error.clone(),
    ]
}

fn object(letter: &DeadLetter, destination: &str) -> Value {
    let message = &letter.message;
    json!({
        "destination": destination,
        "id": message.id.to_string(),
        "topic": &*message.topic,
        "key": &*message.key,
        "type": &*message.kind,
        "created_at": output::time(Some(message.created_at)),
        "state": letter.state,
        "class": letter.class,
        "error": letter.error,
        "attempts": letter.attempts,
        "route": letter.route,
        "dead_at": output::time(Some(letter.dead_at)),
        "marked_at": output::time(letter.marked.as_ref().map(|marked| marked.at)),
        "marked_by": letter.marked.as_ref().map(|marked| &marked.by),
        "reason": letter.marked.as_ref().map(|marked| &marked.reason),
    })
}

async fn show(args: &Show) -> Result<Code> {
    let opened = outbox::open(&args.which).await?;
    let destination = opened.destination.name;
    let filter = DeadLetterFilter { ids: vec![args.id], ..DeadLetterFilter::default() };
    let Some(letter) = opened.outbox.list_dead_letters(&filter, 1).await?.into_iter().next() else {
        let hint = format!("`relevo outbox show {}` looks in the whole outbox", args.id);
        return Err(not_found(format!("{} is no dead letter of destination `{destination}`; hint: {hint}", args.id)));
    };
    let mut out = io::stdout().lock();
    if args.raw {
        out.write_all(&letter.message.payload)?;
    } else if args.format.json {
        let mut value = object(&letter, &destination);
        output::add_content(&mut value, &letter.message);
        writeln!(out, "{value}")?;
    } else {
        let now = Timestamp::now();
        let mut pairs = vec![
            ("id", letter.message.id.to_string()),
            ("state", format!("{} at destination `{destination}`", letter.state)),
            ("class", letter.class.clone()),
            ("error", letter.error.clone()),
            ("attempts", letter.attempts.to_string()),
            ("route", letter.route.clone()),
            ("dead since", moment::told(letter.dead_at, now)),
        ];
        if let Some(marked) = &letter.marked {
            pairs.push(("marked", format!("{} by {}", moment::told(marked.at, now), marked.by)));
            pairs.push(("reason", marked.reason.clone()));
        }
        pairs.extend(show::envelope(&letter.message, now));
        table::pairs(&mut out, &pairs)?;
        writeln!(out)?;
        payload::write(&mut out, &letter.message.content_type, &letter.message.payload)?;
    }
    Ok(Code::Done)
}
