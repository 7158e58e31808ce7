//! Programs that `cargo xtask services up` installs.

use std::path::{Path, PathBuf};

/// The one that the variable names, or Debian's; a missing one fails the test.
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
