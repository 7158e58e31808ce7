//! What grows old is deleted, now and then and a little at a time.

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

/// How often it is looked for.
const EVERY: Duration = Duration::from_mins(10);
/// No round takes longer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Keeps tables and folder from growing without end, until `stop` is cancelled.
pub(super) struct Upkeep {
    desk: Arc<dyn Desk>,
    /// What, and how long it is kept.
    kept: [(Old, Duration); 2],
    /// Where e-mails are files: of whoever writes them, and kept as long as those in the database.
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

/// One round after the other until nothing old is left, or somebody says stop. A round that deletes less than `most` was the last.
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
                warn!(what, error = format!("{error:#}"), "what is old was not deleted, will try again");
                break;
            }
            Err(_) => {
                warn!(what, "what is old was not deleted in time, will try again");
                break;
            }
        }
    }
    if deleted > 0 {
        info!(what, deleted, "what was old is gone");
    }
}
