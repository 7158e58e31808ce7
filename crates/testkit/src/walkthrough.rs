//! Does what a page of the documentation says, as a reader would who copies each block.
//!
//! A block whose language is followed by `file=NAME` is a file. A `sh` block is typed into a terminal. It runs to its end, unless
//! the next block is a `text` block: then it runs until the terminals show that text, and goes on running beside the rest of the
//! page. In a `text` block `…` stands for anything.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::local_ports::LocalPorts;
use crate::scratch::Scratch;

const STEP_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(20);

/// A code block of a Markdown page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeBlock {
    /// The first word after the fence; empty if there is none.
    pub language: String,
    /// The name after `file=`.
    pub file: Option<String>,
    /// The lines between the fences.
    pub text: String,
}

/// The code blocks of a Markdown text, in order.
pub fn code_blocks(markdown: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        let file = rest.split(' ').find_map(|word| word.strip_prefix("file=")).map(str::to_owned);
        let text =
            lines.by_ref().take_while(|line| *line != "```").fold(String::new(), |text, line| text + line + "\n");
        blocks.push(CodeBlock { language: language.to_owned(), file, text });
    }
    blocks
}

/// The part of a page below a heading of the second level. Panics if the page has no such heading.
pub fn section<'a>(markdown: &'a str, heading: &str) -> &'a str {
    let start = format!("\n## {heading}\n");
    let (_, rest) = markdown.split_once(&start).unwrap_or_else(|| panic!("the page has no heading `{heading}`"));
    rest.split("\n## ").next().unwrap_or(rest)
}

/// A step that was done: what a reader typed, and how long it took until the page goes on.
#[derive(Debug, Clone)]
pub struct Step {
    /// The command, or the name of the file that was saved.
    pub typed: String,
    /// From the command until it ended or showed what the page promises.
    pub took: Duration,
}

/// A reader with an empty directory, and terminals in it.
pub struct Walkthrough {
    scratch: Scratch,
    ports: LocalPorts,
    terminals: Vec<Child>,
    shown: Receiver<String>,
    show: Sender<String>,
}

impl Walkthrough {
    /// `programs` are the names that the page uses for programs which no installation has put on the path.
    pub fn new(ports: LocalPorts, programs: &[(&str, &Path)]) -> Self {
        let scratch = Scratch::for_marked();
        for directory in ["programs", "work"] {
            std::fs::create_dir(scratch.path().join(directory)).expect("the directory can be written");
        }
        for (name, program) in programs {
            let link = scratch.path().join("programs").join(name);
            std::os::unix::fs::symlink(program, link).expect("the directory can be written");
        }
        let (show, shown) = channel();
        Self { scratch, ports, terminals: Vec::new(), shown, show }
    }

    /// The directory in which everything happens.
    pub fn directory(&self) -> PathBuf {
        self.scratch.path().join("work")
    }

