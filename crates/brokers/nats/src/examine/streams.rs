//! Checks whether each stream keeps acknowledged messages.

use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::Severity;
use relevo_core::finding::{Findings, join_limited};

use super::FlushInterval;
use crate::server_state::ServerState;
use crate::topology::validate::words;

/// A shorter retention is reported.
const SHORT_RETENTION: Duration = Duration::from_hours(24);

/// Checks one stream.
pub(super) fn examine(
    info: &stream::Info,
    subjects: &[String],
    seen: &ServerState,
    expectations: &ExamineContext,
    sync: &FlushInterval,
    report: &mut Findings,
) {
    let look = StreamCheck { config: &info.config, name: format!("stream `{}`", info.config.name) };
    look.storage(report);
    look.acknowledgement(report);
    look.replicas(seen, report);
    look.limits(report);
    look.retention(subjects, seen, report);
    let window = info.config.duplicate_window;
    if window < expectations.resend_window {
        let what = format!(
            "recognises repeats for {window:?}, and a message may be sent again after {:?}",
            expectations.resend_window
        );
        let fix = format!("set `duplicate_window` to {:?} or more", expectations.resend_window);
        look.problem(Severity::Warning, "duplicate-window", &what, &fix, report);
    } else {
        look.passed("duplicate-window", report);
    }
    sync.report(&look.name, info.config.num_replicas, report);
}

/// Checks the bucket in which consumers keep the lane records.
pub(super) fn examine_bucket(info: &stream::Info, seen: &ServerState, report: &mut Findings) {
    let look = StreamCheck { config: &info.config, name: format!("stream `{}`", info.config.name) };
    look.storage(report);
    look.acknowledgement(report);
    look.replicas(seen, report);
    look.record_capacity(report);
    if info.config.max_age.is_zero() {
        look.passed("max-age", report);
    } else {
        let what = format!("forgets after {:?} what became of messages: they come again", info.config.max_age);
        look.problem(Severity::Danger, "max-age", &what, "remove its `max_age`", report);
    }
}

struct StreamCheck<'a> {
    config: &'a stream::Config,
    /// The display name.
    name: String,
}

