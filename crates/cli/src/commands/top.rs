//! `relevo top`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use console::{Term, truncate_str};

use super::status::{Looks, What};
use crate::error_report::ErrorReport;
use crate::exit::{ExitStatus, usage};
use crate::output::time::duration;
use crate::output::{self, OutputArgs};

/// The screen that is shown meanwhile, so that what was there before comes back.
const OTHER_SCREEN: &str = "\x1b[?1049h";
const OWN_SCREEN: &str = "\x1b[?1049l";
/// Clears to the end of the line.
const REST: &str = "\x1b[K";

/// How often it looks.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    /// How long to wait between two looks.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    every: Duration,
    /// Ends after so many looks; otherwise with Ctrl-C.
    #[arg(long, value_name = "N")]
    times: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let term = Term::stdout();
    if !args.output.is_json() && !term.is_term() {
        return Err(usage("`relevo top` needs a terminal; hint: `relevo status`, or `relevo top -o json`"));
    }
    let mut looks = Looks::new(&args.what)?;
    // What cannot be reached at all is told as every other command tells it.
    looks.look().await?;
    let screen = (!args.output.is_json()).then(|| Screen::open(&term)).transpose()?;
    let mut trouble = None;
    let mut times = 0;
    // From here on it counts, also while a database that hangs is looked at.
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        show(screen.as_ref(), &looks, trouble.as_ref())?;
        times += 1;
        if args.times.is_some_and(|most| times >= most) {
            return Ok(ExitStatus::Success);
        }
        let next = async {
            tokio::time::sleep(args.every).await;
            looks.look().await.err()
        };
        trouble = tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(ExitStatus::Success),
            trouble = next => trouble,
        };
    }
}

fn show(screen: Option<&Screen<'_>>, looks: &Looks, trouble: Option<&anyhow::Error>) -> Result<()> {
    let Some(screen) = screen else {
        let mut value = looks.object();
        value["error"] = trouble.map(|error| ErrorReport::of(error).error().to_owned()).into();
        return output::line(&value);
    };
    let mut text = Vec::new();
    if let Some(error) = trouble {
        // What was seen last stays below.
        writeln!(text, "{}", ErrorReport::of(error))?;
    }
    looks.tell(&mut text)?;
    screen.draw(&String::from_utf8_lossy(&text))?;
    Ok(())
}

/// The terminal, while this has it.
struct Screen<'a>(&'a Term);

impl<'a> Screen<'a> {
    fn open(term: &'a Term) -> io::Result<Self> {
        term.write_str(OTHER_SCREEN)?;
        term.hide_cursor()?;
        Ok(Self(term))
    }

    /// Draws over what is there, so that nothing flickers.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (rows, columns) = self.0.size();
        let mut drawn = String::new();
        for line in text.lines().take(usize::from(rows).saturating_sub(1)) {
            writeln!(drawn, "{}{REST}", truncate_str(line, columns.into(), "…")).expect("a string takes everything");
        }
        self.0.move_cursor_to(0, 0)?;
        self.0.write_str(&drawn)?;
        self.0.clear_to_end_of_screen()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // Whoever closed the terminal does not miss its cursor.
        self.0.show_cursor().ok();
        self.0.write_str(OWN_SCREEN).ok();
    }
}
