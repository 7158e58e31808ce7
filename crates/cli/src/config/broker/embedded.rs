//! The embedded broker: its keys beside the code that they set.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_embedded::Config;
use relevo_core::BrokerAdapter;

use super::super::keys::{Key, Kind, NETWORK_FILE_SYSTEM};
use super::super::problem::Problem;
use super::super::resolved::Reader;
use super::super::settings::Path;

/// The keys of the embedded broker.
pub(crate) const EMBEDDED: &[Key] = &[
    Key::unset(
        "path",
        Kind::Text,
        "\"/var/lib/relevo/broker.db\"",
        "The SQLite file. Required. The broker creates it if it does not exist.",
    ),
    NETWORK_FILE_SYSTEM,
];

pub(super) fn resolve(reader: &mut Reader<'_>, path: &Path, _: Duration) -> Option<Arc<dyn BrokerAdapter>> {
    let Some(file) = reader.find_text(&path.name("path")) else {
        let problem = Problem::new(format!("`{path}` has no `path`"));
        reader.problem(path, problem.hint("the SQLite file of the embedded broker"));
        return None;
    };
    let allow_network_file_system = reader.boolean(&path.name(NETWORK_FILE_SYSTEM.name));
    super::adapter(reader, path, Config { allow_network_file_system, ..Config::new(file) })
}
