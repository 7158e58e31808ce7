//! Deletes old rows and files, periodically and in small batches.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Config, Mail};
use crate::desk::{Desk, Old, PRUNE_MAX};
use crate::mail::{FILES_MAX, Folder};

/// The interval.
const EVERY: Duration = Duration::from_mins(10);
/// The timeout of a batch.
const DEADLINE: Duration = Duration::from_secs(10);

/// Limits the growth of tables and the mail folder, until `stop` is cancelled.
pub(super) struct Upkeep {
    desk: Arc<dyn Desk>,
    /// The kinds of rows, with their retention.
    kept: [(Old, Duration); 2],
    /// The mail folder, if e-mails are files. They have the same retention as those in the database.
    folder: Option<(Folder, Duration)>,
}

impl Upkeep {
    pub(super) fn new(desk: Arc<dyn Desk>, config: &Config) -> Self {
        let retention = config.letters.retention;
        let kept = [(Old::Requests, config.limits.idempotency), (Old::Emails, retention)];
        let folder = match &config.mail {
            Mail::Folder(path) if config.role.works() => Some((Folder::at(path), retention)),
            Mail::Folder(_) | Mail::Smtp { .. } => None,
        };
        Self { desk, kept, folder }
    }

    pub(super) async fn run(self, stop: CancellationToken) -> Result<()> {
        let mut ticks = interval(EVERY);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            for (what, kept) in self.kept {
                let (desk, before) = (&self.desk, Timestamp::now() - kept);
                let (name, most) = (format!("{what:?}"), PRUNE_MAX.unsigned_abs());
                prune(&name, most, &stop, || async move { Ok(desk.prune(what, before).await?) }).await;
            }
            if let Some((folder, kept)) = &self.folder {
                let before = Timestamp::now() - *kept;
                prune("Files", FILES_MAX, &stop, || async move { Ok(folder.prune(before).await?) }).await;
            }
        }
    }
}

/// Deletes batches until nothing old is left, or until `stop` is cancelled. A batch with less than `most` was the last.
async fn prune<F: Future<Output = Result<u64>>>(
    what: &str,
    most: u64,
    stop: &CancellationToken,
    mut round: impl FnMut() -> F,
) {
    let mut deleted = 0;
    while !stop.is_cancelled() {
        match timeout(DEADLINE, round()).await {
            Ok(Ok(gone)) => {
                deleted += gone;
                if gone < most {
                    break;
                }
            }
            Ok(Err(error)) => {
                warn!(what, error = format!("{error:#}"), "old data was not deleted, will retry");
                break;
            }
            Err(_) => {
                warn!(what, "old data was not deleted in time, will retry");
                break;
            }
        }
    }
    if deleted > 0 {
        info!(what, deleted, "old data was deleted");
    }
}
