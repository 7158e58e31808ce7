//! The operator and the reason of a recorded request.

/// A text that is stored.
pub(crate) fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it is stored, and cannot be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// The user and the host, as far as they are known.
pub(crate) fn user_at_host() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let host = host.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let user = user.unwrap_or_else(|| "unknown".to_owned());
    host.map_or_else(|| user.clone(), |host| format!("{user}@{host}"))
}
