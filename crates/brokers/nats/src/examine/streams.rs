//! Checks whether each stream keeps acknowledged messages.

use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::{Findings, Severity, join_limited};

use super::FlushInterval;
use crate::server_state::ServerState;
use crate::topology::validate::pattern_words;

/// A shorter retention is reported.
const SHORT_RETENTION: Duration = Duration::from_hours(24);

/// Checks one stream.
pub(super) fn examine(
    info: &stream::Info,
    subjects: &[String],
    server: &ServerState,
    context: &ExamineContext,
    flush_interval: &FlushInterval,
    findings: &mut Findings,
) {
    let mut check = StreamCheck::new(&info.config, findings);
    check.storage();
    check.acknowledgement();
    check.replicas(server);
    check.limits();
    check.retention(subjects, server);
    let (window, needed) = (info.config.duplicate_window, context.resend_window);
    check.check(window >= needed, Severity::Warning, "duplicate-window", || {
        (
            format!("detects duplicates for {window:?}, but a message may be sent again after {needed:?}"),
            format!("set `duplicate_window` to {needed:?} or more"),
        )
    });
    flush_interval.report(&check.name, info.config.num_replicas, check.findings);
}

/// Checks the bucket in which consumers keep the lane records.
pub(super) fn examine_bucket(info: &stream::Info, server: &ServerState, findings: &mut Findings) {
    let mut check = StreamCheck::new(&info.config, findings);
    check.storage();
    check.acknowledgement();
    check.replicas(server);
    check.record_capacity();
    let age = info.config.max_age;
    check.check(age.is_zero(), Severity::Danger, "max-age", || {
        let problem = format!("deletes lane records after {age:?}: acknowledged messages are then delivered again");
        (problem, "remove its `max_age`".to_owned())
    });
}

struct StreamCheck<'a> {
    config: &'a stream::Config,
    /// The display name.
    name: String,
    findings: &'a mut Findings,
}

impl<'a> StreamCheck<'a> {
    fn new(config: &'a stream::Config, findings: &'a mut Findings) -> Self {
        Self { config, name: format!("stream `{}`", config.name), findings }
    }

    /// Adds a check of this stream; `problem` returns what is wrong, without the stream's name, and the fix.
    fn check(
        &mut self,
        ok: bool,
        severity: Severity,
        subject: &'static str,
        problem: impl FnOnce() -> (String, String),
    ) {
        let name = &self.name;
        self.findings.check(ok, severity, subject, name.clone(), || {
            let (problem, fix) = problem();
            (format!("{name} {problem}"), fix)
        });
    }

    fn problem(&mut self, severity: Severity, subject: &'static str, problem: &str, fix: &str) {
        self.check(false, severity, subject, || (problem.to_owned(), fix.to_owned()));
    }

    fn passed(&mut self, subject: &'static str) {
        self.findings.passed(subject, self.name.clone());
    }

    fn storage(&mut self) {
        self.check(self.config.storage != StorageType::Memory, Severity::Danger, "stream-storage", || {
            (
                "is in memory: all messages are lost when the server stops".to_owned(),
                "recreate it with storage `file`; the storage of a stream cannot be changed".to_owned(),
            )
        });
    }

    /// Checks whether the stream acknowledges messages, and only stored ones.
    fn acknowledgement(&mut self) {
        self.check(!self.config.no_ack, Severity::Danger, "stream-no-ack", || {
            let problem = "acknowledges no messages, so that none can be confirmed";
            (problem.to_owned(), "set `no_ack` to false".to_owned())
        });
        let is_async = self.config.persist_mode == Some(PersistenceMode::Async);
        self.check(!is_async, Severity::Danger, "stream-persist", || {
            let problem = "acknowledges messages before it stores them: a killed server loses confirmed messages";
            (problem.to_owned(), "recreate it with `persist_mode` `default`".to_owned())
        });
    }

    fn replicas(&mut self, server: &ServerState) {
        let fix = "set `num_replicas` to 3";
        match self.config.num_replicas {
            _ if server.server.cluster.is_none() => self.passed("stream-replicas"),
            0 | 1 => {
                let problem = "has one replica in a cluster and is lost with that server";
                self.problem(Severity::Danger, "stream-replicas", problem, fix);
            }
            2 => {
                let problem = "has two replicas: it is unavailable while one of the two servers is down";
                self.problem(Severity::Warning, "stream-replicas", problem, fix);
            }
            _ => self.passed("stream-replicas"),
        }
    }

