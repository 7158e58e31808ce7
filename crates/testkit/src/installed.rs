//! Programs that `cargo xtask services up` installs.

use std::path::{Path, PathBuf};

/// The program that the variable names, otherwise Debian's. Panics if it is not installed.
pub(crate) fn program(variable: &str, debian: &str) -> PathBuf {
    if let Some(program) = std::env::var_os(variable) {
        return program.into();
    }
    assert!(
        Path::new(debian).exists(),
        "no `{debian}`: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`"
    );
    debian.into()
}
