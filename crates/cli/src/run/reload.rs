//! What a reloaded configuration changes in a running process.

use std::collections::BTreeSet;
use std::sync::Arc;

use relevo_config::Problem;
use relevo_observe::RelayMonitor;
use tracing::{error, info, warn};

use crate::config::{Loaded, Problems};

/// Applies the routes of a valid configuration. Returns whether it was valid.
pub(crate) fn reload(old: &Loaded, new: &Result<Loaded, Problems>, relays: &[Arc<RelayMonitor>]) -> bool {
    let new = match new {
        Ok(new) => new,
        Err(problems) => {
            warn_of(&problems.warnings);
            for Problem { reason, place, hint } in problems.iter() {
                let place = place.as_ref().map(ToString::to_string);
                error!(problem = reason, place, hint, "the configuration is wrong");
            }
            error!(problems = problems.len(), "configuration reload rejected, nothing changed");
            return false;
        }
    };
    warn_of(&new.warnings);
    let mut exchanged = 0;
    for outbox in &new.config.outboxes {
        for destination in &outbox.destinations {
            let is_same = |relay: &&Arc<RelayMonitor>| {
                relay.labels().outbox == outbox.name && relay.labels().destination == destination.name
            };
            let relay = relays.iter().find(is_same);
            if relay.is_some_and(|relay| relay.replace_routes(&destination.relay.routes)) {
                info!(outbox = %outbox.name, destination = %destination.name, "new routes");
                exchanged += 1;
            }
        }
    }
    let waiting = needs_restart(old, new);
    if !waiting.is_empty() {
        let keys = waiting.into_iter().collect::<Vec<_>>().join(", ");
        warn!(%keys, "changes that need a restart were ignored");
    }
    info!(exchanged, "configuration reloaded");
    true
}

/// Logs settings that look wrong.
pub(crate) fn warn_of(warnings: &[Problem]) {
    for Problem { reason, hint, .. } in warnings {
        warn!(problem = reason, hint, "configuration warning");
    }
}

/// The keys that differ and are read only at start-up.
fn needs_restart(old: &Loaded, new: &Loaded) -> BTreeSet<String> {
    let values = |loaded: &Loaded| -> Vec<(String, String)> {
        let settings = loaded.settings.iter().filter(|setting| !setting.path.is_in_list());
        settings.map(|setting| (setting.path.to_string(), setting.value.to_string())).collect()
    };
    let (before, after): (BTreeSet<_>, BTreeSet<_>) =
        (values(old).into_iter().collect(), values(new).into_iter().collect());
    let mut keys: BTreeSet<String> = before.symmetric_difference(&after).map(|(key, _)| key.clone()).collect();
    // Settings show all secrets alike, without their values or the contents of their files and variables.
    for outbox in &old.config.outboxes {
        let same = new.config.outboxes.iter().find(|it| it.name == outbox.name);
        let Some(new) = same else { continue };
        if new.store_config.url != outbox.store_config.url {
            keys.insert(format!("outboxes.{}.database", outbox.name));
        }
        for destination in &outbox.destinations {
            let same = new.destinations.iter().find(|it| it.name == destination.name);
            let at = format!("outboxes.{}.destinations.{}.broker", outbox.name, destination.name);
            // A key below it that is already listed is more precise.
            let named = keys.iter().any(|key| key.starts_with(&at));
            if !named && same.is_some_and(|new| !new.broker.adapter.is_same_broker(&*destination.broker.adapter)) {
                keys.insert(at);
            }
        }
    }
    if old.config.admin.token != new.config.admin.token {
        keys.insert("admin.token".to_owned());
    }
    keys
}
