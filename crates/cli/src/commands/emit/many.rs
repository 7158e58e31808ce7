//! Many messages from JSON lines, a transaction a batch.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use relevo_core::store_adapter::{EmitFailure, EmitSession};
use relevo_core::{Draft, MessageId, OnDuplicate};
use serde_json::{Map, Value, json};

use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, interrupted, usage};
use crate::outbox::{Place, emit_error};

/// What was asked for.
pub(super) struct Order<'a> {
    pub(super) source: &'a str,
    pub(super) batch: u32,
    pub(super) skip: u64,
    pub(super) json: bool,
}

pub(super) async fn run(place: &Place, order: &Order<'_>) -> Result<ExitStatus> {
    let (mut lines, bytes): (Box<dyn BufRead + Send>, Option<u64>) = if order.source == "-" {
        (Box::new(BufReader::new(io::stdin())), None)
    } else {
        let file = File::open(order.source).with_context(|| format!("`{}` cannot be read", order.source))?;
        let bytes = file.metadata().ok().map(|metadata| metadata.len());
        (Box::new(BufReader::new(file)), bytes)
    };
    let mut work = Work {
        writer: place.writer().await?,
        bar: bar(bytes),
        json: order.json,
        emitted: 0,
        committed_line: order.skip,
    };
    let mut batch = Batch { lines: Vec::new(), drafts: Vec::new() };
    let mut number = 0;
    let mut text = String::new();
    loop {
        text.clear();
        let read = lines.read_line(&mut text).with_context(|| work.so_far("a line cannot be read"))?;
        work.bar.inc(read as u64);
        if read > 0 {
            number += 1;
            if number <= order.skip || text.trim().is_empty() {
                continue;
            }
            let draft = draft(&text).map_err(|what| usage(work.so_far(&format!("line {number}: {what}"))))?;
            batch.lines.push(number);
            batch.drafts.push(draft);
        }
        if read == 0 || batch.drafts.len() >= order.batch as usize {
            work.commit(&mut batch, number).await?;
        }
        if read == 0 {
            work.bar.finish_and_clear();
            print_stderr(&format!("{} messages emitted", work.emitted));
            return Ok(ExitStatus::Success);
        }
    }
}

/// Messages that share a transaction, and their lines.
struct Batch {
    lines: Vec<u64>,
    drafts: Vec<Draft>,
}

struct Work {
    writer: Box<dyn EmitSession>,
    bar: ProgressBar,
    json: bool,
    emitted: u64,
    committed_line: u64,
}

impl Work {
    /// Commits a batch, or nothing of it. An interrupt is heard between batches: none is left in doubt.
    async fn commit(&mut self, batch: &mut Batch, last: u64) -> Result<()> {
        let drafts = std::mem::take(&mut batch.drafts);
        if !drafts.is_empty() {
            let (ids, told) = uninterrupted(self.writer.emit(drafts)).await;
            let ids = ids.map_err(|EmitFailure { index, error, .. }| {
                let line = batch.lines.get(index).copied().unwrap_or(last);
                emit_error(error).context(self.so_far(&format!("line {line}")))
            })?;
            self.emitted += ids.len() as u64;
            self.committed_line = last;
            self.write(&ids)?;
            if told {
                return Err(interrupted(self.so_far("interrupted")));
            }
        }
        batch.lines.clear();
        Ok(())
    }

    fn write(&self, ids: &[MessageId]) -> Result<()> {
        let mut out = io::stdout().lock();
        let json = self.json;
        let line = |id: &MessageId| if json { json!({ "id": id.to_string() }).to_string() } else { id.to_string() };
        let text: String = ids.iter().map(|id| line(id) + "\n").collect();
        self.bar.suspend(|| out.write_all(text.as_bytes()))?;
        Ok(())
    }

    /// What went wrong, and how to go on after it is mended.
    fn so_far(&self, what: &str) -> String {
        match self.committed_line {
            0 => format!("{what}; hint: nothing was committed"),
            line => format!("{what}; hint: lines up to {line} are committed: go on with `--skip {line}`"),
        }
    }
}

/// Lets the work end, and says whether an interrupt came meanwhile.
async fn uninterrupted<T>(work: impl Future<Output = T>) -> (T, bool) {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => (done, false),
        _ = tokio::signal::ctrl_c() => (work.await, true),
    }
}

/// Shown on a terminal only.
fn bar(bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {bytes}/{total_bytes} {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
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
    let on_repeat = text("on_duplicate")?;
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
    draft.on_duplicate = match on_repeat.as_deref() {
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
    fn what_is_wrong_with_a_line_is_named() {
        for (line, told) in [
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
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
