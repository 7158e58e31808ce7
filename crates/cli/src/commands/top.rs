//! `relevo top`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use console::{Term, truncate_str};

use super::status::{StatusArgs, StatusView};
use crate::error_report::ErrorReport;
use crate::exit::{ExitStatus, usage};
use crate::output::time::duration;
use crate::output::{self, OutputArgs};

/// Switches to the alternate screen, so that the previous content comes back.
const ENTER_SCREEN: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";
/// Clears to the end of the line.
const CLEAR_LINE: &str = "\x1b[K";

/// The arguments of `relevo top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  relevo top\n  relevo top --interval 5s --admin http://127.0.0.1:9464")]
pub(crate) struct Args {
    #[command(flatten)]
    status: StatusArgs,
    /// The pause between two refreshes.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// Ends after this number of refreshes; without it, Ctrl-C ends it.
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let term = Term::stdout();
    if !args.output.is_json() && !term.is_term() {
        return Err(usage("`relevo top` needs a terminal; hint: `relevo status`, or `relevo top -o json`"));
    }
    let mut view = StatusView::new(&args.status)?;
    // A database that is unreachable from the start is an error, as with every other command.
    view.poll().await?;
    let screen = (!args.output.is_json()).then(|| Screen::open(&term)).transpose()?;
    let mut error = None;
    let mut iterations = 0;
    // Ctrl-C works also while a database does not respond.
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        show(screen.as_ref(), &view, error.as_ref())?;
        iterations += 1;
        if args.iterations.is_some_and(|max| iterations >= max) {
            return Ok(ExitStatus::Success);
        }
        let next = async {
            tokio::time::sleep(args.interval).await;
            view.poll().await.err()
        };
        error = tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(ExitStatus::Success),
            error = next => error,
        };
    }
}

fn show(screen: Option<&Screen<'_>>, view: &StatusView, error: Option<&anyhow::Error>) -> Result<()> {
    let Some(screen) = screen else {
        let mut value = view.json();
        value["error"] = error.map(|error| ErrorReport::of(error).error().to_owned()).into();
        return output::line(&value);
    };
    let mut text = Vec::new();
    if let Some(error) = error {
        // The last snapshot stays below.
        writeln!(text, "{}", ErrorReport::of(error))?;
    }
    view.write(&mut text)?;
    screen.draw(&String::from_utf8_lossy(&text))?;
    Ok(())
}

/// The alternate screen of the terminal.
struct Screen<'a>(&'a Term);

impl<'a> Screen<'a> {
    fn open(term: &'a Term) -> io::Result<Self> {
        term.write_str(ENTER_SCREEN)?;
        term.hide_cursor()?;
        Ok(Self(term))
    }

    /// Overwrites the previous content, so that nothing flickers.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (rows, columns) = self.0.size();
        let mut drawn = String::new();
        for line in text.lines().take(usize::from(rows).saturating_sub(1)) {
            writeln!(drawn, "{}{CLEAR_LINE}", truncate_str(line, columns.into(), "…"))
                .expect("a string has no write errors");
        }
        self.0.move_cursor_to(0, 0)?;
        self.0.write_str(&drawn)?;
        self.0.clear_to_end_of_screen()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A closed terminal needs no cursor.
        self.0.show_cursor().ok();
        self.0.write_str(LEAVE_SCREEN).ok();
    }
}
