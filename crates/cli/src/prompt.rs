//! A question before a change that cannot be undone.

use std::io::{self, BufRead, Write};

use anyhow::{Result, bail};

use crate::args::ConfirmArg;

/// Requires a confirmation, unless `--yes` gave it. Any answer but yes, or the end of the input, is an error.
pub(crate) fn confirm(yes: ConfirmArg, question: &str) -> Result<()> {
    if yes.yes { Ok(()) } else { ask(question, &mut io::stdin().lock(), &mut io::stderr()) }
}

fn ask(question: &str, answers: &mut impl BufRead, prompt: &mut impl Write) -> Result<()> {
    write!(prompt, "{question} [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    if answers.read_line(&mut answer)? == 0 {
        writeln!(prompt)?;
        bail!("no answer, nothing was changed; hint: `--yes` confirms in advance");
    }
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("not confirmed, nothing was changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(answer: &str) -> Result<()> {
        ask("really?", &mut answer.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Y\n", "yes\n", " yes \r\n"] {
            assert!(answered(yes).is_ok(), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yess\n"] {
            assert!(answered(no).is_err(), "{no:?}");
        }
    }
}