    /// Does what these blocks say, and returns the steps. Panics if a command fails, or does not show what the page promises.
    pub fn follow(&mut self, blocks: &[CodeBlock]) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let promised = blocks.get(index + 1).filter(|next| next.language == "text");
            let start = Instant::now();
            let typed = match (&block.file, block.language.as_str()) {
                (Some(file), _) => {
                    std::fs::write(self.directory().join(file), &block.text).expect("the directory can be written");
                    format!("(saves {file})")
                }
                (None, "sh") => {
                    self.type_in(&block.text, promised.map(|block| block.text.as_str()));
                    block.text.trim().to_owned()
                }
                (None, "text") => continue,
                (None, language) => panic!("neither a file nor a command ({language}):\n{}", block.text),
            };
            steps.push(Step { typed, took: start.elapsed() });
        }
        steps
    }

    fn type_in(&mut self, commands: &str, promised: Option<&str>) {
        let mut terminal = self.open(commands);
        let mut seen = Vec::new();
        let Some(promised) = promised else {
            let status = terminal.wait().expect("the process is ours");
            seen.extend(self.shown.try_iter());
            assert!(status.success(), "{status}: {commands}\n{}", seen.join("\n"));
            return;
        };
        self.terminals.push(terminal);
        let mut expected = promised.lines().filter(|line| !line.is_empty()).peekable();
        let deadline = Instant::now() + STEP_TIMEOUT;
        while let Some(line) = expected.peek() {
            match self.shown.recv_timeout(POLL) {
                Ok(shown) => {
                    if shows(&shown, line) {
                        expected.next();
                    }
                    seen.push(shown);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let late = Instant::now() > deadline || self.has_ended();
                    assert!(!late, "`{commands}` did not show `{line}`:\n{}", seen.join("\n"));
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is in this value"),
            }
        }
    }

    /// Whether the newest terminal has ended.
    fn has_ended(&mut self) -> bool {
        self.terminals.last_mut().is_some_and(|child| child.try_wait().expect("the process is ours").is_some())
    }

    fn open(&self, commands: &str) -> Child {
        let mut command = self.ports.command("bash");
        command.args(["-e", "-c", commands]).current_dir(self.directory()).process_group(0);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RELEVO")) {
            command.env_remove(name);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::iter::once(self.scratch.path().join("programs")).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(programs).expect("no name has a colon"));
        command.env(crate::marked::VARIABLE, self.scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("`nsenter` and `bash` run");
        self.read(child.stdout.take().expect("it was piped"));
        self.read(child.stderr.take().expect("it was piped"));
        child
    }

    fn read(&self, output: impl Read + Send + 'static) {
        let show = self.show.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The reader may have left already.
                show.send(line).ok();
            }
        });
    }

    /// Presses Ctrl-C in every terminal, the newest first, and waits until they have ended.
    pub fn leave(mut self) {
        while let Some(mut terminal) = self.terminals.pop() {
            interrupt(terminal.id());
            terminal.wait().expect("the process is ours");
        }
    }
}

impl Drop for Walkthrough {
    fn drop(&mut self) {
        for terminal in &mut self.terminals {
            terminal.kill().ok();
            terminal.wait().ok();
        }
    }
}

/// Sends what Ctrl-C sends: an interrupt to every process of the terminal.
fn interrupt(group: u32) {
    let status =
        Command::new("sh").args(["-c", "kill -s INT -- \"-$0\"", &group.to_string()]).stderr(Stdio::null()).status();
    status.expect("`sh` runs");
}

/// Whether a line of a terminal is the promised one. `…` stands for any text.
fn shows(line: &str, promised: &str) -> bool {
    let mut rest = line;
    promised.trim().split('…').all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_files_commands_and_what_they_show() {
        let page = "# A\n\n## Use it\n\n```sh\ncat a.txt\nsleep 60\n```\n\n```text\none … three\n```\n\n## Other\n\n```toml file=b.toml\nx = 1\n```\n";
        let block = |language: &str, file: Option<&str>, text: &str| CodeBlock {
            language: language.to_owned(),
            file: file.map(str::to_owned),
            text: text.to_owned(),
        };
        let [use_it, shown] = [block("sh", None, "cat a.txt\nsleep 60\n"), block("text", None, "one … three\n")];
        assert_eq!(code_blocks(section(page, "Use it")), [use_it.clone(), shown.clone()]);
        assert_eq!(code_blocks(page), [use_it, shown, block("toml", Some("b.toml"), "x = 1\n")]);
        assert!(shows("> one two three", "one … three") && !shows("one two", "one … three"));
    }

    #[test]
    fn files_are_saved_commands_run_and_those_that_show_something_go_on() {
        let mut reader = Walkthrough::new(LocalPorts::forward(&[]), &[]);
        let page = "```text file=a.txt\none two three\n```\n```sh\nmkdir made\n```\n```sh\ncat a.txt\nsleep 60\n```\n```text\none … three\n```\n";
        let steps = reader.follow(&code_blocks(page));
        assert_eq!(
            steps.iter().map(|step| step.typed.as_str()).collect::<Vec<_>>(),
            ["(saves a.txt)", "mkdir made", "cat a.txt\nsleep 60"]
        );
        assert!(reader.directory().join("made").is_dir());
        reader.leave();
    }

    #[test]
    #[should_panic(expected = "exit status: 3")]
    fn a_command_that_fails_fails_the_test() {
        Walkthrough::new(LocalPorts::forward(&[]), &[]).follow(&code_blocks("```sh\nexit 3\n```\n"));
    }
}
