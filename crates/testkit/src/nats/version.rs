/// The versions that the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatsVersion {
    /// The version in Debian 12. It lacks the features that 2.10 and later added.
    V2_9,
    /// The newest version.
    V2_15,
}

impl NatsVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 2] = [Self::V2_9, Self::V2_15];

    /// The version number without the patch level.
    pub fn number(self) -> &'static str {
        match self {
            Self::V2_9 => "2.9",
            Self::V2_15 => "2.15",
        }
    }

    /// The environment variable with the URL of the shared server.
    pub(super) fn url_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_URL",
            Self::V2_15 => "RELEVO_TEST_NATS_URL",
        }
    }

    /// The environment variable with the path of the program.
    pub(super) fn bin_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_BIN",
            Self::V2_15 => "RELEVO_TEST_NATS_BIN",
        }
    }
}
