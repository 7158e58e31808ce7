//! Checks that only a few places name a concrete broker adapter. Everything else uses `BrokerAdapter`.

use std::path::Path;

use super::Finding;

// Written in two halves so that the check does not find itself.
const ADAPTERS: [&str; 3] =
    [concat!("relevo_", "broker_embedded"), concat!("relevo_", "broker_rabbitmq"), concat!("relevo_", "broker_nats")];

/// Where adapters may be named, with the reason.
const ALLOWED: [(&str, &str); 6] = [
    ("crates/brokers/", "the adapters themselves"),
    ("crates/host/src/registry.rs", "the registry"),
    ("crates/relevo/src/lib.rs", "re-exports them for services"),
    ("crates/cli/src/dev", "the demo is built on the embedded broker"),
    ("crates/bench/", "measures each adapter against its client library"),
    ("crates/torture/", "starts, breaks and inspects each server"),
];

pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let path = file.to_string_lossy();
    let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs" || part == "examples";
    if ALLOWED.iter().any(|(allowed, _)| path.starts_with(allowed))
        || file.components().any(|part| is_test(part.as_os_str()))
    {
        return Vec::new();
    }
    let code = text.lines().enumerate().take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"));
    let named = code.filter(|(_, line)| ADAPTERS.iter().any(|adapter| line.contains(adapter)));
    named
        .map(|(index, _)| Finding {
            file: file.to_owned(),
            line: index + 1,
            problem: "only the registry names an adapter: use `BrokerAdapter` of `relevo_core`".to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_found_outside_of_the_registry() {
        let text = format!("use {}::Config;\n#[cfg(test)]\nuse {}::Config;\n", ADAPTERS[1], ADAPTERS[2]);
        let lines = |file: &str| check(Path::new(file), &text).into_iter().map(|it| it.line).collect::<Vec<_>>();
        assert_eq!(lines("crates/cli/src/run/link.rs"), [1]);
        assert_eq!(lines("crates/host/src/registry.rs"), [0; 0]);
        assert_eq!(lines("crates/cli/src/config/tests.rs"), [0; 0]);
        assert_eq!(lines("crates/inbox/examples/billing.rs"), [0; 0]);
    }
}
