//! The user and the host of this process, and why an operator acts.

/// A text that is stored.
pub(crate) fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it is stored, and cannot be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// The user and the host.
pub(crate) fn user_at_host() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    let user = user.unwrap_or_else(|| "unknown".to_owned());
    relevo_host::machine_name().map_or_else(|| user.clone(), |host| format!("{user}@{host}"))
}