impl StreamCheck<'_> {
    fn passed(&self, subject: &'static str, report: &mut Findings) {
        report.passed(subject, self.name.clone());
    }

    fn problem(&self, severity: Severity, subject: &str, what: &str, fix: &str, report: &mut Findings) {
        report.problem(severity, subject, format!("{} {what}", self.name), fix.to_owned());
    }

    fn storage(&self, report: &mut Findings) {
        if self.config.storage == StorageType::Memory {
            let what = "is in memory: everything is gone when the server ends";
            let fix = "make it again with storage `file`; a stream cannot change its storage";
            self.problem(Severity::Danger, "stream-storage", what, fix, report);
        } else {
            self.passed("stream-storage", report);
        }
    }

    /// Checks whether the stream acknowledges messages, and only stored ones.
    fn acknowledgement(&self, report: &mut Findings) {
        if self.config.no_ack {
            let what = "acknowledges nothing: no publication can ever be confirmed";
            self.problem(Severity::Danger, "stream-no-ack", what, "set `no_ack` to false", report);
        } else {
            self.passed("stream-no-ack", report);
        }
        if self.config.persist_mode == Some(PersistenceMode::Async) {
            let what = "acknowledges before it stores: a killed server loses what was confirmed";
            self.problem(
                Severity::Danger,
                "stream-persist",
                what,
                "make it again with `persist_mode` `default`",
                report,
            );
        } else {
            self.passed("stream-persist", report);
        }
    }

    fn replicas(&self, seen: &ServerState, report: &mut Findings) {
        let replicas = self.config.num_replicas;
        let fix = "set `num_replicas` to 3";
        match replicas {
            _ if seen.server.cluster.is_none() => self.passed("stream-replicas", report),
            0 | 1 => {
                let what = "has one replica in a cluster: its server's end is its own";
                self.problem(Severity::Danger, "stream-replicas", what, fix, report);
            }
            2 => {
                let what = "has two replicas: it stands still when one of the two servers is down";
                self.problem(Severity::Warning, "stream-replicas", what, fix, report);
            }
            _ => self.passed("stream-replicas", report),
        }
    }

    /// Checks whether a full stream refuses new messages and does not drop old ones.
    fn limits(&self, report: &mut Findings) {
        let limits = [("max_bytes", self.config.max_bytes), ("max_msgs", self.config.max_messages)];
        let per_subject = ("max_msgs_per_subject", self.config.max_messages_per_subject);
        let drops = self.config.discard == DiscardPolicy::Old;
        let drops_per_subject = drops || !self.config.discard_new_per_subject;
        let dropping = limits
            .into_iter()
            .map(|limit| (limit, drops))
            .chain([(per_subject, drops_per_subject)])
            .find(|((_, limit), drops)| *limit > 0 && *drops);
        if let Some(((name, limit), _)) = dropping {
            let what = format!("has `{name}` {limit} and drops its oldest messages when it is reached, read or not");
            let fix =
                "set `discard` to `new` (for a limit a subject also `discard_new_per_subject`), or remove the limit";
            self.problem(Severity::Danger, "discard-old", &what, fix, report);
        } else {
            self.passed("discard-old", report);
        }
        self.capacity(&limits, report);
        let age = self.config.max_age;
        if age.is_zero() {
            self.passed("max-age", report);
        } else {
            let severity = if age < SHORT_RETENTION { Severity::Warning } else { Severity::Note };
            let what = format!("removes messages after {age:?}, read or not");
            let fix = "make `max_age` longer than any consumer can be away, or remove it";
            self.problem(severity, "max-age", &what, fix, report);
        }
    }

    /// Checks whether a full stream can have free space again.
    fn capacity(&self, limits: &[(&str, i64)], report: &mut Findings) {
        let limit = limits.iter().find(|(_, limit)| *limit > 0);
        let for_good = self.config.discard == DiscardPolicy::New
            && self.config.retention == RetentionPolicy::Limits
            && self.config.max_age.is_zero();
        match limit {
            Some((name, limit)) if for_good => {
                let what = format!("has `{name}` {limit} and nothing that removes messages: once full it stays full");
                let fix = "set `max_age`, or `retention` to `workqueue` or `interest`, or remove the limit";
                self.problem(Severity::Warning, "stream-fills", &what, fix, report);
            }
            _ => self.passed("stream-fills", report),
        }
    }

    /// Checks whether the bucket has space for every record.
    fn record_capacity(&self, report: &mut Findings) {
        let limits = [("max_bytes", self.config.max_bytes), ("max_msgs", self.config.max_messages)];
        let limit = limits.into_iter().find(|(_, limit)| *limit > 0);
        let drops = self.config.discard == DiscardPolicy::Old;
        let fix = "remove the limit: it holds one record a lane and one a consumer";
        match limit {
            Some((name, limit)) if drops => {
                let what = format!("has `{name}` {limit} and then forgets what became of messages: they come again");
                self.problem(Severity::Danger, "discard-old", &what, fix, report);
            }
            _ => self.passed("discard-old", report),
        }
        match limit {
            Some((name, limit)) if !drops => {
                let what = format!("has `{name}` {limit}: once full it keeps no answer, and nothing is handed out");
                self.problem(Severity::Warning, "stream-fills", &what, fix, report);
            }
            _ => self.passed("stream-fills", report),
        }
    }

    fn retention(&self, subjects: &[String], seen: &ServerState, report: &mut Findings) {
        match self.config.retention {
            RetentionPolicy::Interest if !self.is_consumed(seen) => {
                let what = "keeps messages only while consumers want them, and has none: what is confirmed is dropped";
                let fix = "declare its groups before anything is sent, or set `retention` to `limits`";
                self.problem(Severity::Danger, "stream-retention", what, fix, report);
            }
            RetentionPolicy::Interest if !self.unconsumed_subjects(subjects, seen).is_empty() => {
                let unwanted = join_limited(&self.unconsumed_subjects(subjects, seen));
                let what =
                    format!("keeps only what consumers want, and none wants {unwanted}: it is confirmed and dropped");
                let fix = "declare a group of these subjects before anything is sent, or set `retention` to `limits`";
                self.problem(Severity::Danger, "stream-retention", &what, fix, report);
            }
            RetentionPolicy::Interest => {
                let what = "keeps messages only while consumers want them: a group that comes later misses them";
                self.problem(Severity::Note, "stream-retention", what, "set `retention` to `limits`", report);
            }
            RetentionPolicy::WorkQueue => {
                let what = "removes a message when its one group has acknowledged it: nothing can be read again";
                self.problem(Severity::Note, "stream-retention", what, "set `retention` to `limits`", report);
            }
            RetentionPolicy::Limits => self.passed("stream-retention", report),
        }
    }

    fn consumers<'s>(&self, seen: &'s ServerState) -> impl Iterator<Item = &'s consumer::Config> {
        let own = seen.consumers.iter().filter(|((stream, _), _)| *stream == self.config.name);
        own.map(|(_, info)| &info.config).filter(|config| config.durable_name.is_some())
    }

    fn is_consumed(&self, seen: &ServerState) -> bool {
        self.consumers(seen).next().is_some()
    }

    /// The subjects of routes that this stream stores and no durable consumer reads.
    fn unconsumed_subjects(&self, subjects: &[String], seen: &ServerState) -> Vec<String> {
        let wants = |config: &consumer::Config, subject: &str| {
            let one = (!config.filter_subject.is_empty()).then_some(&config.filter_subject);
            let mut filters = one.into_iter().chain(&config.filter_subjects).peekable();
            let template = AddressTemplate::new(subject);
            filters.peek().is_none() || filters.any(|filter| template.can_match(&words(filter)))
        };
        let unwanted = |subject: &&String| {
            super::stores_subject(self.config, subject) && !self.consumers(seen).any(|config| wants(config, subject))
        };
        subjects.iter().filter(unwanted).map(|subject| format!("`{subject}`")).collect()
    }
}
