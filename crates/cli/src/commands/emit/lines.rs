//! Many messages from JSON lines, one transaction per batch.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::thread;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use relevo_core::store_adapter::{EmitFailure, EmitSession};
use relevo_core::{Draft, MessageId, OnDuplicate};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::connect::{OutboxLocation, emit_error};
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, interrupted, usage};
use crate::output::{OutputArgs, Progress, count};
use relevo_host::Signals;

/// Lines that are read ahead.
const READ_AHEAD: usize = 16;

/// Where lines are read from, and how.
pub(super) struct LinesArgs<'a> {
    pub(super) source: &'a str,
    pub(super) batch: u32,
    pub(super) skip: u64,
    pub(super) output: OutputArgs,
}

pub(super) async fn run(place: &OutboxLocation, args: &LinesArgs<'_>) -> Result<ExitStatus> {
    let source: Box<dyn BufRead + Send> = if args.source == "-" {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(args.source).with_context(|| format!("`{}` cannot be read", args.source))?;
        Box::new(BufReader::new(file))
    };
    let emitter = Emitter {
        writer: place.writer().await?,
        progress: Progress::new(),
        output: args.output,
        emitted: 0,
        committed_line: args.skip,
    };
    let stop = CancellationToken::new();
    let interrupts = Signals::interrupts()?;
    // The second interrupt ends the process, even if the database does not answer.
    tokio::select! {
        result = emitter.run(read_ahead(source), args, &stop) => result,
        () = interrupts.cancel_on_stop(stop.clone()) => Err(interrupted("interrupted")),
    }
}

/// Reads lines in a thread of its own: a read of stdin cannot be cancelled, and must not keep the process from ending.
fn read_ahead(mut source: Box<dyn BufRead + Send>) -> mpsc::Receiver<io::Result<String>> {
    let (lines, receiver) = mpsc::channel(READ_AHEAD);
    thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = source.read_line(&mut line);
            let is_end = matches!(read, Ok(0) | Err(_));
            if matches!(read, Ok(0)) || lines.blocking_send(read.map(|_| line)).is_err() || is_end {
                return;
            }
        }
    });
    receiver
}

/// Messages of one transaction, and their lines.
#[derive(Default)]
struct Batch {
    lines: Vec<u64>,
    drafts: Vec<Draft>,
}

struct Emitter {
    writer: Box<dyn EmitSession>,
    progress: Progress,
    output: OutputArgs,
    emitted: u64,
    committed_line: u64,
}

impl Emitter {
    /// Stops between two batches, so that it always knows what is committed.
    async fn run(
        mut self,
        mut lines: mpsc::Receiver<io::Result<String>>,
        args: &LinesArgs<'_>,
        stop: &CancellationToken,
    ) -> Result<ExitStatus> {
        let mut batch = Batch::default();
        let mut number = 0;
        loop {
            let line = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(interrupted(self.so_far("interrupted"))),
                line = lines.recv() => line.transpose(),
            };
            let line = line.with_context(|| self.so_far("a line cannot be read"))?;
            let is_end = line.is_none();
            if let Some(text) = line {
                number += 1;
                if number <= args.skip || text.trim().is_empty() {
                    continue;
                }
                let draft = draft(&text).map_err(|what| usage(self.so_far(&format!("line {number}: {what}"))))?;
                batch.lines.push(number);
                batch.drafts.push(draft);
            }
            if is_end || batch.drafts.len() >= args.batch as usize {
                self.commit(std::mem::take(&mut batch), number).await?;
            }
            if is_end {
                self.progress.clear();
                print_stderr(&format!("{} emitted", count(self.emitted, "message")));
                return Ok(ExitStatus::Success);
            }
        }
    }

    /// Commits a batch, or nothing of it.
    async fn commit(&mut self, batch: Batch, last: u64) -> Result<()> {
        if batch.drafts.is_empty() {
            return Ok(());
        }
        let ids = self.writer.emit(batch.drafts).await.map_err(|EmitFailure { index, error, .. }| {
            let line = batch.lines.get(index).copied().unwrap_or(last);
            emit_error(error).context(self.so_far(&format!("line {line}")))
        })?;
        self.emitted += ids.len() as u64;
        self.committed_line = last;
        self.print(&ids)?;
        let emitted = self.emitted;
        self.progress.report(|| format!("{} emitted", count(emitted, "message")));
        Ok(())
    }

    fn print(&mut self, ids: &[MessageId]) -> Result<()> {
        let is_json = self.output.is_json();
        let line = |id: &MessageId| if is_json { json!({ "id": id.to_string() }).to_string() } else { id.to_string() };
        let text: String = ids.iter().map(|id| line(id) + "\n").collect();
        self.progress.clear();
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(())
    }

    /// An error, and how to continue after it is fixed.
    fn so_far(&self, what: &str) -> String {
        match self.committed_line {
            0 => format!("{what}; hint: nothing was committed"),
            line => format!("{what}; hint: lines up to {line} are committed: continue with `--skip {line}`"),
        }
    }
}

