//! What the SQLite store and the embedded broker both need to know of a SQLite file: whether its file system is safe for
//! a write-ahead log, and what SQLite's result codes mean.

mod file_system;
mod result_code;

pub use file_system::{NetworkFileSystem, check_local, file_system_type, network_file_system};
pub use result_code::FileError;
