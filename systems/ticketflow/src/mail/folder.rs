//! E-mails as files in a folder, for use without a mail server. Any mail program opens them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::task::spawn_blocking;

use super::{Letter, Post, PostError, Receipt};

/// The maximum number of files that [`Folder::prune`] deletes.
pub const FILES_MAX: u64 = 1000;

/// A folder of `.eml` files.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates the folder if it does not exist.
    pub async fn open(path: &Path) -> io::Result<Self> {
        let made = path.to_owned();
        spawn_blocking(move || std::fs::create_dir_all(made)).await??;
        Ok(Self(path.to_owned()))
    }

    /// A folder that another process creates.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Deletes at most [`FILES_MAX`] e-mails and unfinished files from before this time. Returns their number. Other files are not
    /// touched.
    pub async fn prune(&self, before: Timestamp) -> io::Result<u64> {
        let folder = self.0.clone();
        spawn_blocking(move || prune(&folder, before.into())).await?
    }
}

#[async_trait]
impl Post for Folder {
    async fn send(&self, letter: &Letter) -> Result<Receipt, PostError> {
        let bytes = letter.message()?.formatted();
        let file = self.0.join(format!("{}.eml", letter.message_id));
        let receipt = Receipt(file.display().to_string());
        let written = spawn_blocking(move || write(&file, &bytes)).await.map_err(io::Error::other);
        match written.and_then(|result| result) {
            Ok(()) => Ok(receipt),
            Err(error) => Err(PostError::Away(error.to_string())),
        }
    }
}

/// Writes a file completely or not at all, under the letter's name: a repeat overwrites it.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension("eml.part");
    std::fs::write(&unfinished, bytes)?;
    File::open(&unfinished)?.sync_all()?;
    std::fs::rename(unfinished, file)?;
    // Flushes the directory: otherwise a power failure may lose a letter that was recorded as sent.
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn prune(folder: &Path, before: SystemTime) -> io::Result<u64> {
    let mut deleted = 0;
    let Some(files) = unless_gone(std::fs::read_dir(folder))? else { return Ok(0) };
    for file in files {
        let file = file?.path();
        if is_ours(&file) && unless_gone(delete_old(&file, before))? == Some(true) {
            deleted += 1;
        }
        if deleted == FILES_MAX {
            break;
        }
    }
    Ok(deleted)
}

/// Whether it is an e-mail or an unfinished one.
fn is_ours(file: &Path) -> bool {
    let ends = |file: &Path, extension: &str| file.extension().is_some_and(|found| found == extension);
    ends(file, "eml") || (ends(file, "part") && file.file_stem().is_some_and(|stem| ends(Path::new(stem), "eml")))
}

/// Returns whether it was old.
fn delete_old(file: &Path, before: SystemTime) -> io::Result<bool> {
    let seen = std::fs::symlink_metadata(file)?;
    let is_old = seen.is_file() && seen.modified()? < before;
    if is_old {
        std::fs::remove_file(file)?;
    }
    Ok(is_old)
}

/// Several workers may prune one folder, so a file may be deleted already.
fn unless_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::mail::letter::tests::{RESOLVED, event, letter};

    #[tokio::test]
    async fn a_repeat_replaces_itself() {
        let path = std::env::temp_dir().join(format!("ticketflow-mail-{}", uuid::Uuid::now_v7()));
        let (folder, letter) = (Folder::open(&path).await.unwrap(), letter(&event(RESOLVED)).unwrap());
        let first = folder.send(&letter).await.unwrap();
        assert_eq!(folder.send(&letter).await.unwrap(), first);
        let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["00000000-0000-0000-0000-00000000012c@ticketflow.example.eml"]);
        assert_eq!(std::fs::read(first.0).unwrap(), letter.message().unwrap().formatted());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_unavailable() {
        let path = std::env::temp_dir().join(format!("ticketflow-gone-{}", uuid::Uuid::now_v7()));
        let folder = Folder::open(&path).await.unwrap();
        std::fs::remove_dir_all(path).unwrap();
        let sent = folder.send(&letter(&event(RESOLVED)).unwrap()).await;
        assert!(matches!(sent, Err(PostError::Away(_))), "{sent:?}");
    }

    #[tokio::test]
    async fn old_letters_are_deleted_a_little_at_a_time_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("ticketflow-old-{}", uuid::Uuid::now_v7()));
        let folder = Folder::open(&path).await.unwrap();
        let before: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let old = before - Duration::from_secs(1);
        let put = |name: &str, at: Timestamp| {
            File::create(path.join(name)).unwrap().set_modified(at.into()).unwrap();
        };
        for number in 1..FILES_MAX {
            put(&format!("{number}@ticketflow.example.eml"), old);
        }
        put("cut-short@ticketflow.example.eml.part", old);
        put("last@ticketflow.example.eml", old);
        put("young.eml", before);
        put("young.eml.part", before + Duration::from_secs(1));
        put("other.part", old);
        put("other.txt", old);
        let mut deleted = Vec::new();
        for _ in 0..3 {
            deleted.push(folder.prune(before).await.unwrap());
        }
        assert_eq!(deleted, [FILES_MAX, 1, 0]);
        let mut left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, ["other.part", "other.txt", "young.eml", "young.eml.part"]);
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(folder.prune(before).await.unwrap(), 0, "no old ones are left");
    }
}
