//! E-mails as files in a folder, for whoever has no mail server: any mail program opens them.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::task::spawn_blocking;

use super::{Letter, Post, PostError, Receipt};

/// A folder of `.eml` files.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it if it is not there.
    pub async fn open(path: &Path) -> io::Result<Self> {
        let made = path.to_owned();
        spawn_blocking(move || std::fs::create_dir_all(made)).await??;
        Ok(Self(path.to_owned()))
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

/// All of it or nothing, under the letter's own name: a repeat replaces itself.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension("eml.part");
    std::fs::write(&unfinished, bytes)?;
    std::fs::File::open(&unfinished)?.sync_all()?;
    std::fs::rename(unfinished, file)
}

#[cfg(test)]
mod tests {
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
    async fn a_folder_that_cannot_be_written_is_away() {
        let path = std::env::temp_dir().join(format!("ticketflow-gone-{}", uuid::Uuid::now_v7()));
        let folder = Folder::open(&path).await.unwrap();
        std::fs::remove_dir_all(path).unwrap();
        let sent = folder.send(&letter(&event(RESOLVED)).unwrap()).await;
        assert!(matches!(sent, Err(PostError::Away(_))), "{sent:?}");
    }
}
