/// The major versions that the tests run on: the oldest supported, Debian's, and the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PgVersion {
    /// The oldest supported version.
    V13,
    /// The version in Debian 12. Only this one has client tools (`pg_dump`, `pg_basebackup`).
    V15,
    /// The newest version.
    V18,
}

impl PgVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 3] = [Self::V13, Self::V15, Self::V18];

    /// The major version number.
    pub fn major(self) -> u32 {
        match self {
            Self::V13 => 13,
            Self::V15 => 15,
            Self::V18 => 18,
        }
    }

    /// The environment variable with the URL of the shared server.
    pub(super) fn url_variable(self) -> &'static str {
        match self {
            Self::V13 => "RELEVO_TEST_POSTGRES_13_URL",
            Self::V15 => "RELEVO_TEST_POSTGRES_URL",
            Self::V18 => "RELEVO_TEST_POSTGRES_18_URL",
        }
    }

    /// The environment variable with the directory of `initdb` and `pg_ctl`.
    pub(super) fn bin_variable(self) -> &'static str {
        match self {
            Self::V13 => "RELEVO_TEST_POSTGRES_13_BIN",
            Self::V15 => "RELEVO_TEST_POSTGRES_15_BIN",
            Self::V18 => "RELEVO_TEST_POSTGRES_18_BIN",
        }
    }
}