    /// Checks whether a full stream refuses new messages and does not drop old ones.
    fn limits(&mut self) {
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
            let problem = format!("has `{name}` {limit} and drops its oldest messages at the limit, consumed or not");
            let fix =
                "set `discard` to `new` (for a limit per subject also `discard_new_per_subject`), or remove the limit";
            self.problem(Severity::Danger, "discard-old", &problem, fix);
        } else {
            self.passed("discard-old");
        }
        self.capacity(&limits);
        let age = self.config.max_age;
        let severity = if age < SHORT_RETENTION { Severity::Warning } else { Severity::Note };
        self.check(age.is_zero(), severity, "max-age", || {
            let problem = format!("deletes messages after {age:?}, consumed or not");
            (problem, "make `max_age` longer than any consumer can be down, or remove it".to_owned())
        });
    }

    /// Checks whether a full stream can have free space again.
    fn capacity(&mut self, limits: &[(&str, i64)]) {
        let limit = limits.iter().find(|(_, limit)| *limit > 0);
        let never_deletes = self.config.discard == DiscardPolicy::New
            && self.config.retention == RetentionPolicy::Limits
            && self.config.max_age.is_zero();
        match limit {
            Some((name, limit)) if never_deletes => {
                let problem = format!("has `{name}` {limit} and never deletes messages: once full, it stays full");
                let fix = "set `max_age`, or `retention` to `workqueue` or `interest`, or remove the limit";
                self.problem(Severity::Warning, "stream-fills", &problem, fix);
            }
            _ => self.passed("stream-fills"),
        }
    }

    /// Checks whether the bucket has space for every record.
    fn record_capacity(&mut self) {
        let limits = [("max_bytes", self.config.max_bytes), ("max_msgs", self.config.max_messages)];
        let limit = limits.into_iter().find(|(_, limit)| *limit > 0);
        let drops = self.config.discard == DiscardPolicy::Old;
        let fix = "remove the limit: the bucket has one record per lane and per consumer";
        match limit {
            Some((name, limit)) if drops => {
                let problem = format!(
                    "has `{name}` {limit} and drops lane records at the limit: acknowledged messages are then \
                     delivered again"
                );
                self.problem(Severity::Danger, "discard-old", &problem, fix);
            }
            _ => self.passed("discard-old"),
        }
        match limit {
            Some((name, limit)) if !drops => {
                let problem = format!("has `{name}` {limit}: once full, nothing is delivered or acknowledged");
                self.problem(Severity::Warning, "stream-fills", &problem, fix);
            }
            _ => self.passed("stream-fills"),
        }
    }

    fn retention(&mut self, subjects: &[String], server: &ServerState) {
        match self.config.retention {
            RetentionPolicy::Interest if !self.is_consumed(server) => {
                let problem = "has `retention = interest` and no consumers: the server acknowledges messages and \
                               drops them";
                let fix = "declare its groups before anything is published, or set `retention` to `limits`";
                self.problem(Severity::Danger, "stream-retention", problem, fix);
            }
            RetentionPolicy::Interest if !self.unconsumed_subjects(subjects, server).is_empty() => {
                let unwanted = join_limited(&self.unconsumed_subjects(subjects, server));
                let problem = format!(
                    "has `retention = interest` and no consumer for {unwanted}: the server acknowledges these \
                     messages and drops them"
                );
                let fix =
                    "declare a group for these subjects before anything is published, or set `retention` to `limits`";
                self.problem(Severity::Danger, "stream-retention", &problem, fix);
            }
            RetentionPolicy::Interest => {
                let problem = "has `retention = interest`: a group that is declared later misses earlier messages";
                self.problem(Severity::Note, "stream-retention", problem, "set `retention` to `limits`");
            }
            RetentionPolicy::WorkQueue => {
                let problem = "deletes a message when its one group has acknowledged it: it cannot be replayed";
                self.problem(Severity::Note, "stream-retention", problem, "set `retention` to `limits`");
            }
            RetentionPolicy::Limits => self.passed("stream-retention"),
        }
    }

    fn consumers<'s>(&self, server: &'s ServerState) -> impl Iterator<Item = &'s consumer::Config> {
        let own = server.consumers.iter().filter(|((stream, _), _)| *stream == self.config.name);
        own.map(|(_, info)| &info.config).filter(|config| config.durable_name.is_some())
    }

    fn is_consumed(&self, server: &ServerState) -> bool {
        self.consumers(server).next().is_some()
    }

    /// The subjects of routes that this stream stores and no durable consumer reads.
    fn unconsumed_subjects(&self, subjects: &[String], server: &ServerState) -> Vec<String> {
        let reads = |config: &consumer::Config, subject: &str| {
            let single = (!config.filter_subject.is_empty()).then_some(&config.filter_subject);
            let mut filters = single.into_iter().chain(&config.filter_subjects).peekable();
            let template = AddressTemplate::new(subject);
            filters.peek().is_none() || filters.any(|filter| template.can_match(&pattern_words(filter)))
        };
        let is_unconsumed = |subject: &&String| {
            super::stores_subject(self.config, subject) && !self.consumers(server).any(|config| reads(config, subject))
        };
        subjects.iter().filter(is_unconsumed).map(|subject| format!("`{subject}`")).collect()
    }
}
