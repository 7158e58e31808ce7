//! The meaning of SQLite's result codes: <https://www.sqlite.org/rescode.html>.

use sqlx::error::DatabaseError;

// Primary result codes, by SQLite's names.
const ERROR: u32 = 1;
const PERM: u32 = 3;
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const READONLY: u32 = 8;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const PROTOCOL: u32 = 15;
const NOTADB: u32 = 26;
// Extended ones.
const READONLY_DBMOVED: u32 = READONLY | 4 << 8;
const IOERR_SHORT_READ: u32 = IOERR | 2 << 8;
const IOERR_DATA: u32 = IOERR | 32 << 8;
const IOERR_CORRUPTFS: u32 = IOERR | 33 << 8;

/// A problem with the file that SQLite reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// Another connection has the lock. Nothing was written.
    Locked,
    /// The disk or the quota is full. Nothing was written.
    DiskFull,
    /// The file cannot be opened. Nothing was written.
    CannotOpen,
    /// The file, its directory or its file system cannot be written.
    ReadOnly,
    /// Another file replaced this one while it was open.
    FileReplaced,
    /// Pages contradict each other, or the file is too short.
    Corrupt,
    /// The file is not a SQLite database.
    NotADatabase,
    /// A read or a write failed. It may have been written.
    Io,
    /// A table or a column is missing.
    MissingTable,
}

impl FileError {
    /// Classifies an error of the driver. `None` if it is not about the file, or unknown.
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        let database = error.as_database_error()?;
        Self::of_code(code(database)?).or_else(|| is_missing_table(database).then_some(Self::MissingTable))
    }

    fn of_code(code: u32) -> Option<Self> {
        // The low byte of an extended code is its primary code.
        match (code & 0xff, code) {
            // A process that recovers the write-ahead log holds its lock for a moment: PROTOCOL.
            (BUSY | LOCKED | PROTOCOL, _) => Some(Self::Locked),
            (FULL, _) => Some(Self::DiskFull),
            (CANTOPEN, _) => Some(Self::CannotOpen),
            (_, READONLY_DBMOVED) => Some(Self::FileReplaced),
            (READONLY | PERM, _) => Some(Self::ReadOnly),
            (NOTADB, _) => Some(Self::NotADatabase),
            (CORRUPT, _) | (_, IOERR_SHORT_READ | IOERR_CORRUPTFS | IOERR_DATA) => Some(Self::Corrupt),
            (IOERR, _) => Some(Self::Io),
            _ => None,
        }
    }
}

fn code(error: &dyn DatabaseError) -> Option<u32> {
    error.code()?.parse().ok()
}

/// SQLite has no result code of its own for these.
fn is_missing_table(error: &dyn DatabaseError) -> bool {
    let message = error.message();
    code(error) == Some(ERROR)
        && (message.starts_with("no such table")
            || message.contains("no such column")
            || message.contains("has no column"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extended_code_counts_as_its_primary_code_unless_it_has_its_own_meaning() {
        let cases = [
            (5, Some(FileError::Locked)),
            (261, Some(FileError::Locked)),
            (15, Some(FileError::Locked)),
            (13, Some(FileError::DiskFull)),
            (14, Some(FileError::CannotOpen)),
            (8, Some(FileError::ReadOnly)),
            (1032, Some(FileError::FileReplaced)),
            (11, Some(FileError::Corrupt)),
            (522, Some(FileError::Corrupt)),
            (26, Some(FileError::NotADatabase)),
            (10, Some(FileError::Io)),
            (778, Some(FileError::Io)),
            (1, None),
            (19, None),
        ];
        for (code, expected) in cases {
            assert_eq!(FileError::of_code(code), expected, "{code}");
        }
    }
}
