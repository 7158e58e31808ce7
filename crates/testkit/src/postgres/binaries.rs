//! The installed programs of each version.

use std::path::{Path, PathBuf};

use super::PgVersion;

const DEBIAN_15: &str = "/usr/lib/postgresql/15/bin";

/// The path of a program. If it is not installed, panics with the command that installs it.
pub(super) fn program(version: PgVersion, name: &str) -> PathBuf {
    let path = directory(version).join(name);
    assert!(
        path.exists(),
        "PostgreSQL {} has no `{name}` here; only Debian's 15 brings the client tools (`cargo xtask services up` installs it)",
        version.major()
    );
    path
}

fn directory(version: PgVersion) -> PathBuf {
    let variable = version.bin_variable();
    if let Some(directory) = std::env::var_os(variable) {
        return directory.into();
    }
    assert!(
        version == PgVersion::V15 && Path::new(DEBIAN_15).exists(),
        "no programs of PostgreSQL {}: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`",
        version.major()
    );
    DEBIAN_15.into()
}
