//! NATS with JetStream.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::marked::{Kind, Prepared, Probe};
use crate::port::free_port;

#[derive(Clone, Copy)]
pub(crate) enum Version {
    /// The version in Debian.
    V2_9,
    /// The newest version.
    V2_15,
}

impl Version {
    pub(crate) fn number(self) -> &'static str {
        match self {
            Self::V2_9 => "2.9",
            Self::V2_15 => "2.15",
        }
    }

    pub(crate) fn url_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_URL",
            Self::V2_15 => "RELEVO_TEST_NATS_URL",
        }
    }

    pub(crate) fn bin_variable(self) -> &'static str {
        match self {
            Self::V2_9 => "RELEVO_TEST_NATS_2_9_BIN",
            Self::V2_15 => "RELEVO_TEST_NATS_BIN",
        }
    }
}

/// A server that is started from `program`.
pub(crate) struct Nats {
    pub(crate) program: PathBuf,
    /// More settings for the `jetstream` block.
    pub(crate) jetstream: &'static str,
}

impl Kind for Nats {
    fn prepare(&self, directory: &Path) -> Result<Prepared> {
        let (client, monitor) = (free_port()?, free_port()?);
        let settings = format!(
            "listen: 127.0.0.1:{client}\nhttp: 127.0.0.1:{monitor}\njetstream {{ store_dir: \"{}/data\"\n{}\n}}\n",
            directory.display(),
            self.jetstream,
        );
        let file = directory.join("nats.conf");
        std::fs::write(&file, settings)?;
        let mut command = Command::new("sh");
        // The server outlives the process that starts it. An inherited pipe or lock would stay open for that long.
        command.args(["-c", "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec \"$@\"", "sh"]);
        command.arg(&self.program).arg("-c").arg(file);
        Ok(Prepared {
            command,
            probes: vec![Probe::http(monitor, "/healthz", "")],
            urls: vec![format!("nats://127.0.0.1:{client}")],
        })
    }
}
