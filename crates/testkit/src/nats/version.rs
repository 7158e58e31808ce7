/// The versions that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatsVersion {
    /// Debian 12's, which knows nothing of what came with 2.10 and later.
    V2_9,
    /// The newest.
    V2_15,
}

impl NatsVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 2] = [Self::V2_9, Self::V2_15];

    /// The number, without the patch.
    pub fn number(self) -> &'static str {
        match self {
            Self::V2_9 => "2.9",
            Self::V2_15 => "2.15",
        }
    }

    /// The environment variable that names the shared server.
    pub(super) fn url_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_URL",
            Self::V2_15 => "RELEVO_TEST_NATS_URL",
        }
    }

    /// The environment variable that names the program.
    pub(super) fn bin_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_BIN",
            Self::V2_15 => "RELEVO_TEST_NATS_BIN",
        }
    }
}
