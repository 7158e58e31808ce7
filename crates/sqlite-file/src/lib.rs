//! Checks that the SQLite store and the embedded broker share: the identity of a file, whether its file
//! system is safe for a write-ahead log, and the meaning of SQLite's result codes.

mod file_system;
mod path;
mod result_code;

pub use file_system::{NetworkFileSystem, check_local, file_system_type, network_file_system};
pub use path::canonical_path;
pub use result_code::FileError;