/// One line: the fields that `emit_many` takes in SQL.
fn draft(line: &str) -> Result<Draft, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(mut fields) = value else { return Err("not an object".to_owned()) };
    let payload = match (fields.remove("payload"), fields.remove("payload_base64")) {
        (Some(json), None) => Ok(json),
        (None, Some(Value::String(text))) => {
            Err(BASE64_STANDARD.decode(&text).map_err(|_| "`payload_base64` is not base64")?)
        }
        (None, Some(_)) => return Err("`payload_base64` is not base64".to_owned()),
        _ => return Err("one of `payload` and `payload_base64` is needed".to_owned()),
    };
    let mut text = |name: &str| take_text(&mut fields, name);
    let (topic, key, kind) =
        (needed(text("topic")?, "topic")?, needed(text("key")?, "key")?, needed(text("type")?, "type")?);
    let (content_type, id, deliver_at) = (text("content_type")?, text("id")?, text("deliver_at")?);
    let on_duplicate = text("on_duplicate")?;
    let mut draft = match payload {
        Ok(json) => {
            let content_type = content_type.as_deref().unwrap_or("application/json");
            Draft::bytes(&topic, &key, &kind, json.to_string(), content_type)
        }
        Err(bytes) => Draft::bytes(&topic, &key, &kind, bytes, &needed(content_type, "content_type")?),
    };
    draft.id = id.map(|id| id.parse()).transpose().map_err(|error| format!("`id`: {error}"))?;
    draft.deliver_at =
        deliver_at.map(|at| at.parse::<Timestamp>()).transpose().map_err(|error| format!("`deliver_at`: {error}"))?;
    draft.on_duplicate = match on_duplicate.as_deref() {
        None | Some("error") => OnDuplicate::Error,
        Some("ignore") => OnDuplicate::Ignore,
        Some(other) => return Err(format!("`on_duplicate` is `{other}`, not `error` or `ignore`")),
    };
    draft.lock_key = match fields.remove("lock_key") {
        None | Some(Value::Null) => false,
        Some(value) => value.as_bool().ok_or("`lock_key` is not true or false")?,
    };
    if let Some(headers) = fields.remove("headers").filter(|headers| !headers.is_null()) {
        draft.headers = serde_json::from_value(headers).map_err(|_| "`headers` is not an object of strings")?;
    }
    if let Some(unknown) = fields.keys().next() {
        return Err(format!("`{unknown}` is not known"));
    }
    draft.check().map_err(|error| error.to_string())?;
    Ok(draft)
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` is not text")),
    }
}

fn needed(text: Option<String>, name: &str) -> Result<String, String> {
    text.ok_or_else(|| format!("`{name}` is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_fields_of_emit_many() {
        let line = r#"{"topic":"t","key":"k","type":"T","payload":{"n":1},"headers":{"a":"b"},"lock_key":true,
            "id":"5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10","on_duplicate":"ignore","deliver_at":"2026-01-31T12:00:00Z"}"#;
        let read = draft(line).unwrap();
        assert_eq!((&*read.topic, &*read.key, &*read.kind, &read.payload[..]), ("t", "k", "T", &b"{\"n\":1}"[..]));
        assert!(read.lock_key && read.id.is_some() && read.deliver_at.is_some());
        assert_eq!((read.on_duplicate, read.headers["a"].as_str()), (OnDuplicate::Ignore, "b"));
        let bytes = r#"{"topic":"t","key":"k","type":"T","payload_base64":"AP8=","content_type":"x/y"}"#;
        assert_eq!(&draft(bytes).unwrap().payload[..], [0, 0xff]);
    }

    #[test]
    fn an_invalid_line_is_explained() {
        for (line, expected) in [
            ("{", "not JSON"),
            ("[]", "not an object"),
            (r#"{"topic":"t","key":"k","type":"T"}"#, "one of `payload`"),
            (r#"{"topic":"t","key":"k","payload":1}"#, "`type` is missing"),
            (r#"{"topic":"t","key":"k","type":"T","payload":1,"colour":"red"}"#, "`colour` is not known"),
            (r#"{"topic":"","key":"k","type":"T","payload":1}"#, "topic"),
            (r#"{"topic":"t","key":"k","type":"T","payload_base64":"?","content_type":"x/y"}"#, "not base64"),
            (r#"{"topic":1,"key":"k","type":"T","payload":1}"#, "`topic` is not text"),
        ] {
            let error = draft(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
