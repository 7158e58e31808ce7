//! Tests of the commands in runbooks, guides and help texts: each must parse.

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};

use crate::args::Cli;

/// The words that stand for something, where the program does not take any word.
const STANDING_FOR: [(&str, &str); 1] = [("ID", "019d3c4e-55aa-7c3e-9a41-0242ac120002")];

fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let entries = std::fs::read_dir(docs.join("runbooks")).expect("the runbooks exist");
    let runbooks = entries.map(|entry| entry.expect("it can be read").path());
    let of_ticketflow = docs.join("../systems/ticketflow/docs/rabbitmq-topology.md");
    runbooks.chain([docs.join("how-to/alerts.md"), of_ticketflow]).collect()
}

/// The commands on a page: lines of code blocks, and words in backticks.
fn commands(page: &str) -> Vec<String> {
    let (mut found, mut in_code) = (Vec::new(), false);
    // A command in backticks may continue on the next line.
    let mut prose = String::new();
    for line in page.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
        } else if in_code {
            found.push(line.to_owned());
        } else {
            prose.extend([line, " "]);
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    found.retain(|command| command.starts_with("relevo "));
    found
}

/// The words of a command, as a shell passes them, without a comment or a redirection.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in command.chars().chain([' ']) {
        match letter {
            '"' | '\'' if quote.is_none() => quote = Some(letter),
            '"' | '\'' if quote == Some(letter) => quote = None,
            '#' | '>' if word.is_empty() && quote.is_none() => break,
            ' ' if quote.is_none() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => word.push(other),
        }
    }
    let meant = |word: &String| STANDING_FOR.iter().find(|(stands, _)| stands == word).map(|(_, meant)| *meant);
    words.iter().map(|word| meant(word).unwrap_or(word).to_owned()).collect()
}

#[test]
fn every_command_of_a_runbook_can_be_typed() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in pages() {
        let page = std::fs::read_to_string(&path).expect("it can be read");
        for command in commands(&page) {
            seen += 1;
            if let Err(error) = Cli::try_parse_from(words(&command)) {
                wrong.push(format!("{}: `{command}`: {error}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 50, "only {seen} commands were found");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let page = "Type `relevo nonsense`.\n```sh\nrelevo why KEY # explains it\nls\n```\nor `relevo dead\nshow ID` then";
    let found = commands(page);
    assert_eq!(found, ["relevo why KEY # explains it", "relevo nonsense", "relevo dead show ID"]);
    let is_there: Vec<bool> = found.iter().map(|command| Cli::try_parse_from(words(command)).is_ok()).collect();
    assert_eq!(is_there, [true, false, true]);
}

/// Every command, with the words that call it.
pub(crate) fn all_commands(command: &clap::Command, words: &str, found: &mut Vec<(String, clap::Command)>) {
    found.push((words.to_owned(), command.clone()));
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        all_commands(sub, &format!("{words} {}", sub.get_name()), found);
    }
}

#[test]
fn every_example_of_a_help_text_parses() {
    let (mut commands, mut wrong, mut seen) = (Vec::new(), Vec::new(), 0);
    all_commands(&Cli::command(), "relevo", &mut commands);
    for (name, command) in &commands {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !command.has_subcommands() && !help.contains("relevo ") {
            wrong.push(format!("{name}: no example"));
        }
        for line in help.lines().map(|line| line.trim_start().trim_start_matches("Example: ")) {
            if line.starts_with("relevo ") {
                seen += 1;
                if let Err(error) = Cli::try_parse_from(words(line)) {
                    wrong.push(format!("{name}: `{line}`: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "only {seen} examples were found");
}

#[test]
fn every_help_text_is_as_accepted() {
    let mut root = Cli::command().term_width(120);
    root.build();
    let mut snapshots = vec![("relevo".to_owned(), vec![("relevo".to_owned(), root.clone())])];
    for noun in root.get_subcommands().filter(|noun| noun.get_name() != "help") {
        let mut commands = Vec::new();
        all_commands(noun, &format!("relevo {}", noun.get_name()), &mut commands);
        snapshots.push((noun.get_name().to_owned(), commands));
    }
    for (name, commands) in snapshots {
        let texts = commands.into_iter().map(|(words, command)| {
            let help = command.term_width(120).render_long_help().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            format!("$ {words} --help\n{}", lines.join("\n").trim_end())
        });
        insta::assert_snapshot!(format!("help_{name}"), texts.collect::<Vec<_>>().join("\n\n\n"));
    }
}
